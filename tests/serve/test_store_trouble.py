"""Trouble under the store: full disks, lost and locked databases, killed processes; nothing acknowledged is lost."""

import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Self

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import OperationalError

from paml.errors import StoreUnavailable
from paml.recommend.requests import Rating
from paml.serve.store import database
from paml.serve.store.store import Store
from serve.conftest import NewUrl, Postgres
from waiting import PATIENCE, wait_until

Values = dict[str, float]


def values_of(store: Store, user: str) -> Values:
    found = store.user(user)
    assert found is not None
    return {rating.item: rating.value for rating in found.ratings}


def write_until_it_fails(store: Store, max_ratings: int = 20_000) -> Values:
    """What was acknowledged before the first failure."""
    acknowledged = {}
    for number in range(max_ratings):
        item = f"{number}-{'x' * 300}"
        try:
            store.add_ratings("ann", [Rating(item, number)])
        except StoreUnavailable:
            return acknowledged
        acknowledged[item] = float(number)
    raise AssertionError("no failure")


def every_call_is_refused(store: Store) -> None:
    calls: list[Callable[[], object]] = [
        store.ping,
        lambda: store.user("ann"),
        lambda: store.version("ann"),
        lambda: store.put_user("bob", {}),
        lambda: store.add_ratings("ann", [Rating("lost", 1)]),
        lambda: store.remove_rating("ann", "a"),
        lambda: store.delete_user("ann"),
        lambda: store.check_key("x"),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable, match=r"is not available \(.+\); (try again|check the name)"):
            call()


@contextmanager
def short_files(limit: int) -> Iterator[None]:
    """No file of this process may grow beyond the limit: what it writes there fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_cannot_grow_and_then_can(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/s.db", max_ratings=100_000)
    store.put_user("ann", {})
    with short_files(300_000):
        acknowledged = write_until_it_fails(store)
        assert values_of(store, "ann") == acknowledged  # reading goes on
    store.add_ratings("ann", [Rating("after", 1)])
    assert values_of(store, "ann") == {**acknowledged, "after": 1}
    store.close()


def test_a_full_disk_and_then_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    made = mount and subprocess.run([mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True)
    if not made or made.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        (disk / "ballast").write_bytes(bytes(1_000_000))
        store = Store.open(f"sqlite:///{disk}/s.db", max_ratings=100_000)
        store.put_user("ann", {})
        acknowledged = write_until_it_fails(store)
        assert values_of(store, "ann") == acknowledged
        with pytest.raises(StoreUnavailable, match="full"):
            store.add_ratings("ann", [Rating("more" * 100, 1)])
        (disk / "ballast").unlink()
        store.add_ratings("ann", [Rating("after", 1)])
        assert values_of(store, "ann") == {**acknowledged, "after": 1}
        store.close()
    finally:
        subprocess.run(["umount", disk], check=True)


def test_an_sqlite_file_that_is_lost_and_found(tmp_path: Path) -> None:
    file = tmp_path / "s.db"
    store = Store.open(f"sqlite:///{file}")
    store.put_user("ann", {})
    store.add_ratings("ann", [Rating("a", 1)])
    file.rename(tmp_path / "elsewhere")
    every_call_is_refused(store)
    assert not file.exists()  # an empty store in its place would be a lie
    (tmp_path / "elsewhere").rename(file)
    assert values_of(store, "ann") == {"a": 1}
    store.add_ratings("ann", [Rating("b", 2)])
    assert values_of(store, "ann") == {"a": 1, "b": 2}
    store.close()


def test_a_write_into_a_file_that_was_removed_meanwhile_is_not_acknowledged(tmp_path: Path) -> None:
    file = tmp_path / "s.db"
    store = Store.open(f"sqlite:///{file}")

    def write() -> None:
        with store._database.writing() as connection:
            connection.execute(text("UPDATE paml_counter SET value = 7"))
            file.unlink()

    with pytest.raises(StoreUnavailable, match="removed"):
        write()
    store.close()


@pytest.mark.parametrize("content", [b"", b"no database" * 1000])
def test_a_file_replaced_by_something_else(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "s.db"
    store = Store.open(f"sqlite:///{file}")
    store.put_user("ann", {})
    file.rename(tmp_path / "elsewhere")
    for beside in tmp_path.glob("s.db-*"):  # SQLite's log would repair the new file, page by page
        beside.unlink()
    file.write_bytes(content)
    every_call_is_refused(store)
    store.close()


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "s.db"
    file.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreUnavailable, match=r"\(file is not a database\); check the name, or restore a backup"):
        Store.open(f"sqlite:///{file}")
    assert file.read_bytes() == b"no database" * 1000


class Writers:
    """Threads that write, each for a user of its own, and remember what was acknowledged."""

    def __init__(self, store: Store, users: int) -> None:
        self.acknowledged: dict[str, Values] = {f"user{number}": {} for number in range(users)}
        self.refused = 0
        self._store = store
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(name,)) for name in self.acknowledged]

    def _write(self, name: str) -> None:
        self._store.put_user(name, {})
        for number in count():
            if self._stop.wait(0.002):
                return
            try:
                self._store.add_ratings(name, [Rating(str(number), number)])
            except StoreUnavailable:
                self.refused += 1
            else:
                self.acknowledged[name][str(number)] = number

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self) -> None:
        """Return when every thread has written again."""
        before = {name: len(values) for name, values in self.acknowledged.items()}
        wait_until(lambda: all(len(self.acknowledged[name]) > count for name, count in before.items()))


def test_a_postgres_that_stops_and_starts_under_load(postgres: Postgres) -> None:
    store = Store.open(postgres.new_url(), max_ratings=100_000)
    with Writers(store, users=6) as writers:
        writers.wait_for_more()
        for mode in ("fast", "immediate"):  # immediate: as if the power had failed
            postgres.stop(mode)
            every_call_is_refused(store)
            postgres.start()
            writers.wait_for_more()  # without a restart of ours
    assert writers.refused
    for name, values in writers.acknowledged.items():
        assert values_of(store, name).items() >= values.items()
    store.close()


def test_a_postgres_that_only_reads_for_a_while(postgres: Postgres) -> None:
    """What hosted databases do when their disk is full; and connections that are cut."""
    store = Store.open(postgres.new_url())
    store.put_user("ann", {})
    engine = create_engine(
        f"postgresql+psycopg://paml@127.0.0.1:{postgres.port}/postgres", isolation_level="AUTOCOMMIT"
    )
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = 'paml'"
    with engine.connect() as connection:
        connection.execute(text("ALTER ROLE paml SET default_transaction_read_only = on"))
        try:
            connection.execute(text(cut))
            with pytest.raises(StoreUnavailable, match="read-only"):
                store.add_ratings("ann", [Rating("a", 1)])
            assert values_of(store, "ann") == {}
        finally:
            connection.execute(text("SET default_transaction_read_only = off"))
            connection.execute(text("ALTER ROLE paml RESET default_transaction_read_only"))
        connection.execute(text(cut))
    engine.dispose()
    store.add_ratings("ann", [Rating("a", 1)])
    assert values_of(store, "ann") == {"a": 1}
    store.close()


def test_a_postgres_that_is_not_there(postgres: Postgres) -> None:
    for url in (
        "postgresql://paml:secret@127.0.0.1:1/x",
        f"postgresql://paml:secret@127.0.0.1:{postgres.port}/nothing",
    ):
        with pytest.raises(StoreUnavailable) as error:
            Store.open(url)
        assert "secret" not in str(error.value)


def test_a_lock_of_somebody_else(url: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waited for if it is short, `StoreUnavailable` if it is long; reading never waits."""
    store = Store.open(url)
    store.put_user("ann", {})
    store.close()
    other = create_engine(url, isolation_level="AUTOCOMMIT")
    for patience, enough in ((1, False), (60, True)):
        monkeypatch.setattr(database, "PATIENCE", patience)
        store = Store.open(url)
        with other.connect() as connection:
            connection.execute(text("BEGIN IMMEDIATE" if kind == "sqlite" else "BEGIN"))
            connection.execute(text("UPDATE paml_users SET profile = profile"))
            assert values_of(store, "ann") == {}
            if enough:
                waiting = threading.Timer(1.5, lambda connection=connection: connection.execute(text("COMMIT")))
                waiting.start()
                store.add_ratings("ann", [Rating("a", 1)])
                waiting.join()
            else:
                with pytest.raises(StoreUnavailable, match=r"lock"):
                    store.add_ratings("ann", [Rating("a", 1)])
                connection.execute(text("ROLLBACK"))
        store.close()
    other.dispose()


