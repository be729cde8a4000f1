"""Keys of values: the same for the same name, with or without a vocabulary."""

import numpy as np
import polars as pl
import pytest

from paml.data.schema import Field, Kind
from paml.episodes.hashing import KEYS, key_table, keys_of


@pytest.mark.parametrize(
    ("one", "other"),
    [("J. K. Rowling", "J.K. ROWLING"), ("Gabriel García Márquez", "GABRIEL GARCIA MARQUEZ"), ("O'Brien", "O’Brien")],
)
def test_names_written_otherwise_have_the_same_key(one: str, other: str) -> None:
    keys = keys_of(pl.Series([one, other, "somebody else"]))
    assert keys[0] == keys[1] != keys[2]


def test_signs_count() -> None:
    assert len(set(keys_of(pl.Series(["C", "C++", "C#", "12", "12+"])))) == 5


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
def test_numbers_dates_and_other_scripts_are_told_apart(one: str, other: str) -> None:
    keys = keys_of(pl.Series([one, other]))
    assert keys[0] != keys[1]
    assert keys.all()


def test_blanks_have_no_key() -> None:
    assert keys_of(pl.Series([None, "", " ", "...", "?"], dtype=pl.String)).tolist() == [0] * 5
    nothing = keys_of(pl.Series([], dtype=pl.String))
    assert nothing.shape == (0,)
    assert nothing.dtype == np.int32


def test_keys_depend_on_the_value_alone() -> None:
    """Two data sets, or a data set and the catalogue of a run, give the same value the same key."""
    names = [f"author {k}" for k in range(3000)]
    keys = keys_of(pl.Series(names))
    np.testing.assert_array_equal(keys_of(pl.Series(names[:100:-1])), keys[:100:-1])
    assert keys.min() > 0
    assert keys.max() <= KEYS
    collided = 3000 - len(set(keys.tolist()))
    expected = 3000 - KEYS * (1 - (1 - 1 / KEYS) ** 3000)
    assert collided < 1.1 * expected, "no more collisions than by chance"


def test_lists_and_prefixes() -> None:
    fields = [Field(name="genre", kind=Kind.MULTI), Field(name="code", kind=Kind.CATEGORICAL, prefix=2)]
    genres = pl.Series([["drama", "War"], None, [], ["war"]], dtype=pl.List(pl.String))
    items = pl.DataFrame({"genre": genres, "code": ["123", "129", "13", None]})
    table = key_table(items.lazy(), fields, ["genre", "code"])
    assert table is not None
    found = table.rows(np.array([3, 0, 1]))
    codes, starts = found.bags["genre"]
    assert starts.tolist() == [0, 1, 3]
    assert codes[0] == codes[2] != codes[1]
    code = found.codes["code"]
    assert code[0] == 0
    assert code[1] == code[2] > 0
