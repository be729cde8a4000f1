"""Linear layers in three forms: shared by all users, attending to the support set, or with each user's own weights.

A layer's input has a part that differs by row and a part that all rows of a user share (the user's embedding, and the
constant 1 whose weight is the bias).

Legend: B users, R rows (S of the support set), D inputs per row, C shared inputs, K outputs, N distinct items.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from paml.engine.ops import backpropagate, lookup, times_transposed, transposed_times, where_active


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
        z_NK = torch.addmm(weights.shared_CK[0], self.x_BRD.flatten(0, 1), weights.rows_DK)
        return torch.ops.aten._unsafe_view(z_NK, [*self.x_BRD.shape[:2], z_NK.shape[1]])  # type: ignore[no-any-return]

    def attend(self, keys_BSD: Tensor, shared_key_BC: Tensor) -> Tensor:
        """x X^T, shared inputs included, (B, R, S)."""
        return times_transposed(self.x_BRD, keys_BSD) + _shared_product(self.shared_BC, shared_key_BC)

    def times(self, weights_BDK: Tensor, shared_B1K: Tensor) -> Tensor:
        """x W_i plus what a user's rows share, (B, R, K)."""
        return torch.baddbmm(shared_B1K, self.x_BRD, weights_BDK)


class ItemTable:
    """Vectors of a batch's distinct items, and their products with the first layer's weights, computed once.

    Support rows, query rows and all inner steps look rows up in the same products.
    """

    def __init__(self, vectors_ND: Tensor, known: tuple[Tensor, Tensor] | None = None) -> None:
        """`known` is a pair: weights, and the products with them."""
        self.vectors_ND = vectors_ND
        self._weights_DK = None if known is None else known[0]
        self._products_NK = vectors_ND if known is None else known[1]

    def products(self, weights_DK: Tensor) -> Tensor:
        """Item vectors times their part of the weights, (N, K)."""
        if self._weights_DK is not weights_DK:
            self._weights_DK = weights_DK
            self._products_NK = self._times(weights_DK[: self.width])
        return self._products_NK

    @property
    def width(self) -> int:
        """D"""
        return self.vectors_ND.shape[1]

    @property
    def is_materialised(self) -> bool:
        """Whether `vectors_ND` holds everything that is known about the items."""
        return True

    @property
    def smallest_chunk(self) -> int:
        """The least number of items that a chunk should have."""
        return 1

    def rows(self, index_R: Tensor) -> Tensor:
        """The vectors of some items, (R, D)."""
        return self.vectors_ND.index_select(0, index_R)

    def chunk(self, items: slice) -> Tensor:
        """The vectors of a chunk of the items, (R, D)."""
        return self.vectors_ND[items]

    def chunk_times(self, weights_ED: Tensor, add_E1: Tensor, items: slice) -> Tensor:
        """E weights times a chunk of the items, or the first part of their vectors, plus `add_E1`, (E, R)."""
        return torch.addmm(add_E1, weights_ED, self.vectors_ND[items, : weights_ED.shape[1]].mT)

    def _times(self, weights_DK: Tensor) -> Tensor:
        return self.vectors_ND @ weights_DK


@dataclass(frozen=True)
class ItemInput:
    """Input of the first layer: rows point into a table of distinct items, and each may have a context."""

    table: ItemTable
    index_BR: Tensor
    shared_BC: Tensor
    context_BRD: Tensor | None = None
    is_first: bool = True

    @cached_property
    def x_BRD(self) -> Tensor:
        """The rows materialised, once."""
        x_BRD = self.table.rows(self.index_BR.flatten()).view(*self.index_BR.shape, self.table.width)
        return x_BRD if self.context_BRD is None else torch.cat([x_BRD, self.context_BRD], dim=-1)

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
        return torch.baddbmm(shared_B1K, self.x_BRD, weights_BDK)

    def items_times(self, weights_BDK: Tensor, shared_B1K: Tensor) -> Tensor:
        """The same for the item vectors alone, without context, or for their first part, as wide as the weights."""
        return torch.baddbmm(shared_B1K, self.x_BRD[..., : weights_BDK.shape[1]], weights_BDK)

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
    is_first: bool = True

    @cached_property
    def x_BRD(self) -> Tensor:
        """The rows materialised, for callers that need them."""
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
        return self.items_times(weights_BDK, shared_B1K)

    def items_times(self, weights_BDK: Tensor, shared_B1K: Tensor) -> Tensor:
        """The same for the item vectors alone, or for their first part: one product for all users."""
        B, D, K = weights_BDK.shape
        weights_ED = weights_BDK.mT.reshape(B * K, D)
        return self.table.chunk_times(weights_ED, shared_B1K.reshape(-1, 1), self.items).view(B, K, -1).mT

    def look_up(self, table_NK: Tensor) -> Tensor:
        """The table's entries for the rows' items, (1, R, K)."""
        return table_NK[self.items].unsqueeze(0)


