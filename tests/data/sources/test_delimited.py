from pathlib import Path

import polars as pl
import pytest

from paml.data.sources.delimited import Column, read_table
from paml.data.sources.text import Dialect
from paml.errors import DataError

COLUMNS = {
    "user": Column("u", pl.String(), required=True),
    "stars": Column("r", pl.Float64(), required=True, low=1, high=5),
    "tags": Column("t", pl.List(pl.String())),
}


PLAIN = Dialect()


def read(tmp_path: Path, text: str | bytes, dialect: Dialect = PLAIN, **kwargs: bool) -> tuple[pl.DataFrame, int]:
    path = tmp_path / "log.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    (work := tmp_path / "work").mkdir(exist_ok=True)
    table = read_table(path, COLUMNS, dialect, work, **kwargs)
    return table.frame.drop("_line").collect(), table.bad_lines


GOOD = "u,r,t\na,5,x|y\nb,1.5,\n"
ROWS = [("a", 5.0, ["x", "y"]), ("b", 1.5, None)]


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.replace("\n", "\r\n"),
        "\ufeff" + GOOD,
        GOOD + "\n\n",
        GOOD.rstrip("\n"),
        '"u","r","t"\n"a","5","x|y"\n"b",1.5,""\n',
        "r,t,other,u\n5,x|y,7,a\n1.5,,7,b\n",
    ],
    ids=["plain", "crlf", "bom", "blank lines", "no newline at end", "quoted", "other order"],
)
def test_the_same_table_in_many_guises(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text)[0].rows() == ROWS


def test_quotes_hold_separators_and_doubled_quotes(tmp_path: Path) -> None:
    frame, _ = read(tmp_path, 'u,r,t\n"a, ""b""",5,x\nc "d",4,\n')
    assert frame["user"].to_list() == ['a, "b"', 'c "d"']


def test_long_separator_without_header(tmp_path: Path) -> None:
    dialect = Dialect(separator="::", quote=None, header=["u", "r", "t"])
    assert read(tmp_path, 'a::5::x|y\n"b::1.5::\n', dialect)[0]["user"].to_list() == ["a", '"b']


def test_other_encodings(tmp_path: Path) -> None:
    text = "u,r,t\nJosé,5,é\n"
    assert read(tmp_path, text.encode("latin-1"), Dialect(encoding="latin-1"))[0].rows() == [("José", 5.0, ["é"])]
    with pytest.raises(DataError, match=r"log.csv line 2: byte 0xe9 is not utf-8; state the file's encoding"):
        read(tmp_path, text.encode("latin-1"))
    with pytest.raises(DataError, match="unknown encoding 'utf-99'"):
        read(tmp_path, text, Dialect(encoding="utf-99"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("c,5", "2 fields where 3 are expected"),
        ("c,5,x,y", "4 fields where 3 are expected"),
        ("c,five,x", "r 'five' is not a number from 1 to 5"),
        ("c,6,x", "r '6' is not a number from 1 to 5"),
        ("c,nan,x", "r 'nan' is not a number from 1 to 5"),
        ("c,,x", "r is blank"),
        (" ,3,x", "u is blank"),
        ('"c,3,x', "quotes that do not close"),
        ('"c",3,x,y', "quotes that do not close, or not the 3 fields expected"),
    ],
)
def test_bad_lines_are_named_or_skipped(tmp_path: Path, line: str, problem: str) -> None:
    text = f"u,r,t\na,5,x|y\n{line}\nb,1.5,\n"
    with pytest.raises(DataError, match=f"log.csv line 3: {problem}.*--skip-bad-lines"):
        read(tmp_path, text)
    frame, bad = read(tmp_path, text, skip_bad_lines=True)
    assert (frame.rows(), bad) == (ROWS, 1)


def test_what_is_not_a_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"log.csv: is a gzip file, not text"):
        read(tmp_path, b"\x1f\x8b\x08\x00")
    with pytest.raises(DataError, match=r"log.csv: is empty"):
        read(tmp_path, "")
    with pytest.raises(DataError, match=r"log.csv: has no column 't'; known: r, u"):
        read(tmp_path, "u,r\na,5\n")
