"""Kill the service under load again and again: nothing acknowledged is lost, nothing refused or half-done is kept.

python -m benchmarks.attack.server_kills --count 100 --seed 0 --kind sqlite [--run RUN]

Clients create users, rate, remove ratings, and delete users, each its own user and one request at a time. So after a
kill a user is exactly as the last answer said, or as the one request without an answer would have left them. With
PostgreSQL, the database itself is also stopped as if it had lost its power, every fifth time.
"""

import argparse
import http.client
import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import paml
from benchmarks.attack.postgres import Postgres, postgres_cluster
from paml.serve.store.checking import check
from paml.serve.store.database import file_url

CLIENTS = 4
PATIENCE = 300.0  # seconds for a start, also on a busy machine
PLAIN = {"Content-Type": "application/json"}
State = dict[str, float] | None  # a user's ratings; None if there is no such user


@dataclass
class Server:
    """The service as a process that can be killed."""

    run: Path
    store: str
    log: Path
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    def start(self) -> None:
        """Start it, and wait until it answers."""
        code = "from paml.cli import main; main()"
        command = [sys.executable, "-c", code, "serve", str(self.run), "--store", self.store, "--port", "0"]
        before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*command, "--rate", "0", "--max-wait", "0"], stdout=log, stderr=log)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            said = self.log.read_bytes()[before:].decode()
            found = re.search(r"serving at http://\S+:(\d+)", said)
            if self.process.poll() is not None:
                raise RuntimeError(said)
            if found:
                self.port = int(found[1])
                with suppress(OSError):
                    if self.ask("GET", "/healthz")[0] == 200:
                        return
            time.sleep(0.05)
        raise TimeoutError("the service did not start")

    def kill(self) -> None:
        """End it without a chance to do anything."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def connection(self) -> http.client.HTTPConnection:
        """A client's connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """A single request."""
        with closing(self.connection()) as connection:
            return send(connection, method, path, body)


def send(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    content = None if body is None else json.dumps(body)
    connection.request(method, path, content, PLAIN if content else {})
    answer = connection.getresponse()
    text = answer.read()
    return answer.status, json.loads(text) if text else None


@dataclass
class Client:
    """One user's requests: what was acknowledged, and what the request under way would make of it."""

    name: str
    items: list[str]
    rng: random.Random
    state: State = None
    after: State = None
    acknowledged: int = 0
    refused: list[int] = field(default_factory=list)

    def work(self, server: Server, stop: threading.Event) -> None:
        """Send one request after the other until the service is gone."""
        with suppress(OSError, http.client.HTTPException), closing(server.connection()) as connection:
            while not stop.is_set():
                method, path, body, self.after = self._next()
                status, _ = send(connection, method, f"/v1/users/{self.name}{path}", body)
                if status < 300:
                    self.state = self.after
                    self.acknowledged += 1
                else:  # an outage of the database: the write may have been made, as after a kill
                    self.refused.append(status)
                    return

    def _next(self) -> tuple[str, str, Any, State]:
        if self.state is None:
            return "PUT", "", {"profile": {}}, {}
        rolled = self.rng.random()
        if self.state and rolled < 0.1:
            item = self.rng.choice(list(self.state))
            return "DELETE", f"/ratings/{item}", None, {k: v for k, v in self.state.items() if k != item}
        if rolled < 0.13:
            return "DELETE", "", None, None
        rated = {item: float(self.rng.randint(1, 5)) for item in self.rng.sample(self.items, self.rng.randint(1, 5))}
        body = {"ratings": [{"item": item, "value": value} for item, value in rated.items()]}
        return "POST", "/ratings", body, {**self.state, **rated}

    def check(self, server: Server) -> str | None:
        """What is wrong with the user after a kill; afterwards the state is what is stored."""
        status, found = server.ask("GET", f"/v1/users/{self.name}")
        stored = {rating["item"]: rating["value"] for rating in found["ratings"]} if status == 200 else None
        wrong = (
            None if stored in (self.state, self.after) else f"{self.name}: {self.state} or {self.after}, got {stored}"
        )
        self.state = self.after = stored
        return wrong


def attack(
    run: paml.Run, url: str, folder: Path, count: int, seed: int, cluster: Postgres | None
) -> tuple[int, list[str]]:
    """Kill so many times; how many writes were acknowledged, and what is wrong."""
    rng = random.Random(seed)
    items = run.predictor.catalogue.ids
    clients = [Client(f"user{k}", items, random.Random(f"{seed} {k}")) for k in range(CLIENTS)]
    server, wrong = Server(run.path, url, folder / "log"), []
    server.start()
    try:
        for nth in range(count):
            stop = threading.Event()
            threads = [threading.Thread(target=client.work, args=(server, stop)) for client in clients]
            for thread in threads:
                thread.start()
            wait_for(clients, rng.randint(1, 60))
            time.sleep(rng.uniform(0.0, 0.05))
            if cluster is not None and nth % 5 == 4:
                cluster.stop("immediate")
            server.kill()
            stop.set()
            for thread in threads:
                thread.join(PATIENCE)
            if cluster is not None and nth % 5 == 4:
                cluster.start()
            server.start()
            wrong += [f"kill {nth}: {fault}" for client in clients if (fault := client.check(server))]
    finally:
        server.kill()
    refused = {status for client in clients for status in client.refused} - ({503} if cluster else set())
    wrong += [f"refused with {status}" for status in refused]
    wrong += [f"at the end: {fault}" for fault in check(url).faults]
    return sum(client.acknowledged for client in clients), wrong


def wait_for(clients: list[Client], more: int) -> None:
    """Until so many more writes were acknowledged, however slow the machine is."""
    wanted = more + sum(client.acknowledged for client in clients)
    refused = sum(len(client.refused) for client in clients)
    until = time.monotonic() + PATIENCE
    while sum(client.acknowledged for client in clients) < wanted:
        if time.monotonic() > until or sum(len(client.refused) for client in clients) > refused:
            return
        time.sleep(0.005)


def small_run(folder: Path) -> paml.Run:
    """A model that is quick to train and to start."""
    data = paml.prepare("synthetic", out=folder / "data", users=200, items=60)
    return paml.train(data, "ridge", out=folder / "run", epochs=1, ensemble_size=1, choice_part=False)


def main(arguments: list[str] | None = None) -> int:
    """0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--run", type=Path)
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="paml-kills-")))
        run = paml.load(options.run) if options.run else small_run(folder)
        cluster = stack.enter_context(postgres_cluster()) if options.kind == "postgresql" else None
        url = cluster.new_url() if cluster else file_url(folder / "users.sqlite")
        started = time.monotonic()
        written, wrong = attack(run, url, folder, options.count, options.seed, cluster)
        seconds = time.monotonic() - started
    print(
        f"{options.kind}, seed {options.seed}: {options.count} kills in {seconds:.0f} s,"
        f" {written:,} acknowledged writes, {len(wrong)} faults"
    )
    print(*wrong[:20], sep="\n", end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
