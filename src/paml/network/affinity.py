"""Affinity between items that share a value, such as an author: a user's own taste for single values.

Legend: N items, R of them, F fields, V values of all fields, W width of a value's vector, L learned part of an item's
vector, D = L + W, T values of all items, end to end, E weights. In the joint table, M members, E entries of a row, and
the weights of N = M B users, with K outputs.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from paml.engine.inputs import ItemTable
from paml.engine.joint import JointTable, on_large_pages
from paml.episodes import ragged
from paml.episodes.features import Features
from paml.network.embeddings import FieldEmbedder

MAX_MATERIALISED = 1 << 20  # numbers in the affinity vectors of all items


class Affinity(nn.Module):
    """What items that share a value, such as an author, have in common: z_j = sum over fields f of s_f z_f(value of j).

    The z_f are random and fixed, of length about 1, so that z_j z_k is about the sum of s_f^2 over shared values. A
    user's own weights for z are then a taste for single values: a rating of one book by an author carries over to the
    next, even if no training user rated the two or knows the author. The scales s_f are learned.
    """

    def __init__(self, values: FieldEmbedder, scale: float) -> None:
        """`values` holds the random vectors of the fields' hash buckets (episodes/hashing.py) side by side."""
        super().__init__()
        self.values = values.requires_grad_(False)
        self.scale = nn.Parameter(torch.full((len(values.fields),), scale))
        self.width = values.width // len(values.fields)

    def is_looked_up(self, items: int) -> bool:
        """Whether affinities of this many items are looked up by value, not materialised: many items, few values."""
        values = sum(len(self.values.table(field)) for field in self.values.fields)
        return items > values and items * self.width > MAX_MATERIALISED

    def forward(self, features: Features) -> Tensor:
        """z, (N, width)."""
        assert features.hashed is not None, "affinity needs the hashed values of items"
        value_NFW: Tensor = self.values(features.hashed).view(features.count, len(self.scale), self.width)
        return (value_NFW * self.scale.view(1, -1, 1)).sum(dim=1)

    def table(self, learned_NL: Tensor, features: Features) -> "AffinityTable":
        """The items' learned vectors together with these affinities."""
        assert features.hashed is not None, "affinity needs the hashed values of items"
        first = 0
        values, item, code, weight = [], [], [], []
        for field, scale in zip(self.values.fields, self.scale, strict=True):
            code_T, start_N = features.hashed.as_list(field.name)
            values.append(self.values.table(field) * scale)
            count_N = torch.diff(start_N, append=start_N.new_tensor([len(code_T)]))
            item.append(torch.repeat_interleave(torch.arange(len(count_N), device=count_N.device), count_N))
            weight.append(torch.repeat_interleave(self.values.share(count_N, learned_NL.dtype), count_N))
            code.append(code_T + first)
            first += len(values[-1])
        item_T, order_T = torch.cat(item).sort(stable=True)
        end_N = torch.bincount(item_T, minlength=features.count).cumsum(0)
        return AffinityTable(
            learned_NL,
            torch.cat(values),
            torch.cat(code)[order_T],
            torch.cat(weight)[order_T],
            nn.functional.pad(end_N, (1, 0)),
        )


class AffinityTable(ItemTable):
    """Items whose affinity is not materialised: x w is computed once per value, and looked up for each item.

    With few values and many items, a catalogue takes a fraction of the memory and time. Each chunk computes x w for all
    values, so chunks should not be small. For serving: nothing is trained, and `vectors_ND` is the learned part.
    """

    def __init__(
        self, learned_NL: Tensor, value_VW: Tensor, code_T: Tensor, weight_T: Tensor, offset_N1: Tensor
    ) -> None:
        """`code_T` are the items' values, end to end, item n's from `offset_N1[n]` on; `weight_T` scales them."""
        super().__init__(learned_NL)
        self._value_VW, self._code_T, self._weight_T, self._offset_N1 = value_VW, code_T, weight_T, offset_N1

    @property
    def width(self) -> int:
        """D"""
        return self.vectors_ND.shape[1] + self._value_VW.shape[1]

    @staticmethod
    def joint(tables: Sequence["AffinityTable"], rows_NME: Tensor) -> "JointAffinityTable":
        """The tables of all members as one: items have the same values for all of them."""
        first, values = tables[0], torch.stack([table._value_VW for table in tables])
        return JointAffinityTable(rows_NME, values, first._code_T, first._weight_T, first._offset_N1)

    def seen_in(self, joint: JointTable, m: int, vectors_ND: Tensor) -> ItemTable:
        """The same table without memory of its own: a view of a member's part of a joint table."""
        assert isinstance(joint, JointAffinityTable)
        return AffinityTable(vectors_ND, joint.values_MVW[m], self._code_T, self._weight_T, self._offset_N1)

    @property
    def smallest_chunk(self) -> int:
        """V: a chunk of fewer items costs as much."""
        return len(self._value_VW)

    def rows(self, index_R: Tensor) -> Tensor:
        """The vectors of some items, (R, D)."""
        first_R = self._offset_N1[index_R]
        place_T, start_R = ragged.tensor_positions(first_R, self._offset_N1[index_R + 1] - first_R)
        affinity_RW = self._summed(self._value_VW, place_T, start_R)
        return torch.cat([super().rows(index_R), affinity_RW], dim=1)

    def chunk_times(self, weights_ED: Tensor, add_E1: Tensor, items: slice) -> Tensor:
        """E weights times a chunk of the items, or the learned part of their vectors, plus `add_E1`, (E, R)."""
        learned = self.vectors_ND.shape[1]
        learned_ER = super().chunk_times(weights_ED[:, :learned], add_E1, items)
        if weights_ED.shape[1] == learned:  # a user prior, which does not cover affinities
            return learned_ER
        return learned_ER + self._chunk_of(self._value_VW @ weights_ED[:, learned:].mT, items).mT

    def _times(self, weights_DK: Tensor) -> Tensor:
        return self.chunk_times(weights_DK.mT, weights_DK.new_zeros(weights_DK.shape[1], 1), slice(None)).mT

    def _chunk_of(self, value_VE: Tensor, items: slice) -> Tensor:
        return _summed_by_item(value_VE, self._code_T, self._weight_T, self._offset_N1, items)

    def _summed(self, value_VE: Tensor, place: slice | Tensor, start_R: Tensor) -> Tensor:
        code_T, weight_T = self._code_T[place], self._weight_T[place]
        return embedding_bag(code_T, value_VE, start_R, mode="sum", per_sample_weights=weight_T)


