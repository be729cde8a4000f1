"""What to ask a new user: errors of held-out users after some questions, by the strategy that chose them.

A strategy asks for one item after the other, and every answer is folded in before the next question. Answers are the
user's support ratings, errors are those of the query rows, which are never asked for. Two settings: (a) every question
can be answered, since only the user's own support items are asked for; (b) any item may be asked for, and one that the
user does not know costs a question, too.

    python -m benchmarks.questions [DATA [METHOD [SPLIT]]]     a prepared data set instead of the embedded one
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import paml
from paml.analysis.tests import mean_interval
from paml.episodes.batches import RowBlock
from paml.episodes.features import FeatureTable
from paml.episodes.tasks import Block, TaskBatch, Tasks
from paml.evaluation.scoring import Split
from paml.methods.learner import Adapted, Learner
from paml.recommend.elicitation import gains
from paml.recommend.familiarity import MIN_CHANCE
from paml.recommend.predictor import Predictor
from paml.recommend.requests import NewUser
from paml.training.allocator import keep_freed_memory

USERS_AT_ONCE = 32
RANDOM_ORDERS = 3
ASKED = {"a": (0, 1, 3, 5, 10), "b": (0, 1, 3, 5, 10, 20)}
TITLES = {"a": "every question is answered", "b": "unknown items cost a question"}
REFERENCE = {"a": "random", "b": "most popular"}


Pairs = list[tuple[Learner, Adapted]]


@dataclass(frozen=True)
class State:
    """B users after some questions: the ensemble adapted to the answers, and what is known of each item."""

    predictor: Predictor
    adapted: Callable[[], Pairs]
    known_BI: np.ndarray
    declined_BI: np.ndarray
    dispute_I: np.ndarray
    """log(number of ratings) * their standard deviation, a common rule of thumb."""
    rng: np.random.Generator

    @property
    def shape(self) -> tuple[int, int]:
        """Users and items."""
        users, items = self.known_BI.shape
        return users, items

    @property
    def share_I(self) -> Tensor:
        """Share of the training users that know an item."""
        return self.predictor.catalogue.familiarity.share_I

    @cached_property
    def chance_BI(self) -> Tensor:
        """How likely each user knows each item."""
        told_BI = self.known_BI | self.declined_BI
        most = int(told_BI.sum(axis=1).max(initial=1))
        index_BA = np.argsort(~told_BI, axis=1, kind="stable")[:, : max(most, 1)]
        known_BA, told_BA = (np.take_along_axis(x, index_BA, axis=1) for x in (self.known_BI, told_BI))
        return self.predictor.catalogue.familiarity.chances(
            torch.from_numpy(index_BA), torch.from_numpy(known_BA).float(), torch.from_numpy(told_BA).float()
        )

    def gains(self, chance_BI: Tensor) -> Tensor:
        """The criterion, by the chances that are given."""
        users, items = self.shape
        return gains(self.adapted(), self.predictor.block(torch.arange(items), None, users), chance_BI)


Strategy = Callable[[State], Tensor | np.ndarray]
COMMON: dict[str, Strategy] = {
    "random": lambda state: state.rng.random(state.shape),
    "most popular": lambda state: state.share_I.expand(state.shape),
    "popular and disputed": lambda state: np.broadcast_to(state.dispute_I, state.shape),
}
STRATEGIES: dict[str, dict[str, Strategy]] = {
    "a": COMMON | {"next_question, all known": lambda state: state.gains(state.chance_BI) / state.chance_BI},
    "b": COMMON
    | {
        "likeliest known": lambda state: state.chance_BI,
        "gain x popularity": lambda state: state.gains(state.share_I.clamp(min=MIN_CHANCE).expand(state.shape)),
        "next_question": lambda state: state.gains(state.chance_BI),
    },
}


class Interview:
    """Held-out users of a data set, asked by any strategy."""

    def __init__(self, run: paml.Run, data: paml.Dataset, split: Split) -> None:
        self._predictor, self._tasks = run.predictor, Tasks.of(data, split)
        self._item, self._target = np.asarray(data.array("item")), np.asarray(data.array("target"))
        self._users, self._items = FeatureTable.of(data, "user", run.ensemble.inputs), data.manifest.items
        end = int(data.array("offsets")[data.manifest.splits["train"][1]])
        count_I = np.bincount(self._item[:end], minlength=self._items).clip(1)
        first_I, second_I = (
            np.bincount(self._item[:end], self._target[:end] ** power, self._items) / count_I for power in (1, 2)
        )
        self._dispute_I = np.log(count_I) * (second_I - first_I**2).clip(0) ** 0.5
        self._template = run.predictor.batch([NewUser()])

    def errors(self, strategy: Strategy, setting: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """MSE of every user, and number of answers, (steps, U)."""
        rng = np.random.default_rng(seed)
        parts = [self._ask(batch, strategy, setting, rng) for batch in self._batches()]
        errors, answers = zip(*parts, strict=True)
        return np.concatenate(errors, axis=1), np.concatenate(answers, axis=1)

    def error_of_all_answers(self) -> float:
        """Mean over users of the MSE if all support rows are known."""
        parts = [self._error(self._adapted(batch.user_B, batch.support), batch.query) for batch in self._batches()]
        return float(np.concatenate(parts).mean())

    def _batches(self) -> Iterator[TaskBatch]:
        return self._tasks.stored(USERS_AT_ONCE)

    @torch.no_grad()
    def _ask(
        self, batch: TaskBatch, strategy: Strategy, setting: str, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """One batch of users from the first question to the last."""
        users, steps = np.arange(len(batch.user_B)), ASKED[setting]
        row_BI = np.full((len(users), self._items), -1)  # the row that answers a question, if any
        row_BI[self._places(batch.support)] = batch.support.row_BL[batch.support.mask_BL]
        open_BI = row_BI >= 0 if setting == "a" else np.ones_like(row_BI, dtype=bool)
        open_BI[self._places(batch.query)] = False
        known_BI, declined_BI = np.zeros_like(open_BI), np.zeros_like(open_BI)
        answer_BA, count_B = np.zeros((len(users), steps[-1]), dtype=np.int64), np.zeros_like(users)
        errors, answers = [], []
        for step in range(steps[-1] + 1):
            mask_BA = np.arange(max(count_B.max(), 1)) < count_B[:, None]
            adapted = partial(self._adapted, batch.user_B, Block(answer_BA[:, : mask_BA.shape[1]], mask_BA))
            if step in steps:
                errors.append(self._error(adapted(), batch.query))
                answers.append(count_B.copy())
            if step == steps[-1]:
                break
            state = State(self._predictor, adapted, known_BI, declined_BI, self._dispute_I, rng)
            pick_B = np.where(open_BI, np.asarray(strategy(state)), -np.inf).argmax(axis=1)
            asked_B = open_BI[users, pick_B]  # not those who have answered all there is
            told_B = asked_B & (row_BI[users, pick_B] >= 0)
            answer_BA[users[told_B], count_B[told_B]] = row_BI[users, pick_B][told_B]
            count_B = count_B + told_B
            known_BI[users, pick_B] |= told_B
            declined_BI[users, pick_B] |= asked_B & ~told_B
            open_BI[users, pick_B] = False
        return np.stack(errors), np.stack(answers)

    def _places(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        """User and item of the block's rows."""
        return block.mask_BL.nonzero()[0], self._item[block.row_BL[block.mask_BL]]

    def _adapted(self, user_B: np.ndarray, support: Block) -> Pairs:
        block = self._rows(support)
        batch = replace(self._template, users=self._users.rows(user_B), support=block)
        members = self._predictor.members
        return [(member.learner, member.adapt(batch)) for member in members]

    def _rows(self, block: Block) -> RowBlock:
        item_BL = torch.from_numpy(self._item[block.row_BL].astype(np.int64))
        return RowBlock(
            item_BL, None, torch.from_numpy(self._target[block.row_BL]).float(), torch.from_numpy(block.mask_BL).float()
        )

    @torch.no_grad()
    def _error(self, adapted: Pairs, query: Block) -> np.ndarray:
        rows = self._rows(query)
        parts = [learner.head.predict(learner.outputs(one, rows)) for learner, one in adapted]
        squared_BQ = (torch.stack(parts).mean(dim=0) - rows.y_BR) ** 2 * rows.mask_BR
        error_B: np.ndarray = (squared_BQ.sum(dim=1) / rows.mask_BR.sum(dim=1)).numpy()
        return error_B