AnyInput = LayerInput | ItemInput | TableInput
"""Inputs of a layer; those of the first one (`is_first`) are the same in every step."""


@dataclass(frozen=True)
class SharedLayer:
    """theta itself: the same weights for every user."""

    weights: Weights

    def forward(self, x: AnyInput) -> Tensor:
        """x W + shared W', (B, R, K)."""
        return x.project(self.weights)

    def backward(self, grad_BRK: Tensor, active_BRD: Tensor) -> Tensor:
        """Gradient w.r.t. the rows' inputs before their ReLU: g W^T where the input is above 0, (B, R, D)."""
        return backpropagate(grad_BRK, self.weights.rows_DK, active_BRD)

    def moved(self, x: AnyInput, grad_BSK: Tensor, alpha_B11: Tensor, steps: int) -> "AttendingLayer | PersonalLayer":
        """W - alpha X^T D, the first of `steps` steps, in the form that costs less arithmetic."""
        if attention_is_cheaper(x, grad_BSK, steps):
            return AttendingLayer(self.weights, alpha_B11, x.x_BRD, x.shared_BC, grad_BSK)
        return self.moved_by(x, alpha_B11 * grad_BSK)

    def moved_by(self, x: AnyInput, values_BSK: Tensor, rate: Weights | None = None) -> "PersonalLayer":
        """W - X^T V with the gradient materialised, scaled per parameter if `rate` is given."""
        rows_BDK, shared_BCK = weight_gradient(x, values_BSK, rate)
        return PersonalLayer(self.weights.rows_DK - rows_BDK, self.weights.shared_CK - shared_BCK)

    def of(self, users: slice) -> "SharedLayer":
        """The layer for some of the users: the same for all."""
        return self

    def own(self) -> dict[str, Tensor]:
        """Each user's own tensors: none."""
        return {}

    @classmethod
    def restored(cls, weights: Weights, own: Mapping[str, Tensor]) -> "SharedLayer":
        """The layer from theta and what `own` returned."""
        return cls(weights)


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
        products_BRS = x.attend(self.keys_BSD, self.shared_key_BC)
        return torch.baddbmm(x.project(self.weights), self.alpha_B11 * products_BRS, self.values_BSK, alpha=-1)

    def backward(self, grad_BRK: Tensor, active_BRD: Tensor) -> Tensor:
        """Gradient w.r.t. the rows' inputs before their ReLU: g W^T - alpha (g D^T) X where the input is above 0."""
        attention_BRS = self.alpha_B11 * times_transposed(grad_BRK, self.values_BSK)
        base_BRD = times_transposed(grad_BRK, self.weights.rows_DK)
        return where_active(torch.baddbmm(base_BRD, attention_BRS, self.keys_BSD, alpha=-1), active_BRD)

    def moved(self, x: AnyInput, grad_BSK: Tensor, alpha_B11: Tensor, steps: int) -> "AttendingLayer":
        """One more block of keys and values; the first layer's keys never change, so its values add up."""
        if x.is_first:
            return replace(self, values_BSK=self.values_BSK + grad_BSK)
        return replace(
            self,
            keys_BSD=torch.cat([self.keys_BSD, x.x_BRD], dim=1),
            values_BSK=torch.cat([self.values_BSK, grad_BSK], dim=1),
        )

    def moved_by(self, x: AnyInput, values_BSK: Tensor, rate: Weights | None = None) -> "PersonalLayer":
        """Never called: a rate per parameter does not factor, and is not used with attention."""
        raise NotImplementedError

    def of(self, users: slice) -> "AttendingLayer":
        """The layer for some of the users."""
        return self.restored(self.weights, {name: tensor[users] for name, tensor in self.own().items()})

    def own(self) -> dict[str, Tensor]:
        """Each user's own tensors."""
        return {
            "alpha_B11": self.alpha_B11,
            "keys_BSD": self.keys_BSD,
            "shared_key_BC": self.shared_key_BC,
            "values_BSK": self.values_BSK,
        }

    @classmethod
    def restored(cls, weights: Weights, own: Mapping[str, Tensor]) -> "AttendingLayer":
        """The layer from theta and what `own` returned."""
        return cls(weights, **own)


