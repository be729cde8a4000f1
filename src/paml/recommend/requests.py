"""What is said of a new user, checked and encoded as in training: a profile, and ratings of known items.

What is missing is unknown, never an error: fields that are not given, values that training users did not have, numbers
outside a field's limits. What cannot be meant is an InputError that names field, value and expectation.

Legend: B new_users, S support rows.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field as dataclass_field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from paml.data.dataset import Vocabulary
from paml.data.schema import Field, Kind, Schema, Target
from paml.data.vocabulary import FARTHEST, Categories, Encoder, Scaling
from paml.episodes.batches import RowBlock
from paml.episodes.features import Features
from paml.errors import InputError, UnknownField, shortened
from paml.recommend.catalogue import Catalogue

Group = Literal["major", "minor"]
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Rating:
    """An item and what the user thinks of it: a value on the rating scale, or whether it was clicked (0 or 1)."""

    item: str
    value: float
    context: Values = dataclass_field(default_factory=dict)


@dataclass(frozen=True)
class NewUser:
    """A user of whom nothing else is known."""

    profile: Values = dataclass_field(default_factory=dict)
    ratings: Sequence[Rating] = ()


@dataclass(frozen=True)
class ProfileField:
    """A field that a profile may have, and for categories the values that are known, most common first."""

    name: str
    kind: Kind
    values: tuple[str, ...] = ()


class Encoding:
    """New users to tensors, by lookups prepared once."""

    def __init__(self, schema: Schema, vocabulary: Vocabulary, catalogue: Catalogue, major_above: int) -> None:
        self._target, self._catalogue, self._major_above = schema.target, catalogue, major_above
        self._users = {field.name: _Column(field, vocabulary.user[field.name]) for field in schema.features("user")}
        self._context = {
            field.name: _Column(field, vocabulary.context[field.name]) for field in schema.features("context")
        }
        # fields that were left out of training still say who is a major user
        self._common = {
            name: {float(value) for value in values} if isinstance(vocabulary.user[name], Scaling) else set(values)
            for name, values in vocabulary.common.items()
        }
        self.fields = tuple(
            ProfileField(column.field.name, column.field.kind, column.values) for column in self._users.values()
        )

    @property
    def has_context(self) -> bool:
        """Whether interactions have fields of their own."""
        return bool(self._context)

    def users(self, profiles: Sequence[Values]) -> Features:
        """The profiles' fields."""
        for profile in profiles:
            _check_names(profile, {*self._users, *self._common}, "profile field")
        return _features(self._users, profiles)

    def context(self, contexts: Sequence[Values]) -> Features | None:
        """The contexts' fields, None for data sets without."""
        for context in contexts:
            if context:
                _check_names(context, self._context, "context field")
        return _features(self._context, contexts) if self._context else None

    def group(self, profile: Values) -> Group | None:
        """Major with more common values than the protocol says; None if nothing of the profile is known."""
        given = {name: profile[name] for name in self._common if profile.get(name) not in (None, "")}
        if not given:
            return None
        hits = sum(_is_common(value, self._common[name]) for name, value in given.items())
        return "major" if hits > self._major_above else "minor"

    def support(self, new_users: Sequence[NewUser]) -> RowBlock:
        """The new users' ratings side by side; at least one place, which without a rating is no row."""
        S = max(1, *(len(new_user.ratings) for new_user in new_users))
        index_BS = np.zeros((len(new_users), S), dtype=np.int64)
        y_BS, mask_BS = (np.zeros((len(new_users), S), dtype=np.float32) for _ in range(2))
        contexts: list[Values] = []
        for b, new_user in enumerate(new_users):
            n = len(new_user.ratings)
            rows = self._catalogue.rows([rating.item for rating in new_user.ratings])
            if len(set(rows.tolist())) < n:
                _refuse_twice(new_user.ratings)
            index_BS[b, :n], mask_BS[b, :n] = rows, 1.0
            y_BS[b, :n] = self._values(new_user.ratings)
            if self._context:
                contexts += [*(rating.context for rating in new_user.ratings), *({} for _ in range(S - n))]
            elif any(rating.context for rating in new_user.ratings):
                self.context([rating.context for rating in new_user.ratings])
        context = self.context(contexts) if self._context else None
        return RowBlock(torch.from_numpy(index_BS), torch.from_numpy(y_BS), torch.from_numpy(mask_BS), context)

    def _values(self, ratings: Sequence[Rating]) -> list[float]:
        """The ratings' values; each is looked at only if not all are plain numbers on the scale."""
        values, target = [rating.value for rating in ratings], self._target
        if target.kind == "rating" and all(type(value) in (float, int) for value in values):
            low, high = min(values, default=target.low), max(values, default=target.low)
            if target.low <= low and high <= target.high and not any(map(math.isnan, values)):
                return values
        return [self._checked(rating) for rating in ratings]

    def _checked(self, rating: Rating) -> float:
        """The rating's value, if it is one."""
        value, target = rating.value, self._target
        number = _as_number(value)
        right = number is not None and target.low <= number <= target.high
        if number is None or not right or (target.kind == "click" and number not in (0.0, 1.0)):
            what = f"item '{shortened(rating.item)}' has the rating {shortened(repr(value))}"
            raise InputError(what, field="value", value=value, expected=_expected(target))
        return number


