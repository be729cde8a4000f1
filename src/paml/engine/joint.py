"""All members of an ensemble as one problem, for networks of one layer: what a trained model in use computes with.

One new user's arithmetic is tiny, and starting operations is most of the time. So the members lie side by side, and
each operation runs once for all of them. A row holds everything that its output depends on,

    row  =  [1, item vector, item bias, affinity, context],       out  =  row W

so that a user's layer is one matrix W of E rows: the first holds what all rows share, the user's part and the bias, and
the rows of the item bias are not adapted. This is the mathematics of `adapt` and `solvers`, with theta, the user prior
and the offsets in one matrix; a test holds both to the same answers.

Legend: M members, B users, N = M B, all users of the first member first; S support rows, I all items, R some of them,
U distinct rows of items, D inputs per row, C shared inputs, E entries of a row, K outputs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from paml.engine.products import suits_onednn, times

MAX_DISTINCT = 0.75  # share of the items with distinct rows up to which equal ones are multiplied once
ITEMS_AT_ONCE = 1 << 14  # whose rows are compared
ITEMS_IN_CACHE = 1 << 12  # whose rows, of some hundred numbers, are still in the cache after they were multiplied


@dataclass(frozen=True)
class JointRate:
    """The rates of B users for each member: one for each user, or one for each parameter."""

    per_user_MB: Tensor
    """One number per user, as `Rate.per_user`."""
    h_MBH: Tensor
    """The users' embeddings: with the constant 1, the inputs that all rows of a user share."""
    of_parameters: tuple[Tensor, Tensor] | None = None
    """For rates per parameter: those of the rows' inputs, (M, D, K), and of the shared ones, (M, C, K)."""

    def inputs(self) -> Tensor:
        """Rates of the weights of the rows' inputs, (N, 1, 1) or (N, D, K)."""
        if self.of_parameters is None:
            return self.per_user_MB.reshape(-1, 1, 1)
        rows_MDK, _ = self.of_parameters
        return rows_MDK.repeat_interleave(self.h_MBH.shape[1], dim=0)

    def shared(self) -> Tensor:
        """How far a gradient of 1 in all rows moves the output, (N, 1, K): rates times squares of shared inputs."""
        if self.of_parameters is None:
            squares_MB: Tensor = torch.linalg.vecdot(self.h_MBH, self.h_MBH) + 1
            return (self.per_user_MB * squares_MB).reshape(-1, 1, 1)
        _, shared_MCK = self.of_parameters
        return (pad(self.h_MBH**2, (0, 1), value=1.0) @ shared_MCK).flatten(0, 1).unsqueeze(1)


@dataclass(frozen=True)
class Columns:
    """What the entries of a row are: [1, item vector, item bias, affinity, context]."""

    vector: int
    """Entries of the item vector; of its learned part, if affinities are looked up."""
    bias: int
    """K, or 0 for items without biases."""
    width: int
    """E"""

    def laid_out(self, shared_N1K: Tensor, bias_NKK: Tensor, inputs_NDK: Tensor) -> Tensor:
        """A matrix like W from its parts, (N, E, K)."""
        return torch.cat(
            [shared_N1K, inputs_NDK[:, : self.vector], bias_NKK[:, : self.bias], inputs_NDK[:, self.vector :]], dim=1
        )

    def rates(self, rate: JointRate) -> Tensor:
        """The rate of every entry of W, (N, E, K) or (N, E, 1)."""
        inputs = rate.inputs().expand(-1, self.width - 1 - self.bias, -1)
        nothing = inputs.new_zeros(len(inputs), self.bias, inputs.shape[2])
        return self.laid_out(rate.shared(), nothing, inputs)

    def scales(self, level_M: Tensor) -> Tensor:
        """What makes a row features of a closed form, (M, E): the constant counts `level`, item biases nothing."""
        scale_ME = level_M.new_ones(len(level_M), self.width)
        scale_ME[:, 0] = level_M
        scale_ME[:, 1 + self.vector : 1 + self.vector + self.bias] = 0.0
        return scale_ME


