"""Linear layers in three forms: shared by all users, attending to the support set, or with weights of each user's own.

A layer's input has a part that differs by row and a part that all rows of a user share (the user's embedding, and the
constant one whose weight is the bias).

Legend: B users, R rows (S of the support set), D inputs per row, C shared inputs, K outputs, N distinct items.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from paml.engine.ops import backpropagate, lookup, times_transposed, where_active


class Weights(NamedTuple):
    """One layer: weights of the inputs that differ by row and of those that a user's rows share, bias included."""

    rows_DK: Tensor
    shared_CK: Tensor


@dataclass(frozen=True)
class LayerInput:
    """Input of a further layer for all rows of B users: activations, and the constant one."""

    x_BRD: Tensor
    shared_BC: Tensor

    def project(self, weights: Weights) -> Tensor:
        """x W + bias, (B, R, K)."""
        z_NK = torch.addmm(weights.shared_CK[0], self.x_BRD.flatten(0, 1), weights.rows_DK)
        return torch.ops.aten._unsafe_view(z_NK, [*self.x_BRD.shape[:2], z_NK.shape[1]])  # type: ignore[no-any-return]

    def attend(self, keys_BSD: Tensor) -> Tensor:
        """x X^T, (B, R, S)."""
        return times_transposed(self.x_BRD, keys_BSD)

    def times(self, weights_BDK: Tensor, shared_B1K: Tensor) -> Tensor:
        """x W_i and what is shared by a user's rows, (B, R, K)."""
        return torch.baddbmm(shared_B1K, self.x_BRD, weights_BDK)


class ItemTable:
    """Vectors of a batch's distinct items, and their products with the first layer's weights, computed once.

    Support rows, query rows and all inner steps look rows up in the same products.
    """

    def __init__(self, vectors_ND: Tensor, known: tuple[Tensor, Tensor] | None = None) -> None:
        """`known` are weights, and the products with them."""
        self.vectors_ND = vectors_ND
        self._weights_DK = None if known is None else known[0]
        self._products_NK = vectors_ND if known is None else known[1]

    def products(self, weights_DK: Tensor) -> Tensor:
        """Item vectors times the weights that belong to them, (N, K)."""
        if self._weights_DK is not weights_DK:
            self._weights_DK = weights_DK
            self._products_NK = self._times(weights_DK[: self.width])
        return self._products_NK

    @property
    def width(self) -> int:
        """D"""
        return self.vectors_ND.shape[1]

    @property
    def shortest(self) -> int:
        """How many items a chunk should have at least."""
        return 1

    def rows(self, index_R: Tensor) -> Tensor:
        """The vectors of some items, (R, D)."""
        return self.vectors_ND.index_select(0, index_R)

    def chunk(self, items: slice) -> Tensor:
        """The vectors of a chunk of the items, (R, D)."""
        return self.vectors_ND[items]

    def chunk_times(self, weights_ED: Tensor, add_E1: Tensor, items: slice) -> Tensor:
        """A chunk of the items, or of their vectors' first part, times E weights, and what is added, (E, R)."""
        return torch.addmm(add_E1, weights_ED, self.vectors_ND[items, : weights_ED.shape[1]].mT)

    def _times(self, weights_DK: Tensor) -> Tensor:
        return self.vectors_ND @ weights_DK