def main(path: str | None = None, method: str = "ridge", split: Split = "test") -> None:
    """Train on a data set, and print the table of both settings."""
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        data = paml.Dataset.open(path) if path else paml.prepare("synthetic", out=Path(folder) / "data")
        run = paml.train(data, method, out=Path(folder) / "run", epochs=6, ensemble_size=2)
        interview = Interview(run, data, split)
        name = data.manifest.source.name
        print(f"{name}, {method}, {len(Tasks.of(data, split)):,} {split} users: mean of the users' MSE")
        print(f"all support ratings known: {interview.error_of_all_answers():.4f}")
        for setting in ASKED:
            print_table(interview, setting)


def print_table(interview: Interview, setting: str) -> None:
    """One line per strategy; differences from the reference with 95 % intervals over users (BCa bootstrap)."""
    found = {}
    for name, strategy in STRATEGIES[setting].items():
        orders = [interview.errors(strategy, setting, seed) for seed in range(RANDOM_ORDERS if name == "random" else 1)]
        errors, answers = (np.mean(part, axis=0) for part in zip(*orders, strict=True))
        found[name] = errors, answers
        print(f"  {name}: done", file=sys.stderr)
    print(f"\n({setting}) {TITLES[setting]}; in brackets: difference from '{REFERENCE[setting]}'; answers\n")
    print("| questions | " + " | ".join(map(str, ASKED[setting])) + " |")
    print("|---" * (len(ASKED[setting]) + 1) + "|")
    reference, _ = found[REFERENCE[setting]]
    for name, (errors, answers) in found.items():
        cells = []
        for k, step in enumerate(ASKED[setting]):
            cell = f"{errors[k].mean():.4f}"
            interval = mean_interval(errors[k] - reference[k], np.random.default_rng(0))
            if step and name != REFERENCE[setting] and interval is not None:
                cell += f" [{interval.low:+.4f}, {interval.high:+.4f}]"
            cells.append(cell if setting == "a" or not step else f"{cell} {answers[k].mean():.1f}")
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
