"""Tables in memory as input: Polars and pandas data frames, Arrow tables, whatever speaks Arrow's PyCapsule interface.

Each frame becomes a Parquet file among the temporary files of a preparation, and is then read like anybody's files,
with the same checks. Lazy frames are streamed, so that a folder of partitioned Parquet files need not fit into memory.
The schema is the one that is given, or a guess, as `paml data inspect` makes it.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from paml.data.infer.render import inspect_files
from paml.data.readers.inputs import InputFolder
from paml.data.readers.reader import TableReader
from paml.data.sources.base import LoadRequest, RawData
from paml.data.sources.schema_file import as_schema, read_tables, read_toml
from paml.errors import DataError, SettingsError, nearest

ROLES = ("interactions", "users", "items")
KINDS = "a Polars or pandas data frame, an Arrow table, or an object with __arrow_c_stream__"
FieldChange = str | Mapping[str, Any] | None
"""A field's kind, all its keys as in a schema file, or None to leave it out."""


def load_frames(
    request: LoadRequest,
    frames: Mapping[str, Any],
    schema: str | Path | Mapping[str, Any] | None,
    fields: Mapping[str, FieldChange],
) -> tuple[RawData, str | None]:
    """The raw tables of `frames` (interactions and perhaps users and items), and the guessed schema, if it is one."""
    folder = request.workdir / "frames"
    folder.mkdir()
    for role, frame in frames.items():
        with request.progress.step(f"reading {role}"):
            _write(frame, folder / f"{role}.parquet", role)
    values, text, where = _schema(folder, frames, schema)
    values = _with_files(values, frames, where)
    _change(values, fields)
    reader = TableReader(request)
    described = folder / "schema.json"
    described.write_text(json.dumps(values, sort_keys=True, default=str), encoding="utf-8")
    reader.count_in(described)
    files = InputFolder(folder, request.workdir, search=False)
    return read_tables(reader, files, as_schema(values, where), where), text