@dataclass(frozen=True)
class PersonalLayer:
    """Each user's own weights."""

    rows_BDK: Tensor
    shared_BCK: Tensor

    def forward(self, x: AnyInput) -> Tensor:
        """x W_i + shared W'_i."""
        shared_B1K = x.shared_BC.unsqueeze(1) @ self.shared_BCK
        return x.times(self.rows_BDK, shared_B1K)

    def backward(self, grad_BRK: Tensor, active_BRD: Tensor) -> Tensor:
        """Gradient w.r.t. the rows' inputs before their ReLU: g W_i^T where the input is above 0."""
        return where_active(times_transposed(grad_BRK, self.rows_BDK), active_BRD)

    def moved(self, x: AnyInput, grad_BSK: Tensor, alpha_B11: Tensor, steps: int) -> "PersonalLayer":
        """W_i - alpha X^T D."""
        return self.moved_by(x, alpha_B11 * grad_BSK)

    def moved_by(self, x: AnyInput, values_BSK: Tensor, rate: Weights | None = None) -> "PersonalLayer":
        """W_i - X^T V with the gradient materialised, scaled per parameter if `rate` is given."""
        rows_BDK, shared_BCK = weight_gradient(x, values_BSK, rate)
        return PersonalLayer(self.rows_BDK - rows_BDK, self.shared_BCK - shared_BCK)

    def of(self, users: slice) -> "PersonalLayer":
        """The layer for some of the users."""
        return PersonalLayer(self.rows_BDK[users], self.shared_BCK[users])

    def own(self) -> dict[str, Tensor]:
        """Each user's own tensors."""
        return {"rows_BDK": self.rows_BDK, "shared_BCK": self.shared_BCK}

    @classmethod
    def restored(cls, weights: Weights, own: Mapping[str, Tensor]) -> "PersonalLayer":
        """The layer from what `own` returned."""
        return cls(**own)


Layer = SharedLayer | AttendingLayer | PersonalLayer


def weight_gradient(x: AnyInput, values_BSK: Tensor, rate: Weights | None) -> tuple[Tensor, Tensor]:
    """X^T V of the rows' and of the shared inputs, scaled per parameter if `rate` is given."""
    rows_BDK = transposed_times(x.x_BRD, values_BSK)
    shared_BCK = x.shared_BC.unsqueeze(-1) * values_BSK.sum(dim=1, keepdim=True)
    return (rows_BDK, shared_BCK) if rate is None else (rate.rows_DK * rows_BDK, rate.shared_CK * shared_BCK)


def attention_is_cheaper(x: AnyInput, grad_BSK: Tensor, steps: int) -> bool:
    """Whether attention needs fewer multiplications per support row than weights materialised per user.

    Materialising a gradient costs D K per step, and every pass over rows D K. Attention costs S (D + K) per pass and
    block of keys; the first layer has one block, whose products with itself are computed once. There is one
    pass over the query rows (a quarter of the support rows), and in each further step one forward and, except in the
    first layer, one backward pass over the support rows.
    """
    S, K = grad_BSK.shape[1:]
    D = x.x_BRD.shape[2]
    further = steps - 1
    if x.is_first:
        attention = S * (0.25 * (D + K) + (D if further else 0) + further * K)
        materialised = D * K * (0.25 + further + steps)
    else:  # `steps` blocks for the query rows, half as many on average before
        attention = S * (D + K) * (0.25 * steps + further * steps)
        materialised = D * K * (0.25 + 2 * further + steps)
    return attention < materialised


def _shared_product(shared_BC: Tensor, key_BC: Tensor) -> Tensor:
    """What the shared inputs add to all products of a user, (B, 1, 1)."""
    return (shared_BC * key_BC).sum(dim=1).view(-1, 1, 1)
