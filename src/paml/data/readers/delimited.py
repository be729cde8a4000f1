"""Tables from files, with errors that name file, line and value: delimited text (CSV and its cousins) and Parquet.

Clean text without quotes is parsed by Polars' own reader. Everything else is split by vectorised string operations on
lines, so that a bad line is a value in a column and not an exception: it can be named, or counted and skipped.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from paml.data.readers.inputs import PARQUET, kind_of, require_text
from paml.data.readers.parquet import parquet_fields, scan, unreadable
from paml.data.readers.text import (
    ESCAPED_QUOTE,
    LINE_BREAK,
    Dialect,
    PlainText,
    count,
    may_have_spaces,
    not_decodable,
    plain_text,
    record_pattern,
)
from paml.data.schema import ON_SCALE
from paml.errors import DataError, nearest

MAX_SHOWN = 60  # characters of a bad value that an error message quotes
TEXT = pl.String | pl.List
TIME_FORMATS = {
    "%Y-%m-%d %H:%M:%S%.f": "2021-03-05 10:00:00",
    "%Y-%m-%dT%H:%M:%S%.f": "2021-03-05T10:00:00",
    "%Y-%m-%dT%H:%M:%S%.f%#z": "2021-03-05T10:00:00+01:00",
    "%Y-%m-%d %H:%M:%S%.f%#z": "2021-03-05 10:00:00+01:00",
    "%Y-%m-%d %H:%M": "2021-03-05 10:00",
    "%Y-%m-%d": "2021-03-05",
    "%d-%b-%Y": "05-Mar-2021",
    "%d-%b-%Y %H:%M:%S": "05-Mar-2021 10:00:00",
    "%d %b %Y": "05 Mar 2021",
    "%b %d, %Y": "Mar 05, 2021",
    "%d.%m.%Y": "05.03.2021",
}
"""How dates may be written, each with an example."""
TRIED = 1000  # number of values used to detect the format of a time column


@dataclass(frozen=True)
class Column:
    """One column to read: its name in the file, its type, and what a value must satisfy."""

    name: str
    dtype: pl.DataType
    """String, Float64, Int64 or List(String); Datetime is a number or an ISO date, and becomes seconds."""
    required: bool = False
    """Whether a blank value is a bad line."""
    low: float | None = None
    high: float | None = None
    step: float | None = None
    list_separator: str = "|"
    lenient: bool = False
    """Whether text that is not a number counts as blank, and not as a bad line."""
    key: bool = False
    """Whether the text is a key, so that 7.0 is read as 7 (a missing value elsewhere can turn keys into floats)."""


@dataclass(frozen=True)
class Table:
    """A parsed file: its columns and `_line` (or `_row` for a Parquet file), and which lines were skipped."""

    frame: pl.LazyFrame
    bad: pl.Series
    """Numbers of the lines that were skipped."""

    @property
    def bad_lines(self) -> int:
        """How many lines were skipped."""
        return len(self.bad)


def read_table(
    path: Path,
    columns: Mapping[str, Column],
    dialect: Dialect,
    workdir: Path,
    *,
    name: str | None = None,
    skip_bad_lines: bool = False,
) -> Table:
    """Parse a file once into a Parquet file in `workdir`; the keys of `columns` name the result's columns.

    Raises DataError for the first bad line, with its number, unless `skip_bad_lines`; errors call the file `name`.
    """
    name = name or path.name
    target = workdir / f"{len(list(workdir.iterdir()))}-parsed.parquet"
    if kind_of(path) == PARQUET:
        place = "_row"
        _parse_parquet(path, name, columns, dialect, target)
    else:
        place = "_line"
        require_text(path)
        target = _parse_text(plain_text(path, dialect, workdir), name, columns, dialect, target)
    frame = pl.scan_parquet(target, glob=False)
    if "_invalid" in frame.collect_schema():  # parsed by Polars alone: no line is bad
        return Table(frame.drop("_invalid"), pl.Series(place, dtype=pl.UInt32))
    problems = frame.filter(pl.col("_problem").is_not_null())
    if not skip_bad_lines:
        for number, problem in problems.select(place, "_problem").head(1).collect().iter_rows():
            where, remedy = f"{name} {place[1:]} {number}", "correct it, or skip bad lines"
            raise DataError(problem, where=where, remedy=remedy, argument="skip_bad_lines")
    bad = problems.select(place).collect().to_series()
    return Table(frame.filter(pl.col("_problem").is_null()).drop("_problem"), bad)


def require_columns(columns: Mapping[str, Column], header: Sequence[str], name: str) -> None:
    """Raise DataError unless every requested column exists exactly once."""
    for column in columns.values():
        if column.name not in header:
            raise DataError(f"has no column '{column.name}'", where=name, remedy=nearest(column.name, header))
        if list(header).count(column.name) > 1:
            raise DataError(f"has the column '{column.name}' twice", where=name, remedy="rename one of them")


def _parse_text(text: PlainText, name: str, columns: Mapping[str, Column], dialect: Dialect, target: Path) -> Path:
    """Cut and type a text file into `target`, by Polars' reader if it can, else line by line; the file written.

    What was written line by line has a name of its own: Polars may still hold the footer of a file it has scanned.
    """
    require_columns(columns, text.header, name)
    if _parse_clean(text, columns, dialect, target):
        return target
    target.unlink(missing_ok=True)
    target = target.with_name(f"lines-{target.name}")
    try:
        fields = _line_fields(text, dialect, {text.header.index(column.name) for column in columns.values()})
        formats = _time_formats(fields, text.header, columns, dialect)
        _with_problems(fields, text.header, columns, dialect, formats).sink_parquet(target, compression="lz4")
    except pl.exceptions.ComputeError as error:
        raise not_decodable(text.path, name, dialect.encoding, error) from None
    return target


def _parse_clean(text: PlainText, columns: Mapping[str, Column], dialect: Dialect, target: Path) -> bool:
    """Let Polars' reader do everything; False if it might not read the file correctly, or if there is a bad line.

    The reader refuses lines with too many fields and fills up lines with too few; there are none of the latter if the
    number of separators is what the rows require.
    """
    width, separator = len(text.header), dialect.separator
    if text.quoted or width < 2 or len(separator) != 1 or not separator.isascii():
        return False
    fields = pl.scan_csv(
        text.path,
        has_header=False,
        separator=separator,
        quote_char=None,
        skip_lines=text.skip,
        empty_string_is_null=False,
        null_values=[*dialect.blanks] or None,
        schema={str(k): _read_as(name, columns) for k, name in enumerate(text.header)},
        row_index_name="_line",
        row_index_offset=text.skip + 1,
        glob=False,
    )
    trim = dialect.trim and may_have_spaces(text.path, separator)
    cells = _cells(fields, text.header, columns, replace(dialect, trim=trim), {})
    invalid = pl.any_horizontal([pl.lit(value=False), *(invalid for cell in cells for invalid, _ in cell.problems)])
    parsed = fields.select("_line", *(cell.value for cell in cells), _invalid=invalid)
    try:
        parsed.sink_parquet(target, compression="lz4")
    except pl.exceptions.PolarsError:
        return False
    result = pl.scan_parquet(target, glob=False)
    rows, bad = result.select(pl.len(), pl.col("_invalid").sum()).collect().row(0)
    return not bad and count(text.path, separator) == (rows + text.skip) * (width - 1)


def _read_as(name: str, columns: Mapping[str, Column]) -> pl.DataType:
    """The type that Polars' reader gives a column: a number only if every use of it requires a number."""
    asked = {
        pl.String() if column.lenient else pl.Float64() if column.dtype == pl.Datetime else column.dtype
        for column in columns.values()
        if column.name == name
    }
    dtype = asked.pop() if len(asked) == 1 else pl.String()
    return pl.String() if isinstance(dtype, TEXT) else dtype


