"""Text files before they are split into fields: dialects, encodings, escapes, and records that span several lines.

Whatever a file looks like, `plain_text` yields UTF-8 with one record per line and doubled quotes, with the line
numbers of the original: this is what `delimited` reads. A file that already has this form is not copied.
"""

import csv
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import polars as pl

from paml.errors import DataError

ATOMIC = (".inter", ".user", ".item")  # endings of RecBole's files; MovieLens-100K has u.user and u.item, too
BLOCK = 1 << 20
MAX_RECORD_LINES = 100
LINE_BREAK = "\x1f"  # replaces a line break inside a quoted field
ESCAPED_QUOTE = "\x1e"  # replaces an escaped quotation mark, which is part of the value
# White space of Unicode, which Polars strips from values; Python's own `strip` also takes \x1c to \x1f.
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"


@dataclass(frozen=True)
class Dialect:
    """The format of a text file."""

    separator: str = ","
    quote: str | None = '"'
    encoding: str = "utf-8"
    header: Sequence[str] | None = None
    """Column names if the file has no header line."""
    escape: str | None = None
    """Character before a quote that belongs to the value; quotes may always be doubled instead."""
    blanks: Sequence[str] = ()
    """Values that mean "not known", such as NULL."""
    trim: bool = True
    """Whether to strip white space (all of Unicode's, so also no-break spaces) from both ends of a value."""
    typed_header: bool = False
    """Whether the header states types, as in RecBole's atomic files: `user_id:token`."""

    @property
    def is_utf8(self) -> bool:
        """Whether Polars can read the file without conversion."""
        return self.encoding.lower() in {"utf-8", "utf8", "ascii"}

    def field_quote(self) -> str | None:
        """The quotation mark, if fields are quoted at all: a long separator leaves no room for it."""
        return self.quote if len(self.separator) == 1 else None


@dataclass(frozen=True)
class PlainText:
    """A UTF-8 file with one record per line, its columns, and what is known about it."""

    path: Path
    header: Sequence[str]
    skip: int
    """Lines before the first record."""
    quoted: bool
    """Whether a quotation mark occurs at all."""
    folded: bool
    """Whether line breaks inside records were replaced by `LINE_BREAK`."""


def usual_separator(ending: str) -> str:
    """What separates the fields of a file with this ending, unless something else is stated."""
    return "\t" if ending.lower() in {*ATOMIC, ".tsv"} else ","


def is_atomic(ending: str, separator: str, header: Sequence[str] | None) -> bool:
    """Whether a file is one of RecBole's: by its ending, unless its format says otherwise."""
    return ending.lower() in ATOMIC and separator == "\t" and header is None


def plain_text(path: Path, dialect: Dialect, workdir: Path) -> PlainText:
    """Convert a file to the one form that `delimited` reads, copying it only if it must change."""
    text = path
    if not dialect.is_utf8 or dialect.escape:
        text = _rewrite(path, dialect, workdir)
    header, skip = _header(text, path.name, dialect)
    quote = dialect.field_quote()
    quoted = quote is not None and (not quote.isascii() or count(text, quote) > 0 or count(text, ESCAPED_QUOTE) > 0)
    folded = _fold(text, path.name, len(header), dialect, workdir) if quoted else text
    return PlainText(folded, header, skip, quoted, folded != text)


def count(path: Path, character: str) -> int:
    """How often an ASCII character occurs in a file."""
    byte, found = character.encode("ascii"), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found += block.count(byte)
    return found


def may_have_spaces(path: Path, separator: str) -> bool:
    """Whether lines may contain white space other than an ASCII separator; non-ASCII text may always contain some."""
    spaces = [space.encode() for space in " \t\v\f" if space != separator]
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            lone_return = block.count(b"\r") > block.count(b"\r\n")
            if lone_return or not block.isascii() or any(space in block for space in spaces):
                return True
    return False


def record_pattern(width: int, dialect: Dialect, captured: Collection[int]) -> str:
    """A regular expression for a whole record of `width` fields.

    The k-th of the captured fields is in group 2k + 1 (quoted) or 2k + 2. Time and memory grow with groups x fields.
    """
    s, q = re.escape(dialect.separator), re.escape(dialect.quote or "")
    inside, plain = rf"(?:[^{q}]|{q}{q})*", rf"(?:[^{s}{q}\n][^{s}\n]*)?"
    fields = (
        rf"(?:{q}({inside}){q}|({plain}))" if k in captured else rf"(?:{q}{inside}{q}|{plain})" for k in range(width)
    )
    return "^" + s.join(fields) + "$"


def _rewrite(path: Path, dialect: Dialect, workdir: Path) -> Path:
    """A UTF-8 copy without escape characters (they only escape quotes and themselves), written in blocks."""
    target = workdir / f"{len(list(workdir.iterdir()))}-utf8-{path.name}"
    escape, quote = dialect.escape, dialect.field_quote() or ""
    escaped = re.compile(re.escape(escape) + f"([{re.escape(escape + quote)}])") if escape and escape != quote else None
    try:
        with (
            path.open(encoding=dialect.encoding, newline="") as source,
            target.open("w", encoding="utf-8", newline="") as copy,
        ):
            while block := source.read(BLOCK):
                if escaped:
                    while escape and block.endswith(escape) and (more := source.read(1)):
                        block += more
                    block = escaped.sub(lambda match: ESCAPED_QUOTE if match[1] == quote else match[1], block)
                copy.write(block)
    except LookupError:
        raise unknown_encoding(path.name, dialect.encoding) from None
    except (UnicodeError, ValueError) as error:
        raise not_decodable(path, path.name, dialect.encoding, error) from None
    return target


