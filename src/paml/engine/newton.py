"""Newton's method on a user's penalised loss in the last layer: ridge regression, or a few of them.

    argmin_d  sum_j loss(out_j + f_j d, y_j) + |d|^2 / (2 alpha)

A step solves a system in the features or in the support rows, whichever are fewer. Its gradients follow from its
solution (the implicit function theorem) and not from how it was found: from d = H^-1 X^T r and q = H^-1 dL/dd.

Legend: B users, S support rows, K outputs, F features of the last layer, N right-hand sides.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from paml.engine import ops
from paml.engine.heads import Head
from paml.engine.products import times_own, transposed_times_own

MIN_CURVATURE = 1e-12


class Found(NamedTuple):
    """Where Newton's method ended, and its last step: d = H^-1 sum_j f_j r_j."""

    d_BF: Tensor
    curvature_BS: Tensor
    residual_BS: Tensor


def newton(
    features_BSF: Tensor, out_BSK: Tensor, y_BS: Tensor, head: Head, variance_B1F: Tensor, steps: int
) -> Found | None:
    """How far the features' weights move the last output, from outputs at theta; None without steps.

    The prior's variance is that of each feature's weight, (B, 1, F), or of all, (B, 1, 1).
    """
    found = None
    for _ in range(steps):
        if found is None:  # at theta nothing has moved
            # a view: gradients of slope and curvature add up before they reach the outputs, as in later steps
            shifted_BSK = out_BSK.view_as(out_BSK)
        else:
            moved_BS = ops.times_own(features_BSF, found.d_BF.unsqueeze(-1)).squeeze(-1)
            shifted_BSK = _shifted(out_BSK, moved_BS)
        residual_BS = -head.row_gradient(shifted_BSK, y_BS)[..., -1]
        curvature_BS = head.row_curvature(shifted_BSK, y_BS)
        if found is not None:
            residual_BS = residual_BS + curvature_BS * moved_BS
        if head.quadratic:  # the curvature is 2 everywhere
            d_BF = solve(features_BSF, None, residual_BS / 2, variance_B1F * 2)
        else:
            d_BF = solve(features_BSF, curvature_BS, residual_BS, variance_B1F)
        found = Found(d_BF, curvature_BS, residual_BS)
    return found


def solve(features_BSF: Tensor, curvature_BS: Tensor | None, right_BS: Tensor, variance_B1F: Tensor) -> Tensor:
    """d = H^-1 X^T r for H = X^T C X + 1 / V, X the features, C the curvatures (or 1), V the variances, (B, F)."""
    if not torch.is_grad_enabled():
        return System.of(features_BSF, curvature_BS, variance_B1F).solve(right_BS.unsqueeze(-1))[0].squeeze(-1)
    d_BF: Tensor = _Solve.apply(features_BSF, curvature_BS, right_BS, variance_B1F)  # type: ignore[no-untyped-call]
    return d_BF


