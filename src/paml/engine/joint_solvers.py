"""The two solvers for all members at once (joint.py): gradient steps, and the closed form.

Legend: M members, B users, N = M B, S support rows, I all items, D entries of an item vector, E entries of a row,
K outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from paml.engine.adapt import MIN_VARIANCE
from paml.engine.heads import Head
from paml.engine.joint import JointKnown, JointRate, gradient, outputs
from paml.engine.newton import newton
from paml.engine.solo import (
    Choice,
    SoloKnown,
    SoloRate,
    choice_shares,
    choose,
    descend,
    descend_shares,
    ridge,
    ridge_shares,
)


@dataclass(frozen=True)
class JointSteps:
    """`GradientSteps` for all members: W - alpha dL/dW, with the loss a sum divided by n + c, times (1 + n)^p."""

    head: Head
    steps: int
    pseudo_count_M1: Tensor | None
    """c; without it, the loss is a mean."""
    count_power_M1: Tensor | None
    """p"""

    @property
    def has_solo(self) -> bool:
        """Whether there is a form for a single user (solo.py)."""
        return self.head.quadratic or self.head.over_items

    def __call__(self, known: JointKnown, weights_NEK: Tensor, rate: JointRate) -> Tensor:
        """The adapted weights, (N, E, K)."""
        count_MB = known.count_MB
        if self.pseudo_count_M1 is None:
            share_MB = 1 / torch.where(count_MB > 0, count_MB, 1.0)
        else:
            share_MB = 1 / (count_MB + self.pseudo_count_M1)
        if self.count_power_M1 is not None:
            share_MB = share_MB * (1 + count_MB) ** self.count_power_M1
        rate_NEK = known.columns.rates(rate) * share_MB.reshape(-1, 1, 1)
        if self.head.over_items:
            return self._choose(known, weights_NEK, rate_NEK)
        for _ in range(self.steps):
            slope_NSK = self.head.row_gradient(outputs(known.rows_NSE, weights_NEK), known.y_NS)
            weights_NEK = torch.addcmul(weights_NEK, rate_NEK, gradient(known.rows_NSE, slope_NSK), value=-1)
        return weights_NEK

    def solo(
        self, known: Sequence[SoloKnown], weights: Sequence[np.ndarray], rates: Sequence[SoloRate]
    ) -> list[np.ndarray]:
        """The same, user by user but for what a choice reads of the whole table, (M, E) each."""
        entry_rates = [self._solo_rates(*pair) for pair in zip(known, rates, strict=True)]
        if self.head.over_items:
            choices = [Choice.of(*pair) for pair in zip(known, entry_rates, strict=True)]
            return choose(known[0].table, choices, weights, self.steps)
        return [descend(*one, self.steps) for one in zip(known, weights, entry_rates, strict=True)]

    def solo_shares(self, known: SoloKnown, before_ME: np.ndarray, after_ME: np.ndarray, rate: SoloRate) -> np.ndarray:
        """How far each row moved a user's weights, (M, S, E)."""
        rate_ME = self._solo_rates(known, rate)
        if self.head.over_items:
            return choice_shares(known, before_ME, after_ME, rate_ME, self.steps)
        return descend_shares(known, before_ME, rate_ME, self.steps)

    def _solo_rates(self, known: SoloKnown, rate: SoloRate) -> np.ndarray:
        """The rate of every entry of W, divided by n + c and times (1 + n)^p, (M, E)."""
        count_M1 = known.count_M[:, None]
        pseudo_count_M1 = 0.0 if self.pseudo_count_M1 is None else self.pseudo_count_M1.numpy(force=True)
        rate_ME = rate.per_entry(known.columns) / (count_M1 + pseudo_count_M1)
        if self.count_power_M1 is not None:
            rate_ME *= (1 + count_M1) ** self.count_power_M1.numpy(force=True)
        return rate_ME

    def _choose(self, known: JointKnown, weights_NEK: Tensor, rate_NE1: Tensor) -> Tensor:
        """The rows are all items: the gradient is n E[row] - sum_j k_j row_j."""
        pulled_NE1 = rate_NE1 * gradient(known.rows_NSE, known.y_NS.unsqueeze(-1))
        pushed_NE1 = rate_NE1 * known.count_MB.reshape(-1, 1, 1)
        for _ in range(self.steps):
            expected_NE1 = known.table.expected(weights_NEK)
            weights_NEK = torch.addcmul(weights_NEK + pulled_NE1, pushed_NE1, expected_NE1, value=-1)
        return weights_NEK


