"""Files of our own: written whole or not at all, and on disk when that is done; read with bounds and clear errors.

A file is written under a temporary name, synced, renamed, and then its folder is synced, so that after a power loss
there is the old file or the new one. Only regular files are read: a pipe would wait, a device would not end.
"""

import contextlib
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import polars as pl
from pydantic import BaseModel, ValidationError

from paml.errors import Again, FormatError, PamlError
from paml.locks import hold, new_and_locked
from paml.settings import Settings

M = TypeVar("M", bound=BaseModel)
MAX_JSON = 1 << 26
"""Bytes of a JSON file of ours whose size is not recorded elsewhere."""
_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would wait for somebody who writes


class Listed(Settings):
    """A file as it was written."""

    size: int
    sha256: str


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that appears at `path` only when the `with` block ends without an error.

    What a process that was killed has left behind is removed by the next one that writes the same folder.
    """
    if os.path.lexists(path):
        raise PamlError(
            "already exists", where=path, remedy="choose another folder, or remove it first", argument="out"
        )
    made = [parent for parent in path.parents if not parent.exists()]
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with hold(path.with_name(f".{path.name}.lock"), path, "writing it"):
            if partial.exists():
                shutil.rmtree(partial)
            partial.mkdir()
            try:
                yield partial
                sync_tree(partial)
                partial.rename(path)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            for folder in {path.parent, *(parent.parent for parent in made)}:
                sync_folder(folder)
    except BaseException as error:
        for parent in made:  # the innermost first; one that another process has filled meanwhile stays
            with contextlib.suppress(OSError):
                parent.rmdir()
        if isinstance(error, OSError) and error.filename in map(str, (path.parent, partial, *made)):
            what = f"cannot be written ({error.strerror})"
            raise PamlError(what, where=path, remedy="choose another folder", argument="out") from None
        raise


def make_folder(path: Path) -> None:
    """A folder to write to, if it is not there yet, with its parents."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        what = f"cannot be written ({error.strerror})"
        raise PamlError(what, where=path, remedy="choose another folder", argument="out") from None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which replaces the one at `path` when the `with` block ends without an error.

    Whoever writes the same file at the same time waits for its turn.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with os.fdopen(new_and_locked(partial), "wb") as file:  # until it has its name: nobody else's is renamed
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                if os.name != "posix":
                    file.close()  # an open file is not renamed there
                partial.replace(path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
    except OSError as error:
        if str(error.filename) == str(partial):  # a name that nobody has given
            error.filename = str(path)
        raise
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replace a file by one with this text."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def write_table(path: Path, table: pl.DataFrame) -> None:
    """Replace a Parquet file."""
    with replacing(path) as file:
        table.write_parquet(file)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable: new files, and renames."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Make everything in a folder durable: files first, then the folders that name them."""
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            with Path(folder, name).open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(folder))


def open_regular(path: Path, remedy: str) -> BufferedReader:
    """Open a file of ours; one that is missing, may not be read, or is no regular file is a FormatError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _WITHOUT_WAITING)
    except OSError as error:
        raise unreadable(path, error, remedy) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FormatError("is not a regular file", where=path, remedy=remedy)
    return os.fdopen(descriptor, "rb")


def unreadable(path: Path, error: OSError, remedy: str) -> FormatError:
    """The error for a file that cannot be opened: missing and forbidden are two things."""
    if isinstance(error, FileNotFoundError):
        return FormatError("is missing", where=path, remedy=remedy)
    if isinstance(error, PermissionError):
        allow = "let it read the file and enter its folders (chmod, chown)"
        return FormatError("may not be read by this user (permission denied)", where=path, remedy=allow)
    return FormatError(f"cannot be read ({error.strerror or error})", where=path, remedy=remedy)


def exists(path: Path, remedy: str) -> bool:
    """Whether there is such a file; one that may not be seen is a FormatError, not a missing one."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unreadable(path, error, remedy) from None
    return True


def read_bounded(path: Path, remedy: str, max_size: int = MAX_JSON) -> bytes:
    """The content of a file of ours that is not larger than this."""
    with open_regular(path, remedy) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_size:
            raise FormatError(f"has {size:,} bytes, at most {max_size:,} are expected", where=path, remedy=remedy)
        return file.read(max_size + 1)


