"""Weighted sums of rows of a table, with gradients that are added up where the rows lie.

PyTorch's own gradient of an embedding bag sorts all indices first, which takes several times as long as adding.

Legend: N rows of a table, W numbers in a row, B users, S rows of each.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, embedding_bag

from paml.engine.products import times_own


def sum_of_rows(table_NW: Tensor, index_BS: Tensor, weight_BS: Tensor) -> Tensor:
    """sum_s weight_s table[index_s] of every user, (B, W)."""
    if not torch.is_grad_enabled():
        return embedding_bag(index_BS, table_NW, per_sample_weights=weight_BS, mode="sum")
    sum_BW: Tensor = _SumOfRows.apply(table_NW, index_BS, weight_BS)  # type: ignore[no-untyped-call]
    return sum_BW


class _SumOfRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table_NW: Tensor, index_BS: Tensor, weight_BS: Tensor) -> Tensor:
        ctx.save_for_backward(table_NW, index_BS, weight_BS)
        return embedding_bag(index_BS, table_NW, per_sample_weights=weight_BS, mode="sum")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BW: Tensor) -> tuple[Tensor, None, Tensor | None]:
        table_NW, index_BS, weight_BS = ctx.saved_tensors
        grad_BSW = weight_BS.unsqueeze(-1) * grad_BW.unsqueeze(1)
        to_table_NW = torch.zeros_like(table_NW).index_add_(0, index_BS.flatten(), grad_BSW.flatten(0, 1))
        if not ctx.needs_input_grad[2]:
            return to_table_NW, None, None
        return to_table_NW, None, times_own(embedding(index_BS, table_NW), grad_BW.unsqueeze(-1)).squeeze(-1)
