"""Gradient steps on a squared error in features: against autograd, and finite differences."""

import pytest
import torch
from torch import Tensor

from paml.engine.descent import descend

USERS, ROWS, FEATURES = 3, 5, 4


def problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    shapes = ((USERS, ROWS, FEATURES), (USERS, ROWS), (USERS, ROWS), (USERS, FEATURES))
    x_BSF, residual_BS, weight_BS, rates_BF = (torch.randn(s, generator=rng, dtype=torch.float64) for s in shapes)
    weight_BS[0, 2:] = 0.0  # padding
    return x_BSF, residual_BS, weight_BS, 0.2 * rates_BF


def loss(d_BF: Tensor, x_BSF: Tensor, residual_BS: Tensor, weight_BS: Tensor) -> Tensor:
    """sum w (e + x d)^2 / 2, of which w (e + x d) is the slope."""
    return (weight_BS * (residual_BS + (x_BSF @ d_BF.unsqueeze(-1)).squeeze(-1)) ** 2).sum() / 2


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_steps_are_those_of_autograd(steps: int) -> None:
    x_BSF, residual_BS, weight_BS, rates_BF = problem()
    d_BF, slopes = torch.zeros(USERS, FEATURES, dtype=torch.float64), []
    for _ in range(steps):
        point = d_BF.clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(point, x_BSF, residual_BS, weight_BS), point)
        slopes.append(slope)
        d_BF = d_BF - rates_BF * slope
    moved_BF, first_BF = descend(x_BSF, residual_BS, weight_BS, rates_BF, steps)
    torch.testing.assert_close(moved_BF, d_BF)
    torch.testing.assert_close(first_BF, slopes[0])
    assert (moved_BF.abs() > 1e-3).any()


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_gradients_agree_with_finite_differences(steps: int) -> None:
    parts = tuple(part.requires_grad_() for part in problem())
    assert torch.autograd.gradcheck(lambda *given: descend(*given, steps), parts)
    assert torch.autograd.gradcheck(lambda *given: descend(*given, steps)[0], parts)  # the first gradient is not used
