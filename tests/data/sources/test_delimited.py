from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

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


def test_escaped_quotes_and_records_over_several_lines(tmp_path: Path) -> None:
    dialect = Dialect(";", escape="\\", blanks=("NULL",))
    text = 'u;r;t\n"a \\"b\\"";5;x\n"c\nd\r\n\ne";"4";"y"\n"f";3;NULL\nbad\n"g";2;z\n'
    with pytest.raises(DataError, match=r"log.csv line 8: 1 fields where 3 are expected"):
        read(tmp_path, text, dialect)
    frame, bad = read(tmp_path, text, dialect, skip_bad_lines=True)
    assert frame.rows() == [('a "b"', 5, ["x"]), ("c\nd\n\ne", 4, ["y"]), ("f", 3, None), ("g", 2, ["z"])]
    assert bad == 1


def test_a_lone_quote_swallows_no_good_line(tmp_path: Path) -> None:
    text = 'u,r,t\n"a,5,x\nb,4,y\n"c",3,\nd",2,z\ne"f,1,z\n"g,,5\n'
    frame, bad = read(tmp_path, text, skip_bad_lines=True)
    assert frame["user"].to_list() == ["b", "c", 'd"', 'e"f']
    assert bad == 2


@pytest.mark.parametrize("quote", ["", '"'])
def test_one_column_in_several_roles(tmp_path: Path, quote: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"{quote}a{quote},b\n007,9007199254740993\n1e3,2\n")
    (work := tmp_path / "work").mkdir()
    columns = {"text": Column("a", pl.String()), "number": Column("a", pl.Float64()), "whole": Column("b", pl.Int64())}
    frame = read_table(path, columns, PLAIN, work).frame.drop("_line").collect()
    assert frame.rows() == [("007", 7.0, 9007199254740993), ("1e3", 1000.0, 2)]
    path.write_text(f"{quote}a{quote},b\n1,7.9\n")
    with pytest.raises(DataError, match="line 2: b '7.9' is not a number"):
        read_table(path, columns, PLAIN, work)


@pytest.mark.parametrize("quote", ["", '"'])
def test_whole_keys_written_as_floats_are_whole(tmp_path: Path, quote: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"{quote}a{quote},b\n7.0,7.0\n-3.00,x\n1.50,x\nv2.0,x\n")
    (work := tmp_path / "work").mkdir()
    columns = {"key": Column("a", pl.String(), key=True), "text": Column("b", pl.String())}
    frame = read_table(path, columns, PLAIN, work).frame.collect()
    assert frame["key"].to_list() == ["7", "-3", "1.50", "v2.0"]
    assert frame["text"][0] == "7.0"


LINES = st.lists(
    st.sampled_from(
        ["a,5,x|y", "b,1.5,", "c,4", "d,5,x,y", "e,six,", ",5,x", " f , 3 , x ", "", "g,NULL,z", "h,4,NULL"]
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(LINES, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_the_fast_reader_agrees_with_the_line_reader(tmp_path: Path, lines: list[str], end: str, blanks: bool) -> None:
    """A quoted header changes nothing but the way: files with a quote are read line by line."""
    dialect = Dialect(blanks=("NULL",) if blanks else ())
    results = []
    for header in ("u,r,t", '"u",r,t'):
        text = end.join([header, *lines]) + end
        try:
            strict: object = read(tmp_path, text, dialect)[0].rows()
        except DataError as error:
            strict = str(error)
        frame, bad = read(tmp_path, text, dialect, skip_bad_lines=True)
        results.append((strict, frame.rows(), bad))
    assert results[0] == results[1]


def test_clean_text_is_read_by_polars_alone(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(GOOD)
    (work := tmp_path / "work").mkdir()
    read_table(tmp_path / "log.csv", COLUMNS, PLAIN, work)
    assert "_wrong" in pl.read_parquet(next(work.iterdir())).columns


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        ("100", "160.5", 60.5),
        ("2021-03-05 10:00:00", "2021-03-05 10:00:00.500", 0.5),
        ("2021-03-05T10:00:00Z", "2021-03-05T10:01:00Z", 60),
        ("2021-03-05", "2021-03-06", 86400),
    ],
)
@pytest.mark.parametrize("quote", ["", '"'])
def test_times_are_numbers_or_iso_dates(tmp_path: Path, first: str, second: str, difference: float, quote: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"u,t\na,{quote}{first}{quote}\nb,{second}\n")
    (work := tmp_path / "work").mkdir()
    columns = {"t": Column("t", pl.Datetime())}
    times = read_table(path, columns, PLAIN, work).frame.collect()["t"]
    assert times[1] - times[0] == pytest.approx(difference)
    path.write_text(f"u,t\na,{first}\nb,yesterday\n")
    with pytest.raises(DataError, match=r"log.csv line 3: t 'yesterday' is not a (number|time like %Y-%m-%d)"):
        read_table(path, columns, PLAIN, work)


def test_parquet_of_any_types(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "u": pl.Series([1, 2, None], dtype=pl.Float64),
            "r": [5, 1, 3],
            "t": [["x", "y"], [], None],
            "when": [datetime(2021, 3, 5, 10), datetime(2021, 3, 5, 11), None],
            "yes": [True, False, None],
        }
    )
    path = tmp_path / "log.parquet"
    frame.write_parquet(path)
    (work := tmp_path / "work").mkdir()
    columns = {**COLUMNS, "when": Column("when", pl.Datetime()), "yes": Column("yes", pl.String())}
    with pytest.raises(DataError, match=r"log.parquet row 3: u is blank"):
        read_table(path, columns, PLAIN, work)
    table = read_table(path, columns, PLAIN, work, skip_bad_lines=True)
    assert table.bad_lines == 1
    rows = table.frame.drop("_row").collect().rows()
    assert [row[:3] for row in rows] == [("1", 5.0, ["x", "y"]), ("2", 1.0, [])]
    assert rows[1][3] - rows[0][3] == 3600
    assert [row[4] for row in rows] == ["true", "false"]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"log.parquet: is a damaged Parquet file"):
        read_table(path, columns, PLAIN, work)


def test_recbole_headers_state_types(tmp_path: Path) -> None:
    dialect = Dialect("\t", None, typed_header=True)
    assert read(tmp_path, "u:token\tr:float\tt:token_seq\na\t5\tx|y\nb\t1.5\t\n", dialect)[0].rows() == ROWS


@pytest.mark.parametrize("magic", [b"\x1f\x8b\x08\x00", b"\x28\xb5\x2f\xfd"])
def test_compressed_text_is_refused(tmp_path: Path, magic: bytes) -> None:
    with pytest.raises(DataError, match=r"log.csv: is a (gzip|zstandard) file, not text; unpack it first"):
        read(tmp_path, magic)