def _line_fields(text: PlainText, dialect: Dialect, wanted: Collection[int]) -> pl.LazyFrame:
    """Text columns of each line, named by their places; `_problem` says why a line could not be split.

    A quoted field may contain separators and doubled quotes, so lines with a quote are matched as a whole.
    """
    width, separator, quote = len(text.header), dialect.separator, dialect.field_quote() if text.quoted else None
    lines = (
        pl.scan_lines(text.path, row_index_name="_line", row_index_offset=1, glob=False)
        .slice(text.skip)
        .with_columns(
            pl.when(pl.col("_line") == 1)
            .then(pl.col("line").str.strip_prefix("\ufeff"))  # a byte order mark
            .otherwise("line")
            .str.strip_chars_end("\r")
            .alias("line")
        )
        .filter(pl.col("line") != "")
    )
    has_quote = pl.col("line").str.contains(quote, literal=True) if quote else pl.lit(value=False)
    captured = sorted({0, *wanted})  # the first says whether a line matches
    plain_line = pl.when(~has_quote).then(pl.col("line"))
    stages = {"_plain": plain_line.str.splitn(separator, width + 1)}  # the last part: excess fields
    if quote:
        pattern = record_pattern(width, dialect, captured)
        stages["_quoted"] = pl.when(has_quote).then(pl.col("line")).str.extract_groups(pattern)
    plain, quoted = pl.col("_plain").struct, pl.col("_quoted").struct

    def field(k: int) -> pl.Expr:
        value = plain.field(f"field_{k}")
        if not quote:
            return value
        group = 2 * captured.index(k)
        inside = quoted.field(str(group + 1)).str.replace_all(quote * 2, quote, literal=True)
        if text.folded:
            inside = inside.str.replace_all(LINE_BREAK, "\n", literal=True)
        value = pl.coalesce(value, inside, quoted.field(str(group + 2)))
        return value.str.replace_all(ESCAPED_QUOTE, quote, literal=True) if dialect.escape else value

    too_few, too_many = plain.field(f"field_{width - 1}").is_null(), plain.field(f"field_{width}").is_not_null()
    bad = ~has_quote & (too_few | too_many)
    found = pl.when(bad).then(pl.col("line")).str.count_matches(separator, literal=True) + 1
    problems: list[pl.Expr] = [pl.when(bad).then(pl.format(f"{{}} fields where {width} are expected", found))]
    if quote:
        unmatched = has_quote & quoted.field("1").is_null() & quoted.field("2").is_null()
        open_quote = pl.lit(f"quotes that do not close, or not the {width} fields expected")
        problems.append(pl.when(unmatched).then(open_quote))
    return lines.with_columns(**stages).select(
        "_line", *(field(k).alias(str(k)) for k in sorted(wanted)), _problem=pl.coalesce(problems)
    )


