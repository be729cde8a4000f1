"""A trained model in use: it takes what is known about a new user, and returns a user who predicts and ranks items.

Everything that does not depend on the user is computed once per member: every item's vector (for affinity, every
value's) and its products with theta. Users are adapted by the learners' `adapt`, as in training and evaluation, any
number in one call. Nothing changes after loading, so threads may share a predictor and its users.

Legend: B users, I all items, R rows, S support rows.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paml.data.dataset import Vocabulary
from paml.data.schema import Schema, Target
from paml.episodes.batches import QueryBlock, SupportBatch
from paml.episodes.features import Features
from paml.methods.learner import Adapted, Ensemble
from paml.recommend.catalogue import Catalogue
from paml.recommend.preference import By, Preference, orders
from paml.recommend.rate_profile import ReferenceUsers
from paml.recommend.requests import Encoding, NewUser, ProfileField, Rating, Values
from paml.recommend.stacked import MAX_USERS, Member, Stack
from paml.recommend.user import User

CELLS_AT_ONCE = 1 << 22  # numbers of a layer's output that are held at once when many rows are scored


class Predictor:
    """A trained ensemble with all items, ready for new users; `Run.predictor` makes one.

    >>> predictor = paml.load(run.path).predictor
    >>> user = predictor.adapt(profile={"gender": "F"}, ratings={"3": 5, "7": 2})
    >>> predictor.catalogue.title("26")
    'Film 27'
    """

    def __init__(
        self,
        ensemble: Ensemble,
        schema: Schema,
        vocabulary: Vocabulary,
        catalogue: Catalogue,
        reference_users: ReferenceUsers,
        *,
        major_above: int = 2,
        choice: Ensemble | None = None,
        preference: Preference | None = None,
    ) -> None:
        self.catalogue, self.reference_users, self.preference = catalogue, reference_users, preference
        self.rates = not ensemble.members[0].head.over_items
        """Whether it predicts ratings or clicks; otherwise it only ranks."""
        self.target: Target = schema.target
        self.encoding = Encoding(schema, vocabulary, catalogue, major_above)
        self._features, self._item_I = catalogue.features(ensemble.inputs, vocabulary)
        members = tuple(Member.of(learner, self._features, self._item_I) for learner in ensemble.members)
        self._stack = Stack(members) if Stack.suits(members) else None
        self.members = members if self._stack is None else self._stack.members
        outputs = max(weights.rows_DK.shape[1] for weights in members[0].learner.network.decision.theta())
        table = members[0].table
        self._row_width, self._chunk_width = (max(width, outputs) for width in (table.width, table.vectors_ND.shape[1]))
        self.choice = None
        if choice is not None:
            self.choice = Predictor(choice, schema, vocabulary, catalogue, reference_users, major_above=major_above)
        self.adapt()  # the first search builds AT-PAML's index: do it now, not while threads share it

    @property
    def chooses(self) -> bool:
        """Whether it knows which items users choose."""
        return self.preference is not None

    @property
    def orders(self) -> tuple[By, ...]:
        """What lists may be ordered by, the best first."""
        return orders(rates=self.rates, chooses=self.chooses)

    @property
    def fields(self) -> tuple[ProfileField, ...]:
        """The fields that a profile may have, with their known values."""
        return self.encoding.fields

    def adapt(
        self, profile: Values | None = None, ratings: Mapping[str, float] | Sequence[Rating] | None = None
    ) -> User:
        """Adapt to one user: `profile` has values by field name, `ratings` values by item; see `adapt_many`.

        >>> user = run.predictor.adapt(profile={"gender": "F", "age": 25}, ratings={"3": 5, "7": 2})
        """
        if isinstance(ratings, Mapping):
            ratings = [Rating(item, value) for item, value in ratings.items()]
        return self.adapt_many([NewUser(profile or {}, tuple(ratings or ()))])[0]

    @torch.inference_mode()
    def adapt_many(self, new_users: Sequence[NewUser], *, score: bool = False) -> list[User]:
        """Adapt to any number of users in one call of the engine; with `score`, all items are scored at once, too.

        Profile and ratings may be empty: without ratings theta itself is used with the profile, without a profile every
        field is unknown.
        """
        if not new_users:
            return []
        batch = self.batch(new_users)
        stack = self._stack_for(len(new_users))
        adapted = [member.adapt(batch) for member in self.members] if stack is None else stack.adapt(batch)
        rates = [one.rate.per_user(len(new_users)) for one in adapted]
        rate_B = torch.stack(rates).mean(dim=0).tolist()
        score_BI = self.score_all(adapted) if score else None
        choosers = [None] * len(new_users) if self.choice is None else self.choice.adapt_many(new_users, score=score)
        return [
            User(
                self,
                new_user,
                tuple(one.of(slice(b, b + 1)) for one in adapted),
                rate_B[b],
                self.encoding.group(new_user.profile),
                None if score_BI is None else score_BI[b],
                chooser,
            )
            for b, (new_user, chooser) in enumerate(zip(new_users, choosers, strict=True))
        ]

    def batch(self, new_users: Sequence[NewUser]) -> SupportBatch:
        """The new users as the engine's input; rows refer to all items of the catalogue."""
        return SupportBatch(
            users=self.encoding.users([new_user.profile for new_user in new_users]),
            items=self._features,
            item_N=self._item_I,
            support=self.encoding.support(new_users),
        )

    @torch.inference_mode()
    def score(self, adapted: Sequence[Adapted], index_R: Tensor, context: Values | None) -> Tensor:
        """Predictions for the same items in the same context for all users, one `Adapted` per member, (B, R)."""
        pairs = [*zip(self.members, adapted, strict=True)]
        users, step = len(adapted[0].embedded.h_BH), self._rows_at_once(adapted, self._row_width)
        blocks = [self.block(part, context, users) for part in torch.split(index_R, step)]
        outputs = (torch.stack([member.learner.outputs(one, block) for member, one in pairs]) for block in blocks)
        parts = [self._mean(out_MBRK) for out_MBRK in outputs]
        return torch.cat(parts, dim=1) if parts else torch.zeros(users, 0)

    @torch.inference_mode()
    def score_all(self, adapted: Sequence[Adapted], context: Values | None = None) -> Tensor:
        """The same for all items of the catalogue, (B, I): one product for all users instead of many."""
        encoded = self.encoding.context([context or {}])
        step = max(self._rows_at_once(adapted, self._chunk_width), self.members[0].table.smallest_chunk)
        chunks = [slice(start, start + step) for start in range(0, len(self.catalogue), step)]
        parts = [self._mean(self._outputs_of_all(adapted, items, encoded)) for items in chunks]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def block(self, index_R: Tensor, context: Values | None, users: int = 1) -> QueryBlock:
        """Items to predict, the same for all users, in the same context."""
        index_BR = index_R.expand(users, -1)
        encoded = self.encoding.context([context or {}])
        return QueryBlock(index_BR, encoded and encoded.repeated(index_BR.numel()))

    def _outputs_of_all(self, adapted: Sequence[Adapted], items: slice, context: Features | None) -> Tensor:
        """(M, B, R, K)"""
        stack = self._stack_for(len(adapted[0].embedded.h_BH))
        if stack is not None:
            return stack.outputs_of_all(adapted, items, context)
        pairs = zip(self.members, adapted, strict=True)
        return torch.stack([member.learner.outputs_of_all(one, items, context) for member, one in pairs])

    def _mean(self, out_MBRK: Tensor) -> Tensor:
        """The members' predictions from their outputs, averaged; all members have the same head."""
        predicted: Tensor = self.members[0].learner.head.predict(out_MBRK.flatten(0, 1))
        return predicted.view(out_MBRK.shape[:3]).mean(dim=0)

    def _rows_at_once(self, adapted: Sequence[Adapted], width: int) -> int:
        users, support = len(adapted[0].embedded.h_BH), adapted[0].embedded.batch.support.index_BR.shape[1]
        together = 1 if self._stack_for(users) is None else len(self.members)
        return max(1, CELLS_AT_ONCE // (together * users * max(width, support)))

    def _stack_for(self, users: int) -> Stack | None:
        return self._stack if users <= MAX_USERS else None
