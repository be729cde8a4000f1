"""Inputs of linear layers: rows of activations, rows that point into a table of items, or all items.

A layer's input has a part that differs by row and a part that all rows of a user share (the user's embedding, and the
constant 1 whose weight is the bias).

Legend: B users, R rows (S of the support set), D inputs per row, C shared inputs, K outputs, N distinct items, E rows
of weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from paml.engine.joint import JointTable
from paml.engine.ops import by_user, linear, lookup, times_own, times_transposed, transposed_times
from paml.engine.products import in_blocks


class Weights(NamedTuple):
    """One layer: weights of the inputs that differ by row and of those that a user's rows share, bias included."""

    rows_DK: Tensor
    shared_CK: Tensor


@dataclass(frozen=True)
class LayerInput:
    """Input of a later layer for all rows of B users: activations, and the constant 1."""

    x_BRD: Tensor
    shared_BC: Tensor
    is_first: bool = False

    def project(self, weights: Weights) -> Tensor:
        """x W + bias, (B, R, K)."""
        return by_user(linear(self.x_BRD.flatten(0, 1), weights.rows_DK, weights.shared_CK[0]), self.x_BRD)

    def attend(self, keys_BSD: Tensor, shared_key_BC: Tensor) -> Tensor:
        """x X^T, shared inputs included, (B, R, S)."""
        return times_transposed(self.x_BRD, keys_BSD) + _shared_product(self.shared_BC, shared_key_BC)

    def times(self, weights_BDK: Tensor, shared_B1K: Tensor) -> Tensor:
        """x W_i plus what a user's rows share, (B, R, K)."""
        return times_own(self.x_BRD, weights_BDK, shared_B1K)

    def transposed_times(self, values_BRK: Tensor) -> Tensor:
        """X^T V, (B, D, K)."""
        return transposed_times(self.x_BRD, values_BRK)

    def features(self, mask_BR: Tensor) -> Tensor:
        """The rows with the constant 1 as a further input; zeros where there is padding, (B, R, D + 1)."""
        return _features(self.x_BRD, mask_BR)


class ItemTable:
    """Vectors of a batch's distinct items, and their products with the first layer's weights, computed once.

    Support rows, query rows and all inner steps look rows up in the same products.
    """

    def __init__(self, vectors_ND: Tensor) -> None:
        self.vectors_ND = vectors_ND
        self._weights_DK: Tensor | None = None
        self._products_NK = vectors_ND

    def products(self, weights_DK: Tensor) -> Tensor:
        """Item vectors times their part of the weights, (N, K); in training, with rows of zeros below them."""
        if self._weights_DK is not weights_DK:
            self._weights_DK = weights_DK
            self._products_NK = self._times(weights_DK[: self.width])
        return self._products_NK

    @property
    def width(self) -> int:
        """D"""
        return self.vectors_ND.shape[1]

    @staticmethod
    def joint(tables: Sequence[Any], rows_NME: Tensor) -> JointTable:
        """The tables of all members as one; `rows_NME` are their `vectors_ND` with constant and biases (joint.py)."""
        return JointTable(rows_NME)

    def seen_in(self, joint: JointTable, m: int, vectors_ND: Tensor) -> "ItemTable":
        """The same table without memory of its own: a view of a member's part of a joint table."""
        return ItemTable(vectors_ND)

    @property
    def smallest_chunk(self) -> int:
        """The least number of items that a chunk should have."""
        return 1

    def rows(self, index_R: Tensor) -> Tensor:
        """The vectors of some items, (R, D)."""
        return self.vectors_ND.index_select(0, index_R)

    def features(self, index_BR: Tensor, mask_BR: Tensor) -> Tensor:
        """Rows with the constant 1 as a further entry; zeros where there is padding, (B, R, D + 1)."""
        N = len(self.vectors_ND)
        if index_BR.numel() < N or self.width > self.vectors_ND.shape[1]:
            return _features(self.rows(index_BR.flatten()).view(*index_BR.shape, -1), mask_BR)
        table_NF = pad(_with_one(self.vectors_ND), (0, 0, 0, 1))  # a row of zeros for padding
        return table_NF.index_select(0, index_BR.masked_fill(mask_BR == 0, N).flatten()).view(*index_BR.shape, -1)

    def chunk_times(self, weights_ED: Tensor, add_E1: Tensor, items: slice) -> Tensor:
        """E weights times a chunk of the items, or the first part of their vectors, plus `add_E1`, (E, R)."""
        return torch.addmm(add_E1, weights_ED, self.vectors_ND[items, : weights_ED.shape[1]].mT)

    def _times(self, weights_DK: Tensor) -> Tensor:
        """A batch's number of items hardly comes again; that of whole blocks does (products.py)."""
        N = len(self.vectors_ND)
        more = in_blocks(N, weights_DK) - N if torch.is_grad_enabled() and weights_DK.shape[1] > 1 else 0
        return linear(pad(self.vectors_ND, (0, 0, 0, more)) if more else self.vectors_ND, weights_DK)