def test_a_long_reader_does_not_hold_up_a_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PATIENCE", PATIENCE)
    store = Store.open(f"sqlite:///{tmp_path}/s.db")
    store.put_user("ann", {})
    with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM paml_users").fetchall()
        started = time.monotonic()
        assert store.delete_user("ann")
        assert time.monotonic() - started < PATIENCE / 2
        assert store.user("ann") is None
    store.close()


@pytest.mark.slow
def test_a_killed_writer_has_lost_nothing_it_acknowledged(new_url: NewUrl, kind: str) -> None:
    url = new_url()
    writer = Path(__file__).with_name("writer.py")
    process = subprocess.Popen([sys.executable, str(writer), url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(200)]
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.readlines()
    process.stdout.close()
    process.wait()
    acknowledged = [line.split() for line in lines if line.endswith("\n")]
    assert len(acknowledged) >= 200
    store = Store.open(url, max_ratings=1_000_000)
    kept = {name: values_of(store, name) for name in "abcd"}
    for name, item, value in acknowledged:
        assert kept[name][item] == float(value)
    assert sum(map(len, kept.values())) <= len(acknowledged) + 4  # at most one in flight for each thread
    store.add_ratings("a", [Rating("after", 1)])
    store.close()
    if kind == "sqlite":
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as plain:
            assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_checkpoint_that_fails_leaves_no_impatient_connection(tmp_path: Path) -> None:
    """Writers wait for each other as before, also once the disk has recovered."""
    store = Store.open(f"sqlite:///{tmp_path / 'users.sqlite'}")
    engine, failing = store._database._engine, True

    @event.listens_for(engine, "before_cursor_execute")
    def fail(connection: object, cursor: object, statement: str, *_: object) -> None:
        if failing and "wal_checkpoint" in statement:
            raise OperationalError(statement, {}, sqlite3.OperationalError("disk I/O error"))

    assert store._database.tidy() is False
    with pytest.raises(StoreUnavailable):
        store._database.clear_log()
    failing = False
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 1000 * database.PATIENCE
    assert store._database.tidy()
    store.close()
