"""Products that the layers are made of, with gradients that touch memory as little as possible.

Plain autograd returns the gradient of a transposed factor as a transposed view, and elementwise operations on such
a view cost many times as much; here all gradients are contiguous, and computed in place where possible.

Legend: B users, R rows, D inputs, K outputs, N distinct items.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from paml.engine import products


class _Linear(torch.autograd.Function):
    """x W, or x W + bias, of rows that all have the same weights."""

    @staticmethod
    def forward(ctx: Any, x_RD: Tensor, weights_DK: Tensor, bias_K: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_RD, weights_DK)
        return products.times(x_RD, weights_DK, bias_K)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RK: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x_RD, weights_DK = ctx.saved_tensors
        needs_x, needs_weights, needs_bias = ctx.needs_input_grad
        return (
            products.times(grad_RK, weights_DK.mT) if needs_x else None,
            products.transposed_times(x_RD, grad_RK) if needs_weights else None,
            grad_RK.sum(dim=0) if needs_bias else None,
        )


class _TimesTransposed(torch.autograd.Function):
    """a b^T, b one matrix or one per user."""

    @staticmethod
    def forward(ctx: Any, a_BRK: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a_BRK, b)
        return _rows_times(a_BRK, b.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a_BRK, b = ctx.saved_tensors
        needs_a, needs_b = ctx.needs_input_grad
        to_a = _rows_times(grad, b) if needs_a else None
        if not needs_b:
            return to_a, None
        if b.dim() == 3:
            return to_a, products.transposed_times_own(grad, a_BRK)
        return to_a, products.transposed_times(grad.flatten(0, 1), a_BRK.flatten(0, 1))


class _TimesOwn(torch.autograd.Function):
    """x W_i, or x W_i + what is added to all rows of a user."""

    @staticmethod
    def forward(ctx: Any, x_BRD: Tensor, own_BDK: Tensor, add_B1K: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_BRD, own_BDK)
        return products.times_own(x_BRD, own_BDK, add_B1K)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BRK: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x_BRD, own_BDK = ctx.saved_tensors
        needs_x, needs_own, needs_add = ctx.needs_input_grad
        return (
            products.times_transposed_own(grad_BRK, own_BDK) if needs_x else None,
            products.transposed_times_own(x_BRD, grad_BRK) if needs_own else None,
            grad_BRK.sum(dim=1, keepdim=True) if needs_add else None,
        )


class _TransposedTimes(torch.autograd.Function):
    """a^T b per user."""

    @staticmethod
    def forward(ctx: Any, a_BRD: Tensor, b_BRK: Tensor) -> Tensor:
        ctx.save_for_backward(a_BRD, b_BRK)
        return products.transposed_times_own(a_BRD, b_BRK)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BDK: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a_BRD, b_BRK = ctx.saved_tensors
        needs_a, needs_b = ctx.needs_input_grad
        return (
            products.times_transposed_own(b_BRK, grad_BDK) if needs_a else None,
            products.times_own(a_BRD, grad_BDK) if needs_b else None,
        )


class _Attend(torch.autograd.Function):
    """base - alpha A V, in place: the scores are small, and only they are multiplied by alpha."""

    @staticmethod
    def forward(ctx: Any, base_BRK: Tensor, alpha_B11: Tensor, products_BRS: Tensor, values_BSK: Tensor) -> Tensor:
        ctx.mark_dirty(base_BRK)
        ctx.save_for_backward(alpha_B11, products_BRS, values_BSK)
        return base_BRK.baddbmm_(alpha_B11 * products_BRS, values_BSK, alpha=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BRK: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        alpha_B11, products_BRS, values_BSK = ctx.saved_tensors
        minus_B11 = -alpha_B11
        to_scores_BRS = grad_BRK @ values_BSK.mT
        to_alpha_B11 = -(to_scores_BRS * products_BRS).sum(dim=(1, 2), keepdim=True)
        to_values_BSK = (minus_B11 * products_BRS).mT @ grad_BRK
        return grad_BRK, to_alpha_B11, to_scores_BRS.mul_(minus_B11), to_values_BSK


class _Lookup(torch.autograd.Function):
    """Rows of a table plus one row per user: table[index] + shared, in one pass over memory each way."""

    @staticmethod
    def forward(ctx: Any, table_NK: Tensor, index_BR: Tensor, shared_BK: Tensor) -> Tensor:
        ctx.save_for_backward(index_BR)
        ctx.items = len(table_NK)
        return _looked_up(table_NK, index_BR, shared_BK)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BRK: Tensor) -> tuple[Tensor, None, Tensor]:
        (index_BR,) = ctx.saved_tensors
        grad_NK = grad_BRK.new_zeros(ctx.items, grad_BRK.shape[2])
        grad_NK.index_add_(0, index_BR.flatten(), grad_BRK.flatten(0, 1))
        return grad_NK, None, grad_BRK.sum(dim=1)


class _Backpropagate(torch.autograd.Function):
    """(g W^T) where the activation is above 0: the gradient one layer further down, masked in place."""

    @staticmethod
    def forward(ctx: Any, grad_BRK: Tensor, weights_DK: Tensor, active_BRD: Tensor) -> Tensor:
        ctx.save_for_backward(grad_BRK, weights_DK, active_BRD)
        below_BRD = _rows_times(grad_BRK, weights_DK.T)
        torch.ops.aten.threshold_backward.grad_input(below_BRD, active_BRD, 0, grad_input=below_BRD)
        return below_BRD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BRD: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_BRK, weights_DK, active_BRD = ctx.saved_tensors
        masked_ND = torch.ops.aten.threshold_backward(grad_BRD, active_BRD, 0).flatten(0, 1)
        above_BRK = products.times(masked_ND, weights_DK).view_as(grad_BRK)
        return above_BRK, products.transposed_times(masked_ND, grad_BRK.flatten(0, 1)), None


def linear(x_RD: Tensor, weights_DK: Tensor, bias_K: Tensor | None = None) -> Tensor:
    """x W, or x W + bias, (R, K)."""
    if not torch.is_grad_enabled():
        return products.times(x_RD, weights_DK, bias_K)
    product: Tensor = _Linear.apply(x_RD, weights_DK, bias_K)  # type: ignore[no-untyped-call]
    return product


def times_transposed(a_BRK: Tensor, b: Tensor) -> Tensor:
    """a b^T, (B, R, S)."""
    if not torch.is_grad_enabled():
        return _rows_times(a_BRK, b.mT)
    product: Tensor = _TimesTransposed.apply(a_BRK, b)  # type: ignore[no-untyped-call]
    return product


def transposed_times(a_BRD: Tensor, b_BRK: Tensor) -> Tensor:
    """a^T b, (B, D, K)."""
    if not torch.is_grad_enabled():
        return products.transposed_times_own(a_BRD, b_BRK)
    product: Tensor = _TransposedTimes.apply(a_BRD, b_BRK)  # type: ignore[no-untyped-call]
    return product


def times_own(x_BRD: Tensor, own_BDK: Tensor, add_B1K: Tensor | None = None) -> Tensor:
    """x W_i of each user's own matrix, or plus what is added to all rows of a user, (B, R, K)."""
    if not torch.is_grad_enabled():
        return products.times_own(x_BRD, own_BDK, add_B1K)
    product: Tensor = _TimesOwn.apply(x_BRD, own_BDK, add_B1K)  # type: ignore[no-untyped-call]
    return product


