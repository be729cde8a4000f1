"""The general path from new users to predictions: each member adapts by the learner's own `adapt`, one after another.

For networks with hidden layers, and for what needs the steps of adapting: the next question, and reasons that a plan
does not know. Networks of one layer answer by a plan (plan.py).

Legend: M members, B users, I all items, R rows, K outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paml.engine.heads import Head
from paml.engine.inputs import ItemTable
from paml.episodes.batches import QueryBlock, SupportBatch
from paml.episodes.features import Features
from paml.methods.learner import Adapted, Learner
from paml.network.items import ItemVectors
from paml.recommend.requests import EncodedUser, Encoding, Values

CELLS_AT_ONCE = 1 << 22  # numbers of a layer's output that are held at once when many rows are scored


@dataclass(frozen=True)
class Member:
    """A learner, and its vectors of all items."""

    learner: Learner
    items: ItemVectors
    table: ItemTable

    @classmethod
    @torch.no_grad()
    def of(cls, learner: Learner, features: Features, item_I: Tensor) -> "Member":
        """Every item's vector."""
        return cls(learner, *learner.embed_all(features, item_I))

    def adapt(self, batch: SupportBatch) -> Adapted:
        """The learner adapted to a batch whose rows refer to all items."""
        return self.learner.adapt(self.learner.embed(batch, (self.items, self.table)))


@dataclass(frozen=True)
class AdaptedUsers:
    """B users, adapted by each member."""

    members: tuple[Adapted, ...]

    @property
    @torch.no_grad()
    def rate_B(self) -> Tensor:
        """The users' rates, means over members."""
        return torch.stack([one.rate.per_user(len(self.h_BH)) for one in self.members]).mean(dim=0)

    @property
    def h_BH(self) -> Tensor:
        """The first member's embeddings."""
        return self.members[0].embedded.h_BH

    def of(self, b: int) -> "AdaptedUsers":
        """One of the users."""
        return AdaptedUsers(tuple(one.of(slice(b, b + 1)) for one in self.members))

    def tensors(self) -> list[Tensor]:
        """The tensors that belong to these users alone."""
        return [tensor for one in self.members for tensor in one.tensors()]


class Members:
    """All members of an ensemble with all items. Nothing changes after loading: threads may share them."""

    def __init__(self, members: Sequence[Member], features: Features, item_I: Tensor, encoding: Encoding) -> None:
        self.members, self._encoding = tuple(members), encoding
        self._features, self._item_I = features, item_I
        first = self.members[0]
        for member in self.members:  # once, not for each user
            member.table.products(member.learner.network.decision.theta()[0].rows_DK)
        outputs = max(weights.rows_DK.shape[1] for weights in first.learner.network.decision.theta())
        widths = first.table.width, first.table.vectors_ND.shape[1]
        self._row_width, self._chunk_width = (max(width, outputs) for width in widths)

    def batch(self, users: Sequence[EncodedUser]) -> SupportBatch:
        """New users as the engine's input; rows refer to all items of the catalogue."""
        return SupportBatch(self._encoding.users(users), self._features, self._item_I, self._encoding.support(users))

    def block(self, index_R: Tensor, context: Values | None, users: int = 1) -> QueryBlock:
        """Items to predict, the same for all users, in the same context."""
        index_BR = index_R.expand(users, -1)
        features = None if context is None else self._encoding.contexts([context])
        return QueryBlock(index_BR, features and features.repeated(index_BR.numel()))

    @torch.inference_mode()
    def adapt(self, users: Sequence[EncodedUser]) -> AdaptedUsers:
        """Adapt to any number of users."""
        batch = self.batch(users)
        return AdaptedUsers(tuple(member.adapt(batch) for member in self.members))

    def one_by_one(self, user: EncodedUser) -> list[tuple[Learner, Adapted]]:
        """Each member's learner, adapted to a single user."""
        batch = self.batch([user])
        return [(member.learner, member.adapt(batch)) for member in self.members]

    @torch.inference_mode()
    def score(self, users: AdaptedUsers, index_R: Tensor, context: Values | None) -> Tensor:
        """Predictions for the same items in the same context for all users, (B, R)."""
        pairs, count = [*zip(self.members, users.members, strict=True)], len(users.h_BH)
        blocks = [
            self.block(part_R, context, count)
            for part_R in torch.split(index_R, self._rows_at_once(users, self._row_width))
        ]
        outputs = (torch.stack([member.learner.outputs(one, block) for member, one in pairs]) for block in blocks)
        parts = [mean_prediction(self._head, out_MBRK) for out_MBRK in outputs]
        return torch.cat(parts, dim=1) if parts else torch.zeros(count, 0)

    @torch.inference_mode()
    def score_all(self, users: AdaptedUsers, context: Values | None) -> Tensor:
        """The same for all items of the catalogue, (B, I): one product for all users instead of many."""
        features = None if context is None else self._encoding.contexts([context])
        step = max(self._rows_at_once(users, self._chunk_width), self.members[0].table.smallest_chunk)
        pairs = [*zip(self.members, users.members, strict=True)]
        chunks = [slice(start, start + step) for start in range(0, len(self._item_I), step)]
        outputs = (
            torch.stack([member.learner.outputs_of_all(one, items, features) for member, one in pairs])
            for items in chunks
        )
        parts = [mean_prediction(self._head, out_MBRK) for out_MBRK in outputs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    @property
    def _head(self) -> Head:
        return self.members[0].learner.head

    def _rows_at_once(self, users: AdaptedUsers, width: int) -> int:
        support = users.members[0].embedded.batch.support.index_BR.shape[1]
        return max(1, CELLS_AT_ONCE // (len(users.h_BH) * max(width, support)))


def mean_prediction(head: Head, out_MBRK: Tensor) -> Tensor:
    """What people see of the members' predictions from their outputs, averaged, (B, R); all have the same head."""
    predicted: Tensor = head.predict(out_MBRK.flatten(0, 1))
    return head.finish(predicted.view(out_MBRK.shape[:3]).mean(dim=0))
