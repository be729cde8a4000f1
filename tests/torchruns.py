"""Trainings by torchrun, on this machine or on two: namespaces of the network are machines to whoever is in them."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class Machine(NamedTuple):
    """Where a node runs: what its command begins with, its address, and the device that has the address."""

    prefix: tuple[str, ...]
    address: str
    device: str


HERE = Machine((), "127.0.0.1", "lo")


def torchrun(
    *arguments: object, ranks: int = 2, restarts: int = 0, nodes: Sequence[Machine] = (HERE,)
) -> list[subprocess.Popen[str]]:
    """Start a training with so many ranks on every node; nodes meet at the first."""
    where: list[str] = ["--standalone"]
    own: list[list[str]] = [[]]
    if len(nodes) > 1:
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{nodes[0].address}:{_free_port()}"]
        where = ["--nnodes", str(len(nodes)), *meeting, "--rdzv-id", "run"]
        own = [["--rdzv-conf", f"is_host={int(k == 0)}"] for k in range(len(nodes))]
    where += ["--nproc-per-node", str(ranks), "--max-restarts", str(restarts)]
    common = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", *where]
    return [
        subprocess.Popen(
            [*node.prefix, *launcher, *its_own, "--local-addr", node.address, *map(str, arguments)],
            env={**common, "GLOO_SOCKET_IFNAME": node.device},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node, its_own in zip(nodes, own, strict=True)
    ]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code and, for whoever reads a failure, what was printed."""
    output, _ = process.communicate()
    return process.returncode, output[-3000:]


def history(run: Path) -> list[list[float]]:
    """Losses and validation values of all epochs of both parts."""
    files = [file for file in (run / "metrics.jsonl", run / "choice" / "metrics.jsonl") if file.exists()]
    epochs = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [[value for name, value in one.items() if name == "loss" or "validation" in name] for one in epochs]


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Two that see each other by a network of their own; twice this one where a namespace may not be made."""
    made = [(f"paml{os.getpid()}{k}", f"10.77.0.{k}", f"pv{os.getpid()}{k}") for k in (1, 2)]
    (first, _, one), (second, _, other) = made
    try:
        for name, _, _ in made:
            _ip("netns", "add", name)
        _ip("link", "add", one, "netns", first, "type", "veth", "peer", "name", other, "netns", second)
        for name, address, device in made:
            _ip("-n", name, "address", "add", f"{address}/24", "dev", device)
            for which in (device, "lo"):
                _ip("-n", name, "link", "set", which, "up")
        machines = [Machine(("ip", "netns", "exec", name), address, device) for name, address, device in made]
    except (OSError, subprocess.CalledProcessError):
        machines = [HERE, HERE]
    try:
        yield machines[0], machines[1]
    finally:
        for name, _, _ in made:
            if Path("/run/netns", name).exists():
                _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _free_port() -> int:
    """A port that is free here; in a namespace, all are."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
