import numpy as np
import polars as pl

from paml.data.schema import Field, Kind
from paml.data.vocabulary import Categories, FieldEncoder, Scaling, fit


def test_codes_by_frequency_unknown_is_zero() -> None:
    encoder = fit(Field(name="town", kind=Kind.CATEGORICAL), pl.Series(["b", "a", "b", "c", None, "a", "b"]))
    assert encoder == Categories(values=("b", "a", "c"))
    assert encoder.size == 4
    assert encoder.encode(pl.Series(["a", None, "new", "b"])).tolist() == [2, 0, 0, 1]


def test_rare_values_are_folded() -> None:
    encoder = fit(Field(name="town", kind=Kind.CATEGORICAL, min_count=2), pl.Series(["b", "a", "b"]))
    assert encoder.encode(pl.Series(["a", "b"])).tolist() == [0, 1]


def test_lists_are_laid_end_to_end() -> None:
    column = pl.Series([["x", "y"], [], None, ["y"], ["new"]], dtype=pl.List(pl.String))
    field = Field(name="genre", kind=Kind.MULTI)
    encoder = fit(field, column[:4])
    assert isinstance(encoder, Categories)
    assert encoder.values == ("y", "x")
    encoded = FieldEncoder(field, encoder).column(column)
    offsets, codes = encoded.offsets, encoded.values
    assert offsets is not None
    assert offsets.tolist() == [0, 2, 2, 2, 3, 4]
    assert codes.tolist() == [2, 1, 1, 0]


def test_numbers_are_normalised_and_blanks_get_the_mean() -> None:
    encoder = fit(Field(name="price", kind=Kind.NUMERIC), pl.Series([1.0, 3.0, None]))
    assert encoder == Scaling(mean=2.0, deviation=1.0)
    assert encoder.encode(pl.Series([4.0, None, float("nan")])).tolist() == [2.0, 0.0, 0.0]


def test_a_constant_number_and_an_empty_column_are_harmless() -> None:
    field = Field(name="price", kind=Kind.NUMERIC)
    assert fit(field, pl.Series([5.0, 5.0])).encode(pl.Series([5.0])).tolist() == [0.0]
    assert fit(field, pl.Series([], dtype=pl.Float64)).encode(pl.Series([1.0])).tolist() == [1.0]
    nothing = fit(Field(name="town", kind=Kind.CATEGORICAL), pl.Series([], dtype=pl.String))
    assert np.array_equal(nothing.encode(pl.Series(["a"])), [0])