@dataclass(frozen=True)
class System:
    """H = X^T C X + 1 / V, factorised: in features or, if these are fewer, in rows.

    In rows only the symmetric M = 1 + C^1/2 X V X^T C^1/2 is (Woodbury). There the rows' numbers, r - C X d and X q,
    come from the factor, and d and q from these: the other way round, differences would lose single precision.
    """

    features_BSF: Tensor
    curvature_BS: Tensor | None
    variance_B1F: Tensor
    factor: Tensor
    """Cholesky's, (B, F, F) or (B, S, S)."""

    @classmethod
    def of(cls, features_BSF: Tensor, curvature_BS: Tensor | None, variance_B1F: Tensor) -> "System":
        """Factorise H."""
        S, F = features_BSF.shape[1:]
        if F <= S:
            weighted_BSF = features_BSF if curvature_BS is None else features_BSF * curvature_BS.unsqueeze(-1)
            matrix, added = weighted_BSF.mT @ features_BSF, 1 / variance_B1F[:, 0]
        else:
            root_BSF = features_BSF if curvature_BS is None else features_BSF * _root(curvature_BS)
            matrix, added = (root_BSF * variance_B1F) @ root_BSF.mT, torch.ones_like(variance_B1F[:, 0, :1])
        matrix.diagonal(dim1=1, dim2=2).add_(added)
        return cls(features_BSF, curvature_BS, variance_B1F, torch.linalg.cholesky(matrix))

    @property
    def _in_rows(self) -> bool:
        S, F = self.features_BSF.shape[1:]
        return S < F

    def solve(self, right_BSN: Tensor) -> tuple[Tensor, Tensor]:
        """d = H^-1 X^T r, (B, F, N), and what it leaves of r, (B, S, N): r - C X d.

        In rows that is C^1/2 M^-1 C^-1/2 r, and d = V X^T (r - C X d).
        """
        if not self._in_rows:
            d_BFN = torch.cholesky_solve(transposed_times_own(self.features_BSF, right_BSN), self.factor)
            return d_BFN, right_BSN - self.curved(times_own(self.features_BSF, d_BFN))
        if self.curvature_BS is None:
            left_BSN = torch.cholesky_solve(right_BSN, self.factor)
        else:
            root_BS1 = _root(self.curvature_BS)
            left_BSN = root_BS1 * torch.cholesky_solve(right_BSN / root_BS1, self.factor)
        return self._prior(left_BSN), left_BSN

    def inverse(self, vector_BFN: Tensor) -> tuple[Tensor, Tensor]:
        """q = H^-1 v, (B, F, N), and X q, (B, S, N).

        In rows X q is C^-1/2 M^-1 C^1/2 X V v, and q = V (v - X^T C X q).
        """
        if not self._in_rows:
            q_BFN = torch.cholesky_solve(vector_BFN, self.factor)
            return q_BFN, times_own(self.features_BSF, q_BFN)
        scaled_BFN = self.variance_B1F.mT * vector_BFN
        out_BSN = times_own(self.features_BSF, scaled_BFN)
        if self.curvature_BS is None:
            xq_BSN = torch.cholesky_solve(out_BSN, self.factor)
        else:
            root_BS1 = _root(self.curvature_BS)
            xq_BSN = torch.cholesky_solve(root_BS1 * out_BSN, self.factor) / root_BS1
        return scaled_BFN - self._prior(self.curved(xq_BSN)), xq_BSN

    def _prior(self, right_BSN: Tensor) -> Tensor:
        """V X^T r"""
        return self.variance_B1F.mT * transposed_times_own(self.features_BSF, right_BSN)

    def curved(self, out_BSN: Tensor) -> Tensor:
        """C times rows."""
        return out_BSN if self.curvature_BS is None else self.curvature_BS.unsqueeze(-1) * out_BSN


class _Solve(torch.autograd.Function):
    """For d = H^-1 X^T r and q = H^-1 dL/dd:

    dL/dr = X q,  dL/dX = (r - C X d) q^T - (C X q) d^T,  dL/dC = - (X q) (X d),  dL/dV = q d / V^2
    """

    @staticmethod
    def forward(
        ctx: Any, features_BSF: Tensor, curvature_BS: Tensor | None, right_BS: Tensor, variance_B1F: Tensor
    ) -> Tensor:
        system = System.of(features_BSF, curvature_BS, variance_B1F)
        d_BF1, left_BS1 = system.solve(right_BS.unsqueeze(-1))
        ctx.save_for_backward(features_BSF, curvature_BS, variance_B1F, system.factor, d_BF1, left_BS1)
        return d_BF1.squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BF: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        features_BSF, curvature_BS, variance_B1F, factor, d_BF1, left_BS1 = ctx.saved_tensors
        system = System(features_BSF, curvature_BS, variance_B1F, factor)
        q_BF1, xq_BS1 = system.inverse(grad_BF.unsqueeze(-1))
        to_features = torch.cat([left_BS1, -system.curved(xq_BS1)], dim=-1) @ torch.cat([q_BF1, d_BF1], dim=-1).mT
        to_curvature = None
        if curvature_BS is not None and ctx.needs_input_grad[1]:
            to_curvature = -(xq_BS1 * times_own(features_BSF, d_BF1)).squeeze(-1)
        to_variance = (q_BF1 * d_BF1).mT / variance_B1F**2
        return to_features, to_curvature, xq_BS1.squeeze(-1), to_variance.sum_to_size(variance_B1F.shape)


def _root(curvature_BS: Tensor) -> Tensor:
    """C^1/2, (B, S, 1), by which may be divided: a certain click has no curvature."""
    return curvature_BS.clamp(min=MIN_CURVATURE).sqrt().unsqueeze(-1)


def _shifted(out_BSK: Tensor, moved_BS: Tensor) -> Tensor:
    """The outputs with the last one moved."""
    return torch.cat([out_BSK[..., :-1], (out_BSK[..., -1] + moved_BS).unsqueeze(-1)], dim=-1)
