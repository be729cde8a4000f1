"""Your own data: a schema file and the files it names, as delimited text, Parquet or RecBole's atomic files.

The schema file states which file contains what, how to interpret the columns, and what the target is; `docs/data.md`
describes it field by field, and `paml data inspect` writes a first version.
"""

import time
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field as Described

from paml.data.readers.delimited import Column
from paml.data.readers.inputs import InputFolder
from paml.data.readers.reader import TableReader
from paml.data.readers.text import Dialect, is_atomic, usual_separator
from paml.data.schema import DTYPES, Field, Kind, Schema, Target
from paml.data.sources.base import LoadRequest, RawData
from paml.data.sources.events import Events, EventsEntry, check_events, event_columns
from paml.errors import DataError, SettingsError
from paml.settings import Settings, build

SCHEMA_FILE = "schema.toml"
MAX_SCHEMA = 1 << 22
DAY = 86_400.0  # seconds


class TablesSettings(Settings):
    """None: everything the source `tables` needs is in the schema file."""


class FieldEntry(Settings):
    """A field in the schema file: `genres = "multi"`, or a table with more keys."""

    kind: str = Described(description="categorical, multi, numeric or identifier")
    column: str | None = Described(None, description="column in the file, if its name differs")
    separator: str = Described("|", min_length=1, description="what separates the values of a multi field")
    min_count: int = Described(1, description="values seen less often in training become 'unknown'")
    lenient: bool = Described(False, description="numeric: what is not a number counts as not known, not as an error")
    minimum: float | None = Described(None, description="smaller numbers are invalid values")
    maximum: float | None = Described(None, description="larger numbers are invalid values")
    pattern: str | None = Described(None, description="regular expression that valid values match")
    prefix: int | None = Described(None, description="use only this many leading characters as input")
    derived: str | None = Described(None, description="rate or log_rate: the item's mean target in training")
    strength: float = Described(20.0, description="average interactions that smoothing adds to a derived rate")


class FileEntry(Settings):
    """A file, and its format where it differs from the other files."""

    file: str = Described(description="file name, relative to the schema file, or to the folder or archive to read")
    separator: str | None = Described(None, min_length=1, description="what separates the fields of a line")
    quote: str | None = Described(None, max_length=1, description="quotation mark, empty for none")
    escape: str | None = Described(None, max_length=1, description="character before a quote inside a value")
    encoding: str | None = Described(None, description="encoding of the file")
    blanks: tuple[str, ...] | None = Described(None, description="values that mean 'not known'")
    columns: tuple[str, ...] | None = Described(None, description="column names, if the file has no header line")


class SideEntry(FileEntry):
    """`[users]` or `[items]` in the schema file."""

    key: str = Described(description="column with the identifier")
    fields: dict[str, FieldEntry | str] = Described({}, description="the fields to use")


class InteractionsEntry(EventsEntry, FileEntry):
    """`[interactions]` in the schema file."""

    user: str = Described(description="column with the user's identifier")
    item: str = Described(description="column with the item's identifier")
    time: str | None = Described(None, description="column with a number that grows with time, or an ISO date")
    context: dict[str, FieldEntry | str] = Described({}, description="fields of the interaction itself")


class SchemaFile(Settings):
    """The whole schema file."""

    separator: str | None = Described(None, min_length=1, description="what separates the fields of a line")
    quote: str = Described('"', max_length=1, description="quotation mark, empty for none")
    escape: str | None = Described(None, max_length=1, description="character before a quote inside a value")
    encoding: str = Described("utf-8", description="encoding of the files")
    blanks: tuple[str, ...] = Described((), description="values that mean 'not known', such as NULL")
    target: Target = Described(description="kind and scale of the target")
    interactions: InteractionsEntry = Described(description="which user interacted with which item, and the result")
    users: SideEntry | None = Described(None, description="profiles; without them learning rates cannot be personal")
    items: SideEntry | None = Described(None, description="item contents")

    def dialect(self, entry: FileEntry) -> Dialect:
        """The format of one of the files: as its entry states, else as the schema file states, else by its ending."""
        ending = Path(entry.file).suffix
        separator = entry.separator or self.separator or usual_separator(ending)
        atomic = is_atomic(ending, separator, entry.columns)
        quote = entry.quote if entry.quote is not None else "" if atomic else self.quote
        return Dialect(
            separator=separator,
            quote=quote or None,
            encoding=entry.encoding or self.encoding,
            header=entry.columns,
            escape=entry.escape or self.escape,
            blanks=entry.blanks if entry.blanks is not None else self.blanks,
            typed_header=atomic,
        )