def _schema(
    folder: Path, frames: Mapping[str, Any], schema: str | Path | Mapping[str, Any] | None
) -> tuple[dict[str, Any], str | None, str]:
    """What the schema says, its text if it was guessed, and how errors call it."""
    if isinstance(schema, Mapping):
        return _copied(schema), None, "schema"
    if schema is not None:
        return read_toml(Path(schema)), None, Path(schema).name
    found = inspect_files([folder / f"{role}.parquet" for role in frames], folder)
    if found.gaps:
        remedy = "give a schema: a file (paml.inspect writes a first one) or a dictionary with the same keys"
        raise DataError(f"not found: {'; '.join(found.gaps)}", where="interactions", remedy=remedy, argument="schema")
    return tomllib.loads(found.text), found.text, "schema"


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _with_files(values: dict[str, Any], frames: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The schema with the frames as its files; a side that the interactions' own columns describe stays theirs."""
    log = values.setdefault("interactions", {})
    wide = log.get("file") if isinstance(log, dict) else None
    for role in ROLES:
        entry = values.get(role)
        if not isinstance(entry, dict):
            if role in frames:
                remedy = f"add [{role}] with its key and fields, or leave the frame out"
                raise DataError(f"says nothing about {role}", where=where, remedy=remedy, argument=role)
            continue
        if role not in frames and entry.get("file") not in (wide, None):
            remedy = f"give {role}=, or take [{role}] out of the schema"
            raise SettingsError(
                f"the schema describes {role}, but there is no such frame", remedy=remedy, argument=role
            )
        entry["file"] = f"{role if role in frames else 'interactions'}.parquet"
    return values


def _change(values: dict[str, Any], fields: Mapping[str, FieldChange]) -> None:
    """Replace or remove fields of the schema, named `zip` or, where users and items share a name, `user.zip`."""
    places = {"user": ("users", "fields"), "item": ("items", "fields"), "context": ("interactions", "context")}
    tables = {side: values[role].setdefault(part, {}) for side, (role, part) in places.items() if role in values}
    for name, change in fields.items():
        side, _, plain = name.rpartition(".")
        having = [table for key, table in tables.items() if plain in table and side in ("", key)]
        if len(having) > 1:
            several = ", ".join(f"{key}.{plain}" for key, table in tables.items() if plain in table)
            raise SettingsError(f"field '{name}' is in several tables", remedy=f"name one of {several}")
        if not having and side in tables and change is not None:
            having = [tables[side]]  # a column that the guess left out
        if not having:
            known = sorted({known for table in tables.values() for known in table})
            remedy = f"{nearest(plain, known)}; name one that the guess left out with its side, such as user.{plain}"
            raise SettingsError(f"there is no field '{name}'", remedy=remedy, argument="fields")
        if change is None:
            del having[0][plain]
        else:
            having[0][plain] = change if isinstance(change, str) else dict(change)


def _write(frame: Any, path: Path, role: str) -> None:
    """A frame as a Parquet file."""
    if isinstance(frame, pl.LazyFrame):
        try:
            frame.sink_parquet(path, compression="lz4")
        except (pl.exceptions.PolarsError, OSError) as error:
            first = str(error).partition("\n")[0]
            raise DataError(f"cannot be computed ({first})", where=role, remedy="collect it to see why") from None
        return
    table = _as_polars(frame, role)
    objects = [name for name, dtype in table.schema.items() if isinstance(dtype, pl.Object)]
    if objects:
        raise _mixed(objects[0], role, "Python objects")
    if not table.width:
        raise DataError("has no columns", where=role, remedy=f"expected {KINDS} with rows")
    table.write_parquet(path, compression="lz4")


def _as_polars(frame: Any, role: str) -> pl.DataFrame:
    """Without copying where Arrow allows it."""
    if isinstance(frame, pl.DataFrame):
        return frame
    if type(frame).__module__.partition(".")[0] == "pandas":
        return _from_pandas(frame, role)
    if not hasattr(frame, "__arrow_c_stream__"):
        remedy = f"expected {KINDS}"
        raise SettingsError(f"{role} is of type {type(frame).__name__}", remedy=remedy, argument=role)
    names = getattr(frame, "column_names", None) or ()
    _require_unique(names, role)
    try:
        return pl.DataFrame(frame)
    except (pl.exceptions.PolarsError, ValueError, TypeError) as error:
        first = str(error).partition("\n")[0]
        raise DataError(f"cannot be read ({first})", where=role, remedy="cast its columns to ordinary types") from None


def _from_pandas(frame: Any, role: str) -> pl.DataFrame:
    """Columns of Python objects are looked at first: Arrow takes only one type for each column."""
    if not hasattr(frame, "columns"):
        remedy = "turn it into a data frame with columns for user and item"
        raise SettingsError(f"{role} is a pandas {type(frame).__name__}", remedy=remedy, argument=role)
    _require_unique([str(name) for name in frame.columns], role)
    columns = {}
    for name in frame.columns:
        series = frame[name]
        if series.dtype == object:
            columns[str(name)] = _column(series, str(name), role)
        else:
            columns[str(name)] = _of_arrow(series, str(name), role)
    return pl.DataFrame(columns)


def _of_arrow(series: Any, name: str, role: str) -> pl.Series:
    """A pandas column of one of its types; for a few there is none in Arrow."""
    try:
        return pl.Series(name, pl.from_pandas(series, nan_to_null=True))
    except (pl.exceptions.PolarsError, ValueError, TypeError, NotImplementedError) as error:
        first = str(error).partition("\n")[0]
        remedy = "cast it to text or to numbers, or leave it out"
        raise DataError(f"column '{name}' cannot be read ({first})", where=role, remedy=remedy) from None


def _column(series: Any, name: str, role: str) -> pl.Series:
    """A pandas column of Python objects, of one type."""
    values = [
        None if blank else value.tolist() if isinstance(value, np.ndarray) else value
        for value, blank in zip(series.tolist(), series.isna(), strict=True)
    ]
    known = [value for value in values if value is not None]
    kinds = sorted({type(value).__name__ for value in known})
    if all(isinstance(value, datetime) for value in known):
        zones = {str(value.tzinfo) for value in known}
        if len(zones) > 1:
            what = f"column '{name}' mixes time zones ({', '.join(sorted(zones)[:3])})"
            raise DataError(what, where=role, remedy="convert it with pandas.to_datetime(..., utc=True)")
    elif len(kinds) > 1:
        raise _mixed(name, role, f"values of several types ({', '.join(kinds[:3])})")
    try:
        return pl.Series(name, values)
    except (pl.exceptions.PolarsError, TypeError, OverflowError) as error:
        first = str(error).partition("\n")[0]
        raise DataError(f"column '{name}' cannot be read ({first})", where=role, remedy="cast it to text") from None


def _mixed(name: str, role: str, what: str) -> DataError:
    return DataError(f"column '{name}' holds {what}", where=role, remedy="cast it to text or to numbers")


def _require_unique(names: Iterable[str], role: str) -> None:
    names = list(names)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"has the column '{twice}' twice", where=role, remedy="rename one of them")
