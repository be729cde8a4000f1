"""The service as a process: binds the address, refuses what would be unsafe, serves until it is told to stop."""

import asyncio
import gc
import ipaddress
import logging
import os
import signal
import socket
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn

from paml.errors import DataError, FormatError, PamlError, SettingsError
from paml.recommend.threads import use_threads
from paml.serve.access import Access
from paml.serve.connections import Connection, Connections
from paml.serve.descriptors import room
from paml.serve.direct import Direct
from paml.serve.limits import Limits
from paml.serve.middleware import LOOPBACK, Guard
from paml.serve.routes import RECOMMEND, create_app, line_of, methods_of
from paml.serve.schemas import UNUSABLE
from paml.serve.service import Service
from paml.serve.store.database import file_url
from paml.serve.store.store import MAX_USERS, Store
from paml.serve.store.values import MAX_ITEM, shown
from paml.serve.telemetry import forget_process, share_metrics
from paml.serve.workers import supervise
from paml.terminal import printable
from paml.training.run import Run

GRACE_SECONDS = 10  # for requests under way when the service is told to stop
WAITING = 4096  # connections that may wait to be accepted; who finds no place asks again after a whole second
STORE_NAME = "users.sqlite"  # in a run's folder, where no other store is given
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

DIVIDES = sys.platform == "linux"
"""Whether the system divides connections among sockets of one port; others let them share it, but give all to one."""

log = logging.getLogger("paml")


@dataclass(frozen=True)
class Address:
    """Where to listen, and which host names to accept there."""

    host: str = "127.0.0.1"
    port: int = 8000
    names: tuple[str, ...] = ()
    """Host names in addition to those of the loopback address, for a proxy that passes them on."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def why_public(self) -> str | None:
        """Why others may reach the service; None if nobody can."""
        if not self.is_loopback:
            return f"{self.host} can be reached from elsewhere"
        return f"{self.names[0]} is a name for a proxy, which makes the service public" if self.names else None

    @property
    def url(self) -> str:
        """How to reach it."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclass(frozen=True)
class Options:
    """How to serve."""

    address: Address = field(default_factory=Address)
    store: str | None = None
    """The store's URL; RUN/users.sqlite if None."""
    limits: Limits = field(default_factory=Limits)
    batch: int = 32
    threads: int = 1
    """For the model's products; 0 for one per core. They are small: a second thread mostly waits for the first."""
    log_level: str = "info"
    max_users: int = MAX_USERS
    """How many users the store may hold; 0 for any number."""
    drain: float = 1.0
    """Seconds, after the service was told to stop, in which it goes on but asks everybody to leave."""
    workers: int = 1
    """Processes that serve."""


def open_store(run: Path, url: str | None, max_users: int = MAX_USERS, *, create: bool = True) -> Store:
    """Where users are kept: the given database, or a file in the run's folder, which is made if there is none."""
    if url is None and not run.is_dir():
        raise FormatError("no such run", where=run, remedy="give a folder made by 'paml train'")
    return Store.open(url or file_url(run / STORE_NAME), max_users=max_users, create=create)


def say_where(store: Store, *, chosen: bool) -> None:
    """Log where users are kept; a new run's own store is empty, and that surprises those who had users before."""
    count = store.count()
    log.info("%s users in %s", f"{count:,}", printable(store.where))
    if not chosen and not count:
        log.warning(
            "the store in this run's folder has no users yet; to go on with those of another run, name its store, %s",
            f"sqlite:///OTHER-RUN/{STORE_NAME}",
        )


def serve(path: Path, options: Options) -> None:
    """Serve a run until SIGINT or SIGTERM; requests under way are answered first."""
    use_threads(1 if options.workers > 1 else options.threads)  # several are forked first (workers.py)
    logging.basicConfig(level=options.log_level.upper(), format=LOG_FORMAT, force=True)
    listening = bind(options.address, divided=options.workers > 1 and DIVIDES)
    try:
        run = Run.load(path)
        service, guarded = _opened(run, options)
        say_where(service.store, chosen=options.store is not None)
        gc.collect()
        gc.freeze()  # the collector would look through the whole model, and write into memory that workers share
        if options.workers == 1:
            _run(guarded, service, listening, options)
        else:
            service.close()  # whatever prevents serving was said: each worker has its own
            _run_together(run, listening, options)
    finally:
        listening.close()


