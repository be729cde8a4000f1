"""A trained model in use: it takes what is known about a new user, and returns a user who predicts and ranks items.

Everything that does not depend on the user is computed once: every item's vector (for affinity, every value's). A
network of one layer is compiled into a plan (plan.py), which answers one user in about a millisecond; others adapt by
the learners' own `adapt` (members.py), as in training and evaluation. Either way any number of users in one call.
Nothing changes after loading, so threads may share a predictor and its users.

Legend: B users, I all items, R rows, S support rows.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paml.data.dataset import Vocabulary
from paml.data.schema import Schema, Target
from paml.episodes.batches import QueryBlock, SupportBatch
from paml.methods.learner import Ensemble
from paml.recommend.candidates import RECALL_AT, CandidateIndex, Measured, Probe, index_of
from paml.recommend.catalogue import Catalogue
from paml.recommend.explain import (
    effects_on_choice,
    effects_on_rating,
    planned_effects_on_choice,
    planned_effects_on_rating,
)
from paml.recommend.members import AdaptedUsers, Member, Members
from paml.recommend.ordering import Ordering, log_softmax
from paml.recommend.plan import Plan, PlannedUsers
from paml.recommend.preference import By, Preference, orders
from paml.recommend.rate_profile import ReferenceUsers
from paml.recommend.requests import (
    EncodedUser,
    Encoding,
    NewUser,
    ProfileField,
    Ratings,
    Values,
    as_profile,
    as_ratings,
)
from paml.recommend.sample_users import sample_users
from paml.recommend.user import Scores, User

PROBES = 50  # generated users for whom an index is measured


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
        rate_label: str = "learning rate",
    ) -> None:
        """`rate_label` says what a user's own rate is."""
        self.catalogue, self.reference_users, self.preference = catalogue, reference_users, preference
        self.rate_label = rate_label
        self.rates = not ensemble.members[0].head.over_items
        """Whether it predicts ratings or clicks; otherwise it only ranks."""
        self.bounds = ensemble.members[0].head.bounds
        """What all predicted ratings lie between, if anything."""
        self.target: Target = schema.target
        self.encoding = Encoding(schema, vocabulary, catalogue, major_above)
        features, item_I = catalogue.features(ensemble.inputs, vocabulary)
        members = tuple(Member.of(learner, features, item_I) for learner in ensemble.members)
        self.plan = Plan(members) if Plan.suits(members[0].learner) else None
        """What answers, if the networks have one layer."""
        self.general = Members(members if self.plan is None else self.plan.members, features, item_I, self.encoding)
        """What answers otherwise, and knows the steps of adapting."""
        self.ordering = None if preference is None else Ordering(preference)
        self.choice = None
        if choice is not None:
            self.choice = Predictor(choice, schema, vocabulary, catalogue, reference_users, major_above=major_above)
        self.adapt()  # the first search builds AT-PAML's index: do it now, not while threads share it
        self.index: CandidateIndex | None = None
        """Of a large catalogue: finds candidates for lists by predicted rating."""
        self.measured: Measured | None = None
        """How that index does."""
        if self.plan is not None and self.plan.has_directions and not self.chooses:  # chances depend on all items
            self.index, self.measured = index_of(self.plan.table, self._probes) or (None, None)

    def __repr__(self) -> str:
        count = len(self.members)
        networks = f"{count} network{'' if count == 1 else 's'}"
        return f"Predictor({networks}, {len(self.catalogue):,} items, by {', '.join(self.orders)})"

    @property
    def members(self) -> tuple[Member, ...]:
        """The ensemble's members."""
        return self.general.members

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

    def adapt(self, profile: Values | None = None, ratings: Ratings | None = None) -> User:
        """Adapt to one user: `profile` has values by field name, `ratings` values by item; see `adapt_many`.

        >>> user = run.predictor.adapt(profile={"gender": "F", "age": 25}, ratings={"3": 5, "7": 2})
        """
        return self.adapt_many([NewUser(as_profile(profile), as_ratings(ratings))])[0]

    @torch.inference_mode()
    def adapt_many(self, new_users: Sequence[NewUser], *, score: bool = False) -> list[User]:
        """Adapt to any number of users in one call of the engine; with `score`, all items are scored at once, too.

        With an index (large catalogues), lists need no scores of all items, and none are made in advance.
        Profile and ratings may be empty: without ratings theta itself is used with the profile, without a profile every
        field is unknown.
        """
        if not new_users:
            return []
        encoded = [self.encoding.encode(new_user) for new_user in new_users]
        adapted = self.adapted(encoded)
        rate_B = adapted.rate_B.tolist()
        score_all = score and self.index is None
        score_BI = self._scores(encoded, adapted) if score_all else [Scores() for _ in encoded]
        return [
            User(self, new_user, encoded[b], adapted.of(b), rate_B[b], scores)
            for b, (new_user, scores) in enumerate(zip(new_users, score_BI, strict=True))
        ]

    def _scores(self, encoded: Sequence[EncodedUser], adapted: AdaptedUsers | PlannedUsers) -> list[Scores]:
        """Everything that lists of these users may be ordered by."""
        if self.ordering is None:
            return [Scores(output_I=score_I.copy()) for score_I in self.score_all(adapted).numpy()]
        chooser, chosen = self, adapted
        if self.choice is not None:
            chooser, chosen = self.choice, self.choice.adapted(encoded)
        log_p_BI = log_softmax(chooser.score_all(chosen).numpy())
        base_BI = self.ordering.without_rating(encoded, log_p_BI)
        bounded = self.bounds is not None  # then few items need a rating
        rated = [None] * len(encoded) if bounded else [one.copy() for one in self.score_all(adapted).numpy()]
        return [  # all are copies, since a user who is kept should not keep all others' scores
            Scores(output_I, log_p_BI[b].copy(), base_BI[b].copy(), chosen.of(b) if self.choice else None)
            for b, output_I in enumerate(rated)
        ]

    def candidates(self, users: AdaptedUsers | PlannedUsers, n: int, more: int) -> np.ndarray | None:
        """Rows of the items that may be the n best for a single user, and of some more.

        None without an index, or if it finds too few: FAISS finds nothing for weights of zero.
        """
        if self.index is None or self.measured is None or self.plan is None or isinstance(users, AdaptedUsers):
            return None
        count = self.measured.candidates * max(1, n // RECALL_AT) + more
        found_R = self.index.find(self.plan.direction(users), count, self.measured.breadth)
        return found_R if len(found_R) >= min(n + more, len(self.index)) else None

    @torch.inference_mode()
    def _probes(self) -> list[Probe]:
        """Generated users, to measure an index with."""
        assert self.plan is not None, "an index is made of a plan"
        rng = np.random.default_rng(0)
        made = sample_users(self.fields, self.catalogue, self.target, PROBES, rng)
        return [self._probe(self.plan, self.plan.adapt([self.encoding.encode(one)])) for one in made]

    def _probe(self, plan: Plan, users: PlannedUsers) -> Probe:
        return Probe(
            plan.direction(users),
            lambda: float(self.score_all(users)[0].topk(RECALL_AT).values[-1]),
            lambda row_R: self.score(users, row_R)[0],
        )

    def adapted(self, encoded: Sequence[EncodedUser]) -> AdaptedUsers | PlannedUsers:
        """New users, adapted."""
        return self.general.adapt(encoded) if self.plan is None else self.plan.adapt(encoded)

    def batch(self, new_users: Sequence[NewUser]) -> SupportBatch:
        """The new users as the engine's input; rows refer to all items of the catalogue."""
        return self.general.batch([self.encoding.encode(new_user) for new_user in new_users])

    def block(self, index_R: Tensor, context: Values | None, users: int = 1) -> QueryBlock:
        """Items to predict, the same for all users, in the same context."""
        return self.general.block(index_R, self.encoding.context(context), users)

    @torch.inference_mode()
    def score(self, users: AdaptedUsers | PlannedUsers, index_R: Tensor, context: Values | None = None) -> Tensor:
        """Predictions for the same items in the same context for all users, (B, R)."""
        looked_up = self.encoding.context(context)
        if isinstance(users, AdaptedUsers):
            return self.general.score(users, index_R, looked_up)
        assert self.plan is not None, "users adapted by this predictor"
        return self.plan.score(users, index_R, looked_up)

    @torch.inference_mode()
    def score_all(self, users: AdaptedUsers | PlannedUsers, context: Values | None = None) -> Tensor:
        """The same for all items of the catalogue, (B, I)."""
        looked_up = self.encoding.context(context)
        if isinstance(users, AdaptedUsers):
            return self.general.score_all(users, looked_up)
        assert self.plan is not None, "users adapted by this predictor"
        return self.plan.score_all(users, looked_up)

    @torch.no_grad()
    def effects_on_rating(
        self, user: EncodedUser, adapted: AdaptedUsers | PlannedUsers, index_R: Tensor, context: Values | None
    ) -> Tensor:
        """What each rating of an adapted user added to predictions of some items, (R, S)."""
        if self.plan is not None and self.plan.solo is not None and isinstance(adapted, PlannedUsers):
            return planned_effects_on_rating(self.plan.solo, user, adapted.solo_weights(), index_R)
        return effects_on_rating(self.general.one_by_one(user), self.block(index_R, context))

    @torch.no_grad()
    def effects_on_choice(self, user: EncodedUser, adapted: AdaptedUsers | PlannedUsers, index_R: Tensor) -> Tensor:
        """What each rating of an adapted user added to log chances of some items, (R, S)."""
        if self.plan is not None and self.plan.solo is not None and isinstance(adapted, PlannedUsers):
            return planned_effects_on_choice(self.plan.solo, user, adapted.solo_weights(), index_R)
        return effects_on_choice(self.general.one_by_one(user), index_R)
