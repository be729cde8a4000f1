"""Delimited text (CSV and its cousins) read by Polars, with errors that name file, line and value.

Lines are cut into fields by vectorised string operations, so a bad line is a value in a column and not an exception:
it can be named, or counted and skipped, at the speed of reading.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from paml.data.sources.files import require_text
from paml.errors import DataError, nearest

LONGEST_SHOWN = 60  # characters of a bad value that an error message quotes


@dataclass(frozen=True)
class Dialect:
    """How a text file is written."""

    separator: str = ","
    quote: str | None = '"'
    encoding: str = "utf-8"
    header: Sequence[str] | None = None
    """Column names where the file has no header line."""


@dataclass(frozen=True)
class Column:
    """One column to take: its name in the file, its type, and what a value must satisfy."""

    name: str
    dtype: pl.DataType
    """String, Float64, Int64 or List(String)."""
    required: bool = False
    """Whether a blank value is a bad line."""
    low: float | None = None
    high: float | None = None
    step: float | None = None
    list_separator: str = "|"


@dataclass(frozen=True)
class Table:
    """A parsed file: its columns, and how many lines were skipped."""

    frame: pl.LazyFrame
    bad_lines: int


def read_table(
    path: Path, columns: Mapping[str, Column], dialect: Dialect, workdir: Path, *, skip_bad_lines: bool = False
) -> Table:
    """Parse a file once into a Parquet file in `workdir`; keys of `columns` name the result's columns.

    Raises DataError for the first bad line, with its number, unless `skip_bad_lines`.
    """
    require_text(path)
    text = path if dialect.encoding.lower() in {"utf-8", "utf8"} else _transcode(path, dialect.encoding, workdir)
    header, skip = _header(text, path.name, dialect)
    for column in columns.values():
        if column.name not in header:
            raise DataError(f"has no column '{column.name}'", where=path.name, remedy=nearest(column.name, header))
        if header.count(column.name) > 1:
            raise DataError(f"has the column '{column.name}' twice", where=path.name, remedy="rename one of them")
    lines = (
        pl.scan_lines(text, row_index_name="_line", row_index_offset=1, glob=False)
        .slice(skip)
        .with_columns(pl.col("line").str.strip_chars_end("\r"))
        .filter(pl.col("line") != "")
    )
    parsed = _typed(_fields(lines, len(header), dialect), header, columns)
    target = workdir / f"{len(list(workdir.iterdir()))}-parsed.parquet"
    try:
        parsed.sink_parquet(target, compression="lz4")
    except pl.exceptions.ComputeError as error:
        raise _not_decodable(text, path.name, dialect.encoding, error) from None
    frame = pl.scan_parquet(target, glob=False)
    problems = frame.filter(pl.col("_problem").is_not_null())
    if not skip_bad_lines:
        for line, problem in problems.select("_line", "_problem").head(1).collect().iter_rows():
            raise DataError(
                problem, where=f"{path.name} line {line}", remedy="correct it, or skip such lines with --skip-bad-lines"
            )
    bad = problems.select(pl.len()).collect().item() if skip_bad_lines else 0
    return Table(frame.filter(pl.col("_problem").is_null()).drop("_problem"), int(bad))


def _header(text: Path, name: str, dialect: Dialect) -> tuple[list[str], int]:
    """Column names, and how many lines at the top hold them."""
    if dialect.header is not None:
        return list(dialect.header), 0
    with text.open("rb") as file:
        first = file.readline(1 << 20)
    if not first.strip():
        raise DataError("is empty", where=name, remedy="expected a header line with column names")
    try:
        line = first.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise _not_decodable(text, name, dialect.encoding, error) from None
    if len(dialect.separator) == 1 and dialect.quote:
        names = next(csv.reader([line], delimiter=dialect.separator, quotechar=dialect.quote))
    else:
        names = line.split(dialect.separator)
    return [part.strip() for part in names], 1


def _fields(lines: pl.LazyFrame, width: int, dialect: Dialect) -> pl.LazyFrame:
    """Cut each line into `width` text columns `0`, `1`, ...; `_problem` says why a line could not be cut.

    A quoted field may hold separators and doubled quotes, so lines with a quote are matched as a whole, and only those.
    """
    separator, quote = dialect.separator, dialect.quote if len(dialect.separator) == 1 else None
    has_quote = pl.col("line").str.contains(quote, literal=True) if quote else pl.lit(value=False)
    plain_line = pl.when(~has_quote).then(pl.col("line"))
    stages: dict[str, pl.Expr] = {
        "_plain": plain_line.str.splitn(separator, width + 1)
    }  # the last part: what is too much
    if quote:
        s, q = re.escape(separator), re.escape(quote)
        field_pattern = rf"(?:{q}((?:[^{q}]|{q}{q})*){q}|((?:[^{s}{q}][^{s}]*)?))"
        pattern = "^" + s.join([field_pattern] * width) + "$"
        stages["_quoted"] = pl.when(has_quote).then(pl.col("line")).str.extract_groups(pattern)
    plain, quoted = pl.col("_plain").struct, pl.col("_quoted").struct

    def field(k: int) -> pl.Expr:
        value = plain.field(f"field_{k}")
        if not quote:
            return value
        inside = quoted.field(str(2 * k + 1)).str.replace_all(quote * 2, quote, literal=True)
        return pl.coalesce(value, inside, quoted.field(str(2 * k + 2)))

    too_few, too_many = plain.field(f"field_{width - 1}").is_null(), plain.field(f"field_{width}").is_not_null()
    wrong = ~has_quote & (too_few | too_many)
    found = pl.when(wrong).then(pl.col("line")).str.count_matches(separator, literal=True) + 1
    problems: list[pl.Expr] = [pl.when(wrong).then(pl.format(f"{{}} fields where {width} are expected", found))]
    if quote:
        unmatched = has_quote & quoted.field("1").is_null() & quoted.field("2").is_null()
        open_quote = pl.lit(f"quotes that do not close, or not the {width} fields expected")
        problems.append(pl.when(unmatched).then(open_quote))
    return lines.with_columns(**stages).with_columns(
        *(field(k).alias(str(k)) for k in range(width)), _problem=pl.coalesce(problems)
    )


def _typed(fields: pl.LazyFrame, header: Sequence[str], columns: Mapping[str, Column]) -> pl.LazyFrame:
    """Turn text into types; the first complaint about a line is kept in `_problem`."""
    values: list[pl.Expr] = []
    problems = [pl.col("_problem")]
    for alias, column in columns.items():
        text = pl.col(str(header.index(column.name))).str.strip_chars()
        blank = text.is_null() | (text == "")
        value: pl.Expr = pl.when(~blank).then(text)
        if column.required:
            problems.append(pl.when(blank).then(pl.lit(f"{column.name} is blank")))
        if isinstance(column.dtype, pl.List):
            parts = value.str.split(column.list_separator).list.eval(pl.element().str.strip_chars())
            values.append(parts.list.eval(pl.element().filter(pl.element() != "")).alias(alias))
            continue
        if column.dtype.is_numeric():
            value = value.cast(column.dtype, strict=False)
            expected = "a number" if column.low is None else _scale(column)
            wrong = ~blank & (value.is_null() | ~value.cast(pl.Float64).is_finite())
            if column.low is not None and column.high is not None:
                wrong |= ((value < column.low) | (value > column.high)).fill_null(False)
            if column.step is not None and column.low is not None:
                steps = (value - column.low) / column.step
                wrong |= ((steps - steps.round()).abs() > 1e-6).fill_null(False)
            shown = pl.when(wrong).then(text).str.head(LONGEST_SHOWN)
            complaint = pl.concat_str(pl.lit(f"{column.name} '"), shown, pl.lit(f"' is not {expected}"))
            problems.append(pl.when(wrong).then(complaint))
        values.append(value.alias(alias))
    return fields.select("_line", *values, pl.coalesce(problems).alias("_problem"))


def _scale(column: Column) -> str:
    steps = "" if column.step in (None, 1.0) else f" in steps of {column.step:g}"
    return f"a number from {column.low:g} to {column.high:g}{steps}"


def _transcode(path: Path, encoding: str, workdir: Path) -> Path:
    """A UTF-8 copy of a text in another encoding, made in blocks."""
    target = workdir / f"{len(list(workdir.iterdir()))}-utf8-{path.name}"
    try:
        with path.open(encoding=encoding, newline="") as source, target.open("w", encoding="utf-8", newline="") as copy:
            while block := source.read(1 << 20):
                copy.write(block)
    except LookupError:
        raise DataError(
            f"unknown encoding '{encoding}'", where=path.name, remedy="for example utf-8 or latin-1"
        ) from None
    except (UnicodeError, ValueError) as error:
        raise _not_decodable(path, path.name, encoding, error) from None
    return target


def _not_decodable(text: Path, name: str, encoding: str, error: Exception) -> DataError:
    """Find the line that is not in the encoding; only called when reading has failed."""
    remedy = "state the file's encoding, for example latin-1"
    if encoding.lower().startswith(("utf-16", "utf16", "utf-32", "utf32")):  # lines cannot be told apart as bytes
        return DataError(f"is not {encoding} ({error})", where=name, remedy=remedy)
    with text.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode(encoding)
            except UnicodeDecodeError as wrong:
                byte = wrong.object[wrong.start]
                return DataError(f"byte 0x{byte:02x} is not {encoding}", where=f"{name} line {number}", remedy=remedy)
    return DataError(f"cannot be read ({error})", where=name, remedy="check that it is a text file")