class _Column:
    """One field: values to codes or numbers, without a table for each call."""

    def __init__(self, field: Field, encoder: Encoder) -> None:
        self.field = field
        self.scaling = encoder if isinstance(encoder, Scaling) else None
        self.values = encoder.values if isinstance(encoder, Categories) else ()
        self._prefix = encoder.prefix if isinstance(encoder, Categories) else None
        self._codes = {value: code for code, value in enumerate(self.values, start=1)}

    def code(self, value: Any) -> int:
        """The code of one value; 0 for blank and unknown ones."""
        if value is None:
            return 0
        texts = _texts(value)
        if not texts:
            raise self._error(value, "text or a number")
        return next((code for text in texts if (code := self._codes.get(text[: self._prefix]))), 0)

    def codes(self, value: Any) -> list[int]:
        """The codes of a list of values; one value is a list of one."""
        if value is None:
            return []
        return [self.code(one) for one in (value if isinstance(value, list | tuple | set) else [value])]

    def number(self, value: Any) -> float:
        """The normalised number; 0, the mean, for blank ones and those outside the field's limits."""
        assert self.scaling is not None
        if value is None or value == "":
            return 0.0
        number = _as_number(value, text=True)
        if number is None:
            raise self._error(value, "a number")
        low, high = self.field.minimum, self.field.maximum
        if (low is not None and number < low) or (high is not None and number > high):
            return 0.0
        return min(max((number - self.scaling.mean) / self.scaling.deviation, -FARTHEST), FARTHEST)

    def _error(self, value: Any, expected: str) -> InputError:
        what = f"'{self.field.name}' is {shortened(repr(value))}"
        return InputError(what, field=self.field.name, value=value, expected=expected)


def _features(columns: Mapping[str, _Column], rows: Sequence[Values]) -> Features:
    codes: dict[str, Tensor] = {}
    bags: dict[str, tuple[Tensor, Tensor]] = {}
    numbers: dict[str, Tensor] = {}
    for name, column in columns.items():
        if column.field.kind is Kind.MULTI:
            lists = [column.codes(row.get(name)) for row in rows]
            starts = np.cumsum([0, *(len(one) for one in lists)])[:-1]
            bags[name] = torch.tensor([code for one in lists for code in one], dtype=torch.int64), torch.tensor(starts)
        elif column.scaling is not None:
            numbers[name] = _column(column.number, name, rows, torch.float32)
        else:
            codes[name] = _column(column.code, name, rows, torch.int64)
    return Features(len(rows), codes, bags, numbers)


def _column(encode: Callable[[Any], float], name: str, rows: Sequence[Values], dtype: torch.dtype) -> Tensor:
    return torch.tensor([encode(row.get(name)) for row in rows], dtype=dtype)


def _check_names(given: Values, known: Iterable[str], what: str) -> None:
    for name in given:
        if name not in known:
            raise UnknownField(what, name, given[name], known)


def _texts(value: Any) -> tuple[str, ...]:
    """How a value may be written in the data: 25 and 25.0 as "25", too; nothing for what is no single value."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ()
    if isinstance(value, float) and value.is_integer():
        return str(value), str(int(value))
    return (str(value),)


def _as_number(value: Any, *, text: bool = False) -> float | None:
    """A finite number, or None; with `text`, also one that is written."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating | str):
        return None
    if isinstance(value, str) and not text:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _is_common(value: Any, common: set[Any]) -> bool:
    if value in common if isinstance(value, str) else any(text in common for text in _texts(value)):
        return True
    return _as_number(value, text=True) in common


def _refuse_twice(ratings: Sequence[Rating]) -> None:
    seen: set[str] = set()
    for rating in ratings:
        if str(rating.item) in seen:
            what = f"item '{shortened(rating.item)}' is rated twice"
            raise InputError(what, field="item", value=rating.item, expected="each item once")
        seen.add(str(rating.item))


def _expected(target: Target) -> str:
    return "0 or 1" if target.kind == "click" else f"a number from {target.low:g} to {target.high:g}"
