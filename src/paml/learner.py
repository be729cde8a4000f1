"""What a method trains: network, rate source, inner problem and head together, and one batch of users put through them.

Legend: B users, R rows, K outputs.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from paml.adapt import Adaptation, Rate, forward
from paml.data.batches import RowBlock, TensorBatch
from paml.heads import Head, user_loss
from paml.inner import Inner
from paml.model import Embedded, Network
from paml.rates import RateSource


@dataclass(frozen=True)
class Adapted:
    """A batch after the inner loop."""

    embedded: Embedded
    rate: Rate
    adaptation: Adaptation


class Learner(nn.Module):
    """Network, rate source, inner problem and head; parameters are values, so adapting a user changes nothing here."""

    def __init__(self, network: Network, rates: RateSource, inner: Inner, head: Head) -> None:
        super().__init__()
        self.network, self.rates, self.inner, self.head = network, rates, inner, head

    def embed(self, batch: TensorBatch) -> Embedded:
        """Embed the batch's users, and its distinct items once each."""
        return self.network.embed(batch)

    def adapt(self, embedded: Embedded, user_B: np.ndarray | None = None) -> Adapted:
        """Give each user a rate and adapt theta to the support set; `user_B` is given in training."""
        rate = self.rates(embedded.h_BH, user_B)
        support = embedded.batch.support
        x = self.network.first_input(embedded, support)
        theta = self.network.decision.theta()
        adaptation = self.inner(theta, x, support.y_BR, support.mask_BR, rate, embedded.offsets(x))
        return Adapted(embedded, rate, adaptation)

    def outputs(self, adapted: Adapted, block: RowBlock) -> Tensor:
        """Outputs of the adapted network for rows, (B, R, K)."""
        x = self.network.first_input(adapted.embedded, block)
        out_BRK, _ = forward(adapted.adaptation.layers, x)
        offset_BRK = adapted.embedded.offsets(x)
        return out_BRK if offset_BRK is None else out_BRK + offset_BRK

    def loss(self, adapted: Adapted, block: RowBlock) -> Tensor:
        """Mean loss of each user's rows, (B)."""
        return user_loss(self.head.row_loss(self.outputs(adapted, block), block.y_BR), block.mask_BR)
