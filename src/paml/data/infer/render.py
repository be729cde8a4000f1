"""`paml data inspect`: a first schema file for your own tables, with the reason for every guess as a comment."""

import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paml.data.infer.guess import FieldGuess, Guess, SideGuess, guess, missing_targets
from paml.data.infer.roles import Found, Table
from paml.data.infer.sample import ROWS, read_sample
from paml.data.readers.inputs import PARQUET, kind_of
from paml.data.readers.text import is_atomic, usual_separator
from paml.errors import DataError, SettingsError, shortened
from paml.files import write_text
from paml.terminal import UNPRINTABLE, printable

MAX_FILES = 3
WIDTH = 60  # column at which comments begin, if the line leaves room


@dataclass(frozen=True)
class Inspection:
    """The text of a schema file, and what must be completed in it by hand."""

    text: str
    gaps: Sequence[str]
    doubts: Sequence[str] = ()
    """What was chosen without a good reason, and should be checked."""

    def write(self, path: Path) -> None:
        """Write the schema file; an existing one is not touched."""
        refuse_existing(path)
        try:
            write_text(path, self.text)
        except OSError as error:
            what = f"cannot be written ({error.strerror})"
            raise DataError(what, where=path, remedy="choose another file", argument="out") from None


def inspect(files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, target: str | None = None) -> str:
    """Guess the schema of your own tables; returns the text of a schema file with a reason for every guess.

    `files` are one to three paths: interactions and, if there are any, users and items, in any order; `target` is the
    column to predict, if several would fit. Correct the text, save it next to the first file, and give it to
    `paml.prepare("tables", schema=...)`.

    >>> import paml, polars
    >>> rows = [(user, item, 1 + user * item % 5) for user in range(30) for item in range(10)]
    >>> polars.DataFrame(rows, ["user", "item", "rating"], orient="row").write_csv("ratings.csv")
    >>> 'kind = "rating"' in paml.inspect(["ratings.csv"])
    True
    """
    paths = [files] if isinstance(files, str | os.PathLike) else list(files)
    wrong = next((path for path in paths if not isinstance(path, str | os.PathLike)), None)
    if wrong is not None:
        raise SettingsError(f"{shortened(repr(wrong))} is not a path", remedy="give paths of files", argument="files")
    return inspect_files([Path(path) for path in paths], target=target).text


def inspect_files(files: Sequence[Path], folder: Path | None = None, *, target: str | None = None) -> Inspection:
    """The same for a schema file that will be stored in `folder` (default: next to the first file)."""
    if not 1 <= len(files) <= MAX_FILES:
        raise SettingsError(f"{len(files)} files", remedy="give one to three: interactions, users, items")
    resolved = [os.path.realpath(file) for file in files]  # a link to itself has no other name
    twice = [file for file, path in zip(files, resolved, strict=True) if resolved.count(path) > 1]
    if twice:
        raise SettingsError(f"'{twice[0]}' is given twice", remedy="give each file once")
    with tempfile.TemporaryDirectory() as workdir:
        guessed = guess([read_sample(file, Path(workdir)) for file in files], target)
    return Inspection(_render(guessed, (folder or files[0].parent).resolve()), guessed.gaps, guessed.doubts)


def refuse_existing(path: Path) -> None:
    """Raise DataError if the file exists: people may have edited it, so it is never overwritten."""
    if os.path.lexists(path):
        raise DataError("already exists", where=path, remedy="choose another file, or remove it first", argument="out")


def _render(guessed: Guess, folder: Path) -> str:
    log = guessed.log
    lines = ["# A first guess: read the reasons and correct what is wrong. docs/data.md describes the format."]
    lines += [f"# To decide: {_plain(doubt)}" for doubt in guessed.doubts] + [""]
    lines += [*_target(guessed), "", "[interactions]", *_file(log, folder)]
    for role in ("user", "item", *(() if guessed.chosen else ("target",))):
        found: Found = getattr(guessed, role)
        lines.append(_line(f"{role} = {_quoted(found.column or '?')}", found.reason))
    lines += _events(guessed)
    bad = missing_targets(log, guessed.target.column)
    if bad:
        lines.append(f"# {bad:,} rows have no number there: skip bad lines when you prepare them")
    if guessed.time.column:
        lines.append(_line(f"time = {_quoted(guessed.time.column)}", guessed.time.reason))
    else:
        lines.append(f"# time: {guessed.time.reason}")
    if guessed.context:
        lines += ["[interactions.context]", *(_field(entry) for entry in guessed.context)]
    for title, side in (("users", guessed.users), ("items", guessed.items)):
        lines += ["", *_side(title, side, log, folder)]
    return "\n".join(lines) + "\n"


def _events(guessed: Guess) -> list[str]:
    """For choices: types of events, each with a weight of 1, and amounts."""
    lines = []
    if guessed.event is not None and guessed.event.column is not None:
        types = guessed.log.columns[guessed.event.column].distinct.sort().to_list()
        weights = ", ".join(f"{_quoted(name)} = 1" for name in types)
        why = "all the same: give those that say more a larger one, and 0 to those to leave out"
        lines.append(_line(f"event = {_quoted(guessed.event.column)}", guessed.event.reason))
        lines.append(_line(f"weights = {{ {weights} }}", why))
    if guessed.amount is not None and guessed.amount.column is not None:
        lines.append(_line(f"weight = {_quoted(guessed.amount.column)}", guessed.amount.reason))
    return lines


