"""`paml serve --workers 2`: one address, one store, one set of figures; a worker that dies is replaced."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

import paml
from serve.serving import Server
from waiting import PATIENCE, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here"),
]
REQUESTS = 40


@pytest.fixture
def pair(trained: paml.Run, tmp_path: Path) -> Iterator[Server]:
    store = f"sqlite:///{tmp_path / 'users.sqlite'}"
    started = Server(trained.path, tmp_path / "log", "--workers", "2", "--store", store, "--rate", "0")
    started.ready()
    wait_until(lambda: started.log.count("serving at") == 2, "a worker is missing")
    yield started
    if started.process.poll() is None:
        started.kill()


def workers(server: Server) -> list[int]:
    return [int(number) for number in re.findall(r"worker (\d+) has started", server.log)]


def has_ended(number: int) -> bool:
    """Whether a process, which is no child of ours, is no more."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def connections(number: int) -> set[str]:
    """The open TCP connections of a process."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = {f"socket:[{line[9]}]" for line in lines if line[3] == "01"}
    return established & {str(file.readlink()) for file in Path(f"/proc/{number}/fd").iterdir()}


def counted(server: Server, route: str) -> float:
    with server.client() as client:
        text = client.get("/metrics").text
    found = re.findall(rf'paml_requests_total{{.*route="{re.escape(route)}".*}} (\S+)', text)
    return sum(float(number) for number in found)


def test_workers_answer_as_one_and_the_dead_are_replaced(pair: Server, trained: paml.Run) -> None:
    first, second = workers(pair)

    def ask(k: int) -> list[str]:
        with pair.client() as client:  # a connection of its own, which any worker may take
            assert client.put(f"/v1/users/{k}", json={"profile": {}}).status_code == 201
            assert client.get("/v1/items", params={"q": "film 1"}).json()["items"]
            found = client.post("/v1/recommend", json={"ratings": [{"item": "3", "value": 5}], "n": 5}).json()
            return [entry["item"] for entry in found["items"]]

    expected = [entry.item for entry in trained.adapt({}, {"3": 5}).recommend(5)]
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(ask, range(REQUESTS))] == [expected] * REQUESTS
    # of all workers together, whichever is asked; a request is counted after its answer was sent
    wait_until(lambda: counted(pair, "/v1/recommend") == REQUESTS, "not all requests are counted")
    assert "paml_store_writable 1.0" in httpx.get(f"{pair.url}/metrics").text
    assert re.findall(r"(?m)^paml_index_candidates.*", httpx.get(f"{pair.url}/metrics").text) == [
        "paml_index_candidates 0.0"
    ]

    os.kill(first, signal.SIGKILL)
    wait_until(lambda: len(workers(pair)) == 3, "no new worker")
    assert f"worker {first} has ended (signal 9); another one is started" in pair.log
    assert ask(REQUESTS) == expected
    wait_until(lambda: counted(pair, "/v1/recommend") == REQUESTS + 1, "counts do not outlive a worker")

    third = workers(pair)[2]
    assert pair.stop() == 0, pair.log
    assert has_ended(second)
    assert has_ended(third)
    assert "Traceback" not in pair.log


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux divides connections among sockets of one port")
def test_connections_are_divided_among_workers(pair: Server) -> None:
    """By the system: with one socket for all, whoever is first would take most of those that come together."""
    with ExitStack() as clients:
        for _ in range(REQUESTS):
            assert clients.enter_context(pair.client()).get("/healthz").status_code == 200
        served = [len(connections(number)) for number in workers(pair)]
    assert sum(served) >= REQUESTS
    assert min(served) >= REQUESTS // 10  # fewer for one of them: once in fifty million runs


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux divides connections among sockets of one port")
def test_a_port_that_workers_share_is_taken(pair: Server, trained: paml.Run, tmp_path: Path) -> None:
    port, store = pair.url.rpartition(":")[2], f"sqlite:///{tmp_path / 'others.sqlite'}"
    second = Server(trained.path, tmp_path / "second", "--workers", "2", "--store", store, "--port", port)
    assert second.process.wait(60) == 1
    assert "cannot listen there" in second.log


def test_a_worker_that_is_told_to_stop_while_it_starts_just_stops(pair: Server) -> None:
    os.kill(workers(pair)[0], signal.SIGKILL)
    wait_until(lambda: len(workers(pair)) == 3, "no new worker")
    assert pair.stop() == 0, pair.log
    assert "Traceback" not in pair.log


def test_workers_end_with_the_first_process(pair: Server) -> None:
    numbers = workers(pair)
    pair.kill()
    wait_until(lambda: all(has_ended(number) for number in numbers), "workers are left behind")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{pair.url}/healthz")


def test_whatever_prevents_serving_is_said_once(trained: paml.Run, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'users.sqlite'}"
    server = Server(trained.path, tmp_path / "log", "--workers", "2", "--store", store, "--name", "public.example")
    assert server.process.wait(60) != 0
    assert server.log.count("no valid key") == 1
    assert not workers(server)


SCARCE = """
import logging, os, signal, sys, time
from paml.serve.workers import supervise

logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
fork, calls = os.fork, []

def scarce() -> int:
    calls.append(len(calls))
    if len(calls) in (3, 4):
        raise OSError(12, "Cannot allocate memory")
    return fork()

os.fork = scarce
supervise(2, signal.pause, lambda number: None)
"""


def test_a_worker_that_cannot_be_replaced_now_is_replaced_later(tmp_path: Path) -> None:
    """The other one goes on, and whoever stops the service does not wait."""

    def numbers() -> list[int]:
        return [int(line.split()[1]) for line in printed.read_text().splitlines() if line.endswith("has started")]

    printed = tmp_path / "printed"
    with printed.open("w") as out, subprocess.Popen([sys.executable, "-c", SCARCE], stdout=out) as process:
        wait_until(lambda: len(numbers()) == 2)
        os.kill(numbers()[0], signal.SIGKILL)
        wait_until(lambda: len(numbers()) == 3)
        assert psutil.pid_exists(numbers()[1])
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert printed.read_text().count("no worker can be started now (Cannot allocate memory)") == 2
    assert not any(map(psutil.pid_exists, numbers()))
