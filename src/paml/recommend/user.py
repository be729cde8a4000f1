"""A user to whom a trained model has adapted: predictions, lists, reasons, and what to ask next.

Lists are ordered by preference, if the run knows about choice (preference.py), else by predictions; either can be asked
for.

Legend: I all items, R rows, S support rows; one user.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paml.errors import SettingsError, shortened
from paml.recommend.best import best, nth_highest
from paml.recommend.candidates import MAX_LIST
from paml.recommend.elicitation import MAX_MEMBERS, Question, best_question
from paml.recommend.explain import Reason, effects_on_preference
from paml.recommend.members import AdaptedUsers
from paml.recommend.ordering import log_softmax
from paml.recommend.plan import PlannedUsers
from paml.recommend.preference import By, check_order
from paml.recommend.rate_profile import RateProfile
from paml.recommend.requests import EncodedUser, Group, NewUser, Values
from paml.recommend.show import recommendations_html, user_html

if TYPE_CHECKING:
    from paml.recommend.predictor import Predictor

SHOWN_FIELDS = 6  # of a profile, in a user's text
RATING_BYTES = 300  # size of a rating as Python objects, roughly
ROUNDING = 1e-4  # scores may differ by less, depending on which others are computed with them
SHARE = 0.25  # of all items, from which on it is faster to score all


class Recommendation(NamedTuple):
    """An item, and why it stands where it does."""

    item: str
    title: str
    score: float
    """What the list is ordered by: the preference, or the predicted rating or click probability."""
    rating: float | None = None
    """The predicted rating, or click probability, if the run predicts any."""
    chance: float | None = None
    """The chance that the next item that the user chooses is this one, if the run knows about choice."""


class Recommendations(list[Recommendation]):
    """A list of recommendations, the best first, which notebooks show as a table."""

    def __init__(self, found: Iterable[Recommendation] = (), reasons: Sequence[Sequence[Reason]] | None = None) -> None:
        super().__init__(found)
        self.reasons = reasons
        """For each item the ratings that moved its score most, if they were asked for."""

    def _repr_html_(self) -> str:
        """For notebooks."""
        return recommendations_html(self, self.reasons)


@dataclass
class Scores:
    """What is known about one user, of all items (I) each, computed when it is first needed."""

    output_I: np.ndarray | None = None
    """Predictions or, in a run that only ranks, outputs of the choice."""
    log_p_I: np.ndarray | None = None
    """Log chances of being chosen."""
    base_I: np.ndarray | None = None
    """Preferences but for the predicted rating, which few items need."""
    chosen: AdaptedUsers | PlannedUsers | None = None
    """The choice part, adapted, if it is another one."""


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
        predictor: "Predictor",
        new_user: NewUser,
        encoded: EncodedUser,
        adapted: AdaptedUsers | PlannedUsers,
        rate: float,
        scores: "Scores",
    ) -> None:
        """`encoded` is the new user, looked up, `adapted` the adapted model, `scores` what is known of items so far."""
        self.predictor, self.new_user, self.adapted = predictor, new_user, adapted
        self.rate = rate
        """The user's own learning rate: the mean over members and, for rates per parameter, over parameters."""
        self._encoded, self._known = encoded, scores

    @cached_property
    def group(self) -> Group | None:
        """Whether this is a major or a minor user; None if no profile is known."""
        return self.predictor.encoding.group(self.new_user.profile)

    def __repr__(self) -> str:
        known = [f"{len(self.new_user.ratings):,} ratings"] if self.new_user.ratings else []
        known += [f"{name}={shortened(value, 20)}" for name, value in [*self.new_user.profile.items()][:SHOWN_FIELDS]]
        group = f", {self.group}" if self.group else ""
        return f"User({', '.join(known) or 'nothing is known'}{group}; rate {self.rate:.4g})"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return user_html(self)

    def predict(self, items: Sequence[str], context: Values | None = None) -> np.ndarray:
        """Predicted ratings, or click probabilities, of some items, given by id, in a context if the data has any.

        >>> run.adapt().predict(["3", "7"]).shape
        (2,)
        """
        if not self.predictor.rates:
            raise SettingsError("this run only ranks and predicts no ratings", remedy="train one with a rating part")
        return self._predicted(self.predictor.catalogue.rows(_ids(items)), context)

    def scores(self, context: Values | None = None, by: By | None = None) -> np.ndarray:
        """What lists are ordered by, for all items in the catalogue's order: a copy of what is cached.

        `by` is `preference`, `choice` (the log chance of being chosen) or `rating` (predictions); without it, the first
        of these that the run knows. Choice depends on no context.

        >>> len(run.adapt(ratings={"3": 5}).scores(by="rating")) == len(run.predictor.catalogue)
        True
        """
        return self._scores(context, self._order(by)).copy()

    def recommend(
        self,
        n: int = 10,
        *,
        exclude_seen: bool = True,
        among: Sequence[str] | None = None,
        context: Values | None = None,
        by: By | None = None,
        why: int = 0,
    ) -> Recommendations:
        """The n best items, the best first; rated items are left out unless `exclude_seen=False`.

        With `among`, only these items are ranked; `by` is what the list is ordered by (see `scores`). `why` is how many
        reasons each item gets, in `reasons` of the list and where a notebook shows it.

        >>> [one.title for one in run.adapt(ratings={"3": 5}).recommend(5, among=["3", "20"])]
        ['Film 21']
        """
        if n < 1:
            raise SettingsError(f"n is {n}", remedy="expected 1 or more")
        order = self._order(by)
        excluded_S = self._encoded.index_S if exclude_seen else None
        candidate_R = np.unique(self.predictor.catalogue.rows(_ids(among))) if among is not None else None
        if candidate_R is None:
            candidate_R = self._found(n, order, excluded_S)
        if candidate_R is None:
            row_R, score_R = best(self._scores(context, order), n, excluded_S)
            rating_R = self._predicted(row_R, context) if self.predictor.rates else None
        else:
            if excluded_S is not None:
                is_seen_I = np.zeros(len(self.predictor.catalogue), dtype=bool)
                is_seen_I[excluded_S] = True
                candidate_R = candidate_R[~is_seen_I[candidate_R]]
            rating_R = self._predicted(candidate_R, context) if self.predictor.rates else None
            place_R, score_R = best(self._scores_of(candidate_R, rating_R, order), n)
            row_R, rating_R = candidate_R[place_R], None if rating_R is None else rating_R[place_R]
        found = self._described(row_R, score_R, rating_R)
        reasons = self.reasons([one.item for one in found], why, context, by) if why else None
        return Recommendations(found, reasons)

    def why(self, item: str, n: int = 3, context: Values | None = None, by: By | None = None) -> list[Reason]:
        """The n ratings that moved the item's score most, and by how much; all effects sum to the whole shift.

        >>> [reason.item for reason in run.adapt(ratings={"3": 5}).why("20")]
        ['3']
        """
        return self.reasons([item], n, context, by)[0]

    @torch.no_grad()
    def reasons(
        self, items: Sequence[str], n: int = 3, context: Values | None = None, by: By | None = None
    ) -> list[list[Reason]]:
        """As `why`, for several items at once."""
        if n < 0:
            raise SettingsError(f"{n} reasons", remedy="expected 0 or more")
        predictor, ratings, order = self.predictor, self.new_user.ratings, self._order(by)
        items = _ids(items)
        index_R = torch.from_numpy(predictor.catalogue.rows(items))
        if not ratings or not items:
            return [[] for _ in items]
        effect_RS = self._effects(index_R, context, order).numpy()
        titles = [predictor.catalogue.title(rating.item) for rating in ratings]
        return [
            [Reason(ratings[s].item, titles[s], float(ratings[s].value), float(effect_S[s])) for s in order_S[:n]]
            for effect_S, order_S in zip(effect_RS, np.argsort(-np.abs(effect_RS), axis=1, kind="stable"), strict=True)
        ]

    @torch.no_grad()
    def next_question(self, exclude: Sequence[str] = ()) -> Question | None:
        """The item whose rating is expected to help most; None if none is left.

        Helping is to move the chances of being chosen or, if the run knows nothing about choice, the predictions.
        `exclude` are items that the user was asked about and does not know; this is information, too.

        >>> run.adapt(ratings={"3": 5}).next_question(exclude=["7"]).item in {"3", "7"}
        False
        """
        predictor, catalogue = self.predictor, self.predictor.catalogue
        rated = self._encoded.index_S
        skipped = np.setdiff1d(catalogue.rows(_ids(exclude)), rated)
        batch = predictor.general.batch([self._encoded])
        members = self._chooser.members[:MAX_MEMBERS]
        adapted = [(member.learner, member.adapt(batch)) for member in members]
        found = best_question(
            adapted, lambda index_R: predictor.block(index_R, None), catalogue.familiarity, rated, skipped
        )
        if found is None:
            return None
        row, chance, gain = found
        return Question(catalogue.ids[row], catalogue.titles[row], chance, gain)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Profile fields whose values the model does not know: they count as not given.

        >>> run.adapt(profile={"age": "abc", "gender": "F"}).unknown
        ('age',)
        """
        return self.predictor.encoding.unknown(self.new_user.profile)

    def rate_profile(self) -> RateProfile:
        """The user's own rate among those of the reference users, and the groups of similar ones.

        >>> 0 <= run.adapt().rate_profile().percentile <= 100
        True
        """
        h_H = self.adapted.h_BH[0].numpy()
        return self.predictor.reference_users.rate_profile(self.rate, h_H)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept for this user, scores included; tensors of a whole batch count in full."""
        parts = [self.adapted, *([] if self._known.chosen is None else [self._known.chosen])]
        storages = [tensor.untyped_storage() for part in parts for tensor in part.tensors()]
        own = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
        orders = 3 if self.predictor.chooses else 1 if self.predictor.index is None else 0
        scores = 4 * len(self.predictor.catalogue) * orders  # cached once they are computed
        return own + scores + RATING_BYTES * len(self.new_user.ratings)

    def _order(self, by: By | None) -> By:
        return check_order(by, self.predictor.orders)

    @property
    def _chooser(self) -> "Predictor":
        """The part that knows about choice."""
        return self.predictor.choice or self.predictor

    def _chosen(self) -> AdaptedUsers | PlannedUsers:
        """That part, adapted."""
        if self.predictor.choice is None:
            return self.adapted
        if self._known.chosen is None:
            self._known.chosen = self.predictor.choice.adapted([self._encoded])
        return self._known.chosen

    def _found(self, n: int, by: By, excluded_S: np.ndarray | None) -> np.ndarray | None:
        """Rows of the items that may be the best; None if all are scored already, or have to be."""
        if by == "choice" or n > MAX_LIST or self._known.output_I is not None:
            return None
        if by == "preference":
            return self._within_reach(n, excluded_S)
        return self.predictor.candidates(self.adapted, n, len(self._encoded.index_S))

    def _within_reach(self, n: int, excluded_S: np.ndarray | None) -> np.ndarray | None:
        """Rows of the items that the highest rating would bring among the best n, if these had the lowest."""
        bounds, base_I = self.predictor.bounds, self._base()
        if bounds is None or n >= len(base_I):
            return None
        if excluded_S is not None:
            base_I = base_I.copy()
            base_I[excluded_S] = -np.inf
        reach = self._rating_weight * (bounds[1] - bounds[0]) + ROUNDING
        return np.flatnonzero(base_I >= nth_highest(base_I, n) - reach)

    def _scores(self, context: Values | None, by: By) -> np.ndarray:
        """(I)"""
        if by == "rating":
            return self._outputs(context)
        if by == "choice":
            return self._log_chances()
        return self._base() + self._rating_weight * self._outputs(context) if self.predictor.rates else self._base()

    def _scores_of(self, row_R: np.ndarray, rating_R: np.ndarray | None, by: By) -> np.ndarray:
        """The same for some items, whose ratings are predicted, (R)."""
        if by == "rating":
            assert rating_R is not None  # as the order was checked
            return rating_R
        score_R: np.ndarray = (self._log_chances() if by == "choice" else self._base())[row_R]
        if by == "preference" and rating_R is not None:
            score_R += self._rating_weight * rating_R
        return score_R

    @property
    def _rating_weight(self) -> float:
        """What a predicted rating counts."""
        ordering = self.predictor.ordering
        assert ordering is not None, "a run that knows about choice"
        return ordering.rating_weight(self._encoded)

    def _outputs(self, context: Values | None) -> np.ndarray:
        """Predictions for all items, or outputs of a choice, (I)."""
        if context is not None:
            return self.predictor.score_all(self.adapted, context)[0].numpy()
        if self._known.output_I is None:
            self._known.output_I = self.predictor.score_all(self.adapted)[0].numpy()
        return self._known.output_I

    def _log_chances(self) -> np.ndarray:
        """Log chances of being chosen, (I), which depend on no context."""
        if self._known.log_p_I is None:
            chooser = self._chooser
            is_own = chooser is self.predictor
            output_I = self._outputs(None) if is_own else chooser.score_all(self._chosen())[0].numpy()
            self._known.log_p_I = log_softmax(output_I)
        return self._known.log_p_I

    def _base(self) -> np.ndarray:
        """What lists are ordered by in a run that knows about choice, but for the predicted rating, (I)."""
        known, ordering = self._known, self.predictor.ordering
        if known.base_I is None:
            assert ordering is not None, "a run that knows about choice"
            (known.base_I,) = ordering.without_rating([self._encoded], self._log_chances()[None])
        return known.base_I

    def _described(self, row_R: np.ndarray, score_R: np.ndarray, rating_R: np.ndarray | None) -> list[Recommendation]:
        """Recommendations of these rows."""
        catalogue, nothing = self.predictor.catalogue, [None] * len(row_R)
        ratings = nothing if rating_R is None else rating_R.tolist()
        chances = np.exp(self._log_chances()[row_R]).tolist() if self.predictor.chooses else nothing
        return [
            Recommendation(catalogue.ids[row], catalogue.titles[row], score, rating, chance)
            for row, score, rating, chance in zip(row_R.tolist(), score_R.tolist(), ratings, chances, strict=True)
        ]

    def _effects(self, index_R: Tensor, context: Values | None, by: By) -> Tensor:
        """What each rating added to the scores of some items, (R, S)."""
        predictor, rating_RS, rating_R = self.predictor, None, None
        if predictor.rates and by != "choice":
            rating_RS = predictor.effects_on_rating(self._encoded, self.adapted, index_R, context)
        if by == "rating":
            assert rating_RS is not None  # as the order was checked
            return rating_RS
        choice_RS = self._chooser.effects_on_choice(self._encoded, self._chosen(), index_R)
        if by == "choice":
            return choice_RS
        log_p_R = torch.from_numpy(self._log_chances())[index_R]
        if predictor.rates:
            rating_R = torch.from_numpy(self._predicted(index_R.numpy(), context))
        assert predictor.preference is not None
        batch = predictor.general.batch([self._encoded])
        return effects_on_preference(predictor.preference, batch, index_R, choice_RS, log_p_R, rating_RS, rating_R)

    def _predicted(self, row_R: np.ndarray, context: Values | None) -> np.ndarray:
        if not len(row_R):
            return np.zeros(0, dtype=np.float32)
        if context is None and (self._known.output_I is not None or len(row_R) > SHARE * len(self.predictor.catalogue)):
            known_R: np.ndarray = self._outputs(None)[row_R]
            return known_R
        return self.predictor.score(self.adapted, torch.from_numpy(row_R), context)[0].numpy()


def _ids(items: Sequence[str]) -> Sequence[str]:
    """Ids; a single one is no sequence of its characters."""
    return [items] if isinstance(items, str) else items


def as_answer(user: User, found: Sequence[Recommendation], reasons: Sequence[Sequence[Reason]]) -> dict[str, Any]:
    """Recommendations with their reasons as JSON: the answer of the command line and of the service."""
    items = [
        {**entry._asdict(), "because": [vars(reason) for reason in because]}
        for entry, because in zip(found, reasons, strict=True)
    ]
    return {"rate": user.rate, "group": user.group, "unknown": list(user.unknown), "items": items}
