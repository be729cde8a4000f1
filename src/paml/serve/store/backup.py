"""Backups: a store of either kind as one SQLite file with a digest of its content.

A backup is of one moment, may be made while the service runs, and is read again before it gets its name.
"""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import text

from paml.errors import FormatError, PamlError
from paml.serve.store.checking import Report, inspect_store
from paml.serve.store.copying import copy, digest, get_counter, set_counter
from paml.serve.store.database import Database, file_url, sync_folder
from paml.serve.store.migrations import STEPS, migrate, version_of
from paml.serve.store.schema import BACKUP

BESIDE = ("-wal", "-shm", "-journal")  # what SQLite keeps next to a file


def back_up(url: str, target: Path) -> Report:
    """Write everything that a store holds into a new file; what it holds."""
    target = target.absolute()
    if os.path.lexists(target):
        raise _exists(target)
    source = Database(url, create=False)
    try:
        with new_file(target) as partial:
            _write(source, partial)
            finish(partial)
            report = checked(partial, "the disk may be faulty; try another")
            _name(partial, target)
    finally:
        source.close()
    return report


@contextmanager
def new_file(beside: Path) -> Iterator[Path]:
    """An empty file in the same folder, readable by its owner alone, which is removed at the end if it is there."""
    try:
        number, name = tempfile.mkstemp(prefix=f".{beside.name}.", suffix=".partial", dir=beside.parent)
    except OSError as error:
        what = f"cannot be written ({error.strerror})"
        raise PamlError(what, where=beside, remedy="check folder and permissions") from None
    os.close(number)
    try:
        yield Path(name)
    finally:
        for end in ("", *BESIDE):
            Path(name + end).unlink(missing_ok=True)


def finish(file: Path) -> None:
    """Make a database one file without a log, on disk."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    opened = os.open(file, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def checked(file: Path, remedy: str) -> Report:
    """What a file holds; one that is not whole is refused."""
    database = Database(file_url(file), create=False)
    try:
        with database.reading() as connection:
            report = inspect_store(connection, str(file))
    finally:
        database.close()
    if report.faults:
        more = f" (and {len(report.faults) - 1} more faults)" if len(report.faults) > 1 else ""
        raise FormatError(report.faults[0] + more, remedy=remedy)
    return report


def _write(source: Database, file: Path) -> None:
    """Copy one moment of a store, in its own version, and its digest."""
    target = Database(file_url(file))
    try:
        with source.reading() as old, target.writing() as new:
            migrate(new, target.where, STEPS[: version_of(old, source.where)])
            copy(old, new)
            counted = get_counter(old)
            set_counter(new, counted)
            new.execute(text(f"CREATE TABLE {BACKUP} (created TEXT NOT NULL, digest TEXT NOT NULL)"))
            values = {"created": datetime.now(UTC).isoformat(timespec="seconds"), "digest": digest(old, counted)}
            new.execute(text(f"INSERT INTO {BACKUP} VALUES (:created, :digest)"), values)  # noqa: S608 - a constant
    finally:
        target.close()


def _name(partial: Path, target: Path) -> None:
    """Give a finished file its name, durably; whatever has that name already is not replaced."""
    try:
        os.link(partial, target)
    except FileExistsError:
        raise _exists(target) from None
    except OSError:  # a file system without links, as on many memory sticks
        if os.path.lexists(target):
            raise _exists(target) from None
        partial.rename(target)
    sync_folder(target.parent)


def _exists(file: Path) -> PamlError:
    return PamlError("already exists", where=file, remedy="choose another name for the backup")
