"""A user to whom a trained model has adapted: predictions, lists, reasons, and what to ask next.

Lists are ordered by preference, if the run knows about choice (preference.py), else by predictions; either can be asked
for.

Legend: I all items, R rows, S support rows; one user.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from paml.errors import SettingsError
from paml.methods.learner import Adapted
from paml.recommend.elicitation import MAX_MEMBERS, Question, best_question
from paml.recommend.explain import Reason, effects_on_choice, effects_on_preference, effects_on_rating
from paml.recommend.preference import By, check_order
from paml.recommend.rate_profile import RateProfile
from paml.recommend.requests import Group, NewUser, Values

if TYPE_CHECKING:
    from paml.recommend.predictor import Predictor

RATING_BYTES = 300  # size of a rating as Python objects, roughly


@dataclass(frozen=True)
class Recommendation:
    """An item, and why it stands where it does."""

    item: str
    title: str
    score: float
    """What the list is ordered by: the preference, or the predicted rating or click probability."""
    rating: float | None = None
    """The predicted rating, or click probability, if the run predicts any."""
    chance: float | None = None
    """The chance that the next item that the user chooses is this one, if the run knows about choice."""


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
        adapted: tuple[Adapted, ...],
        rate: float,
        group: Group | None,
        score_I: Tensor | None = None,
        choice: "User | None" = None,
    ) -> None:
        """`adapted` is the adapted model of each member, `score_I` the predictions for all items, if they are known.

        `choice` is the same user for the run's choice part.
        """
        self.predictor, self.new_user, self.adapted = predictor, new_user, adapted
        self.rate = rate
        """The user's own learning rate: the mean over members and, for rates per parameter, over parameters."""
        self.group = group
        """Whether this is a major or a minor user; None if no profile is known."""
        self._score_I, self._choice = score_I, choice
        self._order_I: dict[By, Tensor] = {}

    def predict(self, items: Sequence[str], context: Values | None = None) -> np.ndarray:
        """Predicted ratings, or click probabilities, of some items, given by id, in a context if the data has any.

        >>> run.adapt().predict(["3", "7"]).shape
        (2,)
        """
        if not self.predictor.rates:
            raise SettingsError("this run only ranks and predicts no ratings", remedy="train one with a rating part")
        return self._predicted(self.predictor.catalogue.rows(items), context)

    def scores(self, context: Values | None = None, by: By | None = None) -> np.ndarray:
        """What lists are ordered by, for all items in the catalogue's order; without a context they are cached.

        `by` is `preference`, `choice` (the log chance of being chosen) or `rating` (predictions); without it, the first
        of these that the run knows. Choice depends on no context.

        >>> len(run.adapt(ratings={"3": 5}).scores(by="rating")) == len(run.predictor.catalogue)
        True
        """
        return self._scores(context, self._order(by)).numpy()

    def recommend(
        self,
        n: int = 10,
        *,
        exclude_seen: bool = True,
        among: Sequence[str] | None = None,
        context: Values | None = None,
        by: By | None = None,
    ) -> list[Recommendation]:
        """The n best items, the best first; rated items are left out unless `exclude_seen=False`.

        With `among`, only these items are ranked; `by` is what the list is ordered by (see `scores`).

        >>> [one.title for one in run.adapt(ratings={"3": 5}).recommend(5, among=["3", "20"])]
        ['Film 21']
        """
        if n < 1:
            raise SettingsError(f"n is {n}", remedy="expected 1 or more")
        catalogue, order = self.predictor.catalogue, self._order(by)
        is_candidate_I = np.full(len(catalogue), among is None)
        if among is not None:
            is_candidate_I[catalogue.rows(among)] = True
        if exclude_seen:
            is_candidate_I[catalogue.rows([rating.item for rating in self.new_user.ratings])] = False
        row_R = np.flatnonzero(is_candidate_I)
        few = order == "rating" and among is not None
        score_R = self._predicted(row_R, context) if few else self._scores(context, order).numpy()[row_R]
        best = _best(score_R, n)
        return self._described(row_R[best], score_R[best], context)

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
        predictor, ratings, order = self.predictor, self.new_user.ratings, self._order(by)
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
        rated = catalogue.rows([rating.item for rating in self.new_user.ratings])
        skipped = np.setdiff1d(catalogue.rows(exclude), rated)
        batch = predictor.batch([self.new_user])
        members = self._chooser.predictor.members[:MAX_MEMBERS]
        adapted = [(member.learner, member.adapt(batch)) for member in members]
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
        own = sum(storages.values()) + scores + RATING_BYTES * len(self.new_user.ratings)
        # what lists are ordered by, and the same for the choice part
        return (
            own + (2 * scores if self.predictor.chooses else 0) + (0 if self._choice is None else self._choice.nbytes)
        )

    def _order(self, by: By | None) -> By:
        return check_order(by, self.predictor.orders)

    @property
    def _chooser(self) -> "User":
        """The same user for the part that knows about choice."""
        return self if self._choice is None else self._choice

    def _scores(self, context: Values | None, by: By) -> Tensor:
        """(I)"""
        if by == "rating":
            return self._outputs(context)
        if context is None and by in self._order_I:
            return self._order_I[by]
        log_p_I = torch.log_softmax(self._chooser._outputs(None), dim=0)
        score_I = log_p_I if by == "choice" else self._preference(log_p_I, context)
        if context is None:
            self._order_I[by] = score_I
        return score_I

    @torch.inference_mode()
    def _preference(self, log_p_I: Tensor, context: Values | None) -> Tensor:
        predictor = self.predictor
        assert predictor.preference is not None  # as the order was checked
        rating_1I = self._outputs(context).unsqueeze(0) if predictor.rates else None
        return predictor.preference.score(predictor.batch([self.new_user]), log_p_I.unsqueeze(0), rating_1I)[0]

    def _outputs(self, context: Values | None) -> Tensor:
        """Predictions for all items, or outputs of a choice, (I)."""
        if context is not None:
            return self.predictor.score_all(self.adapted, context)[0]
        if self._score_I is None:
            self._score_I = self.predictor.score_all(self.adapted)[0]
        return self._score_I

    def _described(self, row_R: np.ndarray, score_R: np.ndarray, context: Values | None) -> list[Recommendation]:
        """Recommendations of these rows."""
        predictor, nothing = self.predictor, [None] * len(row_R)
        rating_R = self._predicted(row_R, context).tolist() if predictor.rates else nothing
        chance_R = nothing
        if predictor.chooses:
            chance_R = self._scores(None, "choice")[torch.from_numpy(row_R)].exp().tolist()
        names = ((predictor.catalogue.ids[row], predictor.catalogue.titles[row]) for row in row_R.tolist())
        numbers = zip(names, score_R.tolist(), rating_R, chance_R, strict=True)
        return [Recommendation(*name, score, rating, chance) for name, score, rating, chance in numbers]

    def _effects(self, index_R: Tensor, context: Values | None, by: By) -> Tensor:
        """What each rating added to the scores of some items, (R, S)."""
        predictor, chooser = self.predictor, self._chooser.predictor
        batch = predictor.batch([self.new_user])
        rating_RS = choice_RS = None
        if predictor.rates and by != "choice":
            block = predictor.block(index_R, context)
            parts = [effects_on_rating(member.learner, member.adapt(batch), block) for member in predictor.members]
            rating_RS = torch.stack(parts).mean(dim=0)
        if by == "rating":
            assert rating_RS is not None  # as the order was checked
            return rating_RS
        choice_RS = effects_on_choice([(one.learner, one.adapt(batch)) for one in chooser.members], index_R)
        if by == "choice":
            return choice_RS
        before = NewUser(self.new_user.profile)
        log_p_I = predictor.adapt_many([before])[0]._scores(None, "choice")
        assert predictor.preference is not None
        return effects_on_preference(predictor.preference, batch, index_R, choice_RS, log_p_I, rating_RS)

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
