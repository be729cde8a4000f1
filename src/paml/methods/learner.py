"""What a method trains: network, rate source, solver and head together, and one batch of users put through them.

Legend: B users, R rows, K outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from paml.engine.adapt import Adaptation, Rate, forward
from paml.engine.heads import Head, user_loss
from paml.engine.layers import ItemInput, TableInput
from paml.engine.solvers import Solver
from paml.episodes.batches import QueryBlock, RowBlock, SupportBatch, TensorBatch
from paml.episodes.features import Features, InputSpec
from paml.methods.rates import MemoryStep, RateSource, TrainingRate
from paml.network.network import Embedded, Network


@dataclass(frozen=True)
class Adapted:
    """A batch after the inner loop."""

    embedded: Embedded
    rate: Rate
    adaptation: Adaptation
    memory: MemoryStep | None = None
    """In training: the memory update that the outer step has to finish, if there is a memory."""

    def of(self, users: slice) -> "Adapted":
        """Some of the users, cut only where outputs need it: batch and rates stay whole, inner steps are dropped."""
        embedded, layers = self.embedded, self.adaptation.layers
        if len(embedded.h_BH) == 1:
            return replace(self, adaptation=Adaptation(layers))  # there is only one
        layers = tuple(layer.of(users) for layer in layers)
        prior_BDK = None if embedded.prior_BDK is None else embedded.prior_BDK[users]
        return replace(
            self,
            embedded=replace(embedded, h_BH=embedded.h_BH[users], prior_BDK=prior_BDK),
            adaptation=Adaptation(layers),
        )

    def tensors(self) -> list[Tensor]:
        """The tensors that belong to these users alone: neither theta nor items."""
        embedded = self.embedded
        support, prior = embedded.batch.support, embedded.prior_BDK
        known = [support.index_BR, support.y_BR, support.mask_BR, self.rate.per_user(len(embedded.h_BH))]
        layers = [tensor for layer in self.adaptation.layers for tensor in layer.own().values()]
        return [embedded.h_BH, *([] if prior is None else [prior]), *known, *layers]


class Learner(nn.Module):
    """Network, rate source, solver and head; parameters are values, so adapting a user changes nothing here."""

    def __init__(self, network: Network, rates: RateSource, solver: Solver, head: Head) -> None:
        super().__init__()
        self.network, self.rates, self.solver, self.head = network, rates, solver, head

    def without_decay(self) -> list[nn.Parameter]:
        """Parameters without weight decay whatever their shape: those of rates and solver, and the layers' biases."""
        parts = (self.rates, self.solver, self.network.decision.shared)
        return [parameter for part in parts for parameter in part.parameters()]

    def embed(self, batch: SupportBatch) -> Embedded:
        """Embed the batch's users, and its distinct items once each."""
        return self.network.embed(batch)

    def adapt(self, embedded: Embedded) -> Adapted:
        """Give each user a rate and adapt theta to the support set."""
        return self._adapt(embedded, TrainingRate(self.rates(embedded.h_BH)))

    def adapt_in_training(self, embedded: Embedded, user_B: np.ndarray) -> Adapted:
        """The same for training users, who are identified by number."""
        return self._adapt(embedded, self.rates.in_training(embedded.h_BH, user_B))

    def _adapt(self, embedded: Embedded, given: TrainingRate) -> Adapted:
        support = embedded.batch.support
        x = self.network.first_input(embedded, support)
        theta = self.network.decision.theta()
        adaptation = self.solver(theta, x, support.y_BR, support.mask_BR, given.rate, embedded.offsets(x))
        return Adapted(embedded, given.rate, adaptation, given.memory)

    def outputs(self, adapted: Adapted, block: QueryBlock) -> Tensor:
        """Outputs of the adapted network for rows, (B, R, K)."""
        return self._outputs(adapted, self.network.first_input(adapted.embedded, block))

    def outputs_of_all(self, adapted: Adapted, items: slice, context: Features | None) -> Tensor:
        """Outputs for a chunk of the items, in one context, (B, R, K)."""
        return self._outputs(adapted, self.network.whole_input(adapted.embedded, items, context))

    @staticmethod
    def _outputs(adapted: Adapted, x: ItemInput | TableInput) -> Tensor:
        out_BRK, _ = forward(adapted.adaptation.layers, x)
        offset_BRK = adapted.embedded.offsets(x)
        return out_BRK if offset_BRK is None else out_BRK + offset_BRK

    def loss(self, adapted: Adapted, block: RowBlock) -> Tensor:
        """Mean loss of each user's rows, (B)."""
        return user_loss(self.head.row_loss(self.outputs(adapted, block), block.y_BR), block.mask_BR)


class Ensemble(nn.Module):
    """Learners that differ only by chance (initial weights, episodes); predictions and rates are means over them.

    Each overfits in its own way, and the mean does not: on small data this is the cheapest gain in accuracy.
    """

    def __init__(self, members: Sequence[Learner]) -> None:
        super().__init__()
        self._members = nn.ModuleList(members)

    @property
    def members(self) -> list[Learner]:
        """All members; the first represents them where one is enough."""
        return [member for member in self._members if isinstance(member, Learner)]

    @property
    def inputs(self) -> InputSpec:
        """The fields that all members take."""
        return self.members[0].network.inputs

    def predict(self, batch: TensorBatch) -> tuple[Tensor, Tensor]:
        """Predictions of the query rows (B, R), and the users' rates (B)."""
        predictions, rates = [], []
        for member in self.members:
            adapted = member.adapt(member.embed(batch))
            predictions.append(member.head.predict(member.outputs(adapted, batch.query)))
            rates.append(adapted.rate.per_user(len(batch.user_B)))
        return torch.stack(predictions).mean(dim=0), torch.stack(rates).mean(dim=0)