def _run_together(run: Run, listening: socket.socket, options: Options) -> None:
    """Serve with several processes."""
    with TemporaryDirectory(prefix="paml-metrics-") as folder:

        def work() -> None:
            use_threads(options.threads or os.cpu_count() or 1)
            share_metrics(folder)
            service, guarded = _opened(run, options)
            own = _listening_too(listening) if DIVIDES else listening
            _run(guarded, service, own, options)

        supervise(options.workers, work, partial(forget_process, folder))


def _opened(run: Run, options: Options) -> tuple[Service, Guard]:
    """The service and the application; the store is open."""
    store = open_store(run.path, options.store, options.max_users)
    service = Service(run.predictor, store, options.batch, options.limits.max_wait)
    try:
        guarded = create_guarded(run, service, options)
    except BaseException:
        service.close()
        raise
    return service, guarded


def create_guarded(run: Run, service: Service, options: Options) -> Guard:
    """The whole application: behind a guard that asks for a key if there ever was one, or if others can connect."""
    check_items(run)
    address = options.address
    always = address.why_public is not None or service.needs_key()
    if always and not service.has_valid_key():
        raise SettingsError(
            f"{address.why_public or 'the store has had keys'}, and the store has no valid key: nobody could get in",
            remedy="make a key first",
            argument="new_key",
        )
    names = {*LOOPBACK, address.host.lower(), *(name.lower() for name in address.names)}
    app = create_app(run, service)
    return Guard(
        Direct(app, RECOMMEND),
        service.metrics,
        options.limits,
        names if address.is_loopback else None,
        Access(service, always=always),
        methods_of(app),
        line_of(service),
    )


def check_items(run: Run) -> None:
    """Refuse a run with an item that would be recommended and asked about, and that no request could name."""
    for item in run.predictor.catalogue.ids:
        if 0 < len(item) <= MAX_ITEM and not UNUSABLE.search(item):
            continue
        raise DataError(
            f"no request can name the item {shown(printable(item))}",
            where=run.path,
            remedy=f"give all items ids of 1 to {MAX_ITEM} characters without control characters, and train again",
        )


def bind(address: Address, *, divided: bool = False) -> socket.socket:
    """A listening socket; made before the model is loaded, so that a port in use is reported at once.

    With `divided`, it only holds the port, for sockets among which the system divides connections.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = _new_socket(family)
    try:
        listening.bind((address.host, address.port))
        listening.listen(WAITING)  # fails if somebody else listens, also one who would share the port
        if divided:
            found = listening.getsockname()
            listening.close()
            listening = _new_socket(family, divided=True)
            listening.bind(found)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or str(error)
        what, remedy = f"cannot listen there ({reason})", "choose another port or host"
        raise PamlError(what, where=address.url, remedy=remedy, argument="port") from None
    return listening


def _listening_too(bound: socket.socket) -> socket.socket:
    """A worker's own listening socket: with one for all, whoever is first takes most of the connections."""
    own = _new_socket(bound.family, divided=True)
    own.bind(bound.getsockname())
    own.listen(WAITING)
    return own


def _new_socket(family: int, *, divided: bool = False) -> socket.socket:
    # With the protocol named, asyncio sets TCP_NODELAY; without, answers wait 40 ms for a delayed acknowledgement.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if divided:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return made


def _run(app: Guard, service: Service, listening: socket.socket, options: Options) -> None:
    host, port = listening.getsockname()[:2]
    log.info("serving at %s", Address(host, port).url)
    space = room()
    connections = Connections(space.connections, options.limits.connections, service.metrics)
    http: Any = partial(Connection, connections)  # uvicorn calls it like a class
    config = uvicorn.Config(
        app,
        http=http,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=space.at_once,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    # uvicorn raises the signal again after it has stopped; by then it has been obeyed.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda number, frame: None)
    _Server(config, app, options.drain).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Told to stop, it first lets everybody leave: answers close their connections, and /readyz says no."""

    def __init__(self, config: uvicorn.Config, app: Guard, drain: float) -> None:
        super().__init__(config)
        self._app, self._drain = app, drain

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; asyncio has one number for how many may wait and how many are accepted in one turn."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(WAITING)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Go on for a moment, then stop listening and answer what is under way."""
        self._app.stopping = True
        loop = asyncio.get_running_loop()
        until = loop.time() + self._drain
        while loop.time() < until and not self.force_exit:
            await self.on_tick(0)  # the answers' date
            await asyncio.sleep(min(0.1, self._drain))
        await super().shutdown(sockets)
