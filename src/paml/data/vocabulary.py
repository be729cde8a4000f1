"""From values to codes: vocabularies and normalisations, fitted on training rows only, 0 = unknown."""

from typing import Annotated, Literal

import numpy as np
import polars as pl
from pydantic import Field as Described

from paml.data.schema import Field, Kind
from paml.settings import Settings

HUGE = 1e30  # numbers beyond this are taken for garbage when a normalisation is fitted
FARTHEST = 1000.0


class Categories(Settings):
    """Known values of a categorical or multi-valued field; the value at position k has code k + 1."""

    type: Literal["categories"] = "categories"
    values: tuple[str, ...]
    prefix: int | None = None
    """How many first characters of a value count; all if None."""

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

    def encode_lists(self, column: pl.Series) -> tuple[np.ndarray, np.ndarray]:
        """Codes of a column of lists as (offsets of length rows + 1, codes laid end to end); unknown ones kept as 0."""
        offsets, flat = laid_out(column)
        return offsets, self.encode(flat)


class Scaling(Settings):
    """Mean and deviation of a numeric field in training; blank values are put at the mean."""

    type: Literal["scaling"] = "scaling"
    mean: float
    deviation: Annotated[float, Described(gt=0)]

    def encode(self, column: pl.Series) -> np.ndarray:
        """(value - mean) / deviation as float32, kept within 1,000 deviations."""
        scaled = ((column.cast(pl.Float64) - self.mean) / self.deviation).clip(-FARTHEST, FARTHEST)
        return scaled.fill_nan(None).fill_null(0.0).cast(pl.Float32).to_numpy()


Encoder = Categories | Scaling


def laid_out(column: pl.Series) -> tuple[np.ndarray, pl.Series]:
    """A column of lists as (offsets of length rows + 1, values laid end to end)."""
    lengths = column.list.len().fill_null(0).to_numpy().astype(np.int64)
    return np.concatenate([[0], np.cumsum(lengths)]), column.filter(column.list.len() > 0).explode()


def fit(field: Field, training: pl.Series) -> Encoder:
    """Fit one field on training rows: values by falling frequency (ties by value), those below `min_count` folded."""
    if field.kind is Kind.NUMERIC:
        seen = training.cast(pl.Float64).fill_nan(None).drop_nulls().rechunk().to_numpy()
        seen = seen[np.abs(seen) < HUGE]
        if not len(seen):
            return Scaling(mean=0.0, deviation=1.0)
        mean, deviation = float(np.mean(seen)), float(np.std(seen))  # NumPy: the same whatever the number of threads
        return Scaling(mean=mean, deviation=deviation if deviation > 1e-9 * max(1.0, abs(mean)) else 1.0)
    flat = training.list.explode() if field.kind is Kind.MULTI else training
    if field.prefix is not None:
        flat = flat.str.head(field.prefix)
    counts = flat.drop_nulls().alias("value").value_counts(name="n")
    kept = counts.filter(pl.col("n") >= field.min_count).sort(["n", "value"], descending=[True, False])
    return Categories(values=tuple(kept["value"].to_list()), prefix=field.prefix)
