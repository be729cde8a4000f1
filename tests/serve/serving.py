"""`paml serve` as a process of its own, as people run it."""

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx

from waiting import PATIENCE, wait_until

FIXED_PORTS = range(20_000, 32_000)  # below those that a system gives to connections


def free_port() -> int:
    """A port that stays ours while a server is down: nobody is given it by chance."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", secrets.choice(FIXED_PORTS)))
            return int(probe.getsockname()[1])


def head(method: str, path: str, length: int, *more: str) -> bytes:
    """The head of a request with a JSON body, to be sent by hand."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *more]
    return ("\r\n".join([*lines, f"Content-Length: {length}"]) + "\r\n\r\n").encode()


class Server:
    """A server process that can be stopped, killed and started again at the same port."""

    def __init__(self, run: Path, log: Path, *options: str, host: str = "127.0.0.1", setup: str = "") -> None:
        """`setup` is code that is run first, such as shorter deadlines than a test would wait for."""
        self._run, self._log, self._options, self._host = run, log, options, host
        self._setup = setup
        self._port = free_port()
        self._started = 0
        self.start()

    def start(self) -> None:
        self._started = self._log.stat().st_size if self._log.exists() else 0
        code = f"{self._setup}\nfrom paml.cli import main; main()"
        command = [sys.executable, "-c", code, "serve", str(self._run), "--host", self._host]
        command += ["--port", str(self._port), "--max-wait", "0", *self._options]  # a busy machine is no fault
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def ready(self) -> Self:
        """Wait until it answers."""
        wait_until(self._answers, "no answer")
        return self

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log
        found = re.search(r"serving at http://\S+:(\d+)", self.log)
        if not found:
            return False
        self._port = int(found[1])
        with suppress(httpx.TransportError):  # not yet
            return httpx.get(f"{self.url}/healthz", timeout=PATIENCE).is_success
        return False

    def connect(self) -> socket.socket:
        """A connection to it, to write to by hand."""
        return socket.create_connection(("127.0.0.1", self._port), PATIENCE)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def log(self) -> str:
        """What it has written since it was started last."""
        return self._log.read_bytes()[self._started :].decode()

    def client(self, **settings: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE, **settings)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def stop(self) -> int:
        """Ask it to end; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)
