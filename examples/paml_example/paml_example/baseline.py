"""A baseline: the item's and the user's mean, mixed; how much each counts is chosen on validation users."""

from dataclasses import dataclass

import numpy as np

from paml.baselines import Baseline, Fitted, SplitRows
from paml.baselines.rows import tune
from paml.data.dataset import Dataset

DAMPING = 5.0
"""Rows with the overall mean that every mean begins with."""


@dataclass(frozen=True)
class DampedMean:
    """share * user's mean + (1 - share) * item's mean"""

    mean: float
    item_mean_I: np.ndarray
    share: float

    def predict(self, rows: SplitRows) -> np.ndarray:
        """One prediction per row; of the targets, only those of known support rows are read."""
        total_U = rows.user_sum(rows.target_N) + DAMPING * self.mean
        user_mean_U = total_U / (rows.user_sum(np.ones(len(rows.item_N))) + DAMPING)
        mixed_N: np.ndarray = self.share * user_mean_U[rows.user_N] + (1 - self.share) * self.item_mean_I[rows.item_N]
        return mixed_N


def fit_damped_mean(data: Dataset, seed: int) -> Fitted:
    """Item means from training users; the share is tuned."""
    train, items = SplitRows.of(data, "train"), data.manifest.items
    mean = float(train.target_N.mean())
    total_I = np.bincount(train.item_N, weights=train.target_N, minlength=items) + DAMPING * mean
    item_mean_I = total_I / (np.bincount(train.item_N, minlength=items) + DAMPING)
    grid = [{"share": share} for share in (0.25, 0.5, 0.75)]
    return tune(data, grid, lambda share: DampedMean(mean, item_mean_I, share))


DAMPED_MEAN = Baseline("damped_mean", "damped means", frozenset({"rating"}), fit_damped_mean)
