"""A trained model in use: it takes what is known about a new user, and returns a user who predicts and ranks items.

Everything that does not depend on the user is computed once per member: every item's vector (for affinity, every
value's) and its products with theta. Users are adapted by the learners' `adapt`, as in training and evaluation, any
number in one call. Nothing changes after loading, so threads may share a predictor and its users.

Legend: B users, I all items, R rows, S support rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paml.data.dataset import Vocabulary
from paml.data.schema import Schema, Target
from paml.episodes.batches import QueryBlock, SupportBatch
from paml.episodes.features import Features
from paml.errors import SettingsError
from paml.methods.learner import Adapted, Ensemble
from paml.recommend.catalogue import Catalogue
from paml.recommend.elicitation import Question, best_question
from paml.recommend.explain import Reason, effects
from paml.recommend.preference import Preference
from paml.recommend.rate_profile import RateProfile, ReferenceUsers
from paml.recommend.requests import Encoding, Group, NewUser, ProfileField, Rating, Values
from paml.recommend.stacked import MAX_USERS, Member, Stack

RATING_BYTES = 300  # size of a rating as Python objects, roughly
CELLS_AT_ONCE = 1 << 22  # numbers of a layer's output that are held at once when many rows are scored


@dataclass(frozen=True)
class Recommendation:
    """An item and its predicted rating, or click probability."""

    item: str
    title: str
    score: float


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
        self.catalogue, self.reference_users = catalogue, reference_users
        self.target: Target = schema.target
        self.encoding = Encoding(schema, vocabulary, catalogue, major_above)
        self._features, self._item_I = catalogue.features(ensemble.inputs, vocabulary)
        members = tuple(Member.of(learner, self._features, self._item_I) for learner in ensemble.members)
        self._stack = Stack(members) if Stack.suits(members) else None
        self.members = members if self._stack is None else self._stack.members
        outputs = max(weights.rows_DK.shape[1] for weights in members[0].learner.network.decision.theta())
        table = members[0].table
        self._row_width, self._chunk_width = (max(width, outputs) for width in (table.width, table.vectors_ND.shape[1]))
        self.adapt()  # the first search builds AT-PAML's index: do it now, not while threads share it

    @property
    def fields(self) -> tuple[ProfileField, ...]:
        """The fields that a profile may have, with their known values."""
        return self.encoding.fields

    def adapt(
        self, profile: Values | None = None, ratings: Mapping[str, float] | Sequence[Rating] | None = None
    ) -> "User":
        """Adapt to one user: `profile` has values by field name, `ratings` values by item; see `adapt_many`.

        >>> user = run.predictor.adapt(profile={"gender": "F", "age": 25}, ratings={"3": 5, "7": 2})
        """
        if isinstance(ratings, Mapping):
            ratings = [Rating(item, value) for item, value in ratings.items()]
        return self.adapt_many([NewUser(profile or {}, tuple(ratings or ()))])[0]

    @torch.inference_mode()
    def adapt_many(self, new_users: Sequence[NewUser], *, score: bool = False) -> list["User"]:
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
        return [
            User(
                self,
                new_user,
                tuple(one.of(slice(b, b + 1)) for one in adapted),
                rate_B[b],
                self.encoding.group(new_user.profile),
                None if score_BI is None else score_BI[b],
            )
            for b, new_user in enumerate(new_users)
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


class User:
    """A user to whom the model has adapted; made by a predictor, and never changed, except that scores are cached.

    `rate` is the user's own learning rate, `group` is "major", "minor" or None.

    >>> user = run.adapt(ratings={"3": 5, "7": 2})
    >>> best = user.recommend(3)
    >>> reasons = user.why(best[0].item)
    >>> question = user.next_question()
    """

    def __init__(
        self,
        predictor: Predictor,
        new_user: NewUser,
        adapted: tuple[Adapted, ...],
        rate: float,
        group: Group | None,
        score_I: Tensor | None = None,
    ) -> None:
        """`adapted` is the adapted model of each member, `score_I` the predictions for all items, if they are known."""
        self.predictor, self.new_user, self.adapted = predictor, new_user, adapted
        self.rate = rate
        """The user's own learning rate: the mean over members and, for rates per parameter, over parameters."""
        self.group = group
        """Whether this is a major or a minor user; None if no profile is known."""
        self._score_I = score_I

    def predict(self, items: Sequence[str], context: Values | None = None) -> np.ndarray:
        """Predicted ratings, or click probabilities, of some items, given by id, in a context if the data has any.

        >>> run.adapt().predict(["3", "7"]).shape
        (2,)
        """
        return self._predicted(self.predictor.catalogue.rows(items), context)

    def scores(self, context: Values | None = None) -> np.ndarray:
        """Predictions for all items in the catalogue's order; without a context they are cached."""
        if context is not None:
            return self.predictor.score_all(self.adapted, context)[0].numpy()
        if self._score_I is None:
            self._score_I = self.predictor.score_all(self.adapted)[0]
        return self._score_I.numpy()

    def recommend(
        self,
        n: int = 10,
        *,
        exclude_seen: bool = True,
        among: Sequence[str] | None = None,
        context: Values | None = None,
    ) -> list[Recommendation]:
        """The n items with the highest predictions, best first; rated items are left out unless `exclude_seen=False`.

        With `among`, only these items are ranked.

        >>> [one.title for one in run.adapt(ratings={"3": 5}).recommend(5, among=["3", "20"])]
        ['Film 21']
        """
        if n < 1:
            raise SettingsError(f"n is {n}", remedy="expected 1 or more")
        catalogue = self.predictor.catalogue
        is_candidate_I = np.full(len(catalogue), among is None)
        if among is not None:
            is_candidate_I[catalogue.rows(among)] = True
        if exclude_seen:
            is_candidate_I[catalogue.rows([rating.item for rating in self.new_user.ratings])] = False
        row_R = np.flatnonzero(is_candidate_I)
        score_R = self.scores(context)[row_R] if among is None else self._predicted(row_R, context)
        best = _best(score_R, n)
        return [
            Recommendation(catalogue.ids[row], catalogue.titles[row], float(score))
            for row, score in zip(row_R[best].tolist(), score_R[best].tolist(), strict=True)
        ]

    def why(self, item: str, n: int = 3, context: Values | None = None) -> list[Reason]:
        """The n ratings that moved the item's score most, and by how much; all effects sum to the whole shift.

        >>> [reason.item for reason in run.adapt(ratings={"3": 5}).why("20")]
        ['3']
        """
        return self.reasons([item], n, context)[0]

    @torch.no_grad()
    def reasons(self, items: Sequence[str], n: int = 3, context: Values | None = None) -> list[list[Reason]]:
        """As `why`, for several items at once."""
        predictor, ratings = self.predictor, self.new_user.ratings
        block = predictor.block(torch.from_numpy(predictor.catalogue.rows(items)), context)
        if not ratings or not items:
            return [[] for _ in items]
        batch = predictor.batch([self.new_user])
        members = predictor.members
        parts = [effects(member.learner, member.adapt(batch), block) for member in members]
        effect_RS = torch.stack(parts).mean(dim=0).numpy()
        titles = [predictor.catalogue.title(rating.item) for rating in ratings]
        return [
            [Reason(ratings[s].item, titles[s], float(ratings[s].value), float(effect_S[s])) for s in order[:n]]
            for effect_S, order in zip(effect_RS, np.argsort(-np.abs(effect_RS), axis=1, kind="stable"), strict=True)
        ]

    @torch.no_grad()
    def next_question(self, exclude: Sequence[str] = ()) -> Question | None:
        """The item whose rating is expected to help most; None if none is left.

        `exclude` are items that the user was asked about and does not know; this is information, too.

        >>> run.adapt(ratings={"3": 5}).next_question(exclude=["7"]).item in {"3", "7"}
        False
        """
        predictor, catalogue = self.predictor, self.predictor.catalogue
        rated = catalogue.rows([rating.item for rating in self.new_user.ratings])
        skipped = np.setdiff1d(catalogue.rows(exclude), rated)
        batch = predictor.batch([self.new_user])
        adapted = [(member.learner, member.adapt(batch)) for member in predictor.members]
        found = best_question(
            adapted, lambda index_R: predictor.block(index_R, None), catalogue.familiarity, rated, skipped
        )
        if found is None:
            return None
        row, chance, gain = found
        return Question(catalogue.ids[row], catalogue.titles[row], chance, gain)

    def rate_profile(self) -> RateProfile:
        """The user's own rate among those of the reference users, and the groups of similar ones.

        >>> 0 <= run.adapt().rate_profile().percentile <= 100
        True
        """
        h_H = self.adapted[0].embedded.h_BH[0].numpy()
        return self.predictor.reference_users.rate_profile(self.rate, h_H)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept for this user, scores included; tensors of a whole batch count in full."""
        tensors = [tensor for one in self.adapted for tensor in one.tensors()]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        scores = 4 * len(self.predictor.catalogue)  # cached once they are computed
        return sum(storages.values()) + scores + RATING_BYTES * len(self.new_user.ratings)

    def _predicted(self, row_R: np.ndarray, context: Values | None) -> np.ndarray:
        index_R = torch.from_numpy(row_R)
        if context is None and self._score_I is not None:
            return self._score_I[index_R].numpy()
        return self.predictor.score(self.adapted, index_R, context)[0].numpy()


def as_answer(user: User, found: Sequence[Recommendation], reasons: Sequence[Sequence[Reason]]) -> dict[str, Any]:
    """Recommendations with their reasons as JSON: the answer of the command line and of the service."""
    items = [
        {**vars(entry), "because": [vars(reason) for reason in because]}
        for entry, because in zip(found, reasons, strict=True)
    ]
    return {"rate": user.rate, "group": user.group, "items": items}


def _best(score_R: np.ndarray, n: int) -> np.ndarray:
    """Positions of the n highest scores, highest first; of equals the first."""
    if n < len(score_R):
        least = np.partition(score_R, -n)[-n]
        kept = np.flatnonzero(score_R >= least)
    else:
        kept = np.arange(len(score_R))
    return kept[np.argsort(-score_R[kept], kind="stable")[:n]]
