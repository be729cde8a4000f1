"""Honest baselines: predictors that a method must beat to be worth anything.

Each is fitted on the rows of training users; a new user is folded in from the support rows alone.
Legend: N all rows of a split, Q its query rows, U its users.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from paml.data.prepared import PreparedData
from paml.data.tasks import Tasks
from paml.metrics import squared_error

Split = Literal["train", "validation", "test"]
SHRINKAGES = (1.0, 2.0, 5.0, 10.0, 20.0)


@dataclass(frozen=True)
class SplitRows:
    """A split's rows, flat, with the user of each and whether it is a query row."""

    item_N: np.ndarray
    target_N: np.ndarray
    user_N: np.ndarray
    query_N: np.ndarray

    @classmethod
    def of(cls, data: PreparedData, split: Split) -> "SplitRows":
        """Views of the flat arrays: a split is a slice."""
        tasks = Tasks.of(data, split)
        count_U = np.diff(tasks.offsets)
        rows = slice(int(tasks.offsets[0]), int(tasks.offsets[-1]))
        return cls(
            item_N=data.array("item")[rows],
            target_N=data.array("target")[rows],
            user_N=np.repeat(np.arange(len(tasks)), count_U),
            query_N=tasks.query_mask(),
        )

    def query_error(self, prediction_N: np.ndarray) -> np.ndarray:
        """Each user's squared error on the query rows."""
        count_U = np.bincount(self.user_N[self.query_N])
        return squared_error(self.target_N[self.query_N], prediction_N[self.query_N], count_U)


def training_mean(data: PreparedData, split: Split) -> np.ndarray:
    """The mean target of all training rows, for everyone and everything."""
    mean = SplitRows.of(data, "train").target_N.mean(dtype=np.float64)
    return np.full(len(SplitRows.of(data, split).item_N), mean)


@dataclass(frozen=True)
class BiasModel:
    """mu + b_i + b_u: how well items are liked, and how generous the user is."""

    mean: float
    item_bias_I: np.ndarray
    user_shrinkage: float

    @classmethod
    def fit(cls, data: PreparedData, item_shrinkage: float, user_shrinkage: float) -> "BiasModel":
        """b_i = sum(r - mu) / (n_i + shrinkage) over the training rows of item i."""
        train = SplitRows.of(data, "train")
        mean = float(train.target_N.mean(dtype=np.float64))
        residual_N = train.target_N - mean
        total_I = np.bincount(train.item_N, weights=residual_N, minlength=data.manifest.items)
        count_I = np.bincount(train.item_N, minlength=data.manifest.items)
        return cls(mean, total_I / (count_I + item_shrinkage), user_shrinkage)

    def predict(self, rows: SplitRows) -> np.ndarray:
        """Predictions for all rows; b_u = sum(r - mu - b_i) / (n_u + shrinkage) over the user's support rows."""
        base_N = self.mean + self.item_bias_I[rows.item_N]
        support_N = ~rows.query_N
        residual_N = (rows.target_N - base_N)[support_N]
        users = int(rows.user_N.max(initial=-1)) + 1
        total_U = np.bincount(rows.user_N[support_N], weights=residual_N, minlength=users)
        count_U = np.bincount(rows.user_N[support_N], minlength=users)
        user_bias_U: np.ndarray = total_U / (count_U + self.user_shrinkage)
        prediction_N: np.ndarray = base_N + user_bias_U[rows.user_N]
        return prediction_N


def tuned_bias(data: PreparedData, shrinkages: Sequence[float] = SHRINKAGES) -> BiasModel:
    """Bias fold-in with both shrinkages chosen by the error on validation users."""
    validation = SplitRows.of(data, "validation")
    models = [BiasModel.fit(data, item, user) for item, user in product(shrinkages, shrinkages)]
    return min(models, key=lambda model: validation.query_error(model.predict(validation)).mean())
