"""The first rows of a file without a description: its format is detected, and then it is read like any other file.

A sample is limited in rows and bytes, whatever the size of the file, and is read by the reader that `tables` uses, so
that it shows what a preparation will see.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from paml.data.readers.delimited import Column, read_table
from paml.data.readers.inputs import PARQUET, kind_of, require_text
from paml.data.readers.parquet import scan, unreadable
from paml.data.readers.text import WHITE_SPACE, Dialect, is_atomic, no_line_feeds
from paml.errors import DataError

ROWS = 200_000
MAX_CHARACTERS = 1 << 28
MAX_LINE_LENGTH = 1 << 20
MAX_COLUMNS = 2000  # every pair of a log's and another table's columns is looked at
SNIFFED = 1000  # number of lines used to detect separator, quotes and header
SEPARATORS = ("::", "\t", ";", "|", ",")  # the rarer first: they win ties
RECBOLE_TYPES = {"token", "token_seq", "float", "float_seq"}
LIST_MARK = "\x1f"  # separates the values of a list
UTF16 = (b"\xff\xfe", b"\xfe\xff")
UNSUPPORTED = pl.Struct | pl.Binary | pl.Object | pl.Array  # types that are neither a single value nor a list of values


@dataclass(frozen=True)
class Sample:
    """Some rows of a file as text, and the file's format."""

    path: Path
    frame: pl.DataFrame
    """Text columns, null where a value is empty."""
    types: Mapping[str, str]
    """The type that the file itself states for a column: `time`, `list`, `unreadable` (Parquet), or a RecBole type."""
    dialect: Dialect
    named: bool
    """Whether the file names its columns; otherwise they are called c1, c2, ..."""
    partial: bool
    """Whether the file has more rows than the sample."""
    bad_lines: int


def read_sample(path: Path, workdir: Path) -> Sample:
    """The first rows of a Parquet file, of delimited text, or of one of RecBole's files."""
    if path.is_dir():
        if kind_of(path) != PARQUET:
            raise DataError("is a folder without Parquet files", where=path, remedy="name the files in it")
        return _parquet(path, workdir)
    if not path.exists():
        raise DataError("no such file", where=path, remedy="check the path")
    if not path.is_file():
        raise DataError("is not a regular file", where=path, remedy="write it to one first")
    if not path.stat().st_size:
        raise DataError("is empty", where=path.name, remedy="expected a header line and rows")
    if kind_of(path) == PARQUET:
        return _parquet(path, workdir)
    require_text(path)
    return _text(path, workdir)


def _parquet(path: Path, workdir: Path) -> Sample:
    try:
        table = scan(path)
        schema = table.collect_schema()
        rows = table.select(pl.len()).collect().item()
    except pl.exceptions.PolarsError as error:
        raise unreadable(path, path.name, error) from None
    _require_few_columns(len(schema), path.name)
    table = table.with_columns(pl.col(pl.Boolean).cast(pl.Int8))  # a target must be a number
    types = {name: kind for name, dtype in schema.items() if (kind := _stated(dtype))}
    good = [name for name in schema if types.get(name) != "unreadable"]
    if not rows or not good:
        raise DataError("has no rows, or no columns of single values", where=path.name, remedy="name another file")
    some = _folder(workdir) / "some.parquet"
    try:
        table.select(good).head(ROWS).sink_parquet(some, compression="lz4")
    except pl.exceptions.PolarsError as error:
        raise unreadable(path, path.name, error) from None
    frame, _ = _read(some, path.name, good, Dialect(), workdir, {name for name in good if types.get(name) == "list"})
    return Sample(path, frame, types, Dialect(), named=True, partial=rows > ROWS, bad_lines=0)


def _require_few_columns(count: int, name: str) -> None:
    if count > MAX_COLUMNS:
        remedy = f"keep the columns you need (at most {MAX_COLUMNS:,}), or write the schema by hand"
        raise DataError(f"has {count:,} columns", where=name, remedy=remedy)


def _stated(dtype: pl.DataType) -> str | None:
    """What a Parquet type tells about a column beyond its values."""
    if isinstance(dtype, pl.Datetime | pl.Date):
        return "time"
    if isinstance(dtype, pl.List):
        return "unreadable" if isinstance(dtype.inner, pl.List | UNSUPPORTED) else "list"
    return "unreadable" if isinstance(dtype, UNSUPPORTED | pl.Time | pl.Duration) else None


def _text(path: Path, workdir: Path) -> Sample:
    copy = _folder(workdir) / "some.txt"
    encoding, partial = _copy_first_lines(path, copy)
    with copy.open(encoding="utf-8-sig", newline="\n") as file:
        lines = [line.rstrip("\r\n") for line, _ in zip(file, range(SNIFFED), strict=False) if line.strip()]
    if len(lines) == 1 and "\r" in lines[0]:
        raise no_line_feeds(path.name)
    if not lines:
        raise DataError("is empty", where=path.name, remedy="expected a header line and rows")
    atomic = is_atomic(path.suffix, "\t", None) and _states_types(lines[0])
    dialect = Dialect("\t", quote=None, typed_header=True) if atomic else _sniff(lines, path.name, _escape(copy))
    records = _cut(lines, dialect)
    _require_few_columns(len(records[0]), path.name)
    named = atomic or _has_header(records)
    header = (
        [part.strip(WHITE_SPACE) for part in records[0]] if named else [f"c{k + 1}" for k in range(len(records[0]))]
    )
    types: dict[str, str] = {}
    if named and is_atomic(path.suffix, dialect.separator, None):  # a preparation will take the header as RecBole's
        dialect = replace(dialect, typed_header=True)
        split = [part.rpartition(":") if ":" in part else (part, "", "") for part in header]
        types = {name: kind for name, _, kind in split if kind}
        header = [name for name, _, _ in split]
    if not named:
        dialect = replace(dialect, header=tuple(header))
    frame, bad_lines = _read(copy, path.name, header, dialect, workdir)
    quote = dialect.field_quote()
    if bad_lines and quote and quote not in lines[0]:  # quotation marks that do not quote, such as inches
        plain, fewer = _read(copy, path.name, header, replace(dialect, quote=None, escape=None), workdir)
        if fewer < bad_lines:
            frame, bad_lines, dialect = plain, fewer, replace(dialect, quote=None, escape=None)
    if not len(frame):
        raise DataError("has no rows that can be read", where=path.name, remedy="expected a header line and rows")
    return Sample(path, frame, types, replace(dialect, encoding=encoding), named, partial, bad_lines)