def listed(path: Path) -> Listed:
    """Size and digest of a file, to be recorded."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Listed(size=os.fstat(file.fileno()).st_size, sha256=digest)


def check_listed(path: Path, expected: Listed, remedy: str) -> None:
    """Raise a FormatError unless a file is what was recorded."""
    with open_regular(path, remedy) as file:
        _require_size(path, os.fstat(file.fileno()).st_size, expected, remedy)
        _require_digest(path, hashlib.file_digest(file, "sha256").hexdigest(), expected, remedy)


def check_all_listed(folder: Path, files: Mapping[str, Listed], remedy: str) -> None:
    """The same for many files at once, the largest first: a thread per core reads them block by block."""
    names = sorted(files, key=lambda name: -files[name].size)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(lambda name: check_listed(folder / name, files[name], remedy), names))


def read_listed(path: Path, expected: Listed, remedy: str) -> bytes:
    """The content of a file, which is what was recorded."""
    with open_regular(path, remedy) as file:
        _require_size(path, os.fstat(file.fileno()).st_size, expected, remedy)
        content = file.read(expected.size)
    _require_digest(path, hashlib.sha256(content).hexdigest(), expected, remedy)
    return content


def _require_size(path: Path, size: int, expected: Listed, remedy: str) -> None:
    if size != expected.size:
        what = f"has {size:,} bytes where {expected.size:,} were written"
        raise FormatError(what, where=path, remedy=remedy)


def _require_digest(path: Path, digest: str, expected: Listed, remedy: str) -> None:
    if digest != expected.sha256:
        raise FormatError("differs from what was written (its SHA-256)", where=path, remedy=remedy)


def read_table(path: Path, expected: Listed, columns: Iterable[str], remedy: str) -> pl.DataFrame:
    """Read one of our own Parquet files; a missing, damaged or foreign one is a FormatError."""
    table = _parquet(BytesIO(read_listed(path, expected, remedy)), path, remedy)
    missing = sorted(set(columns) - set(table.columns))
    if missing:
        raise FormatError(f"has no column '{missing[0]}'", where=path, remedy=remedy)
    return table


def read_parquet(path: Path, remedy: str) -> pl.DataFrame:
    """Read a Parquet file of ours that nothing is recorded of; a missing or damaged one is a FormatError."""
    with open_regular(path, remedy) as file:
        return _parquet(file, path, remedy)


def _parquet(source: BinaryIO, path: Path, remedy: str) -> pl.DataFrame:
    try:
        return pl.read_parquet(source)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        what = f"cannot be read ({str(error).partition(chr(10))[0]})"
        raise FormatError(what, where=path, remedy=remedy) from None


def read_json(path: Path, remedy: str, *, missing: FormatError | None = None) -> dict[str, Any]:
    """The object in a JSON file of our own; a missing (raises `missing`), damaged or foreign one is a FormatError."""
    if missing is not None and not exists(path, remedy):
        raise missing
    content = read_bounded(path, remedy)
    try:
        values = json.loads(content.decode("utf-8"))
        json.dumps(values, ensure_ascii=False).encode("utf-8")  # half of a surrogate pair cannot be written again
    except (ValueError, RecursionError):
        raise FormatError("is not JSON", where=path, remedy=remedy) from None
    if not isinstance(values, dict):
        raise FormatError("is not a JSON object", where=path, remedy=remedy)
    return values


def as_model(
    model: type[M], values: dict[str, Any], where: Path, remedy: str, again: Callable[[], Again] | None = None
) -> M:
    """A stored object as its model, whose field `format` says which format it reads; any other is a FormatError.

    That one names the command `again`, which makes the object anew.
    """
    expected = model.model_fields["format"].default
    if values.get("format") != expected:
        what = f"is of format {str(values.get('format'))[:20]}, and this version reads format {expected}"
        raise FormatError(what, where=where, remedy=remedy, again=None if again is None else again())
    try:
        return model.model_validate(values)
    except (ValidationError, RecursionError) as error:
        first: Any = (
            error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": "nested too deeply"}
        )
        key = ".".join(str(part)[:60] for part in first["loc"])
        raise FormatError(f"'{key}': {first['msg']}", where=where, remedy=remedy) from None
