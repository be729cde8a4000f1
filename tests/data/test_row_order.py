"""Large logs are sorted some users at a time: the data set is the same as that of a log that is sorted at once."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import paml
from paml.data import row_order
from paml.data.resplit import resplit
from paml.data.row_order import part_ends

SCHEMA: dict[str, Any] = {
    "target": {"kind": "rating", "low": 1, "high": 5},
    "interactions": {"user": "user", "item": "item", "target": "rating", "time": "time", "context": {}},
    "items": {"key": "item", "fields": {"mean": {"kind": "numeric", "derived": "rate"}}},
}
CONTEXT = {"place": "categorical", "tags": "multi", "hour": "numeric"}


def tables() -> dict[str, pl.DataFrame]:
    """A log in no order, with ratings that are repeated, and fields of every kind."""
    rng, size = np.random.default_rng(0), 3000
    log = pl.DataFrame(
        {
            "user": rng.integers(0, 150, size).astype(str),
            "item": rng.integers(0, 60, size).astype(str),
            "rating": rng.integers(1, 6, size),
            "time": 10**9 + rng.integers(0, 10**8, size),
            "place": rng.choice(["home", "road", "work"], size),
            "tags": ["|".join(rng.choice(["a", "b", "c"], rng.integers(0, 3))) for _ in range(size)],
            "hour": rng.integers(0, 24, size),
        }
    )
    return {"interactions": log, "items": pl.DataFrame({"item": [str(k) for k in range(60)]})}


def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_order, "PART_ROWS", 300)
    monkeypatch.setattr(row_order, "DEALT_ROWS", 256)
    monkeypatch.setattr("paml.data.prepare.COUNTED_ROWS", 700)


@pytest.mark.parametrize(
    "protocol",
    [
        {},
        {"support_by": "time"},
        {"support_days": 100},
        {"split": "time"},
        {"new_items": 0.2},
        {"active_users": "train"},
    ],
    ids=str,
)
def test_the_parts_make_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: dict[str, Any]) -> None:
    schema = {**SCHEMA, "interactions": {**SCHEMA["interactions"], "context": CONTEXT}}
    whole = paml.prepare(**tables(), schema=schema, out=tmp_path / "whole", **protocol)
    in_parts(monkeypatch)
    parts = paml.prepare(**tables(), schema=schema, out=tmp_path / "parts [0-9]*", **protocol)
    assert whole.manifest.source.repeated
    assert parts.manifest.content == whole.manifest.content
    assert parts.fingerprint == whole.fingerprint
    assert {path.name for path in parts.path.iterdir()} == {path.name for path in whole.path.iterdir()}
    parts.verify()
    if whole.manifest.protocol.can_be_split_again:
        again = resplit(parts, 5, tmp_path / "again")
        monkeypatch.undo()
        assert resplit(whole, 5, tmp_path / "other").fingerprint == again.fingerprint


@pytest.mark.parametrize("target", ["rating", "click", "choice"])
def test_the_embedded_world_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    settings = {"users": 200, "items": 50, "target": target}
    whole = paml.prepare("synthetic", out=tmp_path / "whole", **settings)
    in_parts(monkeypatch)
    parts = paml.prepare("synthetic", out=tmp_path / "parts", **settings)
    assert parts.fingerprint == whole.fingerprint  # the best reachable loss is part of it


MANY = """
import sys
import numpy as np, paml, polars as pl

rng, size = np.random.default_rng(0), 600_000
log = pl.DataFrame({
    "user": rng.integers(0, 6_000, size),
    "item": rng.integers(0, 300, size),
    "rating": rng.integers(1, 6, size),
    "time": 10**9 + 86_400 * rng.integers(0, 1_000, size),
})
schema = {"target": {"kind": "rating", "low": 1, "high": 5},
          "interactions": {"user": "user", "item": "item", "target": "rating", "time": "time"}}
print(paml.prepare(interactions=log, schema=schema, out=sys.argv[1], split="time").fingerprint)
"""


@pytest.mark.slow
def test_the_order_of_a_parallel_join_does_not_matter(tmp_path: Path) -> None:
    """A log of many blocks is cut at dates, with days as times: the same rows, in the same order, by any threads."""

    def fingerprint(run: int, threads: int) -> str:
        command = [sys.executable, "-c", MANY, str(tmp_path / str(run))]
        environment = {**os.environ, "POLARS_MAX_THREADS": str(threads)}
        return subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout

    assert len({fingerprint(*run) for run in enumerate((1, 2, 2, 4))}) == 1


def test_parts_hold_whole_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_order, "PART_ROWS", 10)
    assert part_ends(np.array([4, 5, 6, 2, 40, 1, 1])).tolist() == [2, 4, 7]
    assert part_ends(np.array([40, 1])).tolist() == [1, 2]
    assert part_ends(np.array([3, 3])).tolist() == [2]
