"""From values to codes: vocabularies and normalisations, fitted on training rows only, 0 = unknown."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
from pydantic import Field as Described

from paml.data.schema import Field, Kind
from paml.errors import InputError, shortened
from paml.settings import Settings

HUGE = 1e30  # larger numbers are treated as garbage when a normalisation is fitted
MAX_DEVIATIONS = 1000.0


class Categories(Settings):
    """Known values of a categorical or multi-valued field; the value at position k has code k + 1."""

    type: Literal["categories"] = "categories"
    values: tuple[str, ...]
    prefix: int | None = None
    """Number of leading characters that count; all if None."""

    @property
    def size(self) -> int:
        """Number of codes, "unknown" included: the rows of the embedding table."""
        return len(self.values) + 1

    def encode(self, column: pl.Series) -> np.ndarray:
        """Codes of a column of single values; blank, rare and unseen values are 0."""
        codes = pl.Series(range(1, self.size), dtype=pl.Int32)
        if not self.values:
            return np.zeros(len(column), dtype=np.int32)
        if self.prefix is not None:
            column = column.str.head(self.prefix)
        known = pl.Series(self.values, dtype=pl.String)
        return column.replace_strict(known, codes, default=0, return_dtype=pl.Int32).fill_null(0).to_numpy()


class Scaling(Settings):
    """Mean and standard deviation of a numeric field in training; blank values get the mean."""

    type: Literal["scaling"] = "scaling"
    mean: float
    deviation: Annotated[float, Described(gt=0)]

    def encode(self, column: pl.Series) -> np.ndarray:
        """(value - mean) / deviation as float32, clipped to 1,000 deviations."""
        scaled = ((column.cast(pl.Float64) - self.mean) / self.deviation).clip(-MAX_DEVIATIONS, MAX_DEVIATIONS)
        return scaled.fill_nan(None).fill_null(0.0).cast(pl.Float32).to_numpy()

    def scaled(self, value: float) -> float:
        """The same for one number."""
        return min(max((value - self.mean) / self.deviation, -MAX_DEVIATIONS), MAX_DEVIATIONS)


Encoder = Categories | Scaling


@dataclass(frozen=True)
class EncodedColumn:
    """A field of many rows: codes or numbers; lists lie end to end, row i from `offsets[i]` to `offsets[i + 1]`."""

    values: np.ndarray
    offsets: np.ndarray | None = None


class FieldEncoder:
    """Encodes a field's values for the network, the only place that does: a whole column, or the value of one row."""

    def __init__(self, field: Field, fitted: Encoder) -> None:
        self.field, self._fitted = field, fitted
        encode: dict[Kind, Callable[[Any], Any]] = {Kind.MULTI: self._list, Kind.NUMERIC: self._number}
        self.value: Callable[[Any], Any] = encode.get(field.kind, self._code)
        """One value as a code, a list of codes or a number; None is unknown; InputError if the type is wrong."""

    @property
    def known_values(self) -> tuple[str, ...]:
        """The values that have codes, most common first; empty for a numeric field."""
        return self._fitted.values if isinstance(self._fitted, Categories) else ()

    def knows(self, value: Any) -> bool:
        """Whether a value tells the model anything; blank values, which claim nothing, count as known."""
        if value is None or value == "":
            return True
        if self.field.kind is Kind.NUMERIC:
            number = as_number(value, text=True)
            low, high = self.field.minimum, self.field.maximum
            return number is not None and (low is None or number >= low) and (high is None or number <= high)
        codes = self._list(value) if self.field.kind is Kind.MULTI else [self._code(value)]
        return all(codes)

    def column(self, column: pl.Series) -> EncodedColumn:
        """Encode a column of values or lists; unknown values in lists are kept as 0."""
        if self.field.kind is not Kind.MULTI:
            return EncodedColumn(self._fitted.encode(column))
        offsets, flat = laid_out(column)
        return EncodedColumn(self._fitted.encode(flat), offsets)

    @cached_property
    def _codes(self) -> dict[str, int]:
        return {value: code for code, value in enumerate(self.known_values, start=1)}

    def _code(self, value: Any) -> int:
        assert isinstance(self._fitted, Categories)
        if value is None:
            return 0
        prefix = self._fitted.prefix
        if isinstance(value, str):
            return self._codes.get(value[:prefix], 0)
        texts = texts_of(value)
        if not texts:
            raise self._error(value, "text or a number")
        return next((code for text in texts if (code := self._codes.get(text[:prefix]))), 0)

    def _list(self, value: Any) -> list[int]:
        """A single value counts as a list of one."""
        if value is None:
            return []
        return [self._code(one) for one in (value if isinstance(value, list | tuple | set) else [value])]

    def _number(self, value: Any) -> float:
        """The normalised number; 0, the mean, for a blank or invalid value."""
        assert isinstance(self._fitted, Scaling)
        if value is None or value == "":
            return 0.0
        number = as_number(value, text=True)
        if number is None:
            raise self._error(value, "a number")
        low, high = self.field.minimum, self.field.maximum
        if (low is not None and number < low) or (high is not None and number > high):
            return 0.0
        return self._fitted.scaled(number)

    def _error(self, value: Any, expected: str) -> InputError:
        what = f"'{self.field.name}' is {shortened(repr(value))}"
        return InputError(what, field=self.field.name, value=value, expected=expected)


def texts_of(value: Any) -> tuple[str, ...]:
    """How a value may be written in the data: 25.0 also as "25"; empty for anything but text or a number."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, np.integer | np.floating):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ()
    if isinstance(value, float) and value.is_integer():
        return str(value), str(int(value))
    return (str(value),)


def as_number(value: Any, *, text: bool = False) -> float | None:
    """A finite number, or None; with `text`, also a number written as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating | str):
        return None
    if isinstance(value, str) and not text:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def laid_out(column: pl.Series) -> tuple[np.ndarray, pl.Series]:
    """A column of lists as (offsets of length rows + 1, values laid end to end)."""
    lengths = column.list.len().fill_null(0).to_numpy().astype(np.int64)
    return np.concatenate([[0], np.cumsum(lengths)]), column.filter(column.list.len() > 0).explode()


def fit(field: Field, training: pl.Series) -> Encoder:
    """Fit one field on training rows: values by falling frequency (ties by value), without those below `min_count`."""
    if field.kind is Kind.NUMERIC:
        seen = training.cast(pl.Float64).fill_nan(None).drop_nulls().rechunk().to_numpy()
        seen = seen[np.abs(seen) < HUGE]
        if not len(seen):
            return Scaling(mean=0.0, deviation=1.0)
        mean, deviation = float(np.mean(seen)), float(np.std(seen))  # NumPy: the same for any number of threads
        return Scaling(mean=mean, deviation=deviation if deviation > 1e-9 * max(1.0, abs(mean)) else 1.0)
    flat = training.list.explode() if field.kind is Kind.MULTI else training
    if field.prefix is not None:
        flat = flat.str.head(field.prefix)
    counts = flat.drop_nulls().alias("value").value_counts(name="n")
    kept = counts.filter(pl.col("n") >= field.min_count).sort(["n", "value"], descending=[True, False])
    return Categories(values=tuple(kept["value"].to_list()), prefix=field.prefix)
