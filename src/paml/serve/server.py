"""The service as a process: binds the address, refuses what would be unsafe, serves until it is told to stop."""

import ipaddress
import logging
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path

import torch
import uvicorn

from paml.errors import FormatError, PamlError, SettingsError
from paml.serve.limits import Limits
from paml.serve.middleware import LOOPBACK, Guard
from paml.serve.routes import create_app
from paml.serve.service import Service
from paml.serve.store.database import file_url
from paml.serve.store.store import Store
from paml.training.run import Run

GRACE_SECONDS = 10  # for requests under way when the service is told to stop
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


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


def open_store(run: Path, url: str | None) -> Store:
    """Where users are kept: the given database, or a file in the run's folder."""
    if url is None and not run.is_dir():
        raise FormatError("no such run", where=run, remedy="give a folder made by 'paml train'")
    return Store.open(url or file_url(run / "users.sqlite"))


def serve(path: Path, options: Options) -> None:
    """Serve a run until SIGINT or SIGTERM; requests under way are answered first."""
    if options.threads:
        torch.set_num_threads(options.threads)
    listening = bind(options.address)
    try:
        run = Run.load(path)
        service = Service(run.predictor, open_store(path, options.store), options.batch)
        _run(create_guarded(run, service, options), listening, options)
    finally:
        listening.close()


def create_guarded(run: Run, service: Service, options: Options) -> Guard:
    """The whole application: behind a guard that asks for a key if there is one, or if others can connect."""
    address = options.address
    with_key = service.has_keys()
    if not address.is_loopback and not with_key:
        raise SettingsError(
            f"{address.host} can be reached from elsewhere, and the store has no key to ask for",
            remedy="make a key first",
            argument="new_key",
        )
    names = {*LOOPBACK, address.host.lower(), *(name.lower() for name in address.names)}
    return Guard(
        create_app(run, service),
        service.metrics,
        options.limits,
        names if address.is_loopback else None,
        service.key_name if with_key else None,
    )


def bind(address: Address) -> socket.socket:
    """A listening socket; made before the model is loaded, so that a port in use is reported at once."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY; without, answers wait 40 ms for a delayed acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address.host, address.port))
        listening.listen(1024)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or str(error)
        what, remedy = f"cannot listen there ({reason})", "choose another port or host"
        raise PamlError(what, where=address.url, remedy=remedy, argument="port") from None
    return listening


def _run(app: Guard, listening: socket.socket, options: Options) -> None:
    logging.basicConfig(level=options.log_level.upper(), format=LOG_FORMAT, force=True)
    host, port = listening.getsockname()[:2]
    logging.getLogger("paml").info("serving at %s", Address(host, port).url)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )
    # uvicorn raises the signal again after it has stopped; by then it has been obeyed.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda number, frame: None)
    server.run(sockets=[listening])
