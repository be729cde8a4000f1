"""Your own data: a folder or zip with `schema.toml` and delimited files for interactions, users and items.

The schema file says which file holds what, how columns are to be understood, and what the target is; `docs/data.md`
describes it field by field.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path

import polars as pl
from pydantic import Field as Described

from paml.data.schema import DTYPES, Field, Schema, Target
from paml.data.sources.base import LoadRequest, RawData
from paml.data.sources.delimited import Column, Dialect, Table, read_table
from paml.data.sources.files import InputFolder, checksum
from paml.errors import DataError, SettingsError
from paml.settings import Settings, build


class TablesSettings(Settings):
    """Settings of the source `tables`."""

    schema_file: str = Described("schema.toml", description="name of the schema file inside the folder or archive")


class FieldEntry(Settings):
    """A field in the schema file: `genres = "multi"`, or a table with more to say."""

    kind: str = Described(description="categorical, multi, numeric or identifier")
    column: str | None = Described(None, description="column in the file, if it is called differently")
    separator: str = Described("|", min_length=1, description="what separates the values of a multi field")
    min_count: int = Described(1, description="values seen less often in training become 'unknown'")
    minimum: float | None = Described(None, description="smaller numbers are wrong values")
    maximum: float | None = Described(None, description="larger numbers are wrong values")
    pattern: str | None = Described(None, description="regular expression that right values match")


class SideEntry(Settings):
    """`[users]` or `[items]` in the schema file."""

    file: str = Described(description="file name")
    key: str = Described(description="column with the identifier")
    fields: dict[str, FieldEntry | str] = Described({}, description="the fields to use")


class InteractionsEntry(Settings):
    """`[interactions]` in the schema file."""

    file: str = Described(description="file name")
    user: str = Described(description="column with the user's identifier")
    item: str = Described(description="column with the item's identifier")
    target: str = Described(description="column with the rating or the click")
    time: str | None = Described(None, description="column with a number that grows with time")
    context: dict[str, FieldEntry | str] = Described({}, description="fields of the interaction itself")


class SchemaFile(Settings):
    """The whole schema file."""

    separator: str = Described(",", min_length=1, description="what separates the fields of a line")
    quote: str = Described('"', max_length=1, description="quotation mark, empty for none")
    encoding: str = Described("utf-8", description="encoding of the files")
    target: Target = Described(description="kind and scale of the target")
    interactions: InteractionsEntry = Described(description="who met what, with which result")
    users: SideEntry = Described(description="profiles")
    items: SideEntry = Described(description="contents")


def load(request: LoadRequest) -> RawData:
    """Read the files that the schema file names."""
    if request.path is None:
        raise SettingsError("the source 'tables' needs a folder or archive", remedy="give it with --from PATH")
    folder = InputFolder(request.path, request.workdir)
    assert isinstance(request.settings, TablesSettings)
    schema_path = folder.file(request.settings.schema_file)
    entry = _read_schema_file(schema_path)
    dialect = Dialect(entry.separator, entry.quote or None, entry.encoding)
    sides = {"user": entry.users.fields, "item": entry.items.fields, "context": entry.interactions.context}
    entries = {side: {name: _entry(name, value) for name, value in fields.items()} for side, fields in sides.items()}
    schema = _schema(entries, entry.target, schema_path.name)
    paths = [folder.file(name) for name in (entry.interactions.file, entry.users.file, entry.items.file)]

    def read(path: Path, keys: Mapping[str, Column], side: str, title: str) -> Table:
        columns = {**keys, **{name: _column(name, value) for name, value in entries[side].items()}}
        with request.progress.step(f"reading {title}"):
            return read_table(path, columns, dialect, request.workdir, skip_bad_lines=request.skip_bad_lines)

    log = entry.interactions
    text, target = pl.String(), entry.target
    keys = {"user": Column(log.user, text, required=True), "item": Column(log.item, text, required=True)}
    keys["target"] = Column(log.target, pl.Float64(), required=True, low=target.low, high=target.high, step=target.step)
    if log.time is not None:
        keys["time"] = Column(log.time, pl.Float64(), required=True)
    interactions = read(paths[0], keys, "context", log.file)
    users = read(paths[1], {"user": Column(entry.users.key, text, required=True)}, "user", entry.users.file)
    items = read(paths[2], {"item": Column(entry.items.key, text, required=True)}, "item", entry.items.file)
    return RawData(
        schema=schema,
        users=users.frame,
        items=items.frame,
        interactions=interactions.frame,
        checksum=checksum(schema_path, *paths),
        bad_lines=sum(table.bad_lines for table in (interactions, users, items)),
        files={"user": entry.users.file, "item": entry.items.file, "interactions": log.file},
    )


def _read_schema_file(path: Path) -> SchemaFile:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"is not TOML ({error})", where=path.name, remedy="docs/data.md shows an example") from None
    try:
        return build(SchemaFile, values)
    except SettingsError as error:
        raise DataError(error.what, where=path.name, remedy=error.remedy) from None


def _entry(name: str, value: FieldEntry | str) -> FieldEntry:
    return build(FieldEntry, {"kind": value}) if isinstance(value, str) else value


def _schema(entries: Mapping[str, Mapping[str, FieldEntry]], target: Target, where: str) -> Schema:
    fields: dict[str, list[Field]] = {}
    for side, side_entries in entries.items():
        fields[side] = []
        for name, entry in side_entries.items():
            values = {"name": name, **entry.model_dump(exclude={"column", "separator"})}
            try:
                fields[side].append(build(Field, values))
            except SettingsError as error:
                raise DataError(f"field '{name}': {error.what}", where=where, remedy=error.remedy) from None
    return build(Schema, {**fields, "target": target})


def _column(name: str, entry: FieldEntry) -> Column:
    kind = Field(name=name, kind=entry.kind).kind
    return Column(entry.column or name, DTYPES[kind], list_separator=entry.separator)
