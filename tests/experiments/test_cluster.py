"""Comparisons on a Dask cluster of processes on this machine: the same results as without one."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paml
from paml.errors import PamlError, SettingsError
from paml.experiments.cluster import TOKEN, Cluster, _UntilStopped, what_is_wrong

distributed = pytest.importorskip("distributed", reason="Dask's distributed is not installed")
ENTRIES = {"methods": ["melu"], "baselines": ["bias"], "variants": ["melu outer_rate=1e30"], "seeds": 2}
QUICK = {"epochs": 1, "ensemble_size": 1, "hidden": (8,), "embedding_size": 4, "item_embedding": 4}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    settings = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with distributed.LocalCluster(host="127.0.0.1", **settings) as started:
        yield started


def compare(data: paml.Dataset, out: Path, **more: Any) -> paml.Results:
    return paml.compare(data, **{**ENTRIES, **more}, out=out, settings=QUICK)


@pytest.mark.slow
def test_a_cluster_gives_the_same_results(cluster: Any, world: paml.Dataset, tmp_path: Path) -> None:
    killed = cluster.workers[0].pid
    os.kill(killed, signal.SIGKILL)  # the nanny starts another
    failed = compare(world, tmp_path / "cluster", dask=cluster.scheduler_address).failed
    assert ["the loss is" in str(cell.reason) for cell in failed] == [True, True]
    compare(world, tmp_path / "here")
    results = [(tmp_path / out / "results.json").read_bytes() for out in ("cluster", "here")]
    assert results[0] == results[1]
    assert not (tmp_path / "cluster" / TOKEN).exists()


@pytest.mark.slow
def test_clusters_that_cannot_be_used(world: paml.Dataset, tmp_path: Path, cluster: Any) -> None:
    with pytest.raises(SettingsError, match="jobs and dask are given"):
        compare(world, tmp_path / "out", dask=cluster.scheduler_address, jobs=2)
    recipe = tmp_path / "own.toml"
    recipe.write_text("epochs = 1\n")
    with pytest.raises(SettingsError, match="other machines cannot find this recipe; give its absolute path"):
        compare(world, tmp_path / "recipe", dask=cluster.scheduler_address, recipe=os.path.relpath(recipe))
    settings = {
        "n_workers": 1,
        "threads_per_worker": 2,
        "processes": False,
        "dashboard_address": ":0",
        "protocol": "tcp",
    }
    with distributed.LocalCluster(host="127.0.0.1", **settings) as threads:
        with pytest.raises(SettingsError, match="does 2 tasks at once; start more workers, each with one thread"):
            compare(world, tmp_path / "out", dask=threads.scheduler_address)
        address = threads.scheduler_address
        threads.scale(0)
        with pytest.raises(SettingsError, match="the Dask cluster has no workers; start some"):
            compare(world, tmp_path / "out", dask=address)


@pytest.mark.slow
def test_nobody_answers(world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paml.experiments.cluster.CONNECT_SECONDS", 0.5)
    with pytest.raises(SettingsError, match=r"^tcp://127.0.0.1:9: no Dask scheduler answers \(.*\); give the address"):
        compare(world, tmp_path / "out", dask="tcp://127.0.0.1:9")


@pytest.mark.parametrize("address", ["foo", "tcp://host", "nothing://host:8786", ""])
def test_what_is_no_address_is_refused_before_anything_is_tried(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed.Client", lambda *_, **__: pytest.fail("tried to connect"))
    with pytest.raises(SettingsError, match=r"no Dask scheduler answers \(.*\); give the address"):
        Cluster(address, tmp_path, [], 1).__enter__()


def test_workers_must_see_the_same_files(tmp_path: Path) -> None:
    file, other = tmp_path / TOKEN, tmp_path / "elsewhere"
    file.write_text("one")
    now = paml.__version__
    assert what_is_wrong(now, [str(file)], str(file), "one") is None
    assert what_is_wrong("0.0.1", [], str(file), "one") == f"it has paml {now}, not 0.0.1"
    assert what_is_wrong(now, [str(other)], str(file), "one") == f"it does not see {other}"
    assert what_is_wrong(now, [str(file)], str(file), "two") == f"it sees another {file}"


def test_a_task_ends_when_nobody_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paml.experiments.cluster.LOOK_SECONDS", 0.0)
    file = tmp_path / TOKEN
    file.write_text("one")
    with _UntilStopped(file, "one").step("training") as step:
        step.advance(1)
        file.write_text("two")  # another command has taken over
        with pytest.raises(PamlError, match="the command that began this was stopped"):
            step.advance(1)
        file.unlink()
        with pytest.raises(PamlError, match="the command that began this was stopped"):
            step.advance(1)
