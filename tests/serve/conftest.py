"""Stores for the tests: an SQLite file and a database in our own PostgreSQL, both as in production."""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from benchmarks.attack.postgres import Postgres, postgres_cluster

import paml
from paml.serve.service import Service
from paml.serve.store import database
from paml.serve.store.store import Store
from serve.serving import Server
from waiting import PATIENCE

KINDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)]
NewUrl = Callable[[], str]


@pytest.fixture(autouse=True)
def stores_are_closed() -> Iterator[None]:
    """An open store has a thread that keeps it alive; its connections would be missed in some later test."""
    yield
    assert "paml-tidy" not in {thread.name for thread in threading.enumerate()}, "a store was not closed"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    try:
        with postgres_cluster() as cluster:
            yield cluster
    except LookupError as error:
        pytest.skip(str(error))


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
    """A server that all tests share: SQLite, loopback, no key, any rate of requests, any wait."""
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
