"""What to ask a new user: errors and lists of held-out users after some questions, by the strategy that chose them.

A strategy asks for one item after the other, and every answer is folded in before the next question. Answers are the
user's support ratings, and query rows are never asked for. Two settings: (a) every question can be answered, since only
the user's own support items are asked for; (b) any item may be asked for, and one that the user does not know costs a
question, too. Judged are the squared error of the query rows, and the list by preference: all items but the stored
support set, whatever was asked for, with the liked query rows as relevant ones. All strategies have the same users.

    python -m benchmarks.questions [PATH] [--method M] [--split S] [--users N]

PATH is a run or, to train a small one first, a prepared data set; without it, the embedded data set is used.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import paml
from paml.analysis.tests import mean_interval
from paml.episodes.batches import RowBlock, SupportBatch
from paml.episodes.features import FeatureTable
from paml.episodes.tasks import Block, TaskBatch, Tasks
from paml.evaluation.ranking import discounted_gain, rank_users, recall
from paml.evaluation.scoring import Split
from paml.methods.learner import Adapted, Learner
from paml.recommend.elicitation import MAX_MEMBERS, gains
from paml.recommend.members import AdaptedUsers
from paml.recommend.predictor import Predictor
from paml.recommend.requests import NewUser
from paml.training.allocator import keep_freed_memory

USERS_AT_ONCE = 32
USERS = 200
RANDOM_ORDERS = 3
ASKED = (0, 1, 2, 3, 5, 10)
TITLES = {"a": "every question is answered", "b": "unknown items cost a question"}
REFERENCE = {"a": "random", "b": "most popular"}
ROUNDING = 1e-9  # differences of a mean of random orders that are none
METRICS = {"mse": ("MSE", 3), "ndcg": ("nDCG@10", 4), "recall": ("recall@20", 4)}
"""Label, and digits that are printed."""

Pairs = list[tuple[Learner, Adapted]]
Found = dict[str, np.ndarray]
"""A number for every step and user, by metric, and how many answers there were."""


@dataclass(frozen=True)
class State:
    """B users after some questions: what is known about them, the parts of the run adapted to it, and their lists."""

    predictor: Predictor
    batch: SupportBatch
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

    @cached_property
    def adapted(self) -> Pairs:
        """The run, or its part that predicts ratings."""
        return [(member.learner, member.adapt(self.batch)) for member in self.predictor.members]

    @cached_property
    def chooser(self) -> Pairs:
        """The part that knows about choice; without one, the whole run."""
        part = self.predictor.choice
        if part is None:
            return self.adapted
        return [(member.learner, member.adapt(self.batch)) for member in part.members]

    @cached_property
    def rating_BI(self) -> Tensor | None:
        """Predicted ratings of all items, if the run predicts any."""
        users = AdaptedUsers(tuple(one for _, one in self.adapted))
        return self.predictor.score_all(users) if self.predictor.rates else None

    @cached_property
    def choice_BI(self) -> Tensor:
        """Log chances of being chosen, but for a constant of the user."""
        users = AdaptedUsers(tuple(one for _, one in self.chooser))
        return (self.predictor.choice or self.predictor).score_all(users)

    @cached_property
    def score_BI(self) -> Tensor:
        """What lists are ordered by."""
        preference, rating_BI = self.predictor.preference, self.rating_BI
        if preference is not None:
            return preference.score(self.batch, self.choice_BI, rating_BI)
        assert rating_BI is not None  # a run without choice predicts ratings
        return rating_BI

    def gains(self, part: Pairs) -> Tensor:
        """The criterion by a part of the run, and by as many of its members as `next_question` asks."""
        users, items = self.shape
        return gains(part[:MAX_MEMBERS], self.predictor.block(torch.arange(items), None, users), self.chance_BI)


Strategy = Callable[[State], Tensor | np.ndarray]
COMMON: dict[str, Strategy] = {
    "random": lambda state: state.rng.random(state.shape),
    "most popular": lambda state: state.share_I.expand(state.shape),
    "popular and disputed": lambda state: np.broadcast_to(state.dispute_I, state.shape),
    "top of the list": lambda state: state.score_BI,
}
STRATEGIES: dict[str, dict[str, Strategy]] = {
    "a": COMMON
    | {
        "gain of ratings": lambda state: state.gains(state.adapted) / state.chance_BI,
        "next_question, all known": lambda state: state.gains(state.chooser) / state.chance_BI,
    },
    "b": COMMON
    | {
        "likeliest known": lambda state: state.chance_BI,
        "gain of ratings": lambda state: state.gains(state.adapted),
        "next_question": lambda state: state.gains(state.chooser),
    },
}


class Interview:
    """Held-out users of a data set, asked by any strategy."""

    def __init__(self, run: paml.Run, data: paml.Dataset, split: Split, users: int = USERS) -> None:
        """The first `users` of the split, or all if there are fewer."""
        self._predictor, self._data, self.tasks = run.predictor, data, Tasks.of(data, split).part(0, users)
        self._item, self._target = np.asarray(data.array("item")), np.asarray(data.array("target"))
        self._users, self._items = FeatureTable.of(data, "user", run.ensemble.inputs), data.manifest.items
        end = int(data.array("offsets")[data.manifest.splits["train"][1]])
        count_I = np.bincount(self._item[:end], minlength=self._items).clip(1)
        first_I, second_I = (
            np.bincount(self._item[:end], self._target[:end] ** power, self._items) / count_I for power in (1, 2)
        )
        self._dispute_I = np.log(count_I) * (second_I - first_I**2).clip(0) ** 0.5
        self._template = run.predictor.batch([NewUser()])

    def judge(self, strategy: Strategy, setting: str, seed: int = 0) -> Found:
        """Every metric for all users after each number of questions, (steps, U)."""
        rng, steps, users = np.random.default_rng(seed), ASKED, len(self.tasks)
        error_SU, answer_SU = np.full((len(steps), users), np.nan), np.zeros((len(steps), users))
        score_SUI = torch.zeros(len(steps), users, self._items)
        for batch in self.tasks.stored(USERS_AT_ONCE):
            user_B = batch.user_B - self.tasks.first
            asked = self._ask(batch, strategy, setting, rng)
            error_SU[:, user_B], answer_SU[:, user_B], score_SUI[:, torch.from_numpy(user_B)] = asked
        lists = [self._metrics_of_lists(score_UI) for score_UI in score_SUI]
        found = {name: np.stack([one[name] for one in lists]) for name in lists[0]}
        rated = {"mse": error_SU} if self._predictor.rates else {}
        return {"answers": answer_SU, **rated, **found}

    @torch.no_grad()
    def with_all_answers(self) -> dict[str, float]:
        """Means over users if all support rows are known."""
        error_U, score_UI = np.zeros(len(self.tasks)), torch.zeros(len(self.tasks), self._items)
        for batch in self.tasks.stored(USERS_AT_ONCE):
            nothing_BI = np.zeros((len(batch.user_B), self._items), dtype=bool)
            state = self._state(batch.user_B, batch.support, nothing_BI, nothing_BI, np.random.default_rng(0))
            user_B = batch.user_B - self.tasks.first
            error_U[user_B], score_UI[torch.from_numpy(user_B)] = self._errors(state, batch.query), state.score_BI
        found = {"mse": error_U} if self._predictor.rates else {}
        return {name: float(np.nanmean(one)) for name, one in (found | self._metrics_of_lists(score_UI)).items()}

    def _metrics_of_lists(self, score_UI: Tensor) -> Found:
        first = self.tasks.first
        lists = rank_users(self._data, self.tasks, lambda known: score_UI[torch.from_numpy(known.user_B - first)])
        return {"ndcg": discounted_gain(lists, 10), "recall": recall(lists, 20)}

    @torch.no_grad()
    def _ask(
        self, batch: TaskBatch, strategy: Strategy, setting: str, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, Tensor]:
        """One batch of users from the first question to the last: errors, answers and scores of all items."""
        users, steps = np.arange(len(batch.user_B)), ASKED
        row_BI = np.full((len(users), self._items), -1)  # the row that answers a question, if any
        row_BI[self._places(batch.support)] = batch.support.row_BL[batch.support.mask_BL]
        open_BI = row_BI >= 0 if setting == "a" else np.ones_like(row_BI, dtype=bool)
        open_BI[self._places(batch.query)] = False
        known_BI, declined_BI = np.zeros_like(open_BI), np.zeros_like(open_BI)
        answer_BA, count_B = np.zeros((len(users), steps[-1]), dtype=np.int64), np.zeros_like(users)
        errors, answers, scores = [], [], []
        for step in range(steps[-1] + 1):
            mask_BA = np.arange(max(count_B.max(), 1)) < count_B[:, None]
            answered = Block(answer_BA[:, : mask_BA.shape[1]], mask_BA)
            state = self._state(batch.user_B, answered, known_BI, declined_BI, rng)
            if step in steps:
                errors.append(self._errors(state, batch.query))
                answers.append(count_B.copy())
                scores.append(state.score_BI)
            if step == steps[-1]:
                break
            pick_B = np.where(open_BI, np.asarray(strategy(state)), -np.inf).argmax(axis=1)
            asked_B = open_BI[users, pick_B]  # not those who have answered all there is
            told_B = asked_B & (row_BI[users, pick_B] >= 0)
            answer_BA[users[told_B], count_B[told_B]] = row_BI[users, pick_B][told_B]
            count_B = count_B + told_B
            known_BI[users, pick_B] |= told_B
            declined_BI[users, pick_B] |= asked_B & ~told_B
            open_BI[users, pick_B] = False
        return np.stack(errors), np.stack(answers), torch.stack(scores)

    def _state(
        self,
        user_B: np.ndarray,
        answered: Block,
        known_BI: np.ndarray,
        declined_BI: np.ndarray,
        rng: np.random.Generator,
    ) -> State:
        batch = replace(self._template, users=self._users.rows(user_B), support=self._rows(answered))
        return State(self._predictor, batch, known_BI, declined_BI, self._dispute_I, rng)

    def _places(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        """User and item of the block's rows."""
        return block.mask_BL.nonzero()[0], self._item[block.row_BL[block.mask_BL]]

    def _rows(self, block: Block) -> RowBlock:
        item_BL = torch.from_numpy(self._item[block.row_BL].astype(np.int64))
        return RowBlock(
            item_BL, None, torch.from_numpy(self._target[block.row_BL]).float(), torch.from_numpy(block.mask_BL).float()
        )

    def _errors(self, state: State, query: Block) -> np.ndarray:
        """MSE of each user's query rows; NaN if the run predicts no ratings."""
        if state.rating_BI is None:
            return np.full(len(query.row_BL), np.nan)
        rows = self._rows(query)
        squared_BQ = (state.rating_BI.gather(1, rows.index_BR) - rows.y_BR) ** 2 * rows.mask_BR
        error_B: np.ndarray = (squared_BQ.sum(dim=1) / rows.mask_BR.sum(dim=1)).numpy()
        return error_B


