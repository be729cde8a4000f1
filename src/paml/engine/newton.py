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
        return System.of(features_BSF, curvature_BS, variance_B1F).solve(right_BS.unsqueeze(-1)).squeeze(-1)
    d_BF: Tensor = _Solve.apply(features_BSF, curvature_BS, right_BS, variance_B1F)  # type: ignore[no-untyped-call]
    return d_BF


@dataclass(frozen=True)
class System:
    """H = X^T C X + 1 / V, factorised: in features or, if these are fewer, in rows.

    In rows only the symmetric 1 + C^1/2 X V X^T C^1/2 is (Woodbury):

        H^-1  =  V - V X^T C^1/2 (1 + C^1/2 X V X^T C^1/2)^-1 C^1/2 X V
    """

    features_BSF: Tensor
    variance_B1F: Tensor
    factor: Tensor
    """Cholesky's, (B, F, F) or (B, S, S)."""
    root_BSF: Tensor | None
    """C^1/2 X, in rows."""

    @classmethod
    def of(cls, features_BSF: Tensor, curvature_BS: Tensor | None, variance_B1F: Tensor) -> "System":
        """Factorise H."""
        S, F = features_BSF.shape[1:]
        if F <= S:
            weighted_BSF = features_BSF if curvature_BS is None else features_BSF * curvature_BS.unsqueeze(-1)
            matrix, added, root_BSF = weighted_BSF.mT @ features_BSF, 1 / variance_B1F[:, 0], None
        else:
            root_BSF = features_BSF if curvature_BS is None else features_BSF * curvature_BS.sqrt().unsqueeze(-1)
            matrix, added = (root_BSF * variance_B1F) @ root_BSF.mT, torch.ones_like(variance_B1F[:, 0, :1])
        matrix.diagonal(dim1=1, dim2=2).add_(added)
        return cls(features_BSF, variance_B1F, torch.linalg.cholesky(matrix), root_BSF)

    def solve(self, right_BSN: Tensor) -> Tensor:
        """H^-1 X^T r, (B, F, N)."""
        return self.inverse(transposed_times_own(self.features_BSF, right_BSN))

    def inverse(self, vector_BFN: Tensor) -> Tensor:
        """H^-1 times vectors, (B, F, N)."""
        if self.root_BSF is None:
            return torch.cholesky_solve(vector_BFN, self.factor)
        scaled_BFN = self.variance_B1F.mT * vector_BFN
        explained_BSN = torch.cholesky_solve(times_own(self.root_BSF, scaled_BFN), self.factor)
        return scaled_BFN - self.variance_B1F.mT * transposed_times_own(self.root_BSF, explained_BSN)


class _Solve(torch.autograd.Function):
    """For d = H^-1 X^T r and q = H^-1 dL/dd:

    dL/dr = X q,  dL/dX = (r - C X d) q^T - (C X q) d^T,  dL/dC = - (X q) (X d),  dL/dV = q d / V^2
    """

    @staticmethod
    def forward(
        ctx: Any, features_BSF: Tensor, curvature_BS: Tensor | None, right_BS: Tensor, variance_B1F: Tensor
    ) -> Tensor:
        system = System.of(features_BSF, curvature_BS, variance_B1F)
        d_BF1 = system.solve(right_BS.unsqueeze(-1))
        ctx.save_for_backward(features_BSF, curvature_BS, right_BS, variance_B1F, d_BF1, system.factor, system.root_BSF)
        return d_BF1.squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BF: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        features_BSF, curvature_BS, right_BS, variance_B1F, d_BF1, factor, root_BSF = ctx.saved_tensors
        q_BF1 = System(features_BSF, variance_B1F, factor, root_BSF).inverse(grad_BF.unsqueeze(-1))
        both_BF2 = torch.cat([q_BF1, d_BF1], dim=-1)
        xq_BS, xd_BS = times_own(features_BSF, both_BF2).unbind(dim=-1)
        slope_BS, weight_BS = (xd_BS, xq_BS) if curvature_BS is None else (curvature_BS * xd_BS, curvature_BS * xq_BS)
        to_features = torch.stack([right_BS - slope_BS, -weight_BS], dim=-1) @ both_BF2.mT
        to_curvature = -xq_BS * xd_BS if ctx.needs_input_grad[1] else None
        to_variance = (q_BF1 * d_BF1).mT / variance_B1F**2
        return to_features, to_curvature, xq_BS, to_variance.sum_to_size(variance_B1F.shape)


def _shifted(out_BSK: Tensor, moved_BS: Tensor) -> Tensor:
    """The outputs with the last one moved."""
    return torch.cat([out_BSK[..., :-1], (out_BSK[..., -1] + moved_BS).unsqueeze(-1)], dim=-1)
