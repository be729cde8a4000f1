"""Gradient steps on a squared error in features: how networks of one layer are adapted in training.

    d  <-  d - a * X^T (w (e + X d))      with residuals e = out - y at theta and weights w, T times

Every step is two products with the features, and so is its way back: the gradients of all steps with respect to the
features are sums of products of a vector over rows and one over features, and are added up in a single product.

Legend: B users, S support rows, F features: a row's inputs and the constant 1.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from paml.engine.products import times_own, transposed_times_own


def descend(
    features_BSF: Tensor, residual_BS: Tensor, weight_BS: Tensor, rates_BF: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """How far the weights of the features move in so many steps, at least one, and the first gradient, (B, F) each."""
    found: tuple[Tensor, Tensor]
    found = _Descend.apply(features_BSF, residual_BS, weight_BS, rates_BF, steps)  # type: ignore[no-untyped-call]
    return found


class _Descend(torch.autograd.Function):
    """With s_t = w (e + X d_t), g_t = X^T s_t and d_(t+1) = d_t - a g_t; the way back goes from the last step on."""

    @staticmethod
    def forward(
        ctx: Any, features_BSF: Tensor, residual_BS: Tensor, weight_BS: Tensor, rates_BF: Tensor, steps: int
    ) -> tuple[Tensor, Tensor]:
        error_BS, moved_BF = residual_BS, torch.zeros_like(rates_BF)
        errors: list[Tensor] = []
        gradients: list[Tensor] = []
        moves: list[Tensor] = []
        for step in range(steps):
            if step:
                error_BS = residual_BS + _times(features_BSF, moved_BF)
            gradient_BF = _transposed(features_BSF, weight_BS * error_BS)
            errors.append(error_BS)
            gradients.append(gradient_BF)
            moves.append(moved_BF)
            moved_BF = torch.addcmul(moved_BF, rates_BF, gradient_BF, value=-1)
        ctx.save_for_backward(features_BSF, weight_BS, rates_BF, *errors, *gradients, *moves)
        ctx.steps = steps
        return moved_BF, gradients[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_moved_BF: Tensor, to_first_BF: Tensor) -> tuple[Tensor | None, ...]:
        features_BSF, weight_BS, rates_BF, *kept = ctx.saved_tensors
        errors, gradients, moves = (kept[k * ctx.steps : (k + 1) * ctx.steps] for k in range(3))
        to_residual_BS, to_weight_BS = torch.zeros_like(weight_BS), torch.zeros_like(weight_BS)
        to_rates_BF = torch.zeros_like(rates_BF)
        rows: list[Tensor] = []
        columns: list[Tensor] = []
        for step in reversed(range(ctx.steps)):
            to_gradient_BF = -rates_BF * to_moved_BF
            to_rates_BF.addcmul_(to_moved_BF, gradients[step], value=-1)
            if not step:
                to_gradient_BF += to_first_BF
            to_slope_BS = _times(features_BSF, to_gradient_BF)
            to_error_BS = weight_BS * to_slope_BS
            to_weight_BS.addcmul_(errors[step], to_slope_BS)
            to_residual_BS += to_error_BS
            rows.append(weight_BS * errors[step])
            columns.append(to_gradient_BF)
            if step:  # before the first step nothing has moved
                to_moved_BF = to_moved_BF + _transposed(features_BSF, to_error_BS)
                rows.append(to_error_BS)
                columns.append(moves[step])
        to_features_BSF = torch.stack(rows, dim=2) @ torch.stack(columns, dim=1)
        return to_features_BSF, to_residual_BS, to_weight_BS, to_rates_BF, None


def _times(features_BSF: Tensor, vector_BF: Tensor) -> Tensor:
    """X v, (B, S)."""
    return times_own(features_BSF, vector_BF.unsqueeze(-1)).squeeze(-1)


def _transposed(features_BSF: Tensor, vector_BS: Tensor) -> Tensor:
    """X^T v, (B, F)."""
    return transposed_times_own(features_BSF, vector_BS.unsqueeze(-1)).squeeze(-1)