def _header(text: Path, name: str, dialect: Dialect) -> tuple[list[str], int]:
    """Column names, and the number of header lines."""
    with text.open("rb") as file:
        first = file.readline(BLOCK)
    if not first.endswith(b"\n") and b"\r" in first.rstrip(b"\r"):
        raise no_line_feeds(name)
    if dialect.header is not None:
        return list(dialect.header), 0
    if not first.strip():
        raise DataError("is empty", where=name, remedy="expected a header line with column names")
    try:
        line = first.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise not_decodable(text, name, dialect.encoding, error) from None
    if quote := dialect.field_quote():
        try:
            names = next(csv.reader([line], delimiter=dialect.separator, quotechar=quote))
        except csv.Error as error:
            raise DataError(
                f"column names cannot be read ({error})", where=f"{name} line 1", remedy="correct it"
            ) from None
    else:
        names = line.split(dialect.separator)
    if dialect.typed_header:
        names = [part.rsplit(":", 1)[0] for part in names]
    return [part.replace(ESCAPED_QUOTE, quote or "").strip(WHITE_SPACE) for part in names], 1


def _fold(text: Path, name: str, width: int, dialect: Dialect, workdir: Path) -> Path:
    """Join records that a line break in a quoted field spreads over several lines.

    Such a record begins and ends with lines that have an odd number of quotes; the lines between two such lines are
    joined if together they form a record of the expected width. Blank lines are added so that line numbers stay valid.
    """
    quotes = pl.col("line").str.count_matches(dialect.quote or "", literal=True)
    lines = pl.scan_lines(text, row_index_name="_line", glob=False).filter(quotes % 2 == 1)
    try:
        odd = lines.select("_line").collect(engine="streaming")["_line"].to_list()
    except pl.exceptions.ComputeError as error:
        raise not_decodable(text, name, dialect.encoding, error) from None
    if len(odd) < 2:
        return text
    target = workdir / f"{len(list(workdir.iterdir()))}-folded-{text.name}"
    with (
        text.open(encoding="utf-8-sig", newline="\n") as source,
        target.open("w", encoding="utf-8", newline="") as copy,
    ):
        s, q = re.escape(dialect.separator), re.escape(dialect.quote or "")
        last_line = re.compile(rf"(?:[^{q}]|{q}{q})*{q}(?:{s}|\r?\n?$)")
        copy.writelines(_folded(source, odd, last_line, re.compile(record_pattern(width, dialect, ()))))
    return target


def _folded(
    lines: Iterator[str], odd: Sequence[int], last_line: re.Pattern[str], record: re.Pattern[str]
) -> Iterator[str]:
    """Lines with broken records joined; `odd` lists the numbers of lines with an odd number of quotes.

    `last_line` matches lines that close a quote, so that `record` is only tried where it can succeed.
    """
    closing = dict(pairwise(odd))
    waiting: list[str] = []
    until = -1
    for number, line in enumerate(lines):
        waiting.append(line)
        if number < until:
            continue
        joined = "".join(waiting).rstrip("\r\n") if until >= 0 and last_line.match(line) else ""
        if joined and record.match(joined):
            yield joined.replace("\r\n", LINE_BREAK).replace("\n", LINE_BREAK) + "\n" * len(waiting)
            waiting, until = [], -1
            continue
        yield from waiting[:-1]  # bad lines, or none; this line may begin a record
        waiting, until = [line], closing.get(number, -1)
        if not number < until <= number + MAX_RECORD_LINES:
            yield line
            waiting, until = [], -1
    yield from waiting


def unknown_encoding(name: str, encoding: str) -> DataError:
    """The error for an encoding that Python does not have, or that is not one of text."""
    return DataError(f"unknown encoding {encoding!r}", where=name, remedy="for example utf-8 or latin-1")


def no_line_feeds(name: str) -> DataError:
    """The error for a text without line feeds, which would be one endless line."""
    remedy = "write it with line feeds, as all current systems do"
    return DataError("has lines that end in carriage returns alone", where=name, remedy=remedy)


def not_decodable(text: Path, name: str, encoding: str, error: Exception) -> DataError:
    """The error that names the line not in the encoding; only called when reading has failed."""
    remedy = "state the file's encoding, for example latin-1"
    if encoding.lower().startswith(("utf-16", "utf16", "utf-32", "utf32")):  # bytes cannot be split into lines
        return DataError(f"is not {encoding} ({error})", where=name, remedy=remedy)
    with text.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode(encoding)
            except UnicodeDecodeError as failure:
                byte = failure.object[failure.start]
                return DataError(f"byte 0x{byte:02x} is not {encoding}", where=f"{name} line {number}", remedy=remedy)
            except UnicodeError as failure:  # of encodings that are not made of bytes, such as idna
                return DataError(f"is not {encoding} ({failure})", where=f"{name} line {number}", remedy=remedy)
            except (LookupError, ValueError):
                return unknown_encoding(name, encoding)
    return DataError(f"cannot be read ({error})", where=name, remedy="check that it is a text file")
