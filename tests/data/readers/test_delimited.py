from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from paml.data.readers.delimited import Column, read_table
from paml.data.readers.text import Dialect
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
def test_the_same_table_in_many_formats(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text)[0].rows() == ROWS


def test_quoted_fields_contain_separators_and_doubled_quotes(tmp_path: Path) -> None:
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
    with pytest.raises(DataError, match=f"log.csv line 3: {problem}.*skip bad lines"):
        read(tmp_path, text)
    frame, bad = read(tmp_path, text, skip_bad_lines=True)
    assert (frame.rows(), bad) == (ROWS, 1)


def test_what_is_not_a_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"log.csv: is a gzip file, not text"):
        read(tmp_path, b"\x1f\x8b\x08\x00")
    with pytest.raises(DataError, match=r"log.csv: is empty"):
        read(tmp_path, "")
    for dialect in (PLAIN, Dialect(quote=None), Dialect(header=["u", "r", "t"])):
        with pytest.raises(DataError, match=r"log.csv: has lines that end in carriage returns alone; write it"):
            read(tmp_path, GOOD.replace("\n", "\r"), dialect)
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


def test_a_lone_quote_does_not_swallow_a_good_line(tmp_path: Path) -> None:
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
    with pytest.raises(DataError, match=r"line 2: b '7.9' is not a number"):
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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(LINES, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_the_fast_reader_agrees_with_the_line_reader(tmp_path: Path, lines: list[str], end: str, blanks: bool) -> None:
    """A quoted header changes only the reader: files with a quote are read line by line."""
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


SPACES = [chr(code) for code in range(0x3001) if chr(code).isspace() and chr(code) not in "\n\x1c\x1d\x1e\x1f"]


@pytest.mark.parametrize("space", SPACES, ids=ascii)
@pytest.mark.parametrize("header", ["u,r,t", '"u",r,t'], ids=["fast", "by line"])
def test_white_space_of_all_kinds_is_trimmed(tmp_path: Path, space: str, header: str) -> None:
    frame, bad = read(tmp_path, f"{header}\na{space},5,{space}x\n{space}b,4,y{space}z\n")
    assert (frame.rows(), bad) == ([("a", 5.0, ["x"]), ("b", 4.0, [f"y{space}z"])], 0)


@pytest.mark.parametrize("space", [space for space in SPACES if space != "\r"], ids=ascii)
def test_names_are_trimmed_as_values_are(tmp_path: Path, space: str) -> None:
    assert read(tmp_path, f"u{space},{space}r,t\na,5,x\n")[0].rows() == [("a", 5.0, ["x"])]


@pytest.mark.parametrize("separator", "\x1c\x1d\x1f", ids=ascii)
def test_separators_of_records_belong_to_names_as_to_values(tmp_path: Path, separator: str) -> None:
    with pytest.raises(DataError, match="'u'"):
        read(tmp_path, f"u{separator},r,t\na,5,x\n")


def test_clean_text_is_parsed_by_polars_alone(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(GOOD)
    (work := tmp_path / "work").mkdir()
    read_table(tmp_path / "log.csv", COLUMNS, PLAIN, work)
    assert "_invalid" in pl.read_parquet(next(work.iterdir())).columns


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        ("100", "160.5", 60.5),
        ("2021-03-05 10:00:00", "2021-03-05 10:00:00.500", 0.5),
        ("2021-03-05T10:00:00Z", "2021-03-05T10:01:00Z", 60),
        ("2021-03-05T10:00:00+00:00", "2021-03-05T10:00:00+01:00", -3600),
        ("2021-03-05 10:00:00.5-0200", "2021-03-05 10:00:01.5-02:00", 1),
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
    with pytest.raises(DataError, match=r"line 3: t 'yesterday' is not a (number or a )?date like 2021-03-05"):
        read_table(path, columns, PLAIN, work)


@pytest.mark.parametrize("odd", ["???", "", "5", "NULL", "2021-03-05 10:00"])
def test_the_majority_of_values_decides_the_time_format(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"u,t\na,{odd}\nb,2021-03-05\nc,2021-03-06\n")
    (work := tmp_path / "work").mkdir()
    columns = {"t": Column("t", pl.Datetime(), required=True)}
    table = read_table(path, columns, Dialect(blanks=("NULL",)), work, skip_bad_lines=True)
    assert table.bad_lines == 1
    assert table.frame.collect()["t"].diff()[1] == 86400


@pytest.mark.parametrize("quotes", [("", ""), ("", '"'), ('"', '"')])
def test_a_byte_order_mark_without_a_header(tmp_path: Path, quotes: tuple[str, str]) -> None:
    text = "\ufeff{0}a{0},5,{1}x|y{1}\nb,1.5,\n".format(*quotes)
    assert read(tmp_path, text, Dialect(header=["u", "r", "t"]))[0].rows() == ROWS
    folded = "\ufeff{0}a\nb{0},5,x\n".format('"')
    assert read(tmp_path, folded, Dialect(header=["u", "r", "t"]))[0].rows() == [("a\nb", 5, ["x"])]


@pytest.mark.parametrize("last", ["e,1,", '"e",1,'])
def test_only_quotes_and_escapes_are_escaped(tmp_path: Path, last: str) -> None:
    dialect = Dialect(escape="\\", blanks=("\\N",))
    text = f'u,r,t\n5\\" disc,5,\\N\n\\"x,4,\\"\nC:\\dir,3,a\\\\b\n{last}\n'
    frame, _ = read(tmp_path, text, dialect)
    assert frame["user"].to_list() == ['5" disc', '"x', "C:\\dir", "e"]
    assert frame["tags"].to_list() == [None, ['"'], ["a\\b"], None]


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


@pytest.mark.parametrize(
    ("values", "dtype", "problem"),
    [
        (pl.Series([[1], [2]]), pl.String(), "holds lists; a column of single values is expected"),
        (pl.Series([[1], [2]]), pl.Float64(), "holds lists; a column of single values is expected"),
        (pl.Series([[1], [2]]), pl.Datetime(), "holds lists; a column of single values is expected"),
        (pl.Series([{"a": 1}, {"a": 2}]), pl.String(), "holds structs; a column of single values is expected"),
        (pl.Series([b"\xff", b"\xfe"]), pl.String(), "holds bytes; a column of single values is expected"),
        (pl.Series([[[1]], [[2]]]), pl.List(pl.String()), "holds lists; a column of lists of single values is"),
        (pl.Series([[{"a": 1}], []]), pl.List(pl.String()), "holds structs; a column of lists of single values is"),
    ],
)
def test_parquet_types_that_are_not_values(tmp_path: Path, values: pl.Series, dtype: pl.DataType, problem: str) -> None:
    path = tmp_path / "log.parquet"
    pl.DataFrame({"x": values, "y": [1, 2], "_row": [7, 8]}).write_parquet(path)
    (work := tmp_path / "work").mkdir()
    with pytest.raises(DataError, match=f"log.parquet: column 'x' {problem}"):
        read_table(path, {"x": Column("x", dtype)}, PLAIN, work)
    columns = {
        "y": Column("y", pl.String()),
        "other": Column("_row", pl.Float64()),
    }  # columns that are not requested may have any type
    assert read_table(path, columns, PLAIN, work).frame.collect().rows() == [(1, "1", 7.0), (2, "2", 8.0)]


def test_booleans_as_numbers_and_fixed_lists(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    lists = pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int64, 2))
    pl.DataFrame({"yes": [True, False], "pair": lists}).write_parquet(path)
    (work := tmp_path / "work").mkdir()
    columns = {
        "target": Column("yes", pl.Float64(), low=0, high=1, step=1),
        "word": Column("yes", pl.String()),
        "pair": Column("pair", pl.List(pl.String())),
    }
    rows = read_table(path, columns, PLAIN, work).frame.drop("_row").collect().rows()
    assert rows == [(1.0, "true", ["1", "2"]), (0.0, "false", ["3", "4"])]


def test_damaged_pages_of_a_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pl.DataFrame({"u": [f"user {k}" for k in range(999)]}).write_parquet(path)
    data = bytearray(path.read_bytes())
    data[20:120] = b"\xff" * 100
    path.write_bytes(bytes(data))
    (work := tmp_path / "work").mkdir()
    with pytest.raises(DataError, match=r"log.parquet: is a damaged Parquet file"):
        read_table(path, {"u": Column("u", pl.String())}, PLAIN, work)
