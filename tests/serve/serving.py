"""`paml serve` as a process of its own, as people run it."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import httpx

START_SECONDS = 120


def head(method: str, path: str, length: int, *more: str) -> bytes:
    """The head of a request with a JSON body, to be sent by hand."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *more]
    return ("\r\n".join([*lines, f"Content-Length: {length}"]) + "\r\n\r\n").encode()


class Server:
    """A server process that can be stopped, killed and started again at the same port."""

    def __init__(self, run: Path, log: Path, *options: str, host: str = "127.0.0.1") -> None:
        self._run, self._log, self._options, self._host = run, log, options, host
        self._port = 0
        self._started = 0
        self.start()

    def start(self) -> None:
        self._started = self._log.stat().st_size if self._log.exists() else 0
        code = "from paml.cli import main; main()"
        command = [sys.executable, "-c", code, "serve", str(self._run), "--host", self._host]
        command += ["--port", str(self._port), *self._options]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def ready(self) -> Self:
        """Wait until it answers."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            assert self.process.poll() is None, self.log
            found = re.search(r"serving at http://\S+:(\d+)", self.log)
            if found:
                self._port = int(found[1])
                try:
                    if httpx.get(f"{self.url}/healthz", timeout=5).status_code == 200:
                        return self
                except httpx.TransportError:
                    pass  # not yet
            time.sleep(0.05)
        raise AssertionError(f"does not answer: {self.log}")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def log(self) -> str:
        """What it has written since it was started last."""
        return self._log.read_bytes()[self._started :].decode()

    def client(self, **settings: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30, **settings)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> int:
        """Ask it to end; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)