def main(arguments: Sequence[str] = ()) -> None:
    """Load a run, or train one on a data set, and print the tables of both settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", type=Path)
    parser.add_argument("--method", default="ridge")
    parser.add_argument("--split", default="test", choices=["validation", "test"])
    parser.add_argument("--users", type=int, default=USERS)
    given = parser.parse_args(arguments)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        if given.path and (given.path / "settings.json").exists():
            run = paml.load(given.path)
            data = run.data()
        else:
            data = paml.Dataset.open(given.path) if given.path else paml.prepare("synthetic", out=Path(folder) / "data")
            run = paml.train(data, given.method, out=Path(folder) / "run", epochs=6, ensemble_size=2)
        interview = Interview(run, data, given.split, given.users)
        name, method = data.manifest.source.name, run.settings.method
        print(f"{name}, {method}, {len(interview.tasks):,} {given.split} users: means over users")
        whole = interview.with_all_answers()
        print("all support ratings known: " + ", ".join(f"{METRICS[name][0]} {whole[name]:.4f}" for name in whole))
        for setting, strategies in STRATEGIES.items():
            print_tables(judge_all(interview, strategies, setting), setting)


def judge_all(interview: Interview, strategies: dict[str, Strategy], setting: str) -> dict[str, Found]:
    """Every strategy; "random" is the mean of several orders."""
    found = {}
    for name, strategy in strategies.items():
        orders = [interview.judge(strategy, setting, seed) for seed in range(RANDOM_ORDERS if name == "random" else 1)]
        found[name] = {key: np.mean([order[key] for order in orders], axis=0) for key in orders[0]}
        print(f"  ({setting}) {name}: done", file=sys.stderr)
    return found


def print_tables(found: dict[str, Found], setting: str) -> None:
    """One table per metric, one line per strategy, with differences from the reference."""
    reference = found[REFERENCE[setting]]
    print(f"\n({setting}) {TITLES[setting]}; in brackets: 95 % interval of the difference from '{REFERENCE[setting]}'")
    for key, (label, digits) in METRICS.items():
        if key not in reference:
            continue
        print(f"\n| {label} after | " + " | ".join(map(str, ASKED)) + " |")
        print("|---" * (len(ASKED) + 1) + "|")
        for name, one in found.items():
            cells = [_cell(value_U, base_U, digits) for value_U, base_U in zip(one[key], reference[key], strict=True)]
            print(f"| {name} | " + " | ".join(cells) + " |")
    if setting == "b":
        print("\n| answers after | " + " | ".join(map(str, ASKED)) + " |")
        print("|---" * (len(ASKED) + 1) + "|")
        for name, one in found.items():
            print(f"| {name} | " + " | ".join(f"{answer_U.mean():.1f}" for answer_U in one["answers"]) + " |")


def _cell(value_U: np.ndarray, base_U: np.ndarray, digits: int) -> str:
    """The mean over users for whom it is defined, and the interval of the paired difference (BCa bootstrap)."""
    defined_U = np.isfinite(value_U) & np.isfinite(base_U)
    cell, difference_U = f"{value_U[defined_U].mean():.{digits}f}", (value_U - base_U)[defined_U]
    varies = np.abs(difference_U).max(initial=0) > ROUNDING
    interval = mean_interval(difference_U, np.random.default_rng(0)) if varies else None
    return cell if interval is None else f"{cell} [{interval.low:+.{digits}f}, {interval.high:+.{digits}f}]"


if __name__ == "__main__":
    main(sys.argv[1:])
