"""Files written whole or not at all (under a temporary name, then renamed); our own files read with clear errors."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
from pydantic import BaseModel, ValidationError

from paml.errors import FormatError, PamlError

M = TypeVar("M", bound=BaseModel)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that appears at `path` only when the `with` block ends without an error."""
    if os.path.lexists(path):
        raise PamlError(
            "already exists", where=path, remedy="choose another folder, or remove it first", argument="out"
        )
    made = [parent for parent in path.parents if not parent.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
    except OSError as error:
        what = f"cannot be written ({error.strerror})"
        raise PamlError(what, where=path, remedy="choose another folder", argument="out") from None
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in made:  # the innermost first; one that another process has filled meanwhile stays
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name, flush it to disk, and rename it over `path`."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_table(path: Path, table: pl.DataFrame) -> None:
    """Write a Parquet file under a temporary name, and rename it over `path`."""
    partial = path.with_name(f".{path.name}.partial")
    table.write_parquet(partial)
    partial.replace(path)


def read_table(path: Path, columns: Iterable[str], remedy: str) -> pl.DataFrame:
    """Read one of our own Parquet files; a missing, damaged or foreign one is a FormatError."""
    try:
        table = pl.read_parquet(path, glob=False)
    except FileNotFoundError:
        raise FormatError("is missing", where=path, remedy=remedy) from None
    except (OSError, pl.exceptions.PolarsError) as error:
        what = f"cannot be read ({str(error).splitlines()[0]})"
        raise FormatError(what, where=path, remedy=remedy) from None
    missing = sorted(set(columns) - set(table.columns))
    if missing:
        raise FormatError(f"has no column '{missing[0]}'", where=path, remedy=remedy)
    return table


def read_json(path: Path, remedy: str, *, missing: FormatError | None = None) -> dict[str, Any]:
    """The object in a JSON file of our own; a missing (raises `missing`), damaged or foreign one is a FormatError."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        if missing is not None and isinstance(error, FileNotFoundError):
            raise missing from None
        raise FormatError(f"cannot be read ({error.strerror or error})", where=path, remedy=remedy) from None
    except (ValueError, RecursionError):
        raise FormatError("is not JSON", where=path, remedy=remedy) from None
    if not isinstance(values, dict):
        raise FormatError("is not a JSON object", where=path, remedy=remedy)
    return values


def as_model(model: type[M], values: dict[str, Any], where: Path, remedy: str) -> M:
    """A stored object as its model, whose field `format` says which format it reads; any other is a FormatError."""
    expected = model.model_fields["format"].default
    if values.get("format") != expected:
        what = f"is of format {values.get('format')!r}, and this version reads format {expected}"
        raise FormatError(what, where=where, remedy=remedy)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise FormatError(f"'{key}': {first['msg']}", where=where, remedy=remedy) from None


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
