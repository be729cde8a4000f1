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
from paml.data.schema import Kind, Schema, Target
from paml.data.vocabulary import FieldEncoder, Scaling, as_number, texts_of
from paml.episodes import ragged
from paml.episodes.batches import RowBlock
from paml.episodes.features import Features
from paml.errors import InputError, UnknownField, shortened
from paml.recommend.catalogue import Catalogue

Group = Literal["major", "minor"]
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Rating:
    """An item and what the user thinks of it.

    `value` is a number on the rating scale or, for clicks, 1 if the item was clicked and 0 if not; `context` are the
    values of context fields, for data sets that have any.

    >>> rating = paml.Rating("3", 4.5)
    """

    item: str
    value: float
    context: Values = dataclass_field(default_factory=dict)


@dataclass(frozen=True)
class NewUser:
    """What is known about a new user: values of profile fields by name, and ratings; both may be empty.

    >>> new_user = paml.NewUser({"age": "25"}, [paml.Rating("3", 5)])
    >>> len(run.predictor.adapt_many([new_user, paml.NewUser()]))
    2
    """

    profile: Values = dataclass_field(default_factory=dict)
    ratings: Sequence[Rating] = ()


@dataclass(frozen=True)
class ProfileField:
    """A field that a profile may have and, for categories, its known values, most common first."""

    name: str
    kind: Kind
    values: tuple[str, ...] = ()


class Encoding:
    """Turns new users into tensors, by lookups prepared once."""

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
        self.fields = tuple(
            ProfileField(encoder.field.name, encoder.field.kind, encoder.known_values)
            for encoder in self._users.values()
        )

    @property
    def has_context(self) -> bool:
        """Whether interactions have context fields."""
        return bool(self._context)

    def users(self, profiles: Sequence[Values]) -> Features:
        """The profiles' fields."""
        for profile in profiles:
            _check_names(profile, {*self._users, *self._common}, "profile field")
        return _features(self._users, profiles)

    def context(self, contexts: Sequence[Values]) -> Features | None:
        """The contexts' fields; None for data sets without context."""
        for context in contexts:
            if context:
                _check_names(context, self._context, "context field")
        return _features(self._context, contexts) if self._context else None

    def group(self, profile: Values) -> Group | None:
        """Major with more common values than the protocol's limit; None if nothing of the profile is known."""
        given = {name: profile[name] for name in self._common if profile.get(name) not in (None, "")}
        if not given:
            return None
        hits = sum(_is_common(value, self._common[name]) for name, value in given.items())
        return "major" if hits > self._major_above else "minor"

    def support(self, new_users: Sequence[NewUser]) -> RowBlock:
        """The new users' ratings side by side; at least one place, which is padding if there is no rating."""
        S = max(1, *(len(new_user.ratings) for new_user in new_users))
        index_BS = np.zeros((len(new_users), S), dtype=np.int64)
        y_BS, mask_BS = (np.zeros((len(new_users), S), dtype=np.float32) for _ in range(2))
        contexts: list[Values] = []
        for b, new_user in enumerate(new_users):
            n = len(new_user.ratings)
            rows = self._catalogue.rows([rating.item for rating in new_user.ratings])
            if len(set(rows.tolist())) < n:
                _refuse_duplicates(new_user.ratings)
            index_BS[b, :n], mask_BS[b, :n] = rows, 1.0
            y_BS[b, :n] = self._values(new_user.ratings)
            if self._context:
                contexts += [*(rating.context for rating in new_user.ratings), *({} for _ in range(S - n))]
            elif any(rating.context for rating in new_user.ratings):
                self.context([rating.context for rating in new_user.ratings])
        context = self.context(contexts) if self._context else None
        return RowBlock(torch.from_numpy(index_BS), context, torch.from_numpy(y_BS), torch.from_numpy(mask_BS))

    def _values(self, ratings: Sequence[Rating]) -> list[float]:
        """The ratings' values; they are checked one by one only if not all are plain numbers on the scale."""
        values, target = [rating.value for rating in ratings], self._target
        if target.kind == "rating" and all(type(value) in (float, int) for value in values):
            low, high = min(values, default=target.low), max(values, default=target.low)
            if target.low <= low and high <= target.high and not any(map(math.isnan, values)):
                return values
        return [self._checked(rating) for rating in ratings]

    def _checked(self, rating: Rating) -> float:
        """The rating's value, if it is valid."""
        value, target = rating.value, self._target
        number = as_number(value)
        valid = number is not None and target.low <= number <= target.high
        if number is None or not valid or (target.kind == "click" and number not in (0.0, 1.0)):
            what = f"item '{shortened(rating.item)}' has the rating {shortened(repr(value))}"
            raise InputError(what, field="value", value=value, expected=_expected(target))
        return number


def _features(encoders: Mapping[str, FieldEncoder], rows: Sequence[Values]) -> Features:
    codes: dict[str, Tensor] = {}
    lists: dict[str, tuple[Tensor, Tensor]] = {}
    numbers: dict[str, Tensor] = {}
    for name, encoder in encoders.items():
        values = [encoder.value(row.get(name)) for row in rows]
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
            what = f"item '{shortened(rating.item)}' is rated twice"
            raise InputError(what, field="item", value=rating.item, expected="each item once")
        seen.add(str(rating.item))


def _expected(target: Target) -> str:
    return "0 or 1" if target.kind == "click" else f"a number from {target.low:g} to {target.high:g}"