@dataclass(frozen=True)
class ItemInput:
    """Input of the first layer: rows point into a table of distinct items, and may have a context of their own."""

    table: ItemTable
    index_BR: Tensor
    shared_BC: Tensor
    context_BRD: Tensor | None = None

    @cached_property
    def x_BRD(self) -> Tensor:
        """The rows written out; one tensor however often it is asked for."""
        x_BRD = self.table.rows(self.index_BR.flatten()).view(*self.index_BR.shape, self.table.width)
        return x_BRD if self.context_BRD is None else torch.cat([x_BRD, self.context_BRD], dim=-1)

    @cached_property
    def gram_BRR(self) -> Tensor:
        """Products of all pairs of a user's rows, shared inputs included: x X^T for the support rows themselves."""
        return times_transposed(self.x_BRD, self.x_BRD) + (self.shared_BC**2).sum(dim=1).view(-1, 1, 1)

    def detached(self) -> "ItemInput":
        """The same as constants."""
        context_BRD = None if self.context_BRD is None else self.context_BRD.detach()
        return ItemInput(ItemTable(self.table.vectors_ND.detach()), self.index_BR, self.shared_BC.detach(), context_BRD)

    def project(self, weights: Weights) -> Tensor:
        """x W + shared W', each distinct item and each user multiplied once, (B, R, K)."""
        shared_BK = self.shared_BC @ weights.shared_CK
        z_BRK = lookup(self.table.products(weights.rows_DK), self.index_BR, shared_BK)
        if self.context_BRD is None:
            return z_BRK
        return z_BRK + self.context_BRD @ weights.rows_DK[self.table.width :]

    def attend(self, keys_BSD: Tensor) -> Tensor:
        """x X^T, (B, R, S)."""
        return times_transposed(self.x_BRD, keys_BSD)

    def times(self, weights_BDK: Tensor, shared_B1K: Tensor) -> Tensor:
        """x W_i and what is shared by a user's rows, (B, R, K)."""
        return torch.baddbmm(shared_B1K, self.x_BRD, weights_BDK)

    def items_times(self, weights_BDK: Tensor, shared_B1K: Tensor) -> Tensor:
        """The same of the items' vectors alone, without a context, or of their first part: as wide as the weights."""
        return torch.baddbmm(shared_B1K, self.x_BRD[..., : weights_BDK.shape[1]], weights_BDK)

    def look_up(self, table_NK: Tensor) -> Tensor:
        """What a table says of the rows' items, (B, R, K)."""
        return table_NK.index_select(0, self.index_BR.flatten()).view(*self.index_BR.shape, table_NK.shape[1])


@dataclass(frozen=True)
class TableInput:
    """Input of the first layer for a whole chunk of the table, the same rows and one context for each user.

    Nothing is gathered, and items times weights of all users' own is one product: how serving scores everything.
    """

    table: ItemTable
    items: slice
    shared_BC: Tensor
    context_BD: Tensor | None = None

    @cached_property
    def x_BRD(self) -> Tensor:
        """The rows written out, for whoever needs them."""
        x_BRD = self.table.chunk(self.items).expand(len(self.shared_BC), -1, -1)
        if self.context_BD is None:
            return x_BRD
        return torch.cat([x_BRD, self.context_BD.unsqueeze(1).expand(-1, x_BRD.shape[1], -1)], dim=-1)

    def project(self, weights: Weights) -> Tensor:
        """x W + shared W', each item and each user multiplied once, (B, R, K)."""
        z_BK = self.shared_BC @ weights.shared_CK
        if self.context_BD is not None:
            z_BK = z_BK + self.context_BD @ weights.rows_DK[self.table.width :]
        return self.table.products(weights.rows_DK)[self.items] + z_BK.unsqueeze(1)

    def attend(self, keys_BSD: Tensor) -> Tensor:
        """x X^T, (B, R, S)."""
        return self.times(keys_BSD.mT, keys_BSD.new_zeros(1, 1, 1).expand(len(keys_BSD), 1, keys_BSD.shape[1]))

    def times(self, weights_BDK: Tensor, shared_B1K: Tensor) -> Tensor:
        """x W_i and what is shared by a user's rows, (B, R, K)."""
        if self.context_BD is not None:
            D = self.table.width
            shared_B1K = shared_B1K + self.context_BD.unsqueeze(1) @ weights_BDK[:, D:]
            weights_BDK = weights_BDK[:, :D]
        return self.items_times(weights_BDK, shared_B1K)

    def items_times(self, weights_BDK: Tensor, shared_B1K: Tensor) -> Tensor:
        """The same of the items' vectors alone, or of their first part: one product for all users."""
        B, D, K = weights_BDK.shape
        weights_ED = weights_BDK.mT.reshape(B * K, D)
        return self.table.chunk_times(weights_ED, shared_B1K.reshape(-1, 1), self.items).view(B, K, -1).mT

    def look_up(self, table_NK: Tensor) -> Tensor:
        """What a table says of the rows' items, (1, R, K)."""
        return table_NK[self.items].unsqueeze(0)