def _parse_parquet(path: Path, name: str, columns: Mapping[str, Column], dialect: Dialect, target: Path) -> None:
    """Write a Parquet file's columns as text, numbers or lists to `target`, checked like those of text files."""
    try:
        frame = scan(path)
        schema = frame.collect_schema()
        require_columns(columns, list(schema), name)
        asked = [(column.name, column.dtype) for column in columns.values()]
        fields = parquet_fields(frame, asked, name).with_columns(_problem=pl.lit(None, dtype=pl.String))
        formats = _time_formats(fields, list(schema), columns, dialect)
        _with_problems(fields, list(schema), columns, dialect, formats).sink_parquet(target, compression="lz4")
    except pl.exceptions.PolarsError as error:
        raise unreadable(path, name, error) from None


def _time_formats(
    fields: pl.LazyFrame, header: Sequence[str], columns: Mapping[str, Column], dialect: Dialect
) -> dict[str, str | None]:
    """The format that fits most of the first values of each time column; None for a number."""
    formats: dict[str, str | None] = {}
    for alias, column in columns.items():
        if isinstance(column.dtype, pl.Datetime):
            text = pl.col(str(header.index(column.name))).cast(pl.String).str.strip_chars()
            known = text.is_not_null() & ~text.is_in(["", *dialect.blanks])
            some = fields.filter(pl.col("_problem").is_null() & known).select(_text=text).head(TRIED).collect()
            ways: dict[str | None, pl.Expr] = {None: pl.col("_text").cast(pl.Float64, strict=False)}
            ways |= {form: _seconds(pl.col("_text"), form) for form in TIME_FORMATS}
            fits = {form: some.select(value.is_not_null().sum()).item() for form, value in ways.items()}
            formats[alias] = max(fits, key=lambda form: fits[form])
    return formats


def _seconds(text: pl.Expr, time_format: str) -> pl.Expr:
    return text.str.to_datetime(time_format, time_unit="us", strict=False).dt.epoch("us") / 1e6


@dataclass(frozen=True)
class _Cell:
    """A column's values, and its problems: where a value is invalid, and the message."""

    value: pl.Expr
    problems: list[tuple[pl.Expr, pl.Expr]]


def _with_problems(
    fields: pl.LazyFrame,
    header: Sequence[str],
    columns: Mapping[str, Column],
    dialect: Dialect,
    formats: Mapping[str, str | None],
) -> pl.LazyFrame:
    """Convert fields to their types; the first problem of a line is kept in `_problem`."""
    cells = _cells(fields, header, columns, dialect, formats)
    messages = [pl.when(invalid).then(message) for cell in cells for invalid, message in cell.problems]
    place = fields.collect_schema().names()[0]
    return fields.select(place, *(cell.value for cell in cells), _problem=pl.coalesce("_problem", *messages))


