"""Restoring: a store becomes what a backup holds, wholly or not at all, whatever was there before.

Two stores are never mixed. For SQLite a new file is made beside the old one and takes its name at once, while nobody
has the old one open; a log that a crash has left is never applied to another file. PostgreSQL replaces all rows in one
transaction. Versions of users go on far beyond those that were ever given, so that no process takes what it has
computed for another state. Keys and audit log of a store that is replaced stay, if they can be read: a key that was
revoked since the backup does not come back.
"""

import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, func, select, text, update

from paml.errors import FormatError, PamlError, StoreUnavailable
from paml.serve.store import audit
from paml.serve.store.backup import BESIDE, checked, finish, new_file
from paml.serve.store.checking import Report
from paml.serve.store.copying import NAMES, WHO_MAY, copy, get_counter, set_counter, tables
from paml.serve.store.database import Database, file_url, sync_folder
from paml.serve.store.migrations import migrate
from paml.serve.store.schema import BACKUP, keys, state, users

LEAP = 10**9  # versions that a store may have given since its backup without anybody knowing
SHARED = (510, 0x40000002)  # bytes of a file that SQLite locks for as long as a connection with a log is open


@dataclass(frozen=True)
class Restored:
    """What a store holds now."""

    report: Report
    kept: Path | None = None
    """Where the file that was replaced is."""
    own_keys: bool = False
    """Whether the keys are those of the store that was replaced."""


def restore(backup: Path, url: str, *, replace: bool = False) -> Restored:
    """Make a store what a backup holds; without `replace` the store must not exist, or be empty."""
    if not backup.is_file():
        raise PamlError("there is no such backup", where=backup, remedy="check the name")
    file = Database.file_of(url)
    if file is not None:
        with new_file(file) as partial:
            report = _unpack(backup, partial)
            own_keys = _take_over(partial, file, replace=replace)
            finish(partial)
            return Restored(report, _put_in_place(partial, file), own_keys)
    with tempfile.TemporaryDirectory(prefix="paml-restore-") as folder, new_file(Path(folder) / "store") as partial:
        report = _unpack(backup, partial)
        return Restored(report, own_keys=_into_database(partial, url, replace=replace))


def _unpack(backup: Path, partial: Path) -> Report:
    """A copy of the backup that was checked, with the newest tables."""
    damaged = "use another backup"
    try:
        from_uri = f"{backup.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(from_uri, uri=True)) as source, closing(sqlite3.connect(partial)) as copied:
            source.backup(copied)
        report = checked(partial, damaged)
    except sqlite3.DatabaseError as error:
        raise FormatError(f"is not a backup ({error})", where=backup, remedy=damaged) from None
    except (FormatError, StoreUnavailable) as error:
        raise FormatError(error.what, where=backup, remedy=error.remedy if error.argument else damaged) from None
    database = Database(file_url(partial))
    try:
        with database.writing() as connection:
            connection.execute(text(f"DROP TABLE IF EXISTS {BACKUP}"))
            migrate(connection, str(backup))
    finally:
        database.close()
    return report


def _take_over(partial: Path, file: Path, *, replace: bool) -> bool:
    """Settle a new file as the one after the old one; whether it has the old one's keys."""
    new = Database(file_url(partial))
    try:
        own_keys, last = False, 0
        if file.exists() and file.stat().st_size:
            old = Database(file_url(file), create=False)
            try:
                with old.reading() as before, new.writing() as after:
                    own_keys, last = _is_keyed(before), get_counter(before)
                    if not replace and (own_keys or _count(before)):
                        raise _occupied(old.where)
                    if own_keys:
                        copy(before, after, WHO_MAY)
            except StoreUnavailable as error:
                if not replace or "lock" in error.what:
                    raise
                own_keys, last = False, 0  # it is damaged: there is nothing to keep
            finally:
                old.close()
        with new.writing() as connection:
            _settle(connection, last, own_keys)
    finally:
        new.close()
    return own_keys


def _into_database(partial: Path, url: str, *, replace: bool) -> bool:
    """Replace all rows of a PostgreSQL store; services wait meanwhile."""
    source, target = Database(file_url(partial), create=False), Database(url)
    try:
        with source.reading() as new, target.writing() as old:
            old.execute(text("SET LOCAL statement_timeout = 0"))
            migrate(old, target.where)
            old.execute(text(f"LOCK TABLE {', '.join(NAMES)} IN ACCESS EXCLUSIVE MODE"))
            own_keys, last = _is_keyed(old), get_counter(old)
            if not replace and (own_keys or _count(old)):
                raise _occupied(target.where)
            copy(new, old, tuple(name for name in NAMES if not (own_keys and name in WHO_MAY)))
            _settle(old, max(last, get_counter(new)), own_keys)
    finally:
        source.close()
        target.close()
    return own_keys


def _settle(connection: Connection, last: int, own_keys: bool) -> None:
    """What holds for the whole store after its rows were replaced."""
    connection.execute(update(state).values(users=select(func.count()).select_from(users).scalar_subquery()))
    if own_keys:
        connection.execute(update(state).values(keyed=1))
    set_counter(connection, max(last, get_counter(connection)) + LEAP)
    audit.record(connection, audit.NOBODY, "restore")


def _put_in_place(new: Path, file: Path) -> Path | None:
    """Give a new file the name of the old one, which is kept beside it."""
    kept = file.with_name(f"{file.name}.before-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
    exists = file.exists()
    like = (file if exists else file.parent).stat()
    new.chmod(like.st_mode & 0o777 if exists else 0o600)
    if os.geteuid() == 0:  # the service must be able to open it
        os.chown(new, like.st_uid, like.st_gid)
    with _alone(file) if exists else _nobody():
        if exists:
            _keep(file, kept)
        for end in BESIDE:  # left by a crash, if the file was lost or damaged: it must not meet the new file
            beside = Path(f"{file}{end}")
            if beside.exists():
                beside.rename(f"{kept}{end}")
        sync_folder(file.parent)
        new.replace(file)
        sync_folder(file.parent)
    return kept if exists else None


def _keep(file: Path, kept: Path) -> None:
    """A second name for a file; a copy where a file system has no links."""
    try:
        os.link(file, kept)
    except OSError:
        shutil.copy2(file, kept)


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Nobody has an SQLite file open, and nobody opens it until the end; its log is part of it."""
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=rw", uri=True, timeout=1)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")  # only possible for the last who has it open
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            raise _in_use(file) from None
    opened = os.open(file, os.O_RDWR)  # also if SQLite cannot read it
    try:
        try:
            fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB, *SHARED)
        except OSError:
            raise _in_use(file) from None
        yield
    finally:
        os.close(opened)


@contextmanager
def _nobody() -> Iterator[None]:
    yield


def _is_keyed(connection: Connection) -> bool:
    """Whether a store has had keys; the first version of the tables does not say it."""
    there = tables(connection)
    if state.name in there:
        return bool(connection.execute(select(state.c.keyed)).scalar_one())
    return keys.name in there and connection.execute(select(keys.c.name)).first() is not None


def _count(connection: Connection) -> int:
    found = tables(connection).get(users.name)
    return 0 if found is None else int(connection.execute(select(func.count()).select_from(found)).scalar_one())


def _occupied(where: str) -> PamlError:
    remedy = "give another store, or allow that its users are replaced"
    return PamlError("the store is not empty", where=where, remedy=remedy, argument="replace")


def _in_use(file: Path) -> PamlError:
    return PamlError("the store is in use", where=file, remedy="stop the service first")
