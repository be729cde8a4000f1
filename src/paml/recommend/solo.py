"""A plan (plan.py) user by user, in NumPy: for so little arithmetic, starting operations and padding are the time.

Only what reads the whole table is done for several users at once. For networks with one output and a squared error, or
a choice by gradient steps; a plan answers the others by PyTorch.

Legend: M members, B users, S support rows, I all items, R rows, E entries of a row, H width of the user embedding, L
entries that the user prior covers, G width of choice vectors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paml.engine.choice import ChoiceHead
from paml.engine.heads import Head, ValueHead, on_scale_in_use
from paml.engine.joint import Columns, JointSolver, JointTable
from paml.engine.joint_solvers import JointClosedForm, JointSteps
from paml.engine.solo import TOGETHER, SoloKnown, SoloRate
from paml.methods.rates import JointFixedRate, JointPersonalRate, JointRates
from paml.network.user_prior import FULL_WEIGHT
from paml.recommend.fields import FieldTable
from paml.recommend.requests import EncodedUser

CELLS_IN_CACHE = 1 << 19  # outputs of several users that are still in the cache when the next member's are added


@dataclass(frozen=True)
class SoloUser:
    """One adapted user."""

    weights_ME: np.ndarray
    rate: SoloRate


@dataclass(frozen=True)
class Solo:
    """Parts of a plan. Nothing changes after loading: threads may share it."""

    head: Head
    table: JointTable
    columns: Columns
    base_ME: np.ndarray
    shared: int
    """L"""
    users: FieldTable
    choice_IMG: np.ndarray | None
    """Choice vectors of all items."""
    choice_MGL: np.ndarray | None
    """The layer that makes a prior of them; None if they are priors already, with the constant in the last place."""
    bias_power_M1: np.ndarray | None
    rates: JointRates
    solver: JointSteps | JointClosedForm
    known_weights: Callable[[np.ndarray], np.ndarray] | None

    @staticmethod
    def suits(head: Head, solver: JointSolver, *, has_contexts: bool) -> bool:
        """Whether there is such a form."""
        if has_contexts or not isinstance(head, ValueHead | ChoiceHead):
            return False
        return isinstance(solver, JointSteps | JointClosedForm) and solver.has_solo

    def adapt(self, users: Sequence[EncodedUser], unadapted: Sequence[SoloUser]) -> list[SoloUser]:
        """Adapt to users, from where they begin."""
        found = [*unadapted]
        known = [b for b, user in enumerate(users) if len(user.index_S)]
        if known and self.solver.steps:
            adapted = self.solver.solo(
                [self._known(users[b]) for b in known],
                [found[b].weights_ME for b in known],
                [found[b].rate for b in known],
            )
            for b, weights_ME in zip(known, adapted, strict=True):
                found[b] = SoloUser(weights_ME, found[b].rate)
        return found

    def unadapted(self, user: EncodedUser) -> SoloUser:
        """theta with the user's prior and part of the shared inputs, and the rates; `Plan` has this for many users."""
        known_MW, weights_ME = self.users.solo(user.profile), self.base_ME.copy()
        own_ML, count, columns = weights_ME[:, : self.shared], len(user.index_S), self.columns
        width = known_MW.shape[1] - self.shared
        own_ML += known_MW[:, width:]
        if self.choice_IMG is not None and count:
            sum_MG = np.add.reduce(self.choice_IMG.take(user.index_S, axis=0), axis=0) * (count + FULL_WEIGHT) ** -0.5
            own_ML += self._prior(sum_MG[:, None])[:, 0]
        if self.bias_power_M1 is not None:
            weights_ME[:, 1 + columns.vector : 1 + columns.vector + columns.bias] *= (1 + count) ** self.bias_power_M1
        return SoloUser(weights_ME, self._rate(known_MW[:, :width]))

    def shares(self, user: EncodedUser, weights_ME: np.ndarray) -> np.ndarray:
        """How far each rating moved the adapted weights from those of the same profile without any, (M, S, E)."""
        begun, known, columns = self.unadapted(user), self._known(user), self.columns
        share_MSE = np.zeros_like(known.rows_MSE)
        if self.solver.steps:
            share_MSE += self.solver.solo_shares(known, begun.weights_ME, weights_ME, begun.rate)
        count = len(user.index_S)
        if self.choice_IMG is not None:
            rows_MSG = self.choice_IMG.take(user.index_S, axis=0).transpose(1, 0, 2)
            share_MSE[..., : self.shared] += self._prior(rows_MSG) * (count + FULL_WEIGHT) ** -0.5
        if self.bias_power_M1 is not None:
            # popularity counts less because something is known: every row's doing alike
            bias = slice(1 + columns.vector, 1 + columns.vector + columns.bias)
            share_MSE[..., bias] += (self.base_ME[:, bias] * ((1 + count) ** self.bias_power_M1 - 1) / count)[:, None]
        return share_MSE

    def score(self, weights_ME: np.ndarray, index_R: np.ndarray) -> np.ndarray:
        """Predictions for some items, (R)."""
        rows_MER = self.table.solo_rows(index_R).transpose(1, 2, 0)
        return self._mean((weights_ME[:, None] @ rows_MER)[:, 0])

    def score_all(self, weights_MBE: np.ndarray) -> np.ndarray:
        """The same for all items of the catalogue and any number of users, (B, I)."""
        members, users, _ = weights_MBE.shape
        if users < TOGETHER:
            return np.stack([self._score_all(weights_MBE[:, b]) for b in range(users)])
        at_once, sums = max(TOGETHER, CELLS_IN_CACHE // len(self.table)), []
        for some in (slice(start, start + at_once) for start in range(0, users, at_once)):
            of_members = map(self._predicted, self.table.by_member(weights_MBE[:, some]))
            sum_BI = next(of_members)
            for predicted_BI in of_members:
                sum_BI += predicted_BI
            sums.append(sum_BI)
        mean_BI = sums[0] if len(sums) == 1 else np.concatenate(sums)
        if members > 1:
            mean_BI /= members
        return mean_BI

    def _score_all(self, weights_ME: np.ndarray) -> np.ndarray:
        return (
            self.table.solo_mean(weights_ME) if self._scale is None else self._mean(self.table.solo_times(weights_ME))
        )

    @property
    def _scale(self) -> tuple[float, float] | None:
        """What predictions are squashed onto."""
        return self.head.scale if isinstance(self.head, ValueHead) else None

    def _predicted(self, out: np.ndarray) -> np.ndarray:
        return out if self._scale is None else on_scale_in_use(out, *self._scale)

    def _mean(self, out_MR: np.ndarray) -> np.ndarray:
        """The members' predictions, averaged, (R)."""
        members = len(out_MR)
        mean_R: np.ndarray = np.full(members, 1 / members, dtype=out_MR.dtype) @ self._predicted(out_MR)
        return mean_R

    def _prior(self, chosen_MSG: np.ndarray) -> np.ndarray:
        """What choice vectors add to a prior, (M, S, L)."""
        if self.choice_MGL is None:
            return np.concatenate([chosen_MSG[..., -1:], chosen_MSG[..., :-1]], axis=-1)
        prior_MSL: np.ndarray = chosen_MSG @ self.choice_MGL
        return prior_MSL

    def _rate(self, h_MH: np.ndarray) -> SoloRate:
        """The user's rates."""
        if isinstance(self.rates, JointPersonalRate | JointFixedRate):
            return self.rates.solo(h_MH)
        rate = self.rates(torch.from_numpy(h_MH).unsqueeze(1))
        per_user_M = rate.per_user_MB[:, 0].numpy(force=True)
        if rate.of_parameters is None:
            return SoloRate(per_user_M, h_MH)
        return SoloRate(per_user_M, h_MH, self.columns.rates(rate)[..., 0].numpy(force=True))

    def _known(self, user: EncodedUser) -> SoloKnown:
        """What the user is adapted to."""
        members, count = len(self.base_ME), len(user.index_S)
        if self.known_weights is None:
            y_MS, count_M = user.y_S[None].repeat(members, axis=0), np.full(members, count, dtype=np.float32)
        else:
            y_MS = self.known_weights(user.y_S[None])[:, 0]
            count_M = np.add.reduce(y_MS, axis=1)
        rows_MSE = self.table.solo_rows(user.index_S).transpose(1, 0, 2)
        return SoloKnown(rows_MSE, y_MS, count_M, self.columns, self.table)