def _cells(
    fields: pl.LazyFrame,
    header: Sequence[str],
    columns: Mapping[str, Column],
    dialect: Dialect,
    formats: Mapping[str, str | None],
) -> list[_Cell]:
    """The typed values and the problems of every column."""
    dtypes = fields.collect_schema()
    cells: list[_Cell] = []
    for alias, column in columns.items():
        place = str(header.index(column.name))
        dtype = dtypes[place]
        value, text, blank = _blank_as_null(pl.col(place), dtype, dialect)
        problems = [(blank, pl.lit(f"{column.name} is blank"))] if column.required else []
        if isinstance(column.dtype, pl.List):
            value = _as_list(value, dtype, column.list_separator)
        elif isinstance(column.dtype, pl.String):
            value = _as_text(value, dtype, key=column.key)
        else:
            value, invalid, expected = _number(column, value, blank, formats.get(alias))
            shown = pl.when(invalid).then(text).str.head(MAX_SHOWN)
            message = pl.concat_str(pl.lit(f"{column.name} '"), shown, pl.lit(f"' is not {expected}"))
            problems.append((invalid, message))
        cells.append(_Cell(value.alias(alias), problems))
    return cells


def _blank_as_null(cell: pl.Expr, dtype: pl.DataType, dialect: Dialect) -> tuple[pl.Expr, pl.Expr, pl.Expr]:
    """A field's value (null if blank), its text, and whether it is blank."""
    if isinstance(dtype, pl.String):
        text = cell.str.strip_chars() if dialect.trim else cell
        blank = text.is_null() | (text.is_in(["", *dialect.blanks]) if dialect.blanks else text == "")
        return pl.when(~blank).then(text), text, blank
    if isinstance(dtype, pl.List):
        return cell, cell.list.join("|"), cell.is_null() | (cell.list.len() == 0)
    return cell, cell.cast(pl.String), cell.is_null()


def _as_text(value: pl.Expr, dtype: pl.DataType, *, key: bool) -> pl.Expr:
    """Text; whole numbers that a missing value elsewhere turned into floats become whole again: 7.0 is 7."""
    if key and isinstance(dtype, pl.String):
        return value.map_batches(whole_keys, return_dtype=pl.String(), is_elementwise=True)
    if not dtype.is_float():
        return value.cast(pl.String)
    whole = value.cast(pl.Int64, strict=False)
    return pl.when(value == whole).then(whole.cast(pl.String)).otherwise(value.cast(pl.String))


def whole_keys(keys: pl.Series) -> pl.Series:
    """Keys in which 7.0 is written as 7; a search for `.0` alone is much cheaper, and usually enough."""
    if not keys.str.contains(".0", literal=True).any():
        return keys
    return keys.str.replace(r"^(-?\d+)\.0+$", "$1")


def _as_list(value: pl.Expr, dtype: pl.DataType, separator: str) -> pl.Expr:
    lists = value if isinstance(dtype, pl.List) else value.cast(pl.String).str.split(separator)
    stripped = lists.list.eval(pl.element().str.strip_chars())
    return stripped.list.eval(pl.element().filter(pl.element() != ""))


def _number(column: Column, value: pl.Expr, blank: pl.Expr, time_format: str | None) -> tuple[pl.Expr, pl.Expr, str]:
    """A number (seconds for a time), where it is invalid, and what is expected."""
    if time_format is not None:
        seconds = _seconds(value, time_format)
        return seconds, ~blank & seconds.is_null(), f"a date like {TIME_FORMATS[time_format]}"
    is_time = isinstance(column.dtype, pl.Datetime)
    dtype = pl.Float64() if is_time else column.dtype
    value = value.cast(dtype, strict=False)
    unreadable = ~blank & (value.is_null() | ~value.cast(pl.Float64).is_finite())
    if column.lenient:
        return pl.when(~unreadable).then(value), pl.lit(value=False), "a number"
    invalid = unreadable
    slack = ON_SCALE * column.step if column.step is not None else 0.0
    if column.low is not None:
        invalid |= (value < column.low - slack).fill_null(False)
    if column.high is not None:
        invalid |= (value > column.high + slack).fill_null(False)
    if column.step is not None and column.low is not None:
        steps = (value - column.low) / column.step
        invalid |= ((steps - steps.round()).abs() >= ON_SCALE).fill_null(False)
    number = "a number or a date like 2021-03-05" if is_time else "a number"
    return value, invalid, number if column.low is None else _scale(column)


def _scale(column: Column) -> str:
    if column.high is None:
        return f"a number of {column.low:g} or more"
    steps = "" if column.step in (None, 1.0) else f" in steps of {column.step:g}"
    return f"a number from {column.low:g} to {column.high:g}{steps}"
