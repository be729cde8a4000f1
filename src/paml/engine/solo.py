"""One user, all members, in NumPy: what joint.py and joint_solvers.py compute for many, for networks of one output.

A single user's arithmetic is so small that starting PyTorch's operations takes longer than the work; NumPy starts them
in a third of the time, and its matrix-vector products read the tables faster. A test holds both to the same answers.

Legend: M members, S support rows, E entries of a row, D of them that are inputs, H width of the user embedding.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg.blas import ssyrk
from scipy.linalg.lapack import sposv

from paml.engine.joint import Columns, JointTable

TOGETHER = 8  # users from whom on one product of matrices takes less time than their own products with vectors


class SoloRate(NamedTuple):
    """A user's rates for each member."""

    per_user_M: np.ndarray
    """One number per member, as `Rate.per_user`."""
    h_MH: np.ndarray
    """The user's embeddings."""
    per_entry_ME: np.ndarray | None = None
    """For rates per parameter: the rate of every entry of W."""

    def per_entry(self, columns: Columns) -> np.ndarray:
        """The rate of every entry of W, as `Columns.rates`, (M, E)."""
        if self.per_entry_ME is not None:
            return self.per_entry_ME
        rate_ME = np.repeat(self.per_user_M[:, None], columns.width, axis=1)
        rate_ME[:, 0] *= np.einsum("mh,mh->m", self.h_MH, self.h_MH) + 1
        rate_ME[:, 1 + columns.vector : 1 + columns.vector + columns.bias] = 0.0
        return rate_ME


class SoloKnown(NamedTuple):
    """What is known about a user: the support rows, as `JointKnown`."""

    rows_MSE: np.ndarray
    y_MS: np.ndarray
    """Targets; of a choice, the rows' weights."""
    count_M: np.ndarray
    """How much the rows count together."""
    columns: Columns
    table: JointTable


def descend(known: SoloKnown, weights_ME: np.ndarray, rate_ME: np.ndarray, steps: int) -> np.ndarray:
    """Gradient steps on a sum of squared errors, (M, E)."""
    rows_MSE, y_M1S = known.rows_MSE, known.y_MS[:, None]
    rows_MES, rate_M1E = rows_MSE.transpose(0, 2, 1), 2.0 * rate_ME[:, None]
    weights_M1E = weights_ME[:, None]
    for _ in range(steps):
        weights_M1E = weights_M1E - rate_M1E * ((weights_M1E @ rows_MES - y_M1S) @ rows_MSE)
    return weights_M1E[:, 0]


def descend_shares(known: SoloKnown, weights_ME: np.ndarray, rate_ME: np.ndarray, steps: int) -> np.ndarray:
    """How far each row moved the weights in these steps, (M, S, E)."""
    slope_M1S, rows_MES = np.zeros_like(known.y_MS[:, None]), known.rows_MSE.transpose(0, 2, 1)
    for taken in range(steps):
        now_ME = descend(known, weights_ME, rate_ME, taken)
        slope_M1S += now_ME[:, None] @ rows_MES - known.y_MS[:, None]
    share_MSE: np.ndarray = slope_M1S.transpose(0, 2, 1) * known.rows_MSE * (-2.0 * rate_ME[:, None])
    return share_MSE


class Choice(NamedTuple):
    """A choice among all items: the gradient is n E[row] - sum_j k_j row_j; both terms times the rate, (M, E) each."""

    pulled_ME: np.ndarray
    pushed_ME: np.ndarray
    """Without E[row]."""

    @classmethod
    def of(cls, known: SoloKnown, rate_ME: np.ndarray) -> "Choice":
        """What is known about a user, with the rates of all entries."""
        chosen_ME = (known.y_MS[:, None] @ known.rows_MSE)[:, 0]
        return cls(rate_ME * chosen_ME, rate_ME * known.count_M[:, None])


def choice_shares(
    known: SoloKnown, before_ME: np.ndarray, after_ME: np.ndarray, rate_ME: np.ndarray, steps: int
) -> np.ndarray:
    """How far each row moved the weights: the sum over steps of rate k_s (row_s - E[row]), (M, S, E).

    What all expectations took together is what was pulled less what was moved; it is each row's doing as k_s is.
    """
    pulled_ME = steps * Choice.of(known, rate_ME).pulled_ME
    pushed_ME = pulled_ME - (after_ME - before_ME)
    own_MSE = known.rows_MSE * (steps * rate_ME)[:, None]
    share_MSE: np.ndarray = known.y_MS[..., None] * (own_MSE - (pushed_ME / known.count_M[:, None])[:, None])
    return share_MSE


