"""Item vectors: fields side by side as in the paper, or one vector per item as a sum, as in a factorisation.

Legend: N distinct items of a batch, I all items, D width of an item's vector, K outputs, G width of the choice
vector: what choosing an item says about the user.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from paml.engine.inputs import ItemTable
from paml.engine.products import in_blocks
from paml.engine.softmax import NO_CANDIDATE
from paml.episodes.features import Features
from paml.network.affinity import Affinity
from paml.network.embeddings import FieldEmbedder, Rows


@dataclass(frozen=True)
class ItemVectors:
    """Distinct items of a batch: input of the decision layers, biases of the outputs, and choice vectors."""

    vectors_ND: Tensor
    bias_NK: Tensor | None = None
    choice_NG: Tensor | None = None
    spread_DD: Tensor | None = None
    """Covariance of the vectors, each weighted by how often its item is chosen: for a closed form over all items."""

    log_chance_N: Tensor | None = None
    """Log chance of each item to be among the batch's, where these are a sample of all items."""

    together_NE: Tensor | None = None
    """Vectors and biases, where they lie side by side already."""

    @cached_property
    def rows_NE(self) -> Tensor:
        """For a choice, all that an item's output depends on: vector, bias and, in a sample, - log chance, (N, E).

        The size of a sample hardly comes again (products.py), so in training it has rows that nobody can choose.
        """
        if self.together_NE is not None:
            return self.together_NE
        assert self.bias_NK is not None, "biases, from which chances follow"
        if self.log_chance_N is None:
            return torch.cat([self.vectors_ND, self.bias_NK], dim=1)
        rows_NE, N = torch.cat([self.vectors_ND, self.bias_NK, -self.log_chance_N.unsqueeze(-1)], dim=1), len(self)
        more = in_blocks(N, rows_NE) - N if torch.is_grad_enabled() else 0
        if more:
            rows_NE = pad(rows_NE, (0, 0, 0, more))
            rows_NE[N:, -1] = NO_CANDIDATE
        return rows_NE

    def __len__(self) -> int:
        return len(self.vectors_ND)

    def with_spread(self) -> "ItemVectors":
        """The same with the covariance, under the chances that the items' biases give."""
        assert self.bias_NK is not None, "biases, from which chances follow"
        bias_N = self.bias_NK[:, 0] if self.log_chance_N is None else self.bias_NK[:, 0] - self.log_chance_N
        p_N1 = torch.softmax(bias_N, dim=0).unsqueeze(-1)
        centred_ND = self.vectors_ND - (p_N1 * self.vectors_ND).sum(dim=0)
        return replace(self, spread_DD=(p_N1 * centred_ND).T @ centred_ND)


class KnownItems(nn.Module):
    """Gives the items that training users interacted with the numbers 1, 2, ...; all others share 0."""

    codes_I: Tensor

    def __init__(self, items: int, known: int) -> None:
        super().__init__()
        self._known = known
        self.register_buffer("codes_I", torch.zeros(items, dtype=torch.int64))

    def vectors(self, width: int, scale: float, rng: torch.Generator) -> Tensor:
        """Random vectors, one per number; number 0 has the zero vector."""
        vectors = scale * torch.randn(self._known + 1, width, generator=rng)
        vectors[0] = 0.0
        return vectors

    def number(self, interacted_I: Tensor) -> None:
        """Number the items that training users interacted with."""
        if len(self.codes_I):
            count = int(interacted_I.sum())
            self.codes_I[interacted_I] = torch.arange(1, count + 1, device=self.codes_I.device)

    def by_number(self, value_I: Tensor) -> Tensor:
        """A value of every item in the order of numbers; number 0 has the value 0."""
        known_I = self.codes_I > 0
        return torch.cat([value_I.new_zeros(1), value_I[known_I]])

    def forward(self, item_N: Tensor) -> Tensor:
        """Item rows -> numbers."""
        return self.codes_I[item_N]


