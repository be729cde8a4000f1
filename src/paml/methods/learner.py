"""What a method trains: network, rate source, solver and head together, and one batch of users put through them.

The rows of a user are those of the support or query set. A head over items (choice) asks how likely these are among all
items of the batch: everything that an item's output depends on is one row of a table (engine/choice.py).

Legend: B users, S support rows, R rows, N items of the batch, D inputs per row, E entries of an item's row, K outputs.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from paml.engine.adapt import Adaptation, Rate, forward
from paml.engine.choice import Choices, LevelWeights, loss_and_count
from paml.engine.heads import Head
from paml.engine.inputs import FirstInput, ItemTable
from paml.engine.layers import PersonalLayer
from paml.engine.solvers import Solver
from paml.episodes.batches import QueryBlock, RowBlock, SupportBatch, TensorBatch
from paml.episodes.features import Features, InputSpec
from paml.methods.rates import MemoryStep, RateSource, TrainingRate
from paml.network.items import ItemVectors
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
        prior_BDK, scale_B11 = (
            None if part is None else part[users] for part in (embedded.prior_BDK, embedded.bias_scale_B11)
        )
        return replace(
            self,
            embedded=replace(embedded, h_BH=embedded.h_BH[users], prior_BDK=prior_BDK, bias_scale_B11=scale_B11),
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

    def __init__(
        self,
        network: Network,
        rates: RateSource,
        solver: Solver,
        head: Head,
        known_weights: LevelWeights | None = None,
        taste_dropout: float = 0.0,
    ) -> None:
        """A choice among all items has `known_weights`, of its known rows, and in training `taste_dropout`."""
        super().__init__()
        self.known_weights = known_weights
        self.network, self.rates, self.solver, self.head = network, rates, solver, head
        self._taste_dropout = taste_dropout

    def without_decay(self) -> list[nn.Parameter]:
        """Parameters without weight decay whatever their shape: those of rates and solver, and the layers' biases."""
        parts = (self.rates, self.solver, self.network.decision.shared)
        return [parameter for part in parts for parameter in part.parameters()]

    def embed(self, batch: SupportBatch, known: tuple[ItemVectors, ItemTable] | None = None) -> Embedded:
        """Embed the batch's users, and its distinct items once each, unless their embeddings are `known`."""
        return self.network.embed(batch, self.embed_items(batch) if known is None else known)

    def embed_items(self, batch: SupportBatch) -> tuple[ItemVectors, ItemTable]:
        """The batch's distinct items; for a closed form over items, with the covariance of their vectors."""
        items, table = self.network.embed_items(batch.items, batch.item_N)
        return self._with_spread(replace(items, log_chance_N=batch.log_chance_N)), table

    def embed_all(self, features: Features, item_I: Tensor) -> tuple[ItemVectors, ItemTable]:
        """All items, for ranking and serving, in the form that takes less time and memory."""
        items, table = self.network.items.catalogue(features, item_I)
        return self._with_spread(items), table

    def _with_spread(self, items: ItemVectors) -> ItemVectors:
        """Items with what the solver needs to know about all of them."""
        return items.with_spread() if self.head.over_items and self.solver.needs_spread else items

    def adapt(self, embedded: Embedded) -> Adapted:
        """Give each user a rate and adapt theta to the support set."""
        return self._adapt(embedded, TrainingRate(self.rates(embedded.h_BH)))

    def adapt_in_training(self, embedded: Embedded, user_B: np.ndarray) -> Adapted:
        """The same for training users, who are identified by number."""
        return self.with_dropout(self._adapt(embedded, self.rates.in_training(embedded.h_BH, user_B)))

    def with_dropout(self, adapted: Adapted) -> Adapted:
        """In training: some of each user's weights for the item vectors set to 0, prior included, the others enlarged.

        The draw follows from the batch's rows, so that a resumed training makes the same one.
        """
        p = self._taste_dropout
        if not p:
            return adapted
        embedded, layers = adapted.embedded, adapted.adaptation.layers
        rows_DK, shared_CK = self.network.decision.theta()[-1]
        shape = (len(embedded.h_BH), len(rows_DK), 1)
        kept_BD1 = (_chances(embedded.batch, len(rows_DK)) >= p).to(rows_DK) / (1 - p)
        own = layers[-1].own()
        last = PersonalLayer(
            own.get("rows_BDK", rows_DK) * kept_BD1, own.get("shared_BCK", shared_CK.expand(shape[0], -1, -1))
        )
        prior_BDK = embedded.prior_BDK
        if prior_BDK is not None:
            prior_BDK = torch.cat([prior_BDK[:, :-1] * kept_BD1, prior_BDK[:, -1:]], dim=1)
        return replace(
            adapted,
            embedded=replace(embedded, prior_BDK=prior_BDK),
            adaptation=replace(adapted.adaptation, layers=(*layers[:-1], last)),
        )

    def _adapt(self, embedded: Embedded, given: TrainingRate) -> Adapted:
        theta, support = self.network.decision.theta(), embedded.batch.support
        if self.known_weights is None:
            in_training = torch.is_grad_enabled() and len(theta) == 1 and self.solver.needs_features
            x = self.network.first_input(embedded, support, support.mask_BR if in_training else None)
            adaptation = self.solver(theta, x, support.y_BR, support.mask_BR, given.rate, embedded.offsets(x))
        else:
            weights_BE = embedded.choice_weights(theta[-1].rows_DK)
            weight_BS = self.known_weights(support.y_BR) * support.mask_BR
            items = embedded.items
            choices = Choices(items.rows_NE, weights_BE, support.index_BR, weight_BS, items.spread_DD)
            adaptation = self.solver.choose(theta, choices, given.rate)
        return Adapted(embedded, given.rate, adaptation, given.memory)

    def outputs(self, adapted: Adapted, block: QueryBlock) -> Tensor:
        """Outputs of the adapted network for rows, (B, R, K)."""
        return self._outputs(adapted, self.network.first_input(adapted.embedded, block))

    def outputs_of_all(self, adapted: Adapted, items: slice, context: Features | None) -> Tensor:
        """Outputs for a chunk of the items, in one context, (B, R, K)."""
        return self._outputs(adapted, self.network.whole_input(adapted.embedded, items, context))

    @staticmethod
    def _outputs(adapted: Adapted, x: FirstInput) -> Tensor:
        out_BRK, _ = forward(adapted.adaptation.layers, x)
        offset_BRK = adapted.embedded.offsets(x)
        return out_BRK if offset_BRK is None else out_BRK + offset_BRK

    def loss(self, adapted: Adapted, block: RowBlock) -> Tensor:
        """Mean loss of each user's rows, (B)."""
        total_B, count_B = self.loss_and_count(adapted, [block], adapted.embedded.batch.support)
        return total_B / torch.where(count_B > 0, count_B, 1.0)

    def loss_and_count(
        self, adapted: Adapted, blocks: Sequence[RowBlock], given: RowBlock | None = None
    ) -> tuple[Tensor, Tensor]:
        """The sum of the losses of each user's rows, and how much they count, (B) each.

        Of a choice, items of `given` rows are no candidates: nobody is shown what they have rated.
        """
        if not self.head.over_items:
            losses = [self.head.row_loss(self.outputs(adapted, block), block.y_BR) * block.mask_BR for block in blocks]
            counts = [block.mask_BR.sum(dim=1) for block in blocks]
            return torch.stack([loss.sum(dim=1) for loss in losses]).sum(dim=0), torch.stack(counts).sum(dim=0)
        rows_DK = self.network.decision.theta()[-1].rows_DK
        weights_BE = adapted.embedded.choice_weights(adapted.adaptation.layers[-1].own().get("rows_BDK", rows_DK))
        index_BR = torch.cat([block.index_BR for block in blocks], dim=1)
        weight_BR = torch.cat([self.head.chosen_weight(block.y_BR) * block.mask_BR for block in blocks], dim=1)
        excluded = None if given is None else (given.index_BR, given.mask_BR)
        return loss_and_count(adapted.embedded.items.rows_NE, weights_BE, index_BR, weight_BR, excluded)


def _chances(batch: SupportBatch, width: int) -> Tensor:
    """Random numbers between 0 and 1 that follow from the batch's rows, (B, width, 1)."""
    index_BR = batch.support.index_BR.numpy(force=True) if batch.whole is None else batch.whole.support_index()
    rng = torch.Generator().manual_seed(zlib.crc32(np.ascontiguousarray(index_BR).tobytes()))
    chance_BD1 = torch.rand((len(index_BR), width, 1), generator=rng)
    return chance_BD1 if batch.whole is None else chance_BD1[batch.whole.share.part]


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
        """Predicted ratings, or chances of clicks, of the query rows (B, R), and the users' rates (B)."""
        predictions, rates = [], []
        for member in self.members:
            adapted = member.adapt(member.embed(batch))
            predictions.append(member.head.predict(member.outputs(adapted, batch.query)))
            rates.append(adapted.rate.per_user(len(batch.user_B)))
        predicted_BR = self.members[0].head.finish(torch.stack(predictions).mean(dim=0))
        return predicted_BR, torch.stack(rates).mean(dim=0)