def load(request: LoadRequest) -> RawData:
    """Read the files that the schema file names."""
    reader = TableReader(request)
    folder, schema_path = _find_schema(request, reader)
    reader.count_in(schema_path)
    return read_tables(reader, folder, as_schema(read_toml(schema_path), schema_path.name), schema_path.name)


def read_tables(reader: TableReader, folder: InputFolder, entry: SchemaFile, where: str) -> RawData:
    """Read the files of a schema, which errors call `where`."""
    users, items, log = entry.users, entry.items, entry.interactions
    sides = {"user": users.fields if users else {}, "item": items.fields if items else {}, "context": log.context}
    entries = {side: {name: _entry(value) for name, value in fields.items()} for side, fields in sides.items()}
    check_events(log, entry.target, where)
    schema = _schema(entries, entry.target, where)
    log_path = folder.file(log.file)
    interactions = reader.read(
        "interactions",
        log_path,
        {**_log_columns(log, entry.target), **_columns(entries["context"])},
        entry.dialect(log),
    )
    notes: list[str] = []
    events: Events | None = None
    if log.time is not None:
        _refuse_future(interactions, log.time, log_path.name)
    if entry.target.kind == "choice":
        events = Events(interactions, log, reader.workdir, log_path.name)
        choices = events.choices()
        interactions, schema = choices.frame, schema.model_copy(update={"target": choices.target})
        notes.append(choices.note)
        if log.context:
            notes.append("context is kept, but is no input: a choice is made among all items, in no context")

    def side(key: str, described: SideEntry | None) -> pl.LazyFrame:
        if described is None:
            return interactions.select(key).unique().sort(key)
        columns = {key: _key(described.key), **_columns(entries[key])}
        path = folder.file(described.file)
        frame = reader.read(key, path, columns, entry.dialect(described))
        if path.resolve() != log_path.resolve():
            return frame
        notes.extend(_contradictions(frame, key, tuple(entries[key])))
        return frame.unique(subset=key, keep="first", maintain_order=True)

    tables = side("user", users), side("item", items)
    if users is None:
        notes.append("no profiles: the learning rate alpha(h) is then the same for all users")
    if items is None:
        notes.append(
            "no item fields: what is learned about an item comes from its rows alone, so nothing is known of new ones"
        )
    return reader.raw(schema, interactions, *tables, notes=tuple(notes), events=events)


def _find_schema(request: LoadRequest, reader: TableReader) -> tuple[InputFolder, Path]:
    """The folder with the files, and the schema file: the one given, or the one among the files."""
    if request.schema is None:
        if request.path is None:
            remedy = "give a schema file, or the path of a folder or archive with a schema.toml"
            raise SettingsError("the source 'tables' needs a schema", remedy=remedy, argument="schema")
        folder = reader.folder()
        return folder, folder.file(SCHEMA_FILE)
    if request.schema.is_dir():
        remedy = f"name the file in it, such as {request.schema / SCHEMA_FILE}, or give the folder as the path to read"
        raise DataError("is a folder, not a schema file", where=request.schema, remedy=remedy, argument="path")
    if not request.schema.is_file():
        raise DataError("no such file", where=request.schema, remedy="check its name", argument="schema")
    if request.path is not None:
        return reader.folder(), request.schema
    return InputFolder(request.schema.parent, request.workdir, search=False), request.schema


