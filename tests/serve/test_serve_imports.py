"""What a server loads: neither what trains nor what compares."""

import re
from pathlib import Path

import pytest

import paml
from serve.serving import Server

NOT_SERVED = (
    "paml.training.loop",
    "paml.training.train",
    "paml.experiments",
    "paml.baselines",
    "paml.analysis",
    "paml.report",
)


def test_a_server_loads_what_it_serves_with(trained: paml.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    server = Server(trained.path, tmp_path / "log", "--store", f"sqlite:///{tmp_path / 'users.sqlite'}").ready()
    with server.client() as client:
        assert client.post("/v1/recommend", json={"ratings": [{"item": "3", "value": 5}]}).status_code == 200
    assert server.stop() == 0, server.log
    found = set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", server.log, re.MULTILINE))
    assert {"paml.cli.serve", "paml.serve.server", "paml.training.run", "torch"} <= found
    assert not {name for name in found if name.startswith(NOT_SERVED)}
