"""What a data set is: typed fields of users, items and context, and a target.

Everything downstream (embeddings, predictor, service) is generated from a `Schema`; only a source names the columns
of a particular data set.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Literal, Self

import polars as pl
from pydantic import AfterValidator, Field as Described, ValidationInfo, field_validator, model_validator

from paml.errors import SettingsError, nearest
from paml.settings import Settings


class Kind(StrEnum):
    """How a field's values are interpreted."""

    CATEGORICAL = "categorical"
    """One of a set of values; embedded through a vocabulary."""
    MULTI = "multi"
    """A list of values (genres, actors); the mean of their embeddings."""
    NUMERIC = "numeric"
    """A number (a price, a rate); normalised by the training mean and deviation, then projected."""
    IDENTIFIER = "identifier"
    """A name of the row for people to read (a title); kept in the tables, never an input."""


DTYPES: dict[Kind, pl.DataType] = {
    Kind.CATEGORICAL: pl.String(),
    Kind.MULTI: pl.List(pl.String()),
    Kind.NUMERIC: pl.Float64(),
    Kind.IDENTIFIER: pl.String(),
}
"""The column type each kind has in raw and prepared tables."""

CLICK_WEIGHTS = (0.1, 0.9)
"""Weights of an item not clicked and clicked in the weighted entropy loss (paper, Sec. D.6)."""

TargetKind = Literal["rating", "click", "choice"]
SIDES = ("user", "item", "context")
MAX_LEVELS = 100_000

RESERVED = frozenset(
    {"user", "item", "target", "time", "split", "group", "query", "support_rows", "query_rows", "training_only"}
)
"""Column names of the prepared tables; a field cannot take one of them."""


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError("letters, digits and underscores, beginning with a letter")
    if name in RESERVED:
        raise ValueError(f"a name other than the reserved {', '.join(sorted(RESERVED))}")
    return name


class Field(Settings):
    """One column of users, items or context, and which of its values are invalid."""

    name: Annotated[str, AfterValidator(_check_name)] = Described(description="column name in the prepared tables")
    kind: Kind = Described(description="categorical, multi, numeric or identifier")
    min_count: int = Described(1, ge=1, description="values seen less often in training are folded into 'unknown'")
    minimum: float | None = Described(None, description="a smaller number is an invalid value (age below 10)")
    maximum: float | None = Described(None, description="a larger number is an invalid value (age above 100)")
    pattern: str | None = Described(None, description="regular expression that a valid value matches entirely")
    prefix: int | None = Described(
        None, ge=1, description="use only this many leading characters as input (region of a zip code); groups use all"
    )
    derived: Literal["rate", "log_rate"] | None = Described(
        None, description="computed from training users: the item's smoothed mean target, or its logarithm"
    )
    strength: float = Described(20.0, gt=0, description="average interactions that smoothing adds to a derived rate")

    @field_validator("minimum", "maximum", "pattern", "prefix", "derived")
    @classmethod
    def _suits_the_kind(cls, value: object, info: ValidationInfo) -> object:
        """Checked key by key, so that the error names the key."""
        kind, key = info.data.get("kind"), info.field_name
        if value is None or kind is None:  # an invalid kind has its own error
            return value
        if kind is Kind.MULTI and key in {"minimum", "maximum", "pattern"}:
            raise ValueError("no minimum, maximum or pattern for a multi-valued field")
        if key == "maximum" and (low := info.data.get("minimum")) is not None and low > value:
            raise ValueError(f"minimum not above maximum, and it is {low:g}")
        if key == "prefix" and kind is not Kind.CATEGORICAL:
            raise ValueError("a prefix only of a categorical field")
        if key == "derived" and kind is not Kind.NUMERIC:
            raise ValueError("a numeric field, because it is derived")
        if key == "pattern":
            if kind is Kind.NUMERIC:
                raise ValueError("no pattern for a numeric field")
            try:
                pl.select(pl.lit("").str.contains(f"^(?:{value})$"))
            except pl.exceptions.PolarsError:
                raise ValueError("a regular expression without look-around") from None
        return value

    def is_valid(self) -> pl.Expr:
        """Whether a value is neither blank nor invalid (paper, Sec. D.1, step 3)."""
        column = pl.col(self.name)
        valid = column.is_not_null()
        if self.kind is Kind.MULTI:
            return valid & (column.list.len() > 0)
        if self.kind is Kind.NUMERIC:
            valid &= column.is_finite()
        else:
            valid &= column.str.strip_chars() != ""
        number = column.cast(pl.Float64, strict=False)
        if self.minimum is not None:
            valid &= (number >= self.minimum).fill_null(False)
        if self.maximum is not None:
            valid &= (number <= self.maximum).fill_null(False)
        if self.pattern is not None:
            valid &= column.cast(pl.String).str.contains(f"^(?:{self.pattern})$")
        return valid.fill_null(False)

    @property
    def is_limited(self) -> bool:
        """Whether the schema declares some values invalid."""
        return (self.minimum, self.maximum, self.pattern) != (None, None, None)


