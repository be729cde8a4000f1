"""The service under load, on 127.0.0.1: requests per second and latencies by clients, next to the library alone.

The requests, each answered with the ten best of all items:
  new      POST /v1/recommend: a profile and ten ratings that nobody has seen; adapted and scored every time
  stored   GET recommendations of a stored user who is not in the cache; read, adapted and scored
  cached   GET recommendations of a stored user who is; the store is asked for the version
  rated    POST one rating (on disk when acknowledged), then GET recommendations: what the page does on every click

PAML_BENCH_RUN names a run (or `python -m benchmarks.serve RUN`); otherwise ridge is trained on a synthetic data
set of MovieLens-1M's size. PAML_BENCH_SECONDS bounds each cell. Clients and server share the machine.

With PAML_BENCH_BEFORE, the `src` of another checkout, `new` alone is sent in turn to that code, to this code and to two
workers of it, and they are compared. Both must be able to read the run, unless PAML_BENCH_BEFORE_RUN names one that the
other code has made of the same data set: then each serves its own.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
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
ROUNDS = 3  # of a comparison

Steps = list[list[bytes]]
"""What clients do: for every answer that is timed, the requests sent one after the other."""


@dataclass(frozen=True)
class Server:
    """Where it listens, and its process."""

    port: int
    process: int

    @property
    def processor(self) -> float:
        """Seconds of processor time so far, its workers included."""
        own = str(self.process)
        workers = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        lines = [Path(f"/proc/{process}/stat").read_text() for process in (own, *workers)]
        times = [line.rpartition(")")[2].split()[11:13] for line in lines]  # in user and system mode
        return sum(int(ticks) for pair in times for ticks in pair) / os.sysconf("SC_CLK_TCK")

    @property
    def counters(self) -> tuple[float, ...]:
        """Users adapted and batches so far."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            text = answer.read().decode()
        names = ("paml_batch_users_sum", "paml_batch_users_count")
        return tuple(float(found[1]) for name in names if (found := re.search(rf"^{name} (\S+)", text, re.MULTILINE)))


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

    @property
    def cost(self) -> float:
        """Milliseconds of processor time of an answer."""
        return 1000 * self.processor / len(self.milliseconds)

    def __str__(self) -> str:
        p50, p99 = np.percentile(self.milliseconds, [50, 99])
        text = f"{self.rate:6.0f} /s   p50 {p50:6.2f} ms   p99 {p99:6.2f} ms   processor {self.cost:5.2f} ms"
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


def _load(port: int, clients: int, steps: Steps) -> tuple[list[float], float]:
    async def all_clients() -> tuple[list[float], float]:
        milliseconds: list[float] = []
        started = time.perf_counter()
        shares = [iter(steps[k::clients]) for k in range(clients)]
        await asyncio.gather(*(_client(port, share, started + SECONDS, milliseconds) for share in shares))
        return milliseconds, time.perf_counter() - started

    return asyncio.run(all_clients())


def load(server: Server, clients: int, steps: Steps) -> Load:
    """Let clients, in a process of their own, send their shares of the requests, one after the other."""
    before, processor = server.counters, server.processor
    with get_context("spawn").Pool(1) as process:
        milliseconds, seconds = process.apply(_load, (server.port, clients, steps))
    processor = server.processor - processor
    users, batches = (new - old for new, old in zip(server.counters, before, strict=True))
    return Load(np.array(milliseconds), seconds, processor, users / batches if batches else 0.0)


@contextmanager
def serving(run: Path, folder: Path, *options: str, source: str | None = None) -> Iterator[Server]:
    """A server with the folder's store; `source`: of another checkout, whose code is to serve."""
    code = "from paml.cli import main; main()"
    environment = os.environ | ({"PYTHONPATH": source} if source else {})
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
    with (
        NamedTemporaryFile("r", dir=folder, prefix="log-") as log,
        subprocess.Popen([*command, *options], stderr=log, env=environment) as server,
    ):
        text = Path(log.name)
        try:
            while not (found := re.search(r"serving at http://\S+:(\d+)", text.read_text())):
                if server.poll() is not None:
                    raise RuntimeError(text.read_text())
                time.sleep(0.05)
            yield Server(int(found[1]), server.pid)
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


def body_of(person: NewUser) -> dict[str, Any]:
    """Somebody, as they are sent."""
    return {"profile": person.profile, "ratings": [vars(rating) for rating in person.ratings]}


