"""What a method trains: network, rate source and head together, and one batch of users put through them.

Legend: B users, R rows, K outputs.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from paml.adapt import Adaptation, Rate, adapt, forward
from paml.data.batches import RowBlock, TensorBatch
from paml.heads import Head, user_loss
from paml.layers import ItemTable
from paml.model import Network
from paml.rates import RateSource


@dataclass(frozen=True)
class Embedded:
    """A batch after the embeddings: users and distinct items as vectors."""

    batch: TensorBatch
    h_BH: Tensor
    table: ItemTable


@dataclass(frozen=True)
class Adapted:
    """A batch after the inner loop."""

    embedded: Embedded
    rate: Rate
    adaptation: Adaptation


class Learner(nn.Module):
    """Network, rate source and head; parameters are values, so adapting a user changes nothing here."""

    def __init__(
        self, network: Network, rates: RateSource, head: Head, *, steps: int = 1, first_order: bool = False
    ) -> None:
        super().__init__()
        self.network, self.rates, self.head = network, rates, head
        self.steps, self.first_order = steps, first_order

    def embed(self, batch: TensorBatch) -> Embedded:
        """Embed the batch's users, and its distinct items once each."""
        h_BH = self.network.embed_users(batch.users)
        return Embedded(batch, h_BH, self.network.embed_items(batch.items, batch.item_N))

    def adapt(self, embedded: Embedded, user_B: np.ndarray | None = None) -> Adapted:
        """Give each user a rate and take the inner steps on the support set; `user_B` is given in training."""
        rate = self.rates(embedded.h_BH, user_B)
        support = embedded.batch.support
        adaptation = adapt(
            self.network.decision.theta(),
            self.network.first_input(embedded.h_BH, embedded.table, support.index_BR, support.context),
            support.y_BR,
            support.mask_BR,
            self.head,
            rate,
            steps=self.steps,
            first_order=self.first_order,
            offset_BSK=self.network.offsets(embedded.batch.item_N, support.index_BR),
        )
        return Adapted(embedded, rate, adaptation)

    def outputs(self, adapted: Adapted, block: RowBlock) -> Tensor:
        """Outputs of the adapted network for rows, (B, R, K)."""
        embedded = adapted.embedded
        x = self.network.first_input(embedded.h_BH, embedded.table, block.index_BR, block.context)
        out_BRK, _ = forward(adapted.adaptation.layers, x)
        offset_BRK = self.network.offsets(embedded.batch.item_N, block.index_BR)
        return out_BRK if offset_BRK is None else out_BRK + offset_BRK

    def loss(self, adapted: Adapted, block: RowBlock) -> Tensor:
        """Mean loss of each user's rows, (B)."""
        return user_loss(self.head.row_loss(self.outputs(adapted, block), block.y_BR), block.mask_BR)