def without_invalid_values(fields: Sequence[Field]) -> list[pl.Expr]:
    """Columns in which invalid values have become blank: an invalid value counts as unknown and is not an input."""
    return [
        pl.when(field.is_valid()).then(pl.col(field.name)).alias(field.name)
        for field in fields
        if field.is_limited and field.derived is None
    ]


ON_SCALE = 1e-4
"""Steps that a value may be off a level of the scale: in single precision, 8.9 is 8.8999996."""


class Target(Settings):
    """What is predicted: a rating on a scale of equal steps, a click (0 or 1), or a choice.

    Rows of choices are positives only; a row's value is the strength of its choice, 1 to `high`. The 0 of the scale
    stands for all other items, and no row has it.
    """

    kind: TargetKind = Described(description="rating, click or choice")
    low: float = Described(0.0, description="lowest rating of the scale")
    high: float = Described(1.0, description="highest rating of the scale")
    step: float = Described(1.0, gt=0, description="distance between neighbouring ratings")

    @model_validator(mode="after")
    def _scale_fits(self) -> Self:
        if self.kind == "rating" and not {"low", "high"} <= self.model_fields_set:
            raise ValueError("low and high of the rating scale")
        if self.low >= self.high:
            raise ValueError("low below high in the target's scale")
        if self.kind == "click" and (self.low, self.high, self.step) != (0.0, 1.0, 1.0):
            raise ValueError("a click target without a scale")
        if (self.high - self.low) / self.step > MAX_LEVELS:
            raise ValueError(f"a scale of at most {MAX_LEVELS:,} steps")
        if self.kind == "choice" and (self.low, self.step) != (0.0, 1.0):
            raise ValueError("strengths of choices from 1 in steps of 1")
        if abs((self.high - self.low) / self.step - round((self.high - self.low) / self.step)) > 1e-9:
            raise ValueError("a scale whose length is a multiple of its step")
        return self

    @property
    def levels(self) -> list[float]:
        """All values of the scale, lowest first: 1 to 5 gives d = 5 in the paper's table of layers."""
        return [self.low + k * self.step for k in range(round((self.high - self.low) / self.step) + 1)]

    @property
    def lowest(self) -> float:
        """The lowest value that a row can have."""
        return self.low + self.step if self.kind == "choice" else self.low

    def is_valid(self, column: pl.Expr) -> pl.Expr:
        """Whether a value is one that a row can have."""
        steps = (column - self.low) / self.step
        inside = (
            column.is_finite()
            & (steps > (self.lowest - self.low) / self.step - ON_SCALE)
            & (column <= self.high + ON_SCALE * self.step)
        )
        return (inside & ((steps - steps.round()).abs() < ON_SCALE)).fill_null(False)


def liked_level(target: Target) -> float:
    """The lowest rating that counts as liked: three quarters of the scale, rounded up to a level (4 of 1 to 5).

    A click, and every choice, counts.
    """
    if target.kind != "rating":
        return 1.0
    return next(level for level in target.levels if level >= target.low + 0.75 * (target.high - target.low) - 1e-9)


def reaching(target: Target, level: float) -> float:
    """From here on a stored value reaches a level: in single precision, or written with few digits, it is just below.

    Five sixths may be stored as 0.833333.
    """
    return level - ON_SCALE * target.step


def near_level(target: Target, value: float) -> float:
    """The level that a value is hardly off, as if it was written with fewer digits; else the value itself."""
    return next((level for level in target.levels if abs(value - level) < ON_SCALE * target.step), value)


class Schema(Settings):
    """Fields of users, of items, of the interaction's context, and the target."""

    user: tuple[Field, ...] = Described(description="user fields, the profile")
    item: tuple[Field, ...] = Described(description="item fields, the content")
    context: tuple[Field, ...] = Described((), description="fields of the interaction itself (weather, position)")
    target: Target = Described(description="what is predicted")

    @model_validator(mode="after")
    def _names_unique(self) -> Self:
        for field in (*self.user, *self.context):
            if field.derived is not None:
                raise ValueError(f"derived fields of items only, not '{field.name}'")
        for side in SIDES:
            names = [field.name for field in getattr(self, side)]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"each {side} field once, not '{twice[0]}' twice")
        return self

    def without(self, names: Sequence[str]) -> "Schema":
        """The schema without some fields, each named with its side: `item.year`."""
        known = {f"{side}.{field.name}" for side in SIDES for field in getattr(self, side)}
        for name in names:
            if name not in known:
                raise SettingsError(f"there is no field '{name}' to leave out", remedy=nearest(name, known))
        kept = {
            side: tuple(field for field in getattr(self, side) if f"{side}.{field.name}" not in names) for side in SIDES
        }
        return self.model_copy(update=kept)

    def features(self, side: Literal["user", "item", "context"]) -> tuple[Field, ...]:
        """The fields of a side that are inputs: all except identifiers."""
        fields: tuple[Field, ...] = getattr(self, side)
        return tuple(field for field in fields if field.kind is not Kind.IDENTIFIER)
