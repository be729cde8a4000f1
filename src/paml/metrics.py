"""Metrics as pure functions: one value per user, never averaged here, because statistics need rows.

Rows of a user lie side by side; `count_U` says how many each user has.
"""

import numpy as np


def per_user_mean(value_N: np.ndarray, count_U: np.ndarray) -> np.ndarray:
    """Mean of each user's values; every user needs at least one."""
    start_U = np.cumsum(count_U) - count_U
    mean_U: np.ndarray = np.add.reduceat(value_N, start_U) / count_U
    return mean_U


def squared_error(target_N: np.ndarray, prediction_N: np.ndarray, count_U: np.ndarray) -> np.ndarray:
    """Each user's mean squared error (paper, Sec. D.6); the data set's MSE is the mean of these over users."""
    return per_user_mean((np.asarray(target_N, dtype=np.float64) - prediction_N) ** 2, count_U)