def _target(guessed: Guess) -> list[str]:
    if guessed.chosen:
        return ["[target]", _line('kind = "choice"', f"{guessed.target.reason}: every row is a choice")]
    if guessed.target.column is None:
        return [
            "[target]",
            _line('kind = "?"', "rating (with low, high and step), click or choice: no target was found"),
        ]
    if guessed.scale is None:
        return ["[target]", _line('kind = "click"', f"{guessed.target.column} holds 0 and 1")]
    low, high, step = guessed.scale
    column = guessed.log.columns[guessed.target.column]
    zeros = column.known.cast(float, strict=False).eq(0).mean() or 0
    note = "; 0 is frequent: if it means 'not rated', leave those rows out" if low == 0 and zeros > 0.3 else ""  # type: ignore[operator]
    return [
        "[target]",
        _line('kind = "rating"', f"{guessed.target.column} holds numbers on a scale"),
        _line(
            f"low = {_value(low)}",
            "lowest and highest value and smallest step seen: widen the scale if necessary" + note,
        ),
        f"high = {_value(high)}",
        f"step = {step:.15g}",
    ]


def _side(title: str, side: SideGuess | None, log: Table, folder: Path) -> list[str]:
    if side is None:
        missing = (
            "no profile: all users get the same learning rate" if title == "users" else "nothing is known about items"
        )
        return [f"# [{title}]: {missing}"]
    lines = [f"[{title}]", *_file(side.table, folder, notes=side.table is not log)]
    lines.append(_line(f"key = {_quoted(side.key)}", side.reason))
    return [*lines, f"[{title}.fields]", *(_field(entry) for entry in side.fields)]


def _file(table: Table, folder: Path, *, notes: bool = True) -> list[str]:
    """The file's name, and its format where it differs from what its ending suggests."""
    sample, dialect = table.sample, table.sample.dialect
    lines = [f"file = {_quoted(_path(sample.path, folder))}"]
    if notes and sample.partial:
        lines[0] = _line(lines[0], f"a large file: only the first {ROWS:,} rows were read")
    if notes and sample.bad_lines:
        lines.append(f"# lines that cannot be cut into fields: {sample.bad_lines:,}; skip them when you prepare")
    ending = sample.path.suffix.lower()
    if kind_of(sample.path) != PARQUET:
        atomic = is_atomic(ending, dialect.separator, dialect.header)
        if dialect.separator != usual_separator(ending):
            lines.append(_line(f"separator = {_quoted(dialect.separator)}", "all lines have the same number of fields"))
        if dialect.quote != (None if atomic else '"'):
            why = "values are quoted with it" if dialect.quote else "quotation marks are part of values"
            lines.append(_line(f"quote = {_quoted(dialect.quote or '')}", why))
        if dialect.escape:
            lines.append(_line(f"escape = {_quoted(dialect.escape)}", "precedes quotes inside values"))
        if dialect.encoding != "utf-8":
            lines.append(_line(f"encoding = {_quoted(dialect.encoding)}", "the file is not UTF-8"))
        if not sample.named:
            names = ", ".join(_quoted(name) for name in table.columns)
            lines.append(_line(f"columns = [{names}]", "the first line holds values: rename the columns as you like"))
    if table.blanks:
        where = ", ".join(dict.fromkeys(f"in {column}" for column in table.blanks.values()))
        lines.append(
            _line(f"blanks = [{', '.join(map(_quoted, table.blanks))}]", f"found {where}; remove what is a real value")
        )
    return lines


def _path(file: Path, folder: Path) -> str:
    """Relative to the schema file's folder, unless they share only the root."""
    path = file.resolve()
    try:
        shared = Path(os.path.commonpath([path, folder]))
    except ValueError:  # different drives
        return path.as_posix()
    return path.as_posix() if shared == Path(shared.anchor) else Path(os.path.relpath(path, folder)).as_posix()


def _field(entry: FieldGuess) -> str:
    more: Mapping[str, object] = {**({"column": entry.column} if entry.column != entry.name else {}), **entry.more}
    value = _quoted(entry.kind)
    if more:
        pairs = [f"{key} = {_value(item)}" for key, item in more.items()]
        value = "{ " + ", ".join([f"kind = {value}", *pairs]) + " }"
    line = f"{entry.name} = {value}"
    return _line(line, entry.reason) if entry.used else _line(f"# {line}", f"left out: {entry.reason}")


def _value(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"  # not rounded: a limit is a value that occurs
    return _quoted(value) if isinstance(value, str) else str(value)


def _line(text: str, reason: str) -> str:
    """A line with its reason; control characters, which comments cannot contain, become spaces."""
    return f"{text:<{WIDTH}}  # {_plain(reason)}"


def _plain(text: str) -> str:
    """In one line, so that it is still a comment, and obeyed by no terminal."""
    return printable(re.sub(r"[\r\n\t]+", " ", text))


def _quoted(text: str) -> str:
    quoted = json.dumps(str(text), ensure_ascii=False)
    return UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