@dataclass(frozen=True)
class ItemInput:
    """Input of the first layer: rows point into a table of distinct items, and each may have a context."""

    table: ItemTable
    index_BR: Tensor
    shared_BC: Tensor
    context_BRD: Tensor | None = None
    mask_BR: Tensor | None = None
    """0 for padding, if `features` are needed, too: rows are read once for both, and those of padding are zeros."""
    is_first: bool = True

    @cached_property
    def x_BRD(self) -> Tensor:
        """The rows materialised, once."""
        if self._features_BRF is not None:
            return self._features_BRF[..., :-1]
        x_BRD = self.table.rows(self.index_BR.flatten()).view(*self.index_BR.shape, self.table.width)
        return x_BRD if self.context_BRD is None else torch.cat([x_BRD, self.context_BRD], dim=-1)

    @cached_property
    def _features_BRF(self) -> Tensor | None:
        """Rows of the table with the constant 1, where they are needed."""
        if self.mask_BR is None or self.context_BRD is not None:
            return None
        return self.table.features(self.index_BR, self.mask_BR)

    def features(self, mask_BR: Tensor) -> Tensor:
        """The rows with the constant 1 as a further input; zeros where there is padding, (B, R, D + 1)."""
        return _features(self.x_BRD, mask_BR) if self._features_BRF is None else self._features_BRF

    @cached_property
    def gram_BRR(self) -> Tensor:
        """Products of all pairs of a user's rows, shared inputs included: x X^T for the support rows themselves."""
        return times_transposed(self.x_BRD, self.x_BRD) + (self.shared_BC**2).sum(dim=1).view(-1, 1, 1)

    def detached(self) -> "ItemInput":
        """The same, treated as constants."""
        context_BRD = None if self.context_BRD is None else self.context_BRD.detach()
        return ItemInput(ItemTable(self.table.vectors_ND.detach()), self.index_BR, self.shared_BC.detach(), context_BRD)

    def project(self, weights: Weights) -> Tensor:
        """x W + shared W', each distinct item and each user multiplied once, (B, R, K)."""
        shared_BK = self.shared_BC @ weights.shared_CK
        z_BRK = lookup(self.table.products(weights.rows_DK), self.index_BR, shared_BK)
        if self.context_BRD is None:
            return z_BRK
        return z_BRK + self.context_BRD @ weights.rows_DK[self.table.width :]

    def attend(self, keys_BSD: Tensor, shared_key_BC: Tensor) -> Tensor:
        """x X^T, shared inputs included, (B, R, S); for the keys themselves it is computed once."""
        if self.x_BRD is keys_BSD:
            return self.gram_BRR
        return times_transposed(self.x_BRD, keys_BSD) + _shared_product(self.shared_BC, shared_key_BC)

    def times(self, weights_BDK: Tensor, shared_B1K: Tensor) -> Tensor:
        """x W_i plus what a user's rows share, (B, R, K)."""
        return times_own(self.x_BRD, weights_BDK, shared_B1K)

    def transposed_times(self, values_BRK: Tensor) -> Tensor:
        """X^T V, (B, D, K)."""
        return transposed_times(self.x_BRD, values_BRK)

    def items_times(self, weights_BFK: Tensor) -> Tensor:
        """The same for the item vectors alone, or for their first part, and the constant 1, the last of the weights."""
        D = weights_BFK.shape[1] - 1
        if self._features_BRF is not None and self.table.width == D:
            return times_own(self._features_BRF, weights_BFK)
        return times_own(self.x_BRD[..., :D], weights_BFK[:, :D], weights_BFK[:, D:])

    def look_up(self, table_NK: Tensor) -> Tensor:
        """The table's entries for the rows' items, (B, R, K)."""
        return table_NK.index_select(0, self.index_BR.flatten()).view(*self.index_BR.shape, table_NK.shape[1])