class Repeats(NamedTuple):
    """Items with equal rows: those that no training user met, if their fields are equal or count for nothing."""

    item_U: Tensor
    """An item of each distinct row."""
    place_I: Tensor
    """Which of the distinct rows an item has."""
    log_count_U: Tensor
    """log of the number of items that have it."""

    @classmethod
    def of(cls, rows_IME: Tensor) -> "Repeats | None":
        """Those of a table, or None if too few rows repeat to make up for looking them up.

        Rows with equal sums of randomly weighted entries are compared with each other.
        """
        rows_IE = rows_IME.flatten(1)
        items, entries = rows_IE.shape
        weight_E = torch.from_numpy(np.random.default_rng(0).standard_normal(entries)).to(rows_IE.device)
        chunks = [slice(start, start + ITEMS_AT_ONCE) for start in range(0, items, ITEMS_AT_ONCE)]
        sum_I = torch.cat([rows_IE[chunk].double() @ weight_E for chunk in chunks])
        _, place_I, count_U = torch.unique(sum_I, return_inverse=True, return_counts=True)
        if len(count_U) >= MAX_DISTINCT * items:
            return None
        item_U = torch.empty_like(count_U).scatter_(0, place_I, torch.arange(items, device=place_I.device))
        if not all(torch.equal(rows_IE[chunk], rows_IE[item_U[place_I[chunk]]]) for chunk in chunks):
            return None
        return cls(item_U, place_I, count_U.to(rows_IE).log())


class JointTable:
    """The rows of all items, members side by side, without what is looked up (affinity) or given later (context)."""

    def __init__(self, rows_IME: Tensor) -> None:
        """They are kept twice: item by item, to be looked up, and entry by entry, to be multiplied.

        If many items have the same row, it is multiplied once.
        """
        self.rows_IME = on_large_pages(rows_IME)
        self._repeats = Repeats.of(self.rows_IME)
        self._rows_UME = self.rows_IME if self._repeats is None else self.rows_IME[self._repeats.item_U]
        self._entries_MEU = on_large_pages(self._rows_UME.permute(1, 2, 0))
        self._rows, self._entries = self.rows_IME.numpy(force=True), self._entries_MEU.numpy(force=True)
        self._place_I = None if self._repeats is None else self._repeats.place_I.numpy(force=True)
        self._log_count_U = None if self._repeats is None else self._repeats.log_count_U.numpy(force=True)

    def __len__(self) -> int:
        return len(self.rows_IME)

    @property
    def members(self) -> int:
        """M"""
        return self.rows_IME.shape[1]

    @property
    def width(self) -> int:
        """Entries of a row that the items determine."""
        return self.rows_IME.shape[2]

    @property
    def smallest_chunk(self) -> int:
        """The least number of items that a chunk should have."""
        return 1 if self._repeats is None else len(self._repeats.item_U)

    def rows(self, index_R: Tensor) -> Tensor:
        """The rows of some items, (R, M, E)."""
        rows_RE = self.rows_IME.flatten(1).index_select(0, index_R)
        return rows_RE.view(len(index_R), self.members, -1)

    def times(self, weights_NEK: Tensor, items: slice = slice(None)) -> Tensor:
        """Outputs of a chunk of the items for all users, (N, K, R)."""
        N, E, K = weights_NEK.shape
        weights_MQE = weights_NEK.mT.reshape(self.members, -1, E)
        if self._repeats is None:
            out_MQR = weights_MQE @ self._entries_MEU[..., items]
        else:
            out_MQR = (weights_MQE @ self._entries_MEU).index_select(2, self._repeats.place_I[items])
        return out_MQR.view(N, K, -1)

    def expected(self, weights_NE1: Tensor) -> Tensor:
        """The mean of all rows under the chances softmax(row W) of all users, (N, E, 1).

        This is attention over the items, with members as heads: PyTorch's fast form wants four dimensions. Where its
        products are not the fastest, it is two products and a softmax.
        """
        if suits_onednn(weights_NE1):
            return self._expected(weights_NE1)
        queries_1MBE = weights_NE1.view(1, self.members, -1, self.width)
        keys_1MUE = self._rows_UME.transpose(0, 1).unsqueeze(0)
        added_11U = None if self._repeats is None else self._repeats.log_count_U.expand(1, queries_1MBE.shape[2], -1)
        found_1MBE = scaled_dot_product_attention(queries_1MBE, keys_1MUE, keys_1MUE, added_11U, scale=1.0)
        return found_1MBE.reshape(weights_NE1.shape)

    def _expected(self, weights_NE1: Tensor) -> Tensor:
        found_MBE = torch.empty_like(weights_NE1).view(self.members, -1, self.width)
        for m, weights_BE in enumerate(weights_NE1.view(found_MBE.shape)):
            rows_UE = self._rows_UME[:, m]
            out_BU = times(weights_BE, rows_UE.mT)
            if self._repeats is not None:
                out_BU += self._repeats.log_count_U
            found_MBE[m] = times(torch.softmax(out_BU, dim=1, out=out_BU), rows_UE)
        return found_MBE.view(weights_NE1.shape)

    def solo_rows(self, index_R: np.ndarray) -> np.ndarray:
        """The rows of some items, for one user (solo.py), (R, M, E)."""
        return self._rows.take(index_R, axis=0)

    def by_member(self, weights_MBE: np.ndarray) -> Iterable[np.ndarray]:
        """Outputs of all items for several users, one member after the other, (B, I) each."""
        pairs = zip(torch.from_numpy(weights_MBE), torch.from_numpy(self._entries), strict=True)
        return (self._of_items(times(weights_BE, entries_EU).numpy()) for weights_BE, entries_EU in pairs)

    def solo_times(self, weights_ME: np.ndarray) -> np.ndarray:
        """Outputs of all items for one user, (M, I)."""
        return self._of_items(self._solo_distinct(weights_ME))

    def solo_mean(self, weights_ME: np.ndarray) -> np.ndarray:
        """Outputs of all items for one user, averaged over members, (I)."""
        entries_QU = self._entries.reshape(weights_ME.size, -1)
        return self._of_items((weights_ME / self.members).reshape(-1) @ entries_QU)

    def solo_mean_row(self, chance_I: np.ndarray) -> np.ndarray:
        """The mean of all rows under these chances, (M, E)."""
        if self._place_I is not None:
            chance_I = np.bincount(self._place_I, chance_I).astype(chance_I.dtype)
        mean_ME: np.ndarray = self._entries @ chance_I
        return mean_ME

    def solo_expected(self, weights_ME: np.ndarray) -> np.ndarray:
        """The mean of all rows under one user's chances, (M, E).

        Rows are multiplied by the weights and then by the chances, a part of them after the other so that they are
        still in the cache; relative to the highest output so far, lest exp grows too large.
        """
        sum_ME = np.zeros_like(weights_ME)
        for weights_E, entries_EU, sum_E in zip(weights_ME, self._entries, sum_ME, strict=True):
            highest = -np.inf
            for start in range(0, entries_EU.shape[1], ITEMS_IN_CACHE):
                entries_ER = entries_EU[:, start : start + ITEMS_IN_CACHE]
                p_R = weights_E @ entries_ER
                if self._log_count_U is not None:
                    p_R += self._log_count_U[start : start + ITEMS_IN_CACHE]
                highest, before = max(highest, p_R.max()), highest
                sum_E *= np.exp(before - highest)
                p_R -= highest
                sum_E += entries_ER @ np.exp(p_R, out=p_R)
        sum_ME /= sum_ME[:, :1].copy()  # the first entry of every row is 1
        return sum_ME

    def _solo_distinct(self, weights_ME: np.ndarray) -> np.ndarray:
        """Outputs of the distinct rows for one user, (M, U)."""
        out_MU: np.ndarray = (weights_ME[:, None] @ self._entries)[:, 0]
        return out_MU

    def _of_items(self, out_U: np.ndarray) -> np.ndarray:
        """Outputs of all items from those of distinct rows, (..., I)."""
        return out_U if self._place_I is None else out_U.take(self._place_I, axis=-1)


