"""Input and output of every baseline: a split's rows, predictions on the target's scale, and how settings are chosen.

Legend: N all rows of a split, Q its query rows, U its users.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Protocol, TypeVar

import numpy as np
import torch

from paml.data.dataset import Dataset
from paml.data.schema import Target
from paml.engine.heads import on_scale
from paml.episodes import ragged
from paml.episodes.tasks import Split, Tasks
from paml.evaluation.metrics import squared_error, weighted_entropy
from paml.evaluation.ranking import Rank, quality

Setting = float | int | str
CELLS_FOR_TUNING = 1 << 26  # validation users times items that a ranker's settings are judged by


@dataclass(frozen=True)
class SplitRows:
    """A split's rows, flat and ordered by user: for each its user, and whether it is a query row."""

    item_N: np.ndarray
    target_N: np.ndarray
    user_N: np.ndarray
    """Index of the row's user within the split; add `first_user` for the index in the data set's arrays."""
    query_N: np.ndarray
    first_user: int = 0
    first_row: int = 0
    shots: int | None = None
    """How many support rows of each user a predictor may use; None: all of them."""

    @classmethod
    def of(cls, data: Dataset, split: Split) -> "SplitRows":
        """The rows of a split, as views of the flat arrays: a split is a slice."""
        tasks = Tasks.of(data, split)
        rows = slice(int(tasks.offsets[0]), int(tasks.offsets[-1]))
        return cls(
            item_N=data.array("item")[rows],
            target_N=data.array("target")[rows],
            user_N=ragged.owners(np.diff(tasks.offsets)),
            query_N=tasks.query_mask(),
            first_user=tasks.first,
            first_row=rows.start,
        )

    @property
    def users(self) -> int:
        """Number of users."""
        return int(self.user_N[-1]) + 1 if len(self.user_N) else 0

    @cached_property
    def support_N(self) -> np.ndarray:
        """The rows that a predictor may use: the first `shots` support rows of each user."""
        support_N = ~self.query_N
        if self.shots is None:
            return support_N
        before_U = np.bincount(self.user_N, weights=support_N, minlength=self.users).cumsum()
        first_U = np.concatenate([[0], before_U])[: self.users]
        place_N = np.cumsum(support_N) - support_N - first_U[self.user_N]
        known_N: np.ndarray = support_N & (place_N < self.shots)
        return known_N

    def with_shots(self, k: int) -> "SplitRows":
        """The same query rows with only the first k support rows of each user known (0 allowed), for k-shot curves."""
        return replace(self, shots=k)

    def user_sum(self, value_N: np.ndarray) -> np.ndarray:
        """Sum per user over the known support rows."""
        chosen = self.support_N
        return np.bincount(self.user_N[chosen], weights=value_N[chosen], minlength=self.users)

    def query_count(self) -> np.ndarray:
        """Query rows per user."""
        return np.bincount(self.user_N[self.query_N], minlength=self.users)

    def query_error(self, prediction_N: np.ndarray) -> np.ndarray:
        """Each user's squared error on the query rows."""
        return squared_error(self.target_N[self.query_N], prediction_N[self.query_N], self.query_count())

    def loss(self, target: Target, prediction_N: np.ndarray) -> float:
        """The loss that settings are chosen by: mean over users of the MSE or NEL on query rows; NaN without users."""
        if not self.users:
            return float("nan")
        if target.kind == "rating":
            return float(self.query_error(prediction_N).mean())
        target_Q, prediction_Q = self.target_N[self.query_N], prediction_N[self.query_N]
        return float(weighted_entropy(target_Q, prediction_Q, self.query_count()).mean())


class Predictor(Protocol):
    """A fitted model that predicts; it reads the targets of the known support rows only."""

    def predict(self, rows: SplitRows) -> np.ndarray:
        """One prediction per row; only those for query rows count."""