def attend(base_BRK: Tensor, alpha_B11: Tensor, products_BRS: Tensor, values_BSK: Tensor) -> Tensor:
    """base - alpha A V, (B, R, K); the base, which nobody else may need, is overwritten."""
    if not torch.is_grad_enabled():
        return base_BRK.baddbmm_(alpha_B11 * products_BRS, values_BSK, alpha=-1)
    attended_BRK: Tensor = _Attend.apply(base_BRK, alpha_B11, products_BRS, values_BSK)  # type: ignore[no-untyped-call]
    return attended_BRK


def by_user(rows_NK: Tensor, like_BR: Tensor) -> Tensor:
    """Rows of all users, one user after the other, as (B, R, K); not a view, so it may be changed in place."""
    rows_BRK: Tensor = torch.ops.aten._unsafe_view(rows_NK, [*like_BR.shape[:2], rows_NK.shape[1]])
    return rows_BRK


def lookup(table_NK: Tensor, index_BR: Tensor, shared_BK: Tensor) -> Tensor:
    """table[index] + shared, (B, R, K); not a view, so it may be changed in place."""
    if not torch.is_grad_enabled():
        return _looked_up(table_NK, index_BR, shared_BK)
    rows: Tensor = _Lookup.apply(table_NK, index_BR, shared_BK)  # type: ignore[no-untyped-call]
    return rows


def backpropagate(grad_BRK: Tensor, weights_DK: Tensor, active_BRD: Tensor) -> Tensor:
    """g W^T where the activation is above 0, (B, R, D)."""
    if not torch.is_grad_enabled():
        return where_active(_rows_times(grad_BRK, weights_DK.T), active_BRD)
    below: Tensor = _Backpropagate.apply(grad_BRK, weights_DK, active_BRD)  # type: ignore[no-untyped-call]
    return below


def where_active(grad_BRD: Tensor, active_BRD: Tensor) -> Tensor:
    """The derivative of ReLU as one kernel: passes the gradient where the activation is above 0."""
    masked: Tensor = torch.ops.aten.threshold_backward(grad_BRD, active_BRD, 0)
    return masked


def _rows_times(x_BRD: Tensor, b: Tensor) -> Tensor:
    """All users' rows times one matrix, or each user's times their own, (B, R, K)."""
    if b.dim() == 3:
        return products.times_own(x_BRD, b) if x_BRD.shape[2] != 1 else x_BRD * b
    return by_user(products.times(x_BRD.flatten(0, 1), b), x_BRD)


def _looked_up(table_NK: Tensor, index_BR: Tensor, shared_BK: Tensor) -> Tensor:
    rows_BRK = by_user(table_NK.index_select(0, index_BR.flatten()), index_BR)
    return rows_BRK.add_(shared_BK.unsqueeze(1))
