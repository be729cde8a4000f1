"""A new user's profile and ratings of known items, checked and encoded as in training.

Missing information is never an error: fields that are not given, values that no training user had, and numbers outside
a field's limits count as unknown. Invalid input is an InputError that names the field, its value and what is expected.

Legend: B new users, S support rows.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field as dataclass_field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from paml.data.dataset import Vocabulary
from paml.data.schema import ON_SCALE, Kind, Schema, Target
from paml.data.vocabulary import FieldEncoder, Scaling, as_number, texts_of
from paml.episodes import ragged
from paml.episodes.batches import RowBlock
from paml.episodes.features import Features
from paml.errors import InputError, RatedTwice, UnknownField, shortened
from paml.recommend.catalogue import Catalogue

SHOWN_RATINGS = 5  # of a new user, as text
PLAIN = {int, float}  # types of ratings that need no closer look

Group = Literal["major", "minor"]
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Rating:
    """An item and what the user thinks of it.

    `value` is a level of the rating scale; for clicks, 1 if the item was clicked and 0 if not; for choices, the
    strength of the choice, usually 1. `context` are the values of context fields, for data sets that have any.

    >>> rating = paml.Rating("3", 4)
    """

    item: str
    value: float
    context: Values = dataclass_field(default_factory=dict)


Ratings = Mapping[str, float] | Sequence[Rating] | Sequence[tuple[str, float]]
"""How people give ratings: values by item, a list of `paml.Rating`, or pairs of item and value."""


def as_ratings(given: Any) -> tuple[Rating, ...]:
    """Ratings in any of the ways in which people give them; anything else is an error that says so."""
    if isinstance(given, Mapping):
        return tuple(Rating(item, value) for item, value in given.items())
    if given is not None and (isinstance(given, str) or not isinstance(given, Iterable)):
        raise _not_ratings(given)
    return tuple(_as_rating(one) for one in given or ())


def as_profile(given: Any) -> Values:
    """Values of profile fields by name; anything but a mapping is an error that says so."""
    if given is not None and not isinstance(given, Mapping):
        what = f"a profile cannot be {shortened(repr(given))}"
        raise InputError(what, field="profile", value=given, expected='values by field name, such as {"age": "25"}')
    return given or {}


def _as_rating(one: Any) -> Rating:
    if isinstance(one, Rating):
        return one
    if isinstance(one, tuple | list) and len(one) == 2:
        return Rating(one[0], one[1])
    raise _not_ratings(one)


def _not_ratings(given: object) -> InputError:
    expected = '{"3": 5}, [("3", 5)] or [paml.Rating("3", 5)]'
    return InputError(f"ratings cannot be {shortened(repr(given))}", field="ratings", value=given, expected=expected)


@dataclass(frozen=True)
class NewUser:
    """What is known about a new user: values of profile fields by name, and ratings; both may be empty.

    >>> new_user = paml.NewUser({"age": "25"}, [paml.Rating("3", 5)])
    >>> len(run.predictor.adapt_many([new_user, paml.NewUser()]))
    2
    """

    profile: Values = dataclass_field(default_factory=dict)
    ratings: Sequence[Rating] = ()

    def __repr__(self) -> str:
        many = len(self.ratings) > SHOWN_RATINGS
        ratings = f"({len(self.ratings):,} ratings)" if many else repr(self.ratings)
        return f"NewUser({dict(self.profile)!r}, {ratings})"


@dataclass(frozen=True)
class EncodedUser:
    """A new user, looked up: codes, lists of codes or numbers by field, and the rows and values of rated items."""

    profile: Values
    index_S: np.ndarray
    y_S: np.ndarray
    contexts: Sequence[Values]
    """One for each rating; none for data sets without context."""


@dataclass(frozen=True, repr=False)
class CheckedUser(NewUser):
    """A new user who was checked and looked up, so that it is not done again."""

    encoded: EncodedUser = dataclass_field(kw_only=True, compare=False)
    by: "Encoding" = dataclass_field(kw_only=True, compare=False)
    """What looked them up: for another run, they are looked up anew."""


@dataclass(frozen=True)
class ProfileField:
    """A field that a profile may have and, for categories, its known values, most common first."""

    name: str
    kind: Kind
    values: tuple[str, ...] = ()


class Encoding:
    """Looks new users up in dictionaries that are made once; and, for the engine, turns them into tensors."""

    def __init__(self, schema: Schema, vocabulary: Vocabulary, catalogue: Catalogue, major_above: int) -> None:
        self._target, self._catalogue, self._major_above = schema.target, catalogue, major_above
        self._users = {
            field.name: FieldEncoder(field, vocabulary.user[field.name]) for field in schema.features("user")
        }
        self._context = {
            field.name: FieldEncoder(field, vocabulary.context[field.name]) for field in schema.features("context")
        }
        # fields excluded from training still decide who is a major user
        self._common = {
            name: {float(value) for value in values} if isinstance(vocabulary.user[name], Scaling) else set(values)
            for name, values in vocabulary.common.items()
        }
        self._profile_names = {*self._users, *self._common}
        self._levels = {one for one in self._target.levels if self._target.lowest <= one <= self._target.high}
        self.fields = tuple(
            ProfileField(encoder.field.name, encoder.field.kind, encoder.known_values)
            for encoder in self._users.values()
        )

    @property
    def context_fields(self) -> tuple[ProfileField, ...]:
        """The fields that a context may have, with their known values."""
        return tuple(ProfileField(name, one.field.kind, one.known_values) for name, one in self._context.items())

    @property
    def group_fields(self) -> tuple[str, ...]:
        """Fields that only decide who is a major user: a profile may have them, too."""
        return tuple(name for name in self._common if name not in self._users)

    @property
    def has_context(self) -> bool:
        """Whether interactions have context fields."""
        return bool(self._context)

    def checked(self, new_user: NewUser) -> CheckedUser:
        """The new user together with what they were looked up as."""
        return CheckedUser(new_user.profile, new_user.ratings, encoded=self.encode(new_user), by=self)

    def encode(self, new_user: NewUser) -> EncodedUser:
        """Check and look up everything that is known about a new user; nothing, if this was done."""
        if isinstance(new_user, CheckedUser) and new_user.by is self:
            return new_user.encoded
        profile, ratings = new_user.profile, new_user.ratings
        _check_names(profile, self._profile_names, "profile field")
        places = self._catalogue.places([rating.item for rating in ratings])
        if len(set(places)) < len(ratings):
            _refuse_duplicates(ratings)
        values = [rating.value for rating in ratings]
        if not (PLAIN.issuperset(map(type, values)) and self._levels.issuperset(values)):
            values = [self._checked(rating) for rating in ratings]
        given = [rating.context for rating in ratings]
        return EncodedUser(
            {name: one.value(profile.get(name)) for name, one in self._users.items()},
            np.array(places, dtype=np.int64),
            np.array(values, dtype=np.float32),
            [self._looked_up(context) for context in given] if self._context or any(given) else [],
        )

    def context(self, context: Values | None) -> Values | None:
        """A context's values, looked up; None for data sets without context."""
        looked_up = self._looked_up(context or {})
        return looked_up if self._context else None

    def _looked_up(self, context: Values) -> Values:
        _check_names(context, self._context, "context field")
        return {name: encoder.value(context.get(name)) for name, encoder in self._context.items()}

    def users(self, encoded: Sequence[EncodedUser]) -> Features:
        """The profiles' fields as tensors."""
        return _features(self._users, [user.profile for user in encoded])

    def contexts(self, looked_up: Sequence[Values]) -> Features | None:
        """The contexts' fields as tensors; None for data sets without context."""
        return _features(self._context, looked_up) if self._context else None

    def support(self, encoded: Sequence[EncodedUser]) -> RowBlock:
        """The new users' ratings side by side; at least one place, which is padding if there is no rating."""
        index_BS, y_BS, mask_BS = side_by_side(encoded)
        S, contexts = index_BS.shape[1], []
        if self._context:
            nothing = self._looked_up({})
            for user in encoded:
                contexts += [*user.contexts, *(nothing for _ in range(S - len(user.contexts)))]
        return RowBlock(
            torch.from_numpy(index_BS), self.contexts(contexts), torch.from_numpy(y_BS), torch.from_numpy(mask_BS)
        )

    def unknown(self, profile: Values) -> tuple[str, ...]:
        """Fields whose values no training user had, or that are beyond their limits: they count as not given."""
        return tuple(
            name for name, value in profile.items() if name in self._users and not self._users[name].knows(value)
        )

    def group(self, profile: Values) -> Group | None:
        """Major with more common values than the protocol's limit; None if nothing of the profile is known."""
        given = {name: profile[name] for name in self._common if profile.get(name) not in (None, "")}
        if given.keys() <= set(self.unknown(profile)):  # or nothing is given
            return None
        hits = sum(_is_common(value, self._common[name]) for name, value in given.items())
        return "major" if hits > self._major_above else "minor"

    def _checked(self, rating: Rating) -> float:
        """The rating's value, if it is valid."""
        value, target = rating.value, self._target
        number = as_number(value)
        steps = math.inf if number is None else (number - target.low) / target.step
        if number is None or not target.lowest <= number <= target.high or abs(steps - round(steps)) >= ON_SCALE:
            noun = "strength" if target.kind == "choice" else "rating"
            what = f"item '{shortened(rating.item)}' has the {noun} {shortened(repr(value))}"
            raise InputError(what, field="value", value=value, expected=_expected(target))
        return number


