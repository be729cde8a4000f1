"""Hash buckets of values: the same name has the same bucket, with or without a vocabulary."""

import numpy as np
import polars as pl
import pytest

from paml.data.schema import Field, Kind, Schema, Target
from paml.episodes.features import FeatureTable, InputSpec
from paml.episodes.hashing import BUCKETS, buckets_of


@pytest.mark.parametrize(
    ("one", "other"),
    [("J. K. Rowling", "J.K. ROWLING"), ("Gabriel García Márquez", "GABRIEL GARCIA MARQUEZ"), ("O'Brien", "O’Brien")],
)
def test_spellings_of_a_name_share_a_bucket(one: str, other: str) -> None:
    buckets = buckets_of(pl.Series([one, other, "somebody else"]))
    assert buckets[0] == buckets[1] != buckets[2]


def test_symbols_count() -> None:
    assert len(set(buckets_of(pl.Series(["C", "C++", "C#", "12", "12+"])))) == 5


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("-1", "1"),
        ("1.5", "15"),
        ("1.5", "1-5"),
        ("1-23", "12-3"),
        ("2001-1-11", "2001-11-1"),
        ("कि", "का"),
        ("1 2", "12"),
    ],
)
def test_numbers_dates_and_other_scripts_differ(one: str, other: str) -> None:
    buckets = buckets_of(pl.Series([one, other]))
    assert buckets[0] != buckets[1]
    assert buckets.all()


def test_blank_values_have_no_bucket() -> None:
    assert buckets_of(pl.Series([None, "", " ", "...", "?"], dtype=pl.String)).tolist() == [0] * 5
    nothing = buckets_of(pl.Series([], dtype=pl.String))
    assert nothing.shape == (0,)
    assert nothing.dtype == np.int32


def test_buckets_depend_only_on_the_value() -> None:
    """Two data sets, or a data set and the catalogue of a run, give the same value the same bucket."""
    names = [f"author {k}" for k in range(3000)]
    buckets = buckets_of(pl.Series(names))
    np.testing.assert_array_equal(buckets_of(pl.Series(names[:100:-1])), buckets[:100:-1])
    assert buckets.min() > 0
    assert buckets.max() <= BUCKETS
    collided = 3000 - len(set(buckets.tolist()))
    expected = 3000 - BUCKETS * (1 - (1 - 1 / BUCKETS) ** 3000)
    assert collided < 1.1 * expected, "no more collisions than by chance"


def test_lists_and_prefixes() -> None:
    fields = [Field(name="genre", kind=Kind.MULTI), Field(name="code", kind=Kind.CATEGORICAL, prefix=2)]
    genres = pl.Series([["drama", "War"], None, [], ["war"]], dtype=pl.List(pl.String))
    items = pl.DataFrame({"genre": genres, "code": ["123", "129", "13", None]})
    schema = Schema(user=(), item=tuple(fields), target=Target(kind="click"))
    table = FeatureTable.hashed(items.lazy(), InputSpec(schema, ("genre", "code")))
    assert table is not None
    found = table.rows(np.array([3, 0, 1]))
    codes, starts = found.lists["genre"]
    assert starts.tolist() == [0, 1, 3]
    assert codes[0] == codes[2] != codes[1]
    code = found.codes["code"]
    assert code[0] == 0
    assert code[1] == code[2] > 0
