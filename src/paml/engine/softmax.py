"""Softmax over a table of items, with gradients that touch it as seldom as possible.

A choice among thousands of items is two products with their table, and everything else is a pass over B x N numbers,
which costs as much as a product. So a step is one softmax in place between the two, and its backward pass is written
out: four products and one pass.

Legend: B users, N items, E entries of an item's row, Q items that are asked for, S items that are no candidates.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from paml.engine.products import times, transposed_times

NO_CANDIDATE = -1e9  # added to the output of an item that cannot be chosen: finite, so that 0 times it is 0
Excluded = tuple[Tensor, Tensor]
"""Items that cannot be chosen, (B, S), and a mask that is 0 where there is none."""


def expected_row(rows_NE: Tensor, weights_BE: Tensor) -> Tensor:
    """sum_i p_i row_i with p = softmax(rows w): the mean row of what each user would choose, (B, E)."""
    if not torch.is_grad_enabled():
        return times(_chances(rows_NE, weights_BE), rows_NE)
    expected_BE: Tensor = _ExpectedRow.apply(rows_NE, weights_BE)  # type: ignore[no-untyped-call]
    return expected_BE


def log_chances(rows_NE: Tensor, weights_BE: Tensor, index_BQ: Tensor, excluded: Excluded | None = None) -> Tensor:
    """log p of some items with p = softmax(rows w), (B, Q); about NO_CANDIDATE for those that are excluded."""
    if not torch.is_grad_enabled():
        return _log_chances(rows_NE, weights_BE, excluded).gather(1, index_BQ)
    index_BS, mask_BS = excluded or (index_BQ[:, :0], weights_BE[:, :0])
    log_p_BQ: Tensor = _LogChances.apply(rows_NE, weights_BE, index_BQ, index_BS, mask_BS)  # type: ignore[no-untyped-call]
    return log_p_BQ


class _ExpectedRow(torch.autograd.Function):
    """With u = dL/dE and v = rows u: the outputs have the gradient o = p (v - sum_i p_i v_i), the rows p u + o w."""

    @staticmethod
    def forward(ctx: Any, rows_NE: Tensor, weights_BE: Tensor) -> Tensor:
        p_BN = _chances(rows_NE, weights_BE)
        ctx.save_for_backward(rows_NE, weights_BE, p_BN)
        return times(p_BN, rows_NE)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BE: Tensor) -> tuple[Tensor, Tensor]:
        rows_NE, weights_BE, p_BN = ctx.saved_tensors
        out_BN = times(grad_BE, rows_NE.T)
        torch.ops.aten._softmax_backward_data.out(out_BN, p_BN, 1, out_BN.dtype, grad_input=out_BN)
        grad_NE = transposed_times(out_BN, weights_BE, to_DK=transposed_times(p_BN, grad_BE))
        return grad_NE, times(out_BN, rows_NE)


class _LogChances(torch.autograd.Function):
    """With g = dL/d log p: the outputs have the gradient g - p sum_j g_j."""

    @staticmethod
    def forward(
        ctx: Any, rows_NE: Tensor, weights_BE: Tensor, index_BQ: Tensor, index_BS: Tensor, mask_BS: Tensor
    ) -> Tensor:
        log_p_BN = _log_chances(rows_NE, weights_BE, (index_BS, mask_BS))
        ctx.save_for_backward(rows_NE, weights_BE, index_BQ, log_p_BN)
        return log_p_BN.gather(1, index_BQ)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BQ: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        rows_NE, weights_BE, index_BQ, log_p_BN = ctx.saved_tensors
        out_BN = log_p_BN.exp().mul_(-grad_BQ.sum(dim=1, keepdim=True)).scatter_add_(1, index_BQ, grad_BQ)
        return transposed_times(out_BN, weights_BE), times(out_BN, rows_NE), None, None, None


def _chances(rows_NE: Tensor, weights_BE: Tensor) -> Tensor:
    """softmax(rows w), (B, N)."""
    out_BN = times(weights_BE, rows_NE.T)
    return torch.softmax(out_BN, dim=1, out=out_BN)


def _log_chances(rows_NE: Tensor, weights_BE: Tensor, excluded: Excluded | None) -> Tensor:
    """log softmax(rows w), without candidates that are excluded, (B, N)."""
    out_BN = times(weights_BE, rows_NE.T)
    if excluded is not None:
        index_BS, mask_BS = excluded
        out_BN.scatter_add_(1, index_BS, mask_BS * NO_CANDIDATE)
    return torch.log_softmax(out_BN, dim=1, out=out_BN)