def choose(table: JointTable, choices: Sequence[Choice], weights: Sequence[np.ndarray], steps: int) -> list[np.ndarray]:
    """Gradient steps of several users, who read the table together if they are enough, (M, E) each."""
    if len(choices) < TOGETHER:
        return [_choose_alone(table, *pair, steps) for pair in zip(choices, weights, strict=True)]
    pulled_BME, pushed_BME = (np.stack(parts) for parts in zip(*choices, strict=True))
    weights_BME = np.stack(weights)
    for _ in range(steps):
        weights_NE1 = torch.from_numpy(weights_BME).transpose(0, 1).reshape(-1, weights_BME.shape[2], 1)
        expected_MBE = table.expected(weights_NE1).view(weights_BME.shape[1], len(weights_BME), -1).numpy()
        weights_BME = weights_BME + pulled_BME - pushed_BME * expected_MBE.transpose(1, 0, 2)
    return [*weights_BME]


def _choose_alone(table: JointTable, choice: Choice, weights_ME: np.ndarray, steps: int) -> np.ndarray:
    pulled_ME, pushed_ME = choice
    for _ in range(steps):
        weights_ME = weights_ME + pulled_ME - pushed_ME * table.solo_expected(weights_ME)
    return weights_ME


def ridge(features_MSE: np.ndarray, residual_MS: np.ndarray, variance_M: np.ndarray) -> np.ndarray:
    """(X^T X + 1 / 2 alpha)^-1 X^T r = X^T (X X^T + 1 / 2 alpha)^-1 r, whichever system is smaller, (M, E)."""
    in_rows = _in_rows(features_MSE)
    right_MX = residual_MS if in_rows else (residual_MS[:, None] @ features_MSE)[:, 0]
    solved_MX = _solved(features_MSE, variance_M, right_MX)
    return (solved_MX[:, None] @ features_MSE)[:, 0] if in_rows else solved_MX


def ridge_shares(features_MSE: np.ndarray, residual_MS: np.ndarray, variance_M: np.ndarray) -> np.ndarray:
    """The same, row by row: r_s (X^T X + 1 / 2 alpha)^-1 x_s, (M, S, E)."""
    if _in_rows(features_MSE):
        solved_MSE = _solved(features_MSE, variance_M, features_MSE)
    else:
        solved_MSE = _solved(features_MSE, variance_M, features_MSE.transpose(0, 2, 1)).transpose(0, 2, 1)
    share_MSE: np.ndarray = solved_MSE * residual_MS[..., None]
    return share_MSE


def _in_rows(features_MSE: np.ndarray) -> bool:
    """Whether X X^T is smaller than X^T X."""
    S, E = features_MSE.shape[1:]
    return bool(S < E)


def _solved(features_MSE: np.ndarray, variance_M: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The smaller system's solutions for right sides of all members, (M, X) or (M, X, Y)."""
    system_MXX = _systems(features_MSE)
    np.einsum("mxx->mx", system_MXX)[...] += (0.5 / variance_M)[:, None]
    # LAPACK's columns are our rows, which does not matter to a symmetric matrix
    solved = np.empty_like(right)
    for m, system_XX in enumerate(system_MXX):
        solved[m] = sposv(system_XX.T, right[m], lower=True, overwrite_a=True)[1]
    return solved


def _systems(features_MSE: np.ndarray) -> np.ndarray:
    """The smaller of X X^T and X^T X of all members, (M, X, X); of a single one only the triangle that is solved."""
    in_rows, features_MES = _in_rows(features_MSE), features_MSE.transpose(0, 2, 1)
    if len(features_MSE) == 1:
        system_MXX: np.ndarray = ssyrk(1.0, features_MES[0], trans=in_rows, lower=True).T[None]
    else:
        system_MXX = features_MSE @ features_MES if in_rows else features_MES @ features_MSE
    return system_MXX