def side_by_side(encoded: Sequence[EncodedUser]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, values and mask of the new users' ratings, (B, S) each, S at least 1."""
    shape = len(encoded), max(1, *(len(user.index_S) for user in encoded))
    index_BS = np.zeros(shape, dtype=np.int64)
    y_BS, mask_BS = (np.zeros(shape, dtype=np.float32) for _ in range(2))
    for b, user in enumerate(encoded):
        n = len(user.index_S)
        index_BS[b, :n], y_BS[b, :n], mask_BS[b, :n] = user.index_S, user.y_S, 1.0
    return index_BS, y_BS, mask_BS


def _features(encoders: Mapping[str, FieldEncoder], rows: Sequence[Values]) -> Features:
    """Encoded values as tensors, field by field."""
    codes: dict[str, Tensor] = {}
    lists: dict[str, tuple[Tensor, Tensor]] = {}
    numbers: dict[str, Tensor] = {}
    for name, encoder in encoders.items():
        values = [row[name] for row in rows]
        if encoder.field.kind is Kind.MULTI:
            starts = ragged.starts(np.array([len(one) for one in values], dtype=np.int64))
            flat = torch.tensor([code for one in values for code in one], dtype=torch.int64)
            lists[name] = flat, torch.from_numpy(starts)
        elif encoder.field.kind is Kind.NUMERIC:
            numbers[name] = torch.tensor(values, dtype=torch.float32)
        else:
            codes[name] = torch.tensor(values, dtype=torch.int64)
    return Features(len(rows), codes, lists, numbers)


def _check_names(given: Values, known: Iterable[str], what: str) -> None:
    for name in given:
        if name not in known:
            raise UnknownField(what, name, given[name], known)


def _is_common(value: Any, common: set[Any]) -> bool:
    if value in common if isinstance(value, str) else any(text in common for text in texts_of(value)):
        return True
    return as_number(value, text=True) in common


def _refuse_duplicates(ratings: Sequence[Rating]) -> None:
    seen: set[str] = set()
    for rating in ratings:
        if str(rating.item) in seen:
            raise RatedTwice(rating.item)
        seen.add(str(rating.item))


def _expected(target: Target) -> str:
    if target.lowest == target.high:
        return f"{target.high:g}, for what the user chose"
    scale = f"{target.lowest:g} to {target.high:g}"
    return "0 or 1" if target.kind == "click" else f"a number from {scale} in steps of {target.step:g}"
