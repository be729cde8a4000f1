"""The service under load, on 127.0.0.1: requests per second and latencies by clients, next to the library alone.

The requests, each answered with the ten best of all items:
  new      POST /v1/recommend: a profile and ten ratings that nobody has seen; adapted and scored every time
  stored   GET recommendations of a stored user who is not in the cache; read, adapted and scored
  cached   GET recommendations of a stored user who is; the store is asked for the version
  rated    POST one rating (on disk when acknowledged), then GET recommendations: what the page does on every click

PAML_BENCH_RUN names a run (or `python -m benchmarks.serve RUN`); otherwise ridge is trained on a synthetic data
set of MovieLens-1M's size. PAML_BENCH_SECONDS bounds each cell. Clients and server share the machine.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import numpy as np

import paml
from paml.recommend.requests import NewUser, Rating
from paml.recommend.threads import use_threads
from paml.serve.store.store import Store

CLIENTS = (1, 8, 32)
SECONDS = float(os.environ.get("PAML_BENCH_SECONDS", "4"))
MOST = 20_000  # requests of a cell
RATINGS, USERS, CALLS = 10, 1000, 200


@dataclass(frozen=True)
class Load:
    """What some clients measured: milliseconds of all answers, over so many seconds; and what it cost the server."""

    milliseconds: np.ndarray
    seconds: float
    processor: float
    """Seconds of processor time of the server."""
    together: float
    """Users adapted together, on average."""

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.milliseconds) / self.seconds

    def __str__(self) -> str:
        p50, p99 = np.percentile(self.milliseconds, [50, 99])
        cost = 1000 * self.processor / len(self.milliseconds)
        text = f"{self.rate:6.0f} /s   p50 {p50:6.2f} ms   p99 {p99:6.2f} ms   processor {cost:5.2f} ms"
        return f"{text}   batches of {self.together:4.1f}" if self.together else text


def new_users(run: paml.Run, count: int, seed: int = 0) -> list[NewUser]:
    """People with random profiles and ratings of well-known items."""
    rng = np.random.default_rng(seed)
    catalogue, target = run.predictor.catalogue, run.predictor.target
    known = np.argsort(-catalogue.ratings_I)[: len(catalogue) // 3]
    found = []
    for _ in range(count):
        profile = {field.name: str(rng.choice(field.values[:50])) for field in run.predictor.fields if field.values}
        items = rng.choice(known, RATINGS, replace=False)
        values = rng.choice(target.levels, RATINGS)
        rated = [Rating(catalogue.ids[i], float(y)) for i, y in zip(items, values, strict=True)]
        found.append(NewUser(profile, rated))
    return found


def request(method: str, path: str, body: Any = None) -> bytes:
    """A request as it is sent."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    content = json.dumps(body).encode()
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


