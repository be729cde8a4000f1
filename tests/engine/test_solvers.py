"""The closed form: solved in features or in support rows, the answer is the same."""

import pytest
import torch
from torch import Tensor

from paml.engine.solvers import solve


def problem(users: int, rows: int, features: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    features_BSF = torch.randn(users, rows, features, generator=rng, dtype=torch.float64)
    features_BSF[0, rows // 2 :] = 0.0  # padding
    curvature_BS = torch.rand(users, rows, generator=rng, dtype=torch.float64) + 0.1
    right_BSN = torch.randn(users, rows, 2, generator=rng, dtype=torch.float64)
    return features_BSF, curvature_BS, right_BSN, torch.tensor([0.01, 1.0, 30.0][:users]).double().view(-1, 1, 1)


@pytest.mark.parametrize(("rows", "features"), [(3, 7), (7, 3), (5, 5), (1, 4)])
def test_the_normal_equations_hold(rows: int, features: int) -> None:
    """(X^T C X + 1 / alpha) d = X^T r, whether rows or features are fewer."""
    x_BSF, curvature_BS, right_BSN, variance_B11 = problem(3, rows, features)
    d_BFN = solve(x_BSF, curvature_BS, right_BSN, variance_B11)
    left_BFN = x_BSF.mT @ (curvature_BS.unsqueeze(-1) * (x_BSF @ d_BFN)) + d_BFN / variance_B11
    torch.testing.assert_close(left_BFN, x_BSF.mT @ right_BSN)


@pytest.mark.parametrize(("rows", "features"), [(3, 5), (5, 3)])
def test_gradients_agree_with_finite_differences(rows: int, features: int) -> None:
    parts = tuple(part.requires_grad_() for part in problem(2, rows, features))
    assert torch.autograd.gradcheck(solve, parts)


def test_a_certain_click_has_finite_gradients() -> None:
    x_BSF, _, right_BSN, variance_B11 = problem(2, 2, 4)
    curvature_BS = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    d_BFN = solve(x_BSF, curvature_BS, right_BSN, variance_B11)
    torch.testing.assert_close(d_BFN, variance_B11 * (x_BSF.mT @ right_BSN))
    d_BFN.sum().backward()
    assert curvature_BS.grad is not None
    assert curvature_BS.grad.isfinite().all()
