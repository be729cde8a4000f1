"""Stores for the tests: an SQLite file and a database in our own PostgreSQL, both as in production."""

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

import paml
from paml.serve.service import Service
from paml.serve.store import database
from paml.serve.store.store import Store
from serve.serving import Server, free_port
from waiting import PATIENCE

KINDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)]
NewUrl = Callable[[], str]


class Postgres:
    """A PostgreSQL cluster in a temporary folder, on a free port of the loopback address."""

    def __init__(self, folder: Path) -> None:
        self.programs = _programs()
        self.user = _owner()
        self.folder = folder
        self.port = free_port()
        self._names = itertools.count()
        folder.mkdir(mode=0o700)
        if self.user:
            shutil.chown(folder, self.user)
        self._run("initdb", "-D", str(folder / "data"), "-U", "paml", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder} -c max_connections=60"
        log = str(self.folder / "log")
        self._run(
            "pg_ctl", "-D", str(self.folder / "data"), "-w", "-t", f"{PATIENCE:g}", "-l", log, "-o", options, "start"
        )

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-t", f"{PATIENCE:g}", "-m", mode, "stop")

    def new_url(self) -> str:
        """An empty schema: as good as its own database, and quick to create."""
        name = f"store{next(self._names)}"
        with psycopg.connect(host="127.0.0.1", port=self.port, user="paml", dbname="postgres") as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"postgresql+psycopg://paml@127.0.0.1:{self.port}/postgres?options=-csearch_path%3D{name}"

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), *arguments]
        if self.user:  # PostgreSQL refuses to run as root
            command = ["runuser", "-u", self.user, "--", *command]
        # The server inherits the output: a pipe would stay open for as long as it runs.
        with (self.folder.parent / "postgres.out").open("ab") as out:
            subprocess.run(command, check=True, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd="/")


def _programs() -> Path:
    found = shutil.which("initdb")
    candidates = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not candidates:
        pytest.skip("PostgreSQL is not installed: no initdb on the PATH or under /usr/lib/postgresql")
    return candidates[-1]


def _owner() -> str | None:
    if os.geteuid() != 0:
        return None
    if not shutil.which("runuser"):
        pytest.skip("PostgreSQL refuses to run as root, and there is no runuser to run it as somebody else")
    names = {entry.pw_name for entry in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in names:
            return name
    pytest.skip("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with tempfile.TemporaryDirectory(prefix="paml-pg-") as parent:  # short: the path of a socket has a limit
        Path(parent).chmod(0o755)
        cluster = Postgres(Path(parent) / "cluster")
        yield cluster
        cluster.stop("immediate")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> NewUrl:
    """Makes addresses of empty databases."""
    if kind == "postgresql":
        cluster: Postgres = request.getfixturevalue("postgres")
        return cluster.new_url
    numbers = itertools.count()
    return lambda: f"sqlite:///{tmp_path}/store{next(numbers)}.db"


@pytest.fixture
def url(new_url: NewUrl) -> str:
    return new_url()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that wait as long as a test does: on a busy machine a queue of writers is slow, and that is no fault."""
    monkeypatch.setattr(database, "PATIENCE", PATIENCE)
    monkeypatch.setitem(database.POOL, "pool_timeout", PATIENCE)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store.open(url)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def trained(run: paml.Run) -> paml.Run:
    """A small run on the embedded data, as its files have it."""
    return paml.Run.load(run.path)


@pytest.fixture(scope="session")
def server(trained: paml.Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests share: SQLite, loopback, no key, any rate of requests."""
    folder = tmp_path_factory.mktemp("server")
    url = f"sqlite:///{folder / 'users.sqlite'}"
    options = "--store", url, "--rate", "0", "--log-level", "debug", "--port", "0"
    started = Server(trained.path, folder / "log", *options)
    yield started.ready()
    assert started.stop() == 0, started.log


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as opened:
        yield opened


@pytest.fixture
def service(trained: paml.Run, tmp_path: Path) -> Iterator[Service]:
    """The service without HTTP."""
    opened = Service(trained.predictor, Store.open(f"sqlite:///{tmp_path / 'users.sqlite'}"))
    yield opened
    opened.close()