AnyInput = LayerInput | ItemInput | TableInput


@dataclass(frozen=True)
class SharedLayer:
    """theta itself: the same weights for every user."""

    weights: Weights

    def forward(self, x: AnyInput) -> Tensor:
        """x W + shared W', (B, R, K)."""
        return x.project(self.weights)

    def backward(self, grad_BRK: Tensor, active_BRD: Tensor) -> Tensor:
        """Gradient by the rows' inputs before their ReLU: g W^T where the input is above 0, (B, R, D)."""
        return backpropagate(grad_BRK, self.weights.rows_DK, active_BRD)

    def of(self, users: slice) -> "SharedLayer":
        """The layer of some of the users: the same for all."""
        return self


@dataclass(frozen=True)
class AttendingLayer:
    """theta moved along rank-S gradients: support inputs are keys, output gradients are values.

    The rate scales the products of inputs and keys, the smallest of the matrices.
    """

    weights: Weights
    alpha_B11: Tensor
    keys_BSD: Tensor
    shared_key_BC: Tensor
    values_BSK: Tensor

    def forward(self, x: AnyInput) -> Tensor:
        """x W - alpha (x X^T) D; the shared inputs add one number per user to the products."""
        if isinstance(x, ItemInput) and x.x_BRD is self.keys_BSD:
            products_BRS = x.gram_BRR
        else:
            shared_B11 = (x.shared_BC * self.shared_key_BC).sum(dim=1).view(-1, 1, 1)
            products_BRS = x.attend(self.keys_BSD) + shared_B11
        return torch.baddbmm(x.project(self.weights), self.alpha_B11 * products_BRS, self.values_BSK, alpha=-1)

    def backward(self, grad_BRK: Tensor, active_BRD: Tensor) -> Tensor:
        """Gradient by the rows' inputs before their ReLU: g W^T - alpha (g D^T) X where the input is above 0."""
        attention_BRS = self.alpha_B11 * times_transposed(grad_BRK, self.values_BSK)
        base_BRD = times_transposed(grad_BRK, self.weights.rows_DK)
        return where_active(torch.baddbmm(base_BRD, attention_BRS, self.keys_BSD, alpha=-1), active_BRD)

    def of(self, users: slice) -> "AttendingLayer":
        """The layer of some of the users."""
        return AttendingLayer(
            self.weights, self.alpha_B11[users], self.keys_BSD[users], self.shared_key_BC[users], self.values_BSK[users]
        )


@dataclass(frozen=True)
class PersonalLayer:
    """Weights of each user's own."""

    rows_BDK: Tensor
    shared_BCK: Tensor

    def forward(self, x: AnyInput) -> Tensor:
        """x W_i + shared W'_i."""
        shared_B1K = x.shared_BC.unsqueeze(1) @ self.shared_BCK
        return x.times(self.rows_BDK, shared_B1K)

    def backward(self, grad_BRK: Tensor, active_BRD: Tensor) -> Tensor:
        """Gradient by the rows' inputs before their ReLU: g W_i^T where the input is above 0."""
        return where_active(times_transposed(grad_BRK, self.rows_BDK), active_BRD)

    def of(self, users: slice) -> "PersonalLayer":
        """The layer of some of the users."""
        return PersonalLayer(self.rows_BDK[users], self.shared_BCK[users])


Layer = SharedLayer | AttendingLayer | PersonalLayer