def read_toml(path: Path) -> dict[str, Any]:
    """What a schema file says, unchecked."""
    if path.stat().st_size > MAX_SCHEMA:
        raise DataError(f"has {path.stat().st_size:,} bytes", where=path.name, remedy="give a schema file, not data")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"is not TOML ({error})", where=path.name, remedy="docs/data.md shows an example") from None


def as_schema(values: Mapping[str, Any], where: str) -> SchemaFile:
    """The same, checked; errors call it `where`."""
    try:
        return build(SchemaFile, values)
    except SettingsError as error:
        raise DataError(error.what, where=where, remedy=error.remedy) from None


def _refuse_future(interactions: pl.LazyFrame, column: str, file: str) -> None:
    """Raise DataError if a date has not come yet, a day's leeway given: a broken clock, or day and month mixed up.

    Numbers count as dates if they are seconds of the coming hundred years; others may be anything that grows.
    """
    now = time.time()
    future = interactions.filter(pl.col("time").is_between(now + DAY, now + 36_500 * DAY))
    place = next(name for name in ("_line", "_row") if name in interactions.collect_schema())
    for number, seconds in future.select(place, "time").head(1).collect().iter_rows():
        date = datetime.fromtimestamp(seconds, UTC).date()
        remedy = "correct it, or take 'time' out of the schema"
        raise DataError(f"{column} is {date}, in the future", where=f"{file} {place[1:]} {number}", remedy=remedy)


def _entry(value: FieldEntry | str) -> FieldEntry:
    return build(FieldEntry, {"kind": value}) if isinstance(value, str) else value


def _schema(entries: Mapping[str, Mapping[str, FieldEntry]], target: Target, where: str) -> Schema:
    fields: dict[str, list[Field]] = {}
    for side, side_entries in entries.items():
        fields[side] = []
        for name, entry in side_entries.items():
            values = {"name": name, **entry.model_dump(exclude={"column", "separator", "lenient"})}
            try:
                if entry.lenient and entry.kind != Kind.NUMERIC:
                    raise SettingsError("lenient is for numeric fields", remedy="leave it out: any text is a value")
                fields[side].append(build(Field, values))
            except SettingsError as error:
                raise DataError(f"field '{name}': {error.what}", where=where, remedy=error.remedy) from None
    try:
        return build(Schema, {**fields, "target": target})
    except SettingsError as error:
        raise DataError(error.what, where=where, remedy=error.remedy) from None


def _log_columns(log: InteractionsEntry, target: Target) -> dict[str, Column]:
    columns = {"user": _key(log.user), "item": _key(log.item)}
    if target.kind == "choice":
        columns |= event_columns(log)
    else:
        assert log.target is not None  # as `check_events` saw to
        columns["target"] = Column(
            log.target, pl.Float64(), required=True, low=target.low, high=target.high, step=target.step
        )
    if log.time is not None:
        columns["time"] = Column(log.time, pl.Datetime(), required=True)
    return columns


def _key(column: str) -> Column:
    return Column(column, pl.String(), required=True, key=True)


def _columns(entries: Mapping[str, FieldEntry]) -> dict[str, Column]:
    """One column per field of a file; derived fields have none."""
    columns = {}
    for name, entry in entries.items():
        if entry.derived is None:
            kind = Field(name=name, kind=entry.kind).kind
            columns[name] = Column(
                entry.column if entry.column is not None else name,
                DTYPES[kind],
                list_separator=entry.separator,
                lenient=entry.lenient,
            )
    return columns


def _contradictions(frame: pl.LazyFrame, key: str, names: tuple[str, ...]) -> list[str]:
    """Notes on fields that a log repeats on every row, but with several values for some users or items."""
    if not names:
        return []
    several = frame.group_by(key).agg(pl.col(names).n_unique() > 1).select(pl.col(names).sum()).collect().row(0)
    return [
        f"{key} field '{name}' has several values for {count:,} {key}s; the first counts"
        for name, count in zip(names, several, strict=True)
        if count
    ]