def _states_types(line: str) -> bool:
    """Whether a line is the header of a RecBole file: `user_id:token`, separated by tabs."""
    return any(part.rpartition(":")[2].strip() in RECBOLE_TYPES for part in line.split("\t") if ":" in part)


def _copy_first_lines(path: Path, copy: Path) -> tuple[str, bool]:
    """Copy the first lines as UTF-8; returns the encoding found and whether there are more lines."""
    with path.open("rb") as file:
        head = file.read(1 << 12)
    if head.startswith(UTF16):
        encodings = ["utf-16"]
    elif b"\x00" in head:
        raise DataError("is not a text file", where=path.name, remedy="expected CSV, Parquet or RecBole's files")
    else:
        encodings = ["utf-8", "latin-1"]
    for encoding in encodings:
        characters = 0
        try:
            with path.open(encoding=encoding, newline="\n") as source, copy.open("w", encoding="utf-8") as target:
                for _ in range(ROWS + 1):
                    line = source.readline(MAX_LINE_LENGTH)
                    characters += len(line)
                    if not line or characters > MAX_CHARACTERS:
                        break
                    target.write(line)
                return encoding, bool(source.readline(1)) or characters > MAX_CHARACTERS
        except UnicodeDecodeError:
            continue
    raise DataError("is not text in UTF-8, UTF-16 or latin-1", where=path.name, remedy="write it as UTF-8")


def _sniff(lines: Sequence[str], name: str, escape: str | None) -> Dialect:
    """The separator and quotation mark with which most lines have as many fields as the first."""
    single = not any('"' in line for line in lines) and sum("'" in line for line in lines) > 0.8 * len(lines)
    marks = ["'", None] if single else ['"', None]
    best, best_score = None, (0.0, 0)
    for separator in SEPARATORS:
        for quote in marks if len(separator) == 1 else ['"']:
            dialect = Dialect(separator, quote=quote, escape=escape if quote == '"' else None)
            widths = [len(record) for record in _cut(lines, dialect)]
            if single and quote and not _all_quoted(lines[1:], quote):
                continue
            score = (sum(width == widths[0] for width in widths) / len(lines), widths[0])
            if widths[0] > 1 and score > best_score:
                best, best_score = dialect, score
    if best is None:
        tried = "none of the separators :: tab ; | , is in its first line"
        raise DataError(f"has one column only ({tried})", where=name, remedy="write it with commas")
    return best if best.quote or '"' in "".join(lines) else replace(best, quote='"')


def _escape(copy: Path) -> str | None:
    """A backslash, if one precedes a quote anywhere in the sample."""
    with copy.open(encoding="utf-8", newline="\n") as file:
        return "\\" if any('\\"' in line for line in file) else None


def _all_quoted(lines: Sequence[str], quote: str) -> bool:
    """Whether a mark is at the ends of lines, as quotes are, and not within words."""
    return sum(line.startswith(quote) or line.endswith(quote) for line in lines) > 0.8 * len(lines)


def _cut(lines: Sequence[str], dialect: Dialect) -> list[list[str]]:
    """Lines as fields, roughly: for sniffing only."""
    quote = dialect.field_quote()
    if quote is None:
        return [line.split(dialect.separator) for line in lines]
    try:
        reader = csv.reader(lines, delimiter=dialect.separator, quotechar=quote, escapechar=dialect.escape)
        return list(reader) or [[""]]
    except csv.Error:
        return [[""]]


def _has_header(records: Sequence[Sequence[str]]) -> bool:
    """Whether the first record names columns: no numbers, at most one blank, and values that do not recur."""
    first, rest = [cell.strip() for cell in records[0]], records[1:]
    if any(_is_number(cell) for cell in first) or sum(not cell for cell in first) > 1:
        return False
    columns = [{record[k].strip() for record in rest if k < len(record)} for k in range(len(first))]
    recurring = sum(cell in column for cell, column in zip(first, columns, strict=True))
    return 2 * recurring < len(first)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return text.lower() not in {"nan", "inf", "infinity"}


def _read(
    path: Path, name: str, header: Sequence[str], dialect: Dialect, workdir: Path, lists: set[str] | None = None
) -> tuple[pl.DataFrame, int]:
    """All columns as text, and how many lines could not be split into fields."""
    text, many = pl.String(), pl.List(pl.String())
    columns = {str(k): Column(column, many if column in (lists or ()) else text) for k, column in enumerate(header)}
    table = read_table(path, columns, dialect, _folder(workdir), name=name, skip_bad_lines=True)
    frame = table.frame.select(list(columns)).collect()
    joined = [pl.col(key).list.join(LIST_MARK) for key, column in columns.items() if isinstance(column.dtype, pl.List)]
    return frame.with_columns(joined).rename({str(k): column for k, column in enumerate(header)}), table.bad_lines


def _folder(workdir: Path) -> Path:
    folder = workdir / str(len(list(workdir.iterdir())))
    folder.mkdir()
    return folder