@dataclass(frozen=True)
class JointClosedForm:
    """`ClosedForm` for all members: Newton's method on the last output."""

    head: Head
    steps: int
    scale_ME: Tensor
    """What makes a row features."""
    count_power_M1: Tensor | None

    @property
    def has_solo(self) -> bool:
        """Whether there is a form for a single user (solo.py)."""
        return self.head.quadratic

    @cached_property
    def _solo_scale_ME(self) -> np.ndarray:
        return self.scale_ME.numpy(force=True)

    def __call__(self, known: JointKnown, weights_NEK: Tensor, rate: JointRate) -> Tensor:
        """The adapted weights, (N, E, K)."""
        variance_MB = rate.per_user_MB.clamp(min=MIN_VARIANCE)
        if self.head.over_items:
            return self._choose(known, weights_NEK, variance_MB)
        scale_NE = self.scale_ME.repeat_interleave(variance_MB.shape[1], dim=0)
        features_NSE = known.rows_NSE * scale_NE.unsqueeze(1)
        out_NSK = outputs(known.rows_NSE, weights_NEK)
        variance_N11 = variance_MB.reshape(-1, 1, 1)
        if self.head.quadratic:
            d_NE = _ridge(features_NSE, known.y_NS - out_NSK[..., -1], variance_N11)
        else:
            found = newton(features_NSE, out_NSK, known.y_NS, self.head, variance_N11, self.steps)
            assert found is not None, "at least one step"
            d_NE = found.d_BF
        weights_NEK = weights_NEK.clone()
        weights_NEK[..., -1].addcmul_(scale_NE, d_NE)
        return weights_NEK

    def solo(
        self, known: Sequence[SoloKnown], weights: Sequence[np.ndarray], rates: Sequence[SoloRate]
    ) -> list[np.ndarray]:
        """The same for a squared error, user by user, (M, E) each."""
        return [self._solo(*one) for one in zip(known, weights, rates, strict=True)]

    def solo_shares(self, known: SoloKnown, before_ME: np.ndarray, after_ME: np.ndarray, rate: SoloRate) -> np.ndarray:
        """How far each row moved a user's weights, (M, S, E)."""
        d_MSE = ridge_shares(*self._solo_problem(known, before_ME, rate))
        share_MSE: np.ndarray = self._solo_scale_ME[:, None] * d_MSE
        return share_MSE

    def _solo(self, known: SoloKnown, weights_ME: np.ndarray, rate: SoloRate) -> np.ndarray:
        d_ME = ridge(*self._solo_problem(known, weights_ME, rate))
        adapted_ME: np.ndarray = weights_ME + self._solo_scale_ME * d_ME
        return adapted_ME

    def _solo_problem(
        self, known: SoloKnown, weights_ME: np.ndarray, rate: SoloRate
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A user's features, (M, S, E), residuals, (M, S), and variances, (M)."""
        residual_MS = known.y_MS - (weights_ME[:, None] @ known.rows_MSE.transpose(0, 2, 1))[:, 0]
        features_MSE = known.rows_MSE * self._solo_scale_ME[:, None]
        return features_MSE, residual_MS, np.maximum(rate.per_user_M, MIN_VARIANCE)

    def _choose(self, known: JointKnown, weights_NE1: Tensor, variance_MB: Tensor) -> Tensor:
        """The rows are all items: d + (n Cov + 1 / alpha)^-1 (sum_j k_j z_j - n E[z] - d / alpha), step by step."""
        assert known.spread_MDD is not None and self.count_power_M1 is not None, "a head over items"  # noqa: PT018
        D = known.spread_MDD.shape[1]
        count_MB = known.count_MB
        variance_MB = variance_MB * (1 + count_MB) ** self.count_power_M1
        prior_MBD = (1 / variance_MB).unsqueeze(-1).expand(-1, -1, D)
        system_MBDD = count_MB[..., None, None] * known.spread_MDD.unsqueeze(1) + torch.diag_embed(prior_MBD)
        factor_NDD = torch.linalg.cholesky(system_MBDD).flatten(0, 1)
        vector = slice(1, 1 + D)
        chosen_ND = gradient(known.rows_NSE, known.y_NS.unsqueeze(-1))[:, vector, 0]
        count_N1, variance_N1 = count_MB.reshape(-1, 1), variance_MB.reshape(-1, 1)
        start_NE1, weights_NE1 = weights_NE1, weights_NE1.clone()
        for _ in range(self.steps):
            d_ND = (weights_NE1 - start_NE1)[:, vector, 0]
            mean_ND = known.table.expected(weights_NE1)[:, vector, 0]
            right_ND = chosen_ND - count_N1 * mean_ND - d_ND / variance_N1
            weights_NE1[:, vector] += torch.cholesky_solve(right_ND.unsqueeze(-1), factor_NDD)
        return weights_NE1


def _ridge(features_NSE: Tensor, residual_NS: Tensor, variance_N11: Tensor) -> Tensor:
    """(X^T X + 1 / 2 alpha)^-1 X^T r = X^T (X X^T + 1 / 2 alpha)^-1 r, whichever system is smaller, (N, E).

    One Newton step for a squared error, whose curvature is 2 (newton.py), in fewer operations.
    """
    S, E = features_NSE.shape[1:]
    in_rows = S < E
    keys, right_N1X = features_NSE, residual_NS.unsqueeze(1)
    if not in_rows:
        keys, right_N1X = features_NSE.mT, right_N1X @ features_NSE
    eye = torch.eye(min(S, E), dtype=features_NSE.dtype)
    factor = torch.linalg.cholesky(torch.baddbmm(eye * (0.5 / variance_N11), keys, keys.mT))
    solved_NX1 = torch.cholesky_solve(right_N1X.mT, factor)
    return (solved_NX1.mT @ features_NSE).squeeze(1) if in_rows else solved_NX1.squeeze(-1)