class JointKnown(NamedTuple):
    """What is known about the users: their support rows, and what a choice needs to know about all items."""

    rows_NSE: Tensor
    """Zero where there is no row."""
    y_NS: Tensor
    """Targets; of a choice, the rows' weights, zero where there is no row."""
    count_MB: Tensor
    """How much a user's rows count together."""
    columns: Columns
    table: JointTable
    spread_MDD: Tensor | None
    """Of a choice in closed form: the covariance of the item vectors."""


class JointSolver(Protocol):
    """Adapts the weights of all users and members to what is known."""

    def __call__(self, known: JointKnown, weights_NEK: Tensor, rate: JointRate) -> Tensor:
        """The adapted weights, (N, E, K)."""


def on_large_pages(table: Tensor) -> Tensor:
    """A copy in memory that NumPy asks for, on large pages where the system has them: a table is read a quarter faster.

    Every user reads all of it, and with small pages that means thousands of entries of the page table, too.
    """
    if not table.is_cpu:
        return table.contiguous()
    empty = torch.from_numpy(np.empty(table.shape, dtype=table.detach()[:0].numpy().dtype))
    return empty.copy_(table)


def outputs(rows_NSE: Tensor, weights_NEK: Tensor) -> Tensor:
    """rows W, (N, S, K); transposed, since a product with a column is slow."""
    return (weights_NEK.mT @ rows_NSE.mT).mT


def gradient(rows_NSE: Tensor, values_NSK: Tensor) -> Tensor:
    """rows^T V, (N, E, K); transposed, too."""
    return (values_NSK.mT @ rows_NSE).mT
