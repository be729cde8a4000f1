"""Newton's method on a user's penalised loss in the last layer: ridge regression, or a few of them.

    argmin_d  sum_j loss(out_j + f_j d, y_j) + |d|^2 / (2 alpha)

A step solves a system in the features or in the support rows, whichever are fewer.

Legend: B users, S support rows, K outputs, F features of the last layer.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from paml.engine.heads import Head

MIN_CURVATURE = 1e-12  # of an almost certain click: its square root keeps a finite slope


class Found(NamedTuple):
    """Where Newton's method ended, and its last step: d = H^-1 sum_j f_j r_j."""

    d_BF: Tensor
    curvature_BS: Tensor
    residual_BS: Tensor


def newton(
    features_BSF: Tensor, out_BSK: Tensor, y_BS: Tensor, head: Head, variance_B11: Tensor, steps: int
) -> Found | None:
    """How far the features' weights move the last output, from outputs at theta; None without steps."""
    found = None
    for _ in range(steps):
        if found is None:  # at theta nothing has moved
            # a view: gradients of slope and curvature add up before they reach the outputs, as in later steps
            shifted_BSK = out_BSK.view_as(out_BSK)
        else:
            moved_BS = (features_BSF @ found.d_BF.unsqueeze(-1)).squeeze(-1)
            shifted_BSK = _shifted(out_BSK, moved_BS)
        residual_BS = -head.row_gradient(shifted_BSK, y_BS)[..., -1]
        curvature_BS = head.row_curvature(shifted_BSK, y_BS)
        if found is not None:
            residual_BS = residual_BS + curvature_BS * moved_BS
        d_BF = solve(features_BSF, curvature_BS, residual_BS.unsqueeze(-1), variance_B11).squeeze(-1)
        found = Found(d_BF, curvature_BS, residual_BS)
    return found


def solve(features_BSF: Tensor, curvature_BS: Tensor, right_BSN: Tensor, variance_B11: Tensor) -> Tensor:
    """H^-1 X^T r for H = X^T C X + 1 / alpha, X the features, C the curvatures; (B, F, N).

    In features by H's Cholesky factor; in rows, if these are fewer, as alpha X^T (1 + C G)^-1 r with the products
    G = alpha X X^T, where only the symmetric 1 + C^1/2 G C^1/2 is factorised (Woodbury).
    """
    B, S, F = features_BSF.shape
    if F <= S:
        weighted_BSF = features_BSF * curvature_BS.unsqueeze(-1)
        prior_BF = (1 / variance_B11).view(B, 1).expand(-1, F)
        factor_BFF = torch.linalg.cholesky(weighted_BSF.mT @ features_BSF + torch.diag_embed(prior_BF))
        return torch.cholesky_solve(features_BSF.mT @ right_BSN, factor_BFF)
    products_BSS = variance_B11 * (features_BSF @ features_BSF.mT)
    root_BS1 = curvature_BS.clamp(min=MIN_CURVATURE).sqrt().unsqueeze(-1)
    system_BSS = root_BS1 * products_BSS * root_BS1.mT + torch.eye(S, dtype=root_BS1.dtype, device=root_BS1.device)
    explained_BSN = torch.cholesky_solve(root_BS1 * (products_BSS @ right_BSN), torch.linalg.cholesky(system_BSS))
    return variance_B11 * (features_BSF.mT @ (right_BSN - root_BS1 * explained_BSN))


def _shifted(out_BSK: Tensor, moved_BS: Tensor) -> Tensor:
    """The outputs with the last one moved."""
    return torch.cat([out_BSK[..., :-1], (out_BSK[..., -1] + moved_BS).unsqueeze(-1)], dim=-1)
