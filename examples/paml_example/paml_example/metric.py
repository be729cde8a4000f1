"""A metric: the share of a user's ratings that are predicted to within one."""

import numpy as np

from paml.evaluation.metrics import Metric, per_user_mean


def within_one(target_N: np.ndarray, prediction_N: np.ndarray, count_U: np.ndarray) -> np.ndarray:
    """One value per user: the rows of a user lie side by side, `count_U` of them."""
    return per_user_mean((np.abs(target_N - prediction_N) <= 1).astype(np.float64), count_U)


WITHIN_ONE = Metric(
    name="within1",
    label="within 1",
    better="higher",
    digits=3,
    targets=frozenset({"rating"}),
    compute=within_one,
    meaning="The share of a user's query rows whose prediction is at most 1 away from the rating.",
)