class JointAffinityTable(JointTable):
    """Affinity tables of all members: what a value means to a user is computed once per value and member.

    Items then sum the numbers of their values, for all members at once.
    """

    def __init__(
        self, rows_NME: Tensor, values_MVW: Tensor, code_T: Tensor, weight_T: Tensor, offset_N1: Tensor
    ) -> None:
        super().__init__(rows_NME)
        self.values_MVW = on_large_pages(values_MVW)
        self._entries_MWV = on_large_pages(values_MVW.mT)
        self._code_T, self._weight_T, self._offset_N1 = code_T, weight_T, offset_N1

    @property
    def width(self) -> int:
        """Entries of a row that the items determine."""
        return super().width + self.values_MVW.shape[2]

    @property
    def smallest_chunk(self) -> int:
        """V: a chunk of fewer items costs as much."""
        return self.values_MVW.shape[1]

    def rows(self, index_R: Tensor) -> Tensor:
        """The rows of some items, (R, M, E)."""
        M, V, W = self.values_MVW.shape
        first_R = self._offset_N1[index_R]
        place_T, start_R = ragged.tensor_positions(first_R, self._offset_N1[index_R + 1] - first_R)
        member_M1 = torch.arange(M).unsqueeze(1)
        affinity_QW = embedding_bag(
            (self._code_T[place_T] + V * member_M1).flatten(),
            self.values_MVW.flatten(0, 1),
            (start_R + len(place_T) * member_M1).flatten(),
            mode="sum",
            per_sample_weights=self._weight_T[place_T].repeat(M),
        )
        return torch.cat([super().rows(index_R), affinity_QW.view(M, -1, W).transpose(0, 1)], dim=2)

    def times(self, weights_NEK: Tensor, items: slice = slice(None)) -> Tensor:
        """Outputs of a chunk of the items for all users, (N, K, R)."""
        learned = super().width
        (M, _, W), (N, _, K) = self.values_MVW.shape, weights_NEK.shape
        weights_MQW = weights_NEK[:, learned:].mT.reshape(M, -1, W)
        value_VQ = (weights_MQW @ self._entries_MWV).flatten(0, 1).T.contiguous()
        sum_RQ = _summed_by_item(value_VQ, self._code_T, self._weight_T, self._offset_N1, items)
        return super().times(weights_NEK[:, :learned], items).add_(sum_RQ.T.view(N, K, -1))

    def solo_rows(self, index_R: np.ndarray) -> np.ndarray:
        """The rows of some items, for one user, (R, M, E)."""
        return self.rows(torch.from_numpy(index_R)).numpy()

    def by_member(self, weights_MBE: np.ndarray) -> Iterable[np.ndarray]:
        """Outputs of all items for several users, one member after the other, (B, I) each."""
        learned = super().width
        parts = zip(super().by_member(weights_MBE[..., :learned]), weights_MBE, self._entries_MWV, strict=True)
        for out_BI, weights_BE, entries_WV in parts:
            value_VB = (torch.from_numpy(weights_BE[:, learned:]) @ entries_WV).T.contiguous()
            sum_IB = _summed_by_item(value_VB, self._code_T, self._weight_T, self._offset_N1, slice(None))
            out_BI += sum_IB.numpy().T
            yield out_BI

    def solo_times(self, weights_ME: np.ndarray) -> np.ndarray:
        """Outputs of all items for one user, (M, I)."""
        learned = super().width
        value_MV = (weights_ME[:, None, learned:] @ self._entries_MWV.numpy())[:, 0]
        value_VM = torch.from_numpy(np.ascontiguousarray(value_MV.T))
        out_IM = _summed_by_item(value_VM, self._code_T, self._weight_T, self._offset_N1, slice(None)).numpy()
        learned_UM = np.ascontiguousarray(self._solo_distinct(weights_ME[:, :learned]).T)
        out_IM += learned_UM if self._place_I is None else learned_UM.take(self._place_I, axis=0)
        return out_IM.T

    def solo_mean(self, weights_ME: np.ndarray) -> np.ndarray:
        """Outputs of all items for one user, averaged over members, (I)."""
        mean_I: np.ndarray = self.solo_times(weights_ME).mean(axis=0)
        return mean_I


def _summed_by_item(value_VE: Tensor, code_T: Tensor, weight_T: Tensor, offset_N1: Tensor, items: slice) -> Tensor:
    """The numbers of each item's values, summed, for a chunk of the items, (R, E)."""
    first, end, _ = items.indices(len(offset_N1) - 1)
    place = slice(int(offset_N1[first]), int(offset_N1[max(first, end)]))
    start_R = offset_N1[first:end] - place.start
    return embedding_bag(code_T[place], value_VE, start_R, mode="sum", per_sample_weights=weight_T[place])
