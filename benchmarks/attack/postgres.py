"""A PostgreSQL of our own, in a temporary folder, for attacks and tests."""

import itertools
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

SECONDS = 300.0  # for a start or a stop, also on a busy machine
PORTS = range(20_000, 32_000)  # below those that a system gives to connections


@contextmanager
def postgres_cluster() -> Iterator["Postgres"]:
    """A running cluster; LookupError if PostgreSQL cannot run here."""
    with tempfile.TemporaryDirectory(prefix="paml-pg-") as parent:  # short: the path of a socket has a limit
        Path(parent).chmod(0o755)
        cluster = Postgres(Path(parent) / "cluster")
        try:
            yield cluster
        finally:
            cluster.stop("immediate")


class Postgres:
    """A PostgreSQL cluster in a temporary folder, on a free port of the loopback address."""

    def __init__(self, folder: Path) -> None:
        self.programs = _programs()
        self.user = _owner()
        self.folder = folder
        self.port = _free_port()
        self._names = itertools.count()
        folder.mkdir(mode=0o700)
        if self.user:
            shutil.chown(folder, self.user)
        self._run("initdb", "-D", str(folder / "data"), "-U", "paml", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder} -c max_connections=60"
        log = str(self.folder / "log")
        self._run(
            "pg_ctl", "-D", str(self.folder / "data"), "-w", "-t", f"{SECONDS:g}", "-l", log, "-o", options, "start"
        )

    def stop(self, mode: str = "fast") -> None:
        """Stop it; `immediate` is as if the machine lost its power, as far as a process can do that."""
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-t", f"{SECONDS:g}", "-m", mode, "stop")

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
        raise LookupError("PostgreSQL is not installed: no initdb on the PATH or under /usr/lib/postgresql")
    return candidates[-1]


def _owner() -> str | None:
    if os.geteuid() != 0:
        return None
    if not shutil.which("runuser"):
        raise LookupError("PostgreSQL refuses to run as root, and there is no runuser to run it as somebody else")
    names = {entry.pw_name for entry in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in names:
            return name
    raise LookupError("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")


def _free_port() -> int:
    """A port that stays ours while the server is down: nobody is given it by chance."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", secrets.choice(PORTS)))
            return int(probe.getsockname()[1])
