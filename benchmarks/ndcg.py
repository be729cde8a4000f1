"""What nDCG would be by other definitions: can they explain why the paper prints more than we measure?

The paper's formula (Sec. D.6) has the gain 2^r - 1, the discount log2(1 + rank), the ideal order of all rows, and a
mean over users; it does not say which rows are ranked, nor how equal predictions are ordered. We rank query rows, and
order equal predictions at random. Each line below changes one of these.

    python -m benchmarks.ndcg DATA [RUN ...]      a prepared rating data set, and runs trained on it

Runs of a comparison with seed 0 are `OUT/runs/METHOD@0`.

"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

import paml
from paml.baselines import BASELINES, SplitRows
from paml.episodes.batches import Loader
from paml.episodes.tasks import Block, Tasks
from paml.training.run import Run

DRAWS = 20
FEW = 10
KS = (3, 5)


def exponential(target: np.ndarray) -> np.ndarray:
    """2^r - 1."""
    gain: np.ndarray = 2.0**target - 1
    return gain


def linear(target: np.ndarray) -> np.ndarray:
    """r."""
    return target


@dataclass(frozen=True)
class Definition:
    """How a user's nDCG is computed."""

    label: str
    gain: Callable[[np.ndarray], np.ndarray] = exponential
    rounded: bool = False
    """Whether predictions are rounded to the levels of ratings."""
    favourable: bool = False
    """Whether, of equal predictions, the higher rating comes first; otherwise at random."""
    ideal_of_chosen: bool = False
    """Whether the ideal is the best order of the k chosen rows, not of all."""
    all_rows: bool = False
    """Whether support rows, which the model was adapted to, are ranked, too."""
    at_most: int | None = None
    """Rows per user, drawn at random; users with fewer are left out."""

    def score(self, target: np.ndarray, prediction: np.ndarray, k: int, rng: np.random.Generator) -> float | None:
        """One user's nDCG@k."""
        if self.at_most is not None:
            if len(target) < self.at_most:
                return None
            some = rng.choice(len(target), self.at_most, replace=False)
            target, prediction = target[some], prediction[some]
        shown = np.round(prediction) if self.rounded else prediction
        among_equals = target if self.favourable else rng.random(len(target))
        chosen = np.lexsort((-among_equals, -shown))[:k]
        gain = self.gain(target)
        ideal = gain[chosen] if self.ideal_of_chosen else gain
        discount = 1 / np.log2(np.arange(2, len(chosen) + 2))
        best = float(np.sort(ideal)[::-1][: len(chosen)] @ discount)
        return float(gain[chosen] @ discount) / best if best > 0 else None


DEFINITIONS = (
    Definition("query rows, gain 2^r - 1, equal predictions at random: ours"),
    Definition("gain r", gain=linear),
    Definition("predictions rounded to levels, equal ones at random", rounded=True),
    Definition("predictions rounded to levels, equal ones in one's favour", rounded=True, favourable=True),
    Definition("equal predictions in one's favour", favourable=True),
    Definition(f"{FEW} query rows of each user, others left out", at_most=FEW),
    Definition("query and support rows", all_rows=True),
    Definition("the ideal is the best order of the k chosen rows", ideal_of_chosen=True),
)


@torch.no_grad()
def predictions(run: Run, data: paml.Dataset) -> np.ndarray:
    """A run's predictions for all rows of the test users, adapted on their support rows."""
    tasks, loader = Tasks.of(data, "test"), Loader(data, run.ensemble.inputs)
    base = int(tasks.offsets[0])
    prediction_N = np.zeros(int(tasks.offsets[-1]) - base)
    for batch in tasks.stored(64):
        user_B = batch.user_B - tasks.first
        count_B = np.asarray(tasks.offsets[user_B + 1] - tasks.offsets[user_B], dtype=np.int64)
        block = Block.of(np.asarray(tasks.offsets[user_B], dtype=np.int64), count_B)
        predicted_BR, _ = run.ensemble.predict(loader.load(replace(batch, query=block)))
        prediction_N[block.row_BL[block.mask_BL] - base] = predicted_BR.numpy(force=True)[block.mask_BL]
    return prediction_N


def measured(rows: SplitRows, prediction_N: np.ndarray, definition: Definition, k: int, seed: int) -> float:
    """The mean over users."""
    rng = np.random.default_rng(seed)
    chosen_N = np.ones(len(rows.query_N), dtype=bool) if definition.all_rows else rows.query_N
    user_N, target_N, shown_N = rows.user_N[chosen_N], np.array(rows.target_N[chosen_N]), prediction_N[chosen_N]
    ends = np.flatnonzero(np.diff(user_N)) + 1
    users = zip(np.split(target_N, ends), np.split(shown_N, ends), strict=True)
    found = [definition.score(target, shown, k, rng) for target, shown in users]
    return float(np.mean([value for value in found if value is not None]))


def by_chance(rows: SplitRows, definition: Definition, k: int) -> float:
    """The mean over random orders; predictions differ, so that none are equal."""
    plain = replace(definition, rounded=False, favourable=False)
    draws = [np.random.default_rng(draw).random(len(rows.query_N)) for draw in range(DRAWS)]
    return float(np.mean([measured(rows, drawn_N, plain, k, seed) for seed, drawn_N in enumerate(draws)]))


def main() -> None:
    """Print a table for nDCG@3 and nDCG@5."""
    torch.set_num_threads(1)
    data = paml.open_data(sys.argv[1])
    rows = SplitRows.of(data, "test")
    predictors = {name: BASELINES[name].fit(data, 0).predictor.predict(rows) for name in ("training_mean", "item_mean")}
    for path in sys.argv[2:]:
        run = Run.load(path)
        predictors[Path(path).name] = predictions(run, data)
    error = {name: rows.query_error(prediction_N).mean() for name, prediction_N in predictors.items()}
    for k in KS:
        print(f"\nnDCG@{k}")
        print(f"| {'definition':<64} | by chance | {' | '.join(f'{name:>13}' for name in predictors)} |")
        print(f"| {'---':<64} | ---: | {' | '.join('---:' for _ in predictors)} |")
        for definition in DEFINITIONS:
            values = [f"{measured(rows, one, definition, k, 0):13.3f}" for one in predictors.values()]
            print(f"| {definition.label:<64} | {by_chance(rows, definition, k):9.3f} | {' | '.join(values)} |")
    print(f"\nMSE: {', '.join(f'{name} {value:.3f}' for name, value in error.items())}")


if __name__ == "__main__":
    main()
