"""Item vectors: fields side by side as in the paper, or one vector per item as a sum, as in a factorisation.

Legend: N distinct items of a batch, I all items, D width of an item's vector, K outputs, G width of what choosing an
item says of the user.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from paml.episodes.features import Features
from paml.network.affinity import Affinity, AffinityTable
from paml.network.embeddings import FieldEmbedder


@dataclass(frozen=True)
class ItemVectors:
    """Distinct items of a batch: input of the decision layers, biases of the outputs, and what choosing them says."""

    vectors_ND: Tensor
    bias_NK: Tensor | None = None
    chosen_NG: Tensor | None = None


class KnownItems(nn.Module):
    """Numbers of the items that training users met: 1, 2, ...; the others share 0."""

    codes_I: Tensor

    def __init__(self, items: int, met: int) -> None:
        super().__init__()
        self._met = met
        self.register_buffer("codes_I", torch.zeros(items, dtype=torch.int64))

    def vectors(self, width: int, scale: float, rng: torch.Generator) -> Tensor:
        """Random vectors, one per number; that of 0 is 0."""
        vectors = scale * torch.randn(self._met + 1, width, generator=rng)
        vectors[0] = 0.0
        return vectors

    def number(self, met_I: Tensor) -> None:
        """Number the items that were met."""
        if len(self.codes_I):
            self.codes_I[met_I] = torch.arange(1, int(met_I.sum()) + 1, device=self.codes_I.device)

    def forward(self, item_N: Tensor) -> Tensor:
        """Item rows -> numbers."""
        return self.codes_I[item_N]


class ItemFields(nn.Module):
    """Field embeddings side by side (paper, Fig. 2) and, if asked for, an embedding and a bias of the item itself."""

    def __init__(
        self, fields: FieldEmbedder, known: KnownItems, own: Tensor | None = None, bias: Tensor | None = None
    ) -> None:
        """`own` and `bias` are initial values, one row per number of an item."""
        super().__init__()
        self.fields, self.known = fields, known
        self.width = fields.width + (0 if own is None else own.shape[1])
        self.own = None if own is None else nn.Parameter(own)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, features: Features, item_N: Tensor) -> ItemVectors:
        """The batch's distinct items; an item unknown in training has the embedding and bias 0."""
        content_ND = self.fields(features)
        known_N = self.known(item_N) if self.own is not None or self.bias is not None else item_N
        if self.own is not None:
            content_ND = torch.cat([content_ND, self.own.index_select(0, known_N)], dim=-1)
        if self.bias is None:
            return ItemVectors(content_ND)
        return ItemVectors(content_ND, self.bias.index_select(0, known_N) * (known_N > 0).unsqueeze(-1))


class ItemFactors(nn.Module):
    """The sum of the item's own vector and its fields' vectors; vector, biases and choice are parts of the one sum.

    An item that training users did not meet is what its fields say. Ties, if any, lengthen the vector.
    """

    def __init__(
        self,
        fields: FieldEmbedder,
        known: KnownItems,
        own: Tensor,
        width: int,
        outputs: int,
        affinity: Affinity | None = None,
    ) -> None:
        """`own` are initial values, as wide as the fields' sum; the part for biases starts at 0."""
        super().__init__()
        self.fields, self.known, self.affinity = fields, known, affinity
        self.width = width + (0 if affinity is None else affinity.width)
        self._width, self._outputs = width, outputs
        self.own = nn.Parameter(own)
        self.own.data[:, width : width + outputs] = 0.0

    def forward(self, features: Features, item_N: Tensor) -> ItemVectors:
        """The batch's distinct items."""
        items = self._learned(features, item_N)
        if self.affinity is None:
            return items
        return replace(items, vectors_ND=torch.cat([items.vectors_ND, self.affinity(features)], dim=1))

    def catalogue(self, features: Features, item_I: Tensor) -> tuple[ItemVectors, AffinityTable]:
        """All items, with ties that are not written out: their vectors are what was learned alone."""
        assert self.affinity is not None
        items = self._learned(features, item_I)
        return items, self.affinity.table(items.vectors_ND, features)

    def _learned(self, features: Features, item_N: Tensor) -> ItemVectors:
        known_N = self.known(item_N)
        whole_NW = self.fields(features) + self.own.index_select(0, known_N) * (known_N > 0).unsqueeze(-1)
        bias, chosen = self._width, self._width + self._outputs
        return ItemVectors(whole_NW[:, :bias], whole_NW[:, bias:chosen], whole_NW[:, chosen:])
