"""Trouble under load: the process is killed, the database goes away, the disk is full; nothing acknowledged is lost."""

import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

import paml
from serve.serving import Server
from waiting import PATIENCE, wait_until

WRITERS = 4
pytestmark = pytest.mark.slow


@dataclass
class Writer:
    """Writes one rating after the other, and keeps what was acknowledged and what was refused."""

    name: str
    items: list[str]
    acknowledged: dict[str, float] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    refusals: list[httpx.Response] = field(default_factory=list)

    def write(self, url: str, stop: threading.Event) -> None:
        k = 0
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            while not stop.is_set():
                item, value = self.items[k % len(self.items)], float(1 + (k + k // len(self.items)) % 5)
                k += 1
                self.sent[item] = value
                try:
                    answer = client.post(
                        f"/v1/users/{self.name}/ratings", json={"ratings": [{"item": item, "value": value}]}
                    )
                except httpx.TransportError:
                    return  # the server is gone
                self.statuses.append(answer.status_code)
                if answer.status_code == 200:
                    self.acknowledged[item] = value
                    del self.sent[item]
                else:
                    self.refusals.append(answer)
                    del self.sent[item]
                    time.sleep(0.02)


@contextmanager
def writing(server: Server, items: list[str], prefix: str) -> Iterator[list[Writer]]:
    writers = [Writer(f"{prefix}-{k}", items) for k in range(WRITERS)]
    with server.client() as client:
        for writer in writers:
            assert client.put(f"/v1/users/{writer.name}", json={"profile": {}}).status_code == 201
    stop = threading.Event()
    threads = [threading.Thread(target=writer.write, args=(server.url, stop)) for writer in writers]
    for thread in threads:
        thread.start()
    try:
        yield writers
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)


def check_nothing_is_lost(server: Server, writers: list[Writer]) -> None:
    with server.client() as client:
        for writer in writers:
            stored = {r["item"]: r["value"] for r in client.get(f"/v1/users/{writer.name}").json()["ratings"]}
            for item, value in writer.acknowledged.items():
                # A rating that was sent, but not answered when the process died, may have been stored.
                assert stored.get(item) in (value, writer.sent.get(item, value))


def refused_then_served(server: Server, writers: list[Writer], readable: int, back: Callable[[], object]) -> None:
    """Wait until writes are refused as they should be, bring the database back, and wait until they are served."""
    wait_until(lambda: all(writer.refusals for writer in writers))
    with server.client() as client:
        assert client.get("/healthz").status_code == 200, "the process is well"
        assert client.get("/readyz").status_code == 503, "what cannot write is not ready"
        assert client.get(f"/v1/users/{writers[0].name}/recommendations").status_code == readable
        assert client.post("/v1/recommend", json={}).status_code == 200, "what needs no store is served"
    back()
    before = [len(writer.statuses) for writer in writers]
    wait_until(lambda: all(200 in writer.statuses[start:] for writer, start in zip(writers, before, strict=True)))
    for answer in (answer for writer in writers for answer in writer.refusals):
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "urn:paml:store-unavailable"


def test_killed_and_cut_off_under_load(
    kind: str, url: str, trained: paml.Run, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = Server(trained.path, tmp_path / "log", "--store", url, "--rate", "0").ready()
    items = trained.predictor.catalogue.ids
    try:
        with writing(server, items, "killed") as writers:
            wait_until(lambda: all(len(writer.acknowledged) > 5 for writer in writers))
            server.kill()
        server.start()
        server.ready()
        check_nothing_is_lost(server, writers)
        assert not [answer.text for writer in writers for answer in writer.refusals]
        if kind == "postgresql":
            database = request.getfixturevalue("postgres")
            with writing(server, items, "lost") as writers:
                wait_until(lambda: all(writer.acknowledged for writer in writers))
                database.stop("immediate")  # as if the machine lost its power
                refused_then_served(server, writers, 503, database.start)
            check_nothing_is_lost(server, writers)
    finally:
        server.kill()


def test_a_full_disk_under_load(server: Server, trained: paml.Run) -> None:
    pid = server.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    with writing(server, trained.predictor.catalogue.ids, "full") as writers:
        wait_until(lambda: all(writer.acknowledged for writer in writers))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, limits[1]))  # no file can grow
        refused_then_served(server, writers, 200, lambda: resource.prlimit(pid, resource.RLIMIT_FSIZE, limits))
    check_nothing_is_lost(server, writers)
