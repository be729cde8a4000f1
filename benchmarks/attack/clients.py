"""Clients of a server on 127.0.0.1 for the attacks on the service: requests by hand, a probe, what the server uses."""

import argparse
import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import numpy as np

import paml
from benchmarks.serve import serving

MODEL = b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\n\r\n"
SOMEBODY_ELSE = "127.0.0.2"  # an address of this machine, too
LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
RETRY = re.compile(rb"(?i)\r\nretry-after: *(\d+)")


@dataclass(frozen=True)
class Answer:
    """What a client saw."""

    status: int
    seconds: float
    retry: int = 0
    """Seconds after which the server wants to be asked again."""


class Client:
    """A connection that sends one request after the other, and is opened again if the server has closed it."""

    def __init__(self, port: int, patience: float = 60.0, address: str = "127.0.0.1") -> None:
        """`address`: the client's own."""
        self._port, self._patience, self._address = port, patience, address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._reused = False

    async def ask(self, sent: bytes) -> Answer:
        """Send and read; status 0 if the connection ends, or if nothing comes in time."""
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._patience):
                head = await self._exchange(sent)
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            reused, self._reused = self._reused, False
            self.close()
            if reused:  # the server may close a connection between two requests
                return await self.ask(sent)
            return Answer(0, time.perf_counter() - started)
        self._reused = True
        retry = RETRY.search(head)
        status = int(head[9:12]) if head[9:12].isdigit() else 0
        return Answer(status, time.perf_counter() - started, int(retry[1]) if retry else 0)

    async def _exchange(self, sent: bytes) -> bytes:
        if self._streams is None:
            self._reused = False
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(self._address, 0))
        reader, writer = self._streams
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        length = LENGTH.search(head)
        if not sent.startswith(b"HEAD"):
            await reader.readexactly(int(length[1]) if length else 0)
        if b"connection: close" in head.lower():
            self.close()
        return head

    def close(self) -> None:
        """End the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@dataclass
class Waits:
    """Answers of one kind of client."""

    seconds: list[float] = field(default_factory=list)
    failures: int = 0

    def add(self, answer: Answer) -> None:
        """Count an answer; whatever is not 2xx failed."""
        if 200 <= answer.status < 300:
            self.seconds.append(answer.seconds)
        else:
            self.failures += 1

    def at(self, percentile: float) -> float:
        """Milliseconds."""
        return 1000 * float(np.percentile(self.seconds, percentile)) if self.seconds else float("nan")

    def __str__(self) -> str:
        waits = f"p50 {self.at(50):7.1f} ms   p99 {self.at(99):7.1f} ms   slowest {self.at(100):7.1f} ms"
        return f"{len(self.seconds):6d} answered, {self.failures:4d} not   {waits}"


@asynccontextmanager
async def probing(port: int, every: float = 0.1) -> AsyncIterator[Waits]:
    """Somebody at another address who asks again and again, each time on a new connection, while the block runs."""
    waits, ended = Waits(), asyncio.Event()

    async def probe() -> None:
        while not ended.is_set():
            client = Client(port, address=SOMEBODY_ELSE)
            waits.add(await client.ask(MODEL))
            client.close()
            await asyncio.sleep(every)

    task = asyncio.create_task(probe())
    try:
        yield waits
    finally:
        ended.set()
        await task


def used(port: int) -> tuple[float, float]:
    """The server's memory in MB, and its open files."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    names = ("process_resident_memory_bytes", "process_open_fds")
    memory, files = (float(re.findall(rf"^{name} (\S+)", text, re.MULTILINE)[0]) for name in names)
    return memory / 1e6, files


def parser(about: str | None) -> argparse.ArgumentParser:
    """Options that all attacks have."""
    found = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--run", type=Path, help="a trained run; without one, a small one is trained on embedded data")
    found.add_argument("--seconds", type=float, default=10.0, help="length of each part (10)")
    found.add_argument("--seed", type=int, default=1, help="of what is random (1)")
    return found


@contextmanager
def target(run: Path | None, *options: str) -> Iterator[tuple[paml.Run, int, Path]]:
    """The run, the port of a server for it, and the folder of its store."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        if run is None:
            data = paml.prepare("synthetic", out=folder / "data")
            run = paml.train(data, method="ridge", out=folder / "run", settings={"epochs": 2, "ensemble_size": 2}).path
        with serving(run, folder, *options) as server:
            yield paml.load(run), server.port, folder