class Items(nn.Module):
    """Turns item rows and their features into vectors."""

    def start_biases(self, value_I: Tensor) -> None:
        """Give the items their first biases, where they have any."""
        raise NotImplementedError

    known: KnownItems
    width: int
    """D"""
    rows: Rows | None = None

    def own_tables(self) -> list[nn.Parameter]:
        """Tables with a row per item number."""
        raise NotImplementedError

    def _read(self, table: nn.Parameter, known_N: Tensor) -> Tensor:
        """The rows of a table of items; row 0 is zero, and learns nothing."""
        sparse = self.rows is not None and self.rows.before_reading(table, known_N)
        return nn.functional.embedding(known_N, table, padding_idx=0, sparse=sparse)

    def forward(self, features: Features, item_N: Tensor) -> ItemVectors:
        """The batch's distinct items."""
        raise NotImplementedError

    def catalogue(self, features: Features, item_I: Tensor) -> tuple[ItemVectors, ItemTable]:
        """All items, for serving, in the form that takes less time and memory."""
        items: ItemVectors = self(features, item_I)
        return items, ItemTable(items.vectors_ND)


class ItemFields(Items):
    """Field embeddings side by side (paper, Fig. 2) and, optionally, an embedding and a bias of the item itself."""

    def __init__(
        self, fields: FieldEmbedder, known: KnownItems, own: Tensor | None = None, bias: Tensor | None = None
    ) -> None:
        """`own` and `bias` are initial values, one row per item number."""
        super().__init__()
        self.fields, self.known = fields, known
        self.width = fields.width + (0 if own is None else own.shape[1])
        self.own = None if own is None else nn.Parameter(own)
        self.bias = None if bias is None else nn.Parameter(bias)

    @torch.no_grad()
    def start_biases(self, value_I: Tensor) -> None:
        """The last output's, if items have biases."""
        if self.bias is not None:
            self.bias[:, -1] = self.known.by_number(value_I)

    def own_tables(self) -> list[nn.Parameter]:
        """Embeddings and biases of the items themselves, where they have any."""
        return [table for table in (self.own, self.bias) if table is not None]

    def forward(self, features: Features, item_N: Tensor) -> ItemVectors:
        """An item unknown in training has a zero embedding and bias."""
        content_ND = self.fields(features)
        known_N = self.known(item_N) if self.own is not None or self.bias is not None else item_N
        if self.own is not None:
            content_ND = torch.cat([content_ND, self._read(self.own, known_N)], dim=-1)
        if self.bias is None:
            return ItemVectors(content_ND)
        return ItemVectors(content_ND, self._read(self.bias, known_N))


class ItemFactors(Items):
    """The sum of the item's own vector and its fields' vectors; item vector, biases and choice are parts of this sum.

    An item that no training user interacted with is described by its fields alone. Affinity, if any, is appended.
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
        """`own` holds initial values, as wide as the fields' sum; the part for biases starts at 0."""
        super().__init__()
        self.fields, self.known, self.affinity = fields, known, affinity
        self.width = width + (0 if affinity is None else affinity.width)
        self._width, self._outputs = width, outputs
        self.own = nn.Parameter(own)
        self.own.data[:, width : width + outputs] = 0.0

    @torch.no_grad()
    def start_biases(self, value_I: Tensor) -> None:
        """The last output's."""
        self.own[:, self._width + self._outputs - 1] = self.known.by_number(value_I)

    def own_tables(self) -> list[nn.Parameter]:
        """The items' own vectors."""
        return [self.own]

    def forward(self, features: Features, item_N: Tensor) -> ItemVectors:
        """The items' learned vectors, and their affinity."""
        items = self._learned(features, item_N)
        if self.affinity is None:
            return items
        return replace(items, vectors_ND=torch.cat([items.vectors_ND, self.affinity(features)], dim=1))

    def catalogue(self, features: Features, item_I: Tensor) -> tuple[ItemVectors, ItemTable]:
        """All items; affinity of many items is looked up by value, and their vectors are then only the learned part."""
        if self.affinity is None or not self.affinity.is_looked_up(len(item_I)):
            return super().catalogue(features, item_I)
        items = self._learned(features, item_I)
        return items, self.affinity.table(items.vectors_ND, features)

    def _learned(self, features: Features, item_N: Tensor) -> ItemVectors:
        known_N = self.known(item_N)
        whole_NW = self.fields(features) + self._read(self.own, known_N)
        bias, choice = self._width, self._width + self._outputs
        return ItemVectors(whole_NW[:, :bias], whole_NW[:, bias:choice], whole_NW[:, choice:])
