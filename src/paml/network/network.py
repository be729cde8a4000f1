"""The network: users, items and contexts as vectors, and the decision layers theta (paper, Fig. 2).

Embeddings and rate layers learn in the outer step only; the inner step moves the decision layers, as in MeLU.
Legend: B users, R rows, N distinct items, H width of the user embedding, D width of an item's vector, K outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paml.engine.inputs import ItemInput, ItemTable, TableInput, Weights
from paml.episodes.batches import QueryBlock, SupportBatch
from paml.episodes.features import Features, InputSpec
from paml.network.embeddings import FieldEmbedder, Rows
from paml.network.items import Items, ItemVectors
from paml.network.user_prior import UserPrior


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


@dataclass(frozen=True)
class Embedded:
    """A batch after embedding: users and distinct items as vectors, and the prior of each user."""

    batch: SupportBatch
    h_BH: Tensor
    items: ItemVectors
    table: ItemTable
    prior_BDK: Tensor | None
    bias_scale_B11: Tensor | None = None
    """What a user's item biases are multiplied by, if anything."""

    def shared(self) -> Tensor:
        """What all rows of a user share: the embedding, and the constant 1, (B, C)."""
        return torch.cat([self.h_BH, self.h_BH.new_ones(len(self.h_BH), 1)], dim=1)

    def choice_weights(self, weights_BDK: Tensor) -> Tensor:
        """What the items' rows are multiplied by to choose among them: weights of the vectors and prior, ..., (B, E).

        `weights_BDK` are each user's, or those of theta. What is the same for all items is left out.
        """
        B = len(self.h_BH)
        vector_BD = weights_BDK.expand(B, -1, -1)[..., 0]
        if self.prior_BDK is not None:
            vector_BD = vector_BD + self.prior_BDK[:, :-1, 0]
        ones_B1 = vector_BD.new_ones(B, 1)
        scale_B1 = ones_B1 if self.bias_scale_B11 is None else self.bias_scale_B11[:, 0]
        return torch.cat([vector_BD, scale_B1, *([] if self.items.log_chance_N is None else [ones_B1])], dim=1)

    def offsets(self, x: ItemInput | TableInput) -> Tensor | None:
        """What is added to the outputs of rows and not adapted, (B, R, K): item biases, and the user's prior."""
        bias_NK = self.items.bias_NK
        offset_BRK = None if bias_NK is None else x.look_up(bias_NK)
        if offset_BRK is not None and self.bias_scale_B11 is not None:
            offset_BRK = offset_BRK * self.bias_scale_B11
        if self.prior_BDK is None:
            return offset_BRK
        prior_BRK = x.items_times(self.prior_BDK)
        return prior_BRK if offset_BRK is None else offset_BRK + prior_BRK


class Network(nn.Module):
    """Embeddings and decision layers of one data set."""

    def __init__(
        self,
        inputs: InputSpec,
        user: FieldEmbedder,
        items: Items,
        context: FieldEmbedder,
        user_prior: UserPrior,
        sizes: Sequence[int],
        rng: torch.Generator,
        *,
        bias_by_count: bool = False,
    ) -> None:
        """`inputs` are the fields it takes; `sizes` are those of the decision layers, with the outputs last.

        With `bias_by_count`, the biases of items are multiplied by (1 + n)^c for a user with n known rows, c learned:
        the more is known about a user, the less popularity says.
        """
        super().__init__()
        self.bias_power = nn.Parameter(torch.zeros(())) if bias_by_count else None
        self.inputs = inputs
        self.user, self.items, self.context, self.user_prior = user, items, context, user_prior
        self.decision = DecisionLayers(items.width + context.width, user.width, sizes, rng)

    def tables(self) -> list[nn.Parameter]:
        """Learned tables of which a batch reads some rows."""
        readers = [module for module in self.modules() if isinstance(module, FieldEmbedder | Items)]
        return [table for reader in readers for table in reader.own_tables() if table.requires_grad]

    def tell_rows(self, rows: Rows) -> None:
        """Let the embedders of users, items and contexts say which rows of their tables they read."""
        for module in self.modules():
            if isinstance(module, FieldEmbedder | Items):
                module.rows = rows

    def embed_users(self, features: Features) -> Tensor:
        """h, (B, H): the user's field embeddings side by side."""
        return self.user(features)  # type: ignore[no-any-return]

    def embed_items(self, features: Features, item_N: Tensor) -> tuple[ItemVectors, ItemTable]:
        """Distinct items, and their products with the first layer, which are computed once."""
        items: ItemVectors = self.items(features, item_N)
        return items, ItemTable(items.vectors_ND)

    def embed(self, batch: SupportBatch, known: tuple[ItemVectors, ItemTable] | None = None) -> Embedded:
        """Embed the batch's users, and its distinct items once each, unless their embeddings are `known`."""
        items, table = self.embed_items(batch.items, batch.item_N) if known is None else known
        support = batch.support
        prior_BDK = self.user_prior(batch.users, items.choice_NG, support.index_BR, support.mask_BR)
        scale_B11 = None
        if self.bias_power is not None:
            scale_B11 = ((1 + support.mask_BR.sum(dim=1)) ** self.bias_power).view(-1, 1, 1)
        return Embedded(batch, self.embed_users(batch.users), items, table, prior_BDK, scale_B11)

    def first_input(self, embedded: Embedded, block: QueryBlock, mask_BR: Tensor | None = None) -> ItemInput:
        """The first layer's input for support or query rows; with a mask, if their features are needed, too."""
        context_BRD = None
        if self.context.fields and block.context is not None:
            context_BRD = self.context(block.context).view(*block.index_BR.shape, -1)
        return ItemInput(embedded.table, block.index_BR, embedded.shared(), context_BRD, mask_BR)

    def whole_input(self, embedded: Embedded, items: slice, context: Features | None) -> TableInput:
        """The first layer's input for a chunk of the items, the same for all users, in one context."""
        context_BD = None
        if self.context.fields and context is not None:
            context_BD = self.context(context).expand(len(embedded.h_BH), -1)
        return TableInput(embedded.table, items, embedded.shared(), context_BD)