def asked(people: list[NewUser]) -> Steps:
    """What is asked for everybody."""
    return [[request("POST", "/v1/recommend", body_of(person))] for person in people]


def measure(path: Path, folder: Path) -> None:
    """Print the table of one run."""
    run = paml.load(path)
    people = new_users(run, USERS)
    print(f"{run.settings.method}, ensemble of {len(run.predictor.members)}, {len(run.predictor.catalogue):,} items")
    alone = float(np.median(bare(run, people[:CALLS])))
    print(f"bare library, adapt + recommend(10): p50 {alone:.2f} ms")
    fill(folder, people)
    bodies = [body_of(person) for person in people]
    new = asked(people)
    reads = [[request("GET", f"/v1/users/{k}/recommendations")] for k in range(USERS)]
    rated = [
        [request("POST", f"/v1/users/{k}/ratings", {"ratings": body["ratings"][:1]}), *read]
        for k, (body, read) in enumerate(zip(bodies, reads, strict=True))
    ]
    rates = {}
    with serving(path, folder) as server:
        load(server, 1, new[:50])  # the first requests find everything cold
        for kind, steps in (("new", new * 20), ("cached", reads[:64] * 300), ("rated", rated * 5)):
            load(server, 8, steps[:64])
            for clients in CLIENTS:
                found = load(server, clients, steps)
                rates[kind, clients] = found.rate
                times = f"   {np.median(found.milliseconds) / alone:.2f} times the bare call" if clients == 1 else ""
                print(f"{kind:<7} {clients:>2} clients: {found}{times}")
    for clients in CLIENTS:
        with serving(path, folder) as server:  # a new process, in which nobody is cached
            load(server, 1, new[:50])
            print(f"stored  {clients:>2} clients: {load(server, clients, reads)}")
    with serving(path, folder, "--batch", "1") as server:
        load(server, 1, new[:50])
        single = load(server, CLIENTS[-1], new * 20)
    print(f"new     {CLIENTS[-1]:>2} clients: {single}   adapted one by one")
    gain = rates["new", CLIENTS[-1]] / single.rate
    print(f"batching: {gain:.2f} times the requests per second of one by one, {CLIENTS[-1]} clients")


def compare(path: Path, folder: Path, before: str) -> None:
    """Print what new users get from another checkout's code and from this one, and the ratios."""
    steps = asked(new_users(paml.load(path), USERS)) * 20
    own = Path(os.environ.get("PAML_BENCH_BEFORE_RUN", path))
    with ExitStack() as servers:
        started = {
            "before": servers.enter_context(serving(own, folder, source=before)),
            "now": servers.enter_context(serving(path, folder)),
            "2 workers": servers.enter_context(serving(path, folder, "--workers", "2")),
        }
        for server in started.values():
            load(server, 8, steps[:200])
        for clients in CLIENTS:
            found: dict[str, list[Load]] = {name: [] for name in started}
            for _ in range(ROUNDS):  # in turn, because the machine may do other things, too
                for name, server in started.items():
                    found[name].append(load(server, clients, steps))
            _print_ratios(clients, found)


def _print_ratios(clients: int, found: dict[str, list[Load]]) -> None:
    old = found["before"]
    for name, loads in found.items():
        rates = [new.rate / first.rate for new, first in zip(loads, old, strict=True)]
        costs = [first.cost / new.cost for new, first in zip(loads, old, strict=True)]
        tails = [np.percentile(one.milliseconds, 99) / np.median(one.milliseconds) for one in loads]
        middle = sorted(loads, key=lambda one: one.rate)[len(loads) // 2]
        print(
            f"{name:<9} {clients:>2} clients: {middle}   p99/p50 {np.median(tails):.1f}"
            f"   {np.median(rates):.2f} times as many ({min(rates):.2f} to {max(rates):.2f})"
            f"   processor 1/{np.median(costs):.2f}"
        )


def main() -> None:
    """Measure a run that is named, or one made for it."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        named = sys.argv[1] if len(sys.argv) == 2 and Path(sys.argv[1]).is_dir() else os.environ.get("PAML_BENCH_RUN")
        if not named:
            data = paml.prepare("synthetic", out=folder / "data", users=6040, items=3883, median_rows=96)
            paml.train(data, method="ridge", out=folder / "run", settings={"epochs": 1})
        run = Path(named) if named else folder / "run"
        if before := os.environ.get("PAML_BENCH_BEFORE"):
            compare(run, folder, before)
        else:
            measure(run, folder)


if __name__ == "__main__":
    main()