class Ranker(Protocol):
    """A fitted model that scores all items."""

    def rank(self, data: Dataset) -> Rank:
        """Ranks users of `data`, whose support rows it reads."""


PredictorT = TypeVar("PredictorT", bound=Predictor)


def to_target(raw_N: np.ndarray, target: Target) -> np.ndarray:
    """Raw ratings or probabilities in the form that the metrics expect: on the scale, or never quite certain."""
    if target.kind == "click":
        return np.clip(np.asarray(raw_N, dtype=np.float64), 1e-6, 1 - 1e-6)
    raw = torch.from_numpy(np.asarray(raw_N, dtype=np.float64))
    return on_scale(raw, target.low, target.high).numpy()


@dataclass(frozen=True)
class Scaled:
    """A predictor of raw ratings or probabilities, converted to the form that the metrics expect."""

    raw: Predictor
    target: Target

    def predict(self, rows: SplitRows) -> np.ndarray:
        """One prediction per row."""
        return to_target(self.raw.predict(rows), self.target)


@dataclass(frozen=True)
class Fitted:
    """A fitted baseline: what it can do, the settings chosen on validation users, all settings tried, and the time."""

    predictor: Predictor | None
    """Predicts targets, if it can."""
    chosen: dict[str, Setting]
    tried: list[dict[str, Setting]]
    """Each setting tried, with its `loss` (of a ranker: its `quality`) on validation users."""
    seconds: float
    """Fitting time, tuning included."""
    refit_seconds: float | None = None
    """Cost of new users for a method that cannot fold them in: it is refitted whenever one arrives."""
    ranker: Ranker | None = None
    """Ranks the whole catalogue for new users, if it can."""


def tune(
    data: Dataset,
    grid: Iterable[Mapping[str, Setting]],
    fit: Callable[..., PredictorT],
    facts: Callable[[PredictorT], Mapping[str, Setting]] = lambda predictor: {},
) -> Fitted:
    """Fit with every setting of the grid, keep the best on validation users (the grid's first if there are none).

    `facts` returns settings that fitting itself determines, such as the number of trees.
    """
    started, target = perf_counter(), data.schema.target
    validation = SplitRows.of(data, "validation")
    best: tuple[float, Predictor, dict[str, Setting]] | None = None
    tried: list[dict[str, Setting]] = []
    for given in grid:
        raw = fit(**given)
        settings, predictor = {**given, **facts(raw)}, Scaled(raw, target)
        loss = validation.loss(target, predictor.predict(validation)) if validation.users else float("nan")
        tried.append({**settings, "loss": loss})
        if best is None or loss < best[0] or (np.isnan(best[0]) and not np.isnan(loss)):
            best = loss, predictor, settings
    assert best is not None, "a grid has at least one setting"
    return Fitted(best[1], best[2], tried, perf_counter() - started)


def tune_ranker(data: Dataset, grid: Iterable[Mapping[str, Setting]], fit: Callable[..., Ranker]) -> Fitted:
    """The same for rankers, by their `evaluation.ranking.quality`, of which more is better.

    In a large catalogue, some validation users suffice. Without validation users, only the first setting is fitted.
    """
    started, validation = perf_counter(), Tasks.of(data, "validation")
    validation = validation.part(0, max(1, CELLS_FOR_TUNING // max(data.manifest.items, 1)))
    best: tuple[float, Ranker, dict[str, Setting]] | None = None
    tried: list[dict[str, Setting]] = []
    for given in grid if len(validation) else list(grid)[:1]:
        ranker = fit(**given)
        found = quality(data, validation, ranker.rank(data)) if len(validation) else float("nan")
        tried.append({**given, "quality": found})
        if best is None or found > best[0] or (np.isnan(best[0]) and not np.isnan(found)):
            best = found, ranker, dict(given)
    assert best is not None, "a grid has at least one setting"
    return Fitted(None, best[2], tried, perf_counter() - started, ranker=best[1])
