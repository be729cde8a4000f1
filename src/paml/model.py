"""The network: embeddings generated from the schema, and the decision layers theta (paper, Fig. 2 and Tab. 9).

Embeddings and rate layers learn in the outer step only; the inner step moves the decision layers, as in MeLU.
Legend: B users, R rows, N distinct items, H width of the user embedding, E size of one field's embedding.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, embedding_bag

from paml.data.features import Features
from paml.data.schema import Field, Kind
from paml.layers import ItemInput, ItemTable, Weights


def _key(field: Field) -> str:
    """A field's name among parameters; a module may have an attribute of the plain name."""
    return f"field_{field.name}"


class FieldEmbedder(nn.Module):
    """One vector of size E per field, laid side by side: embeddings, means of embeddings, projected numbers."""

    nothing: Tensor

    def __init__(
        self, fields: Sequence[Field], sizes: dict[str, int], width: int, scale: float, rng: torch.Generator
    ) -> None:
        super().__init__()
        self.fields, self.width = tuple(fields), width * len(fields)
        tables, numbers = {}, {}
        for field in fields:
            key = _key(field)
            if field.kind is Kind.NUMERIC:
                # as nn.Linear(1, E): weight and bias uniform in [-1, 1]
                numbers[key] = nn.Parameter(torch.rand(2, width, generator=rng) * 2 - 1)
            else:
                tables[key] = nn.Parameter(scale * torch.randn(sizes[field.name], width, generator=rng))
        for table in tables.values():
            table.data[0] = 0.0  # "unknown": what nobody trains should say nothing
        self.tables, self.numbers = nn.ParameterDict(tables), nn.ParameterDict(numbers)
        self.register_buffer("nothing", torch.zeros(0), persistent=False)

    def forward(self, features: Features) -> Tensor:
        """(n, E * fields); a bag without values is the zero vector."""
        if not self.fields:
            return self.nothing.new_zeros(features.count, 0)
        parts = []
        for field in self.fields:
            if field.kind is Kind.MULTI:
                codes, offsets = features.bags[field.name]
                parts.append(embedding_bag(codes, self.tables[_key(field)], offsets.to(codes.dtype), mode="mean"))
            elif field.kind is Kind.NUMERIC:
                weight, bias = self.numbers[_key(field)]
                value = features.numbers[field.name].to(weight.dtype)
                parts.append(value.unsqueeze(-1) * weight + bias)
            else:
                parts.append(embedding(features.codes[field.name], self.tables[_key(field)]))
        return torch.cat(parts, dim=-1)


class DecisionLayers(nn.Module):
    """theta: fully connected layers with ReLU between them; what the inner step moves.

    The first layer's inputs are the item's and context's embedding (per row) and the user's embedding (shared).
    """

    def __init__(self, row_width: int, user_width: int, sizes: Sequence[int], rng: torch.Generator) -> None:
        super().__init__()
        rows, shared = [], []
        widths = [row_width, *sizes[:-1]]
        for k, (inputs, outputs) in enumerate(zip(widths, sizes, strict=True)):
            extra = user_width if k == 0 else 0
            bound = max(inputs + extra, 1) ** -0.5  # as nn.Linear initialises weights and bias
            both = (torch.rand(inputs + extra + 1, outputs, generator=rng) * 2 - 1) * bound
            rows.append(nn.Parameter(both[:inputs].clone()))
            shared.append(nn.Parameter(both[inputs:].clone()))
        self.rows, self.shared = nn.ParameterList(rows), nn.ParameterList(shared)

    def theta(self) -> list[Weights]:
        """The parameters as values, layer by layer."""
        return [Weights(rows, shared) for rows, shared in zip(self.rows, self.shared, strict=True)]


class Network(nn.Module):
    """Embeddings and decision layers of one data set."""

    item_codes_I: Tensor

    def __init__(
        self,
        user: FieldEmbedder,
        item: FieldEmbedder,
        context: FieldEmbedder,
        hidden: Sequence[int],
        outputs: int,
        *,
        rng: torch.Generator,
        items: int = 0,
        known_items: int = 0,
        item_embedding: int = 0,
        item_bias: bool = False,
        scale: float = 1.0,
    ) -> None:
        """Of `items` items, `known_items` are known from training; `item_codes_I` maps rows to 1, 2, ... or 0."""
        super().__init__()
        self.user, self.item, self.context = user, item, context
        rows = known_items + 1
        self.register_buffer("item_codes_I", torch.zeros(items, dtype=torch.int64))
        self.item_table = (
            nn.Parameter(scale * torch.randn(rows, item_embedding, generator=rng)) if item_embedding else None
        )
        if self.item_table is not None:
            self.item_table.data[0] = 0.0
        self.item_bias = nn.Parameter(torch.zeros(rows, outputs)) if item_bias else None
        row_width = item.width + item_embedding + context.width
        self.decision = DecisionLayers(row_width, user.width, [*hidden, outputs], rng)

    def embed_users(self, features: Features) -> Tensor:
        """h, (B, H): the user's field embeddings side by side."""
        return self.user(features)  # type: ignore[no-any-return]

    def embed_items(self, features: Features, item_N: Tensor) -> ItemTable:
        """Item vectors: field embeddings and, if there is one, the embedding of the item itself."""
        content_ND = self.item(features)
        if self.item_table is None:
            return ItemTable(content_ND)
        return ItemTable(torch.cat([content_ND, self.item_table.index_select(0, self._known(item_N))], dim=-1))

    def offsets(self, item_N: Tensor, index_BR: Tensor) -> Tensor | None:
        """Item biases of rows, (B, R, K), or None without them; the item unknown in training has bias 0."""
        if self.item_bias is None:
            return None
        known_N = self._known(item_N)
        bias_NK = self.item_bias.index_select(0, known_N) * (known_N > 0).unsqueeze(-1)
        return bias_NK.index_select(0, index_BR.flatten()).view(*index_BR.shape, -1)

    def first_input(self, h_BH: Tensor, table: ItemTable, index_BR: Tensor, context: Features | None) -> ItemInput:
        """The first layer's input for rows that point into a table of item vectors."""
        shared_BC = torch.cat([h_BH, h_BH.new_ones(len(h_BH), 1)], dim=1)
        context_BRD = None
        if self.context.fields and context is not None:
            context_BRD = self.context(context).view(*index_BR.shape, -1)
        return ItemInput(table, index_BR, shared_BC, context_BRD)

    def _known(self, item_N: Tensor) -> Tensor:
        return self.item_codes_I[item_N]