async def _client(port: int, own: Iterator[list[bytes]], until: float, milliseconds: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for steps in own:
        started = time.perf_counter()
        if started > until or len(milliseconds) > MOST:
            break
        for step in steps:
            writer.write(step)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 20"):
                raise RuntimeError(head.decode())
            length = re.search(rb"content-length: (\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
        milliseconds.append(1000 * (time.perf_counter() - started))
    writer.close()


def _load(port: int, clients: int, steps: list[list[bytes]]) -> tuple[list[float], float]:
    async def all_clients() -> tuple[list[float], float]:
        milliseconds: list[float] = []
        started = time.perf_counter()
        shares = [iter(steps[k::clients]) for k in range(clients)]
        await asyncio.gather(*(_client(port, share, started + SECONDS, milliseconds) for share in shares))
        return milliseconds, time.perf_counter() - started

    return asyncio.run(all_clients())


def load(port: int, clients: int, steps: list[list[bytes]]) -> Load:
    """Let clients, in a process of their own, send their shares of the requests, one after the other."""
    before = counters(port)
    with get_context("spawn").Pool(1) as process:
        milliseconds, seconds = process.apply(_load, (port, clients, steps))
    processor, users, batches = (new - old for new, old in zip(counters(port), before, strict=True))
    return Load(np.array(milliseconds), seconds, processor, users / batches if batches else 0.0)


def counters(port: int) -> list[float]:
    """The server's processor time, users adapted and batches so far."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    names = ("process_cpu_seconds_total", "paml_batch_users_sum", "paml_batch_users_count")
    return [float(found[1]) for name in names if (found := re.search(rf"^{name} (\S+)", text, re.MULTILINE))]


@contextmanager
def serving(run: Path, folder: Path, *options: str) -> Iterator[int]:
    """A server process with the folder's store; its port."""
    code, log = "from paml.cli import main; main()", folder / "log"
    command = [
        sys.executable,
        "-c",
        code,
        "serve",
        str(run),
        "--port",
        "0",
        "--store",
        store_url(folder),
        "--rate",
        "0",
        "--max-wait",
        "0",
    ]
    with log.open("wb") as out, subprocess.Popen([*command, *options], stderr=out) as server:
        try:
            while not (found := re.search(r"serving at http://\S+:(\d+)", log.read_text())):
                if server.poll() is not None:
                    raise RuntimeError(log.read_text())
                time.sleep(0.05)
            yield int(found[1])
        finally:
            server.terminate()


def store_url(folder: Path) -> str:
    """The users of all servers."""
    return f"sqlite:///{folder / 'users.sqlite'}"


def bare(run: paml.Run, people: list[NewUser]) -> np.ndarray:
    """Milliseconds of the library's own adapt + recommend(10), with one thread, as the service has."""
    use_threads(1)
    predictor, milliseconds = run.predictor, []
    for person in people:
        started = time.perf_counter()
        predictor.adapt(person.profile, person.ratings).recommend(10)
        milliseconds.append(1000 * (time.perf_counter() - started))
    return np.array(milliseconds[len(people) // 10 :])


def fill(folder: Path, people: list[NewUser]) -> None:
    """Store everybody."""
    store = Store.open(store_url(folder))
    for k, person in enumerate(people):
        store.put_user(str(k), person.profile)
        store.add_ratings(str(k), person.ratings)
    store.close()


def measure(path: Path, folder: Path) -> None:
    """Print the table of one run."""
    run = paml.load(path)
    people = new_users(run, USERS)
    print(f"{run.settings.method}, ensemble of {len(run.predictor.members)}, {len(run.predictor.catalogue):,} items")
    alone = float(np.median(bare(run, people[:CALLS])))
    print(f"bare library, adapt + recommend(10): p50 {alone:.2f} ms")
    fill(folder, people)
    bodies = [{"profile": person.profile, "ratings": [vars(r) for r in person.ratings]} for person in people]
    new = [[request("POST", "/v1/recommend", body)] for body in bodies]
    reads = [[request("GET", f"/v1/users/{k}/recommendations")] for k in range(USERS)]
    rated = [
        [request("POST", f"/v1/users/{k}/ratings", {"ratings": body["ratings"][:1]}), *read]
        for k, (body, read) in enumerate(zip(bodies, reads, strict=True))
    ]
    rates = {}
    with serving(path, folder) as port:
        load(port, 1, new[:50])  # the first requests find everything cold
        for kind, steps in (("new", new * 20), ("cached", reads[:64] * 300), ("rated", rated * 5)):
            load(port, 8, steps[:64])
            for clients in CLIENTS:
                found = load(port, clients, steps)
                rates[kind, clients] = found.rate
                times = f"   {np.median(found.milliseconds) / alone:.2f} times the bare call" if clients == 1 else ""
                print(f"{kind:<7} {clients:>2} clients: {found}{times}")
    for clients in CLIENTS:
        with serving(path, folder) as port:  # a new process, in which nobody is cached
            load(port, 1, new[:50])
            print(f"stored  {clients:>2} clients: {load(port, clients, reads)}")
    with serving(path, folder, "--batch", "1") as port:
        load(port, 1, new[:50])
        single = load(port, CLIENTS[-1], new * 20)
    print(f"new     {CLIENTS[-1]:>2} clients: {single}   adapted one by one")
    gain = rates["new", CLIENTS[-1]] / single.rate
    print(f"batching: {gain:.2f} times the requests per second of one by one, {CLIENTS[-1]} clients")


def main() -> None:
    """Measure a run that is named, or one made for it."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        named = sys.argv[1] if len(sys.argv) == 2 and Path(sys.argv[1]).is_dir() else os.environ.get("PAML_BENCH_RUN")
        if not named:
            data = paml.prepare("synthetic", out=folder / "data", users=6040, items=3883, median_rows=96)
            paml.train(data, method="ridge", out=folder / "run", settings={"epochs": 1})
        measure(Path(named) if named else folder / "run", folder)


if __name__ == "__main__":
    main()