@dataclass(frozen=True)
class TableInput:
    """Input of the first layer for a chunk of the table: the same rows for every user, in one context each.

    Nothing is gathered, and items times all users' own weights is one product: serving scores all items this way.
    """

    table: ItemTable
    items: slice
    shared_BC: Tensor
    context_BD: Tensor | None = None

    def project(self, weights: Weights) -> Tensor:
        """x W + shared W', each item and each user multiplied once, (B, R, K)."""
        z_BK = self.shared_BC @ weights.shared_CK
        if self.context_BD is not None:
            z_BK = z_BK + self.context_BD @ weights.rows_DK[self.table.width :]
        return self.table.products(weights.rows_DK)[: len(self.table.vectors_ND)][self.items] + z_BK.unsqueeze(1)

    def attend(self, keys_BSD: Tensor, shared_key_BC: Tensor) -> Tensor:
        """x X^T, shared inputs included, (B, R, S)."""
        zeros_B1S = keys_BSD.new_zeros(1, 1, 1).expand(len(keys_BSD), 1, keys_BSD.shape[1])
        return self.times(keys_BSD.mT, zeros_B1S) + _shared_product(self.shared_BC, shared_key_BC)

    def times(self, weights_BDK: Tensor, shared_B1K: Tensor) -> Tensor:
        """x W_i plus what a user's rows share, (B, R, K)."""
        if self.context_BD is not None:
            D = self.table.width
            shared_B1K = shared_B1K + self.context_BD.unsqueeze(1) @ weights_BDK[:, D:]
            weights_BDK = weights_BDK[:, :D]
        return self._times(weights_BDK, shared_B1K)

    def items_times(self, weights_BFK: Tensor) -> Tensor:
        """The same for the item vectors alone, or for their first part, and the constant 1, the last of the weights."""
        return self._times(weights_BFK[:, :-1], weights_BFK[:, -1:])

    def _times(self, weights_BDK: Tensor, shared_B1K: Tensor) -> Tensor:
        """One product for all users."""
        B, D, K = weights_BDK.shape
        weights_ED = weights_BDK.mT.reshape(B * K, D)
        return self.table.chunk_times(weights_ED, shared_B1K.reshape(-1, 1), self.items).view(B, K, -1).mT

    def look_up(self, table_NK: Tensor) -> Tensor:
        """The table's entries for the rows' items, (1, R, K)."""
        return table_NK[self.items].unsqueeze(0)


FirstInput = ItemInput | TableInput
RowInput = LayerInput | ItemInput
"""Inputs of a layer for a user's own rows; those of the first one (`is_first`) are the same in every step."""
AnyInput = RowInput | TableInput


def _with_one(x: Tensor) -> Tensor:
    """Rows with a 1 at their end."""
    return pad(x, (0, 1), value=1.0)


def _features(x_BRD: Tensor, mask_BR: Tensor) -> Tensor:
    """Rows with a 1 at their end; zeros where there is padding."""
    return _with_one(x_BRD) * mask_BR.unsqueeze(-1)


def _shared_product(shared_BC: Tensor, key_BC: Tensor) -> Tensor:
    """What the shared inputs add to all products of a user, (B, 1, 1)."""
    return (shared_BC * key_BC).sum(dim=1).view(-1, 1, 1)
