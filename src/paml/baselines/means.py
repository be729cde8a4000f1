"""Means and biases: mu + b_i + b_u, with each bias shrunk towards 0, infinitely if it is left out.

They serve ratings and, as rates, clicks. Legend: N rows, I items, U users.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

import numpy as np

from paml.baselines.rows import Fitted, SplitRows, tune
from paml.data.dataset import Dataset

SHRINKAGES = (1.0, 2.0, 5.0, 10.0, 20.0)
"""The grid of shrinkages, for items and for users."""


@dataclass(frozen=True)
class BiasModel:
    """mu + b_i + b_u: how well the item is liked, and how generous the user is."""

    mean: float
    item_bias_I: np.ndarray
    user_shrinkage: float

    @classmethod
    def fit(cls, data: Dataset, item_shrinkage: float, user_shrinkage: float) -> "BiasModel":
        """b_i = sum(r - mu) / (n_i + shrinkage) over the training rows of item i."""
        train = SplitRows.of(data, "train")
        mean = float(train.target_N.mean(dtype=np.float64))
        residual_N = train.target_N - mean
        total_I = np.bincount(train.item_N, weights=residual_N, minlength=data.manifest.items)
        count_I = np.bincount(train.item_N, minlength=data.manifest.items)
        return cls(mean, total_I / (count_I + item_shrinkage), user_shrinkage)

    def predict(self, rows: SplitRows) -> np.ndarray:
        """Predictions for all rows; b_u = sum(r - mu - b_i) / (n_u + shrinkage) over the user's known support rows."""
        base_N = self.mean + self.item_bias_I[rows.item_N]
        total_U, count_U = rows.user_sum(rows.target_N - base_N), rows.user_sum(np.ones(len(base_N)))
        user_bias_U: np.ndarray = total_U / (count_U + self.user_shrinkage)
        prediction_N: np.ndarray = base_N + user_bias_U[rows.user_N]
        return prediction_N


def tuned_bias(data: Dataset, shrinkages: Sequence[float] = SHRINKAGES) -> BiasModel:
    """Bias fold-in with both shrinkages chosen by the loss on validation users (the first ones if there are none)."""
    validation = SplitRows.of(data, "validation")
    models = [BiasModel.fit(data, item, user) for item, user in product(shrinkages, shrinkages)]
    return min(models, key=lambda model: validation.loss(data.schema.target, model.predict(validation)))


def fit_constant(data: Dataset, seed: int) -> Fitted:
    """The mean training target: infinite shrinkage of both biases, nothing to tune."""
    return tune(data, [{}], lambda: BiasModel.fit(data, inf, inf))


def fit_user_mean(data: Dataset, seed: int) -> Fitted:
    """The mean of the user's support targets, shrunk towards the training mean; for clicks, a rate."""
    grid = [{"user_shrinkage": shrinkage} for shrinkage in SHRINKAGES]
    return tune(data, grid, lambda user_shrinkage: BiasModel.fit(data, inf, user_shrinkage))


def fit_item_mean(data: Dataset, seed: int) -> Fitted:
    """The item's mean training target, shrunk towards the overall mean."""
    grid = [{"item_shrinkage": shrinkage} for shrinkage in SHRINKAGES]
    return tune(data, grid, lambda item_shrinkage: BiasModel.fit(data, item_shrinkage, inf))


def fit_bias(data: Dataset, seed: int) -> Fitted:
    """Item and user bias."""
    grid = [{"item_shrinkage": item, "user_shrinkage": user} for item, user in product(SHRINKAGES, SHRINKAGES)]
    return tune(data, grid, lambda **shrinkages: BiasModel.fit(data, **shrinkages))
