"""One interface to SQLite and PostgreSQL: durable when a write returns, and failures as `StoreUnavailable`.

Nothing is remembered about a database that went away: each call tries again, so the store is back when the database is.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DisconnectionError,
    InterfaceError,
    InternalError,
    NoSuchModuleError,
    OperationalError,
    TimeoutError as NoFreeConnection,
)
from sqlalchemy.pool import QueuePool

from paml.errors import PamlError, SettingsError, StoreUnavailable

PATIENCE = 10.0  # seconds for a lock, a connection or a statement; then the caller may try again
POOL: dict[str, Any] = {
    "poolclass": QueuePool,
    "pool_size": 16,  # opened when needed
    "max_overflow": 0,
    "pool_timeout": PATIENCE,
    "pool_use_lifo": True,
    "hide_parameters": True,  # errors never show ratings or profiles
}
WAL = ("journal_mode=WAL",)  # readers and a writer do not wait for each other
KNOWN = "sqlite:///FILE or postgresql://USER@HOST/DATABASE expected"


class Database:
    """Three kinds of access: `glancing` (one statement), `reading` (of one moment), `writing` (durable at its end)."""

    def __init__(self, url: str, *, create: bool = True) -> None:
        """`create=False`: a file must exist, and how it keeps its log is left as it is."""
        parsed = _parse(url)
        self.where = parsed.render_as_string(hide_password=True)
        self._file = self.file_of(url)
        if self._file:
            if create:
                _touch(self._file)
            elif not self._file.is_file():
                raise PamlError("there is no such store", where=self._file, remedy="check the name")
            self._engine = _sqlite(self._file, WAL if create else ())
            self._glancer = self._engine.execution_options()  # no BEGIN: a statement alone sees one moment
            self._reader = self._engine.execution_options(begin="BEGIN")
            self._writer = self._engine.execution_options(begin="BEGIN IMMEDIATE")
        else:
            self._engine = _postgres(parsed)
            self._writer = self._engine.execution_options(isolation_level="READ COMMITTED")
            self._glancer = self._engine.execution_options(isolation_level="AUTOCOMMIT")
            self._reader = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self.writable = True  # as of the last attempt
        self.written: float | None = None  # when a write succeeded last, by the monotonic clock
        # SQLite admits one writer: threads of this process queue here, as its own waiting is by polling and unfair.
        self._turn = threading.Lock() if self._file else None

    @staticmethod
    def file_of(url: str) -> Path | None:
        """The file that an address names; None for PostgreSQL."""
        parsed = _parse(url)
        return Path(parsed.database or "").absolute() if parsed.get_backend_name() == "sqlite" else None

    @property
    def file(self) -> Path | None:
        """The file of an SQLite database."""
        return self._file

    @property
    def kind(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    @contextmanager
    def glancing(self) -> Iterator[Connection]:
        """For a single statement that reads: no transaction is begun and ended around it."""
        with self._trouble(), self._glancer.connect() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction whose statements all see the same moment."""
        with self._trouble(), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is committed and on disk when the block ends, or leaves no trace if it raises."""
        try:
            with self._trouble(), self._my_turn(), self._writer.begin() as connection:
                opened = connection.connection.info.get("file")
                yield connection
            if self._file and _identity(self._file) != opened:  # committed into a file that no longer has a name
                raise self._unavailable("the database file was removed or replaced")
        except StoreUnavailable:
            self.writable = False
            raise
        self.writable, self.written = True, time.monotonic()

    def clear_log(self, patience: float = 0.5) -> bool | None:
        """Empty SQLite's log, where deleted rows stay until it is moved to the file; None if there is no such log.

        False if it could not be done within some seconds, because somebody reads an older state. Writers wait
        meanwhile, so the patience is short.
        """
        if not self._file:
            return None
        with self._trouble(), self._my_turn(), self._engine.connect() as connection, _given_up(connection):
            connection.exec_driver_sql(f"PRAGMA busy_timeout={int(1000 * patience)}")
            busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
            connection.exec_driver_sql(f"PRAGMA busy_timeout={int(1000 * PATIENCE)}")
        return not busy

    def tidy(self) -> bool:
        """Remove the bytes of deleted rows as far as the database can; False to be called again."""
        try:
            if self._file:
                return self.clear_log(patience=0.0) is not False
            with self._trouble(), self._glancer.connect() as connection, _given_up(connection):
                connection.exec_driver_sql("SET statement_timeout = 0")
                connection.exec_driver_sql("VACUUM (SKIP_LOCKED) paml_users, paml_ratings")
                connection.exec_driver_sql(f"SET statement_timeout = {_statement_timeout()}")
        except StoreUnavailable:
            return False
        return True

    @property
    def tidy_pause(self) -> float:
        """Seconds before each `tidy`: PostgreSQL reads a part of its tables for it."""
        return 1.0 if self._file else 60.0

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._engine.dispose()

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        if self._turn is None:
            yield
        elif self._turn.acquire(timeout=PATIENCE):
            try:
                yield
            finally:
                self._turn.release()
        else:
            raise self._unavailable("too many writers are waiting")

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        """Failures of the database as `StoreUnavailable`; errors in our own statements are raised as they are."""
        try:
            yield
        except NoFreeConnection:
            raise self._unavailable("all connections are in use") from None
        except DatabaseError as error:
            if getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
                raise self._unavailable(_reason(error), "check the name, or restore a backup") from error
            if isinstance(error, OperationalError | InternalError) or type(error) is DatabaseError:
                raise self._unavailable(_reason(error)) from error
            raise
        except InterfaceError as error:
            raise self._unavailable(_reason(error)) from error

    def _unavailable(self, reason: str, remedy: str = "try again soon") -> StoreUnavailable:
        return StoreUnavailable(f"the database is not available ({reason})", where=self.where, remedy=remedy)


def file_url(file: Path) -> str:
    """The address of a store in a file, whatever its name."""
    return URL.create("sqlite", database=str(file.absolute())).render_as_string()


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        kind = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise SettingsError("the store's address cannot be read", remedy=KNOWN) from None
    if kind == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            raise SettingsError("a database in memory forgets everything", where=url, remedy=KNOWN)
        return parsed
    if kind == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    raise SettingsError(f"the store cannot be kept in '{kind}'", remedy=KNOWN)


def _touch(file: Path) -> None:
    """Create the file if it is missing, readable by its owner alone; connections never create it."""
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
        sync_folder(file.parent)  # the name is durable before the first rating is
    except OSError as error:
        raise PamlError(
            f"the store cannot be opened ({error.strerror})", where=file, remedy="check folder and permissions"
        ) from None


class _Connection(sqlite3.Connection):
    """A connection that knows which file it was opened for: if the file was replaced meanwhile, it is not used."""

    file: tuple[int, int] | None = None


def _sqlite(file: Path, more: tuple[str, ...]) -> Engine:
    def connect() -> _Connection:
        there = _identity(file)
        connection = sqlite3.connect(
            f"{file.as_uri()}?mode=rw",
            uri=True,
            timeout=PATIENCE,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
        )
        connection.file = there
        return connection

    engine = create_engine("sqlite://", creator=connect, **POOL)

    @event.listens_for(engine, "connect")
    def prepare(connection: _Connection, record: Any) -> None:
        for pragma in (
            *more,
            "synchronous=FULL",  # a commit is on disk when it returns
            "fullfsync=ON",  # also where the system's fsync would not reach the disk
            "foreign_keys=ON",
            "secure_delete=ON",  # what is deleted is overwritten
            "trusted_schema=OFF",
        ):
            connection.execute(f"PRAGMA {pragma}")
        record.info["file"] = connection.file

    @event.listens_for(engine, "checkout")
    def still_there(connection: sqlite3.Connection, record: Any, proxy: Any) -> None:
        if record.info["file"] is None or record.info["file"] != _identity(file):
            raise DisconnectionError  # the file was removed or replaced: a write here would be lost

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if statement := connection.get_execution_options().get("begin"):
            connection.exec_driver_sql(statement)

    return engine


def _postgres(url: URL) -> Engine:
    seconds = int(PATIENCE)
    defaults: dict[str, Any] = {"connect_timeout": seconds, "tcp_user_timeout": 1000 * seconds, "keepalives_idle": 30}
    arguments = {name: value for name, value in defaults.items() if name not in url.query}
    try:
        engine = create_engine(url, connect_args=arguments, pool_pre_ping=True, **POOL)
    except ModuleNotFoundError:
        raise SettingsError("PostgreSQL needs psycopg", remedy="install paml[postgres]") from None

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = {1000 * seconds}")
            cursor.execute(f"SET statement_timeout = {_statement_timeout()}")
            cursor.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
        connection.commit()

    return engine


@contextmanager
def _given_up(connection: Connection) -> Iterator[None]:
    """A connection whose settings are changed meanwhile is not used again if that fails before they are restored."""
    try:
        yield
    except BaseException:
        connection.invalidate()
        raise


def _statement_timeout() -> int:
    """Milliseconds; longer than for a lock, so that a lock is named as the cause."""
    return int(2000 * PATIENCE)


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _reason(error: DatabaseError | InterfaceError) -> str:
    """The driver's first line: no statement, no parameters."""
    return (str(error.orig).strip() or type(error.orig).__name__).splitlines()[0]
