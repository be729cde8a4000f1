"""Comparisons on several processes: the same results as on one, also if processes die or the command is stopped."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import paml
from paml.analysis.environment import read_environments
from paml.analysis.plan import Entry, Plan, cell_folder
from paml.errors import PamlError
from paml.experiments import grid
from paml.experiments.grid import CellTimes, _next
from paml.files import new_folder
from paml.locks import NAME as LOCK, hold
from paml.progress import SILENT
from waiting import wait_until

SETTINGS = {"epochs": 2, "ensemble_size": 1, "hidden": "8", "embedding_size": 4, "item_embedding": 4}
VARIANT = "melu outer_rate=1e30"
ENTRIES = {"methods": ["melu", "reg_paml"], "baselines": ["training_mean", "bias"], "variants": [VARIANT], "seeds": 2}
OPTIONS = ("--methods", "melu,reg_paml", "--baselines", "training_mean,bias", "--variant", VARIANT, "--seeds", "2")


def finished(out: Path) -> set[str]:
    return {cell.name for cell in (out / "cells").glob("[!.]*")}


def workers_of(process: int) -> list[psutil.Process]:
    return [one for one in psutil.Process(process).children() if "spawn_main" in " ".join(one.cmdline())]


def is_at_work(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE  # nobody may wait for it any more


def test_the_longest_cells_of_a_seed_come_first() -> None:
    """Seed by seed; whatever was not fitted yet is taken as it comes."""
    quick, slow, new = (Entry(name=name, label=name, kind="method", method=name) for name in ("quick", "slow", "new"))
    times, waiting = CellTimes(), [(one, seed) for seed in (0, 1) for one in (new, quick, slow)]
    assert _next(waiting, times) == (new, 0)
    times.add(quick, 2.0)
    times.add(slow, 30.0)
    assert _next(waiting, times) == (slow, 0)
    assert _next([(quick, 1), (new, 1), (slow, 2)], times) == (quick, 1)


def test_a_cell_that_somebody_else_finished_is_finished(
    world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was given up may go on, and end first."""
    cell = cell_folder(tmp_path, "bias", 0)
    plan, entry = Plan.model_construct(), Entry(name="bias", label="bias", kind="baseline")

    def run(*_: object) -> None:
        with new_folder(cell):
            (tmp_path / "ran").touch()

    def overtaken(*_: object) -> None:
        run()
        run()

    monkeypatch.setattr(grid, "run_cell", overtaken)
    grid.run_cell_of(world.path, tmp_path, plan, entry, 0, SILENT)
    assert cell.exists()
    cell.rmdir()
    monkeypatch.setattr(grid, "run_cell", lambda *_: raised(PamlError("already exists")))
    with pytest.raises(PamlError):
        grid.run_cell_of(world.path, tmp_path, plan, entry, 0, SILENT)


def raised(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_network_that_does_not_fit_is_one_failure(world: paml.Dataset, tmp_path: Path, jobs: int) -> None:
    """So is a run that another process is training; the other cells go on."""
    large, out = "melu item_embedding=1000000000000", tmp_path / "out"
    settings = {name: value for name, value in SETTINGS.items() if name != "item_embedding"}
    common = {"out": out, "baselines": ["bias"], "seeds": 1, "jobs": jobs, "settings": settings}
    paml.compare(world, methods=["melu"], **common)
    run = out / "runs" / "reg_paml@0"
    run.mkdir(parents=True)
    with hold(run / LOCK, run, "training in it"):
        paml.compare(world, methods=["reg_paml"], variants=[large], **common)
    assert {cell.name for cell in (out / "cells").glob("[!.]*")} == {"melu@0", "bias@0"}
    failures = json.loads((out / "failures.json").read_text())
    assert [one["method"] for one in failures] == ["reg_paml", large]
    assert "is in use" in failures[0]["reason"]
    assert "cannot be built" in failures[1]["reason"]
    found = paml.compare(world, methods=["reg_paml"], **common)  # what has only failed is not tried for ever
    assert [entry.name for entry in found.plan.entries if entry.learned] == ["melu", "reg_paml"]
    assert not found.failed


@pytest.mark.slow
def test_jobs_give_the_same_results_whoever_dies(world: paml.Dataset, tmp_path: Path) -> None:
    settings = [f"{name}={value}" for name, value in SETTINGS.items()]
    command = [sys.executable, "-m", "paml", "compare", str(world.path), *OPTIONS, "--out", "together", "--jobs", "2"]
    together = subprocess.Popen(
        [*command, *settings], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_until(lambda: finished(tmp_path / "together") or together.poll() is not None)
    workers = workers_of(together.pid)
    assert len(workers) == 2
    workers[0].send_signal(signal.SIGKILL)
    wait_until(lambda: len(finished(tmp_path / "together")) >= 3 or together.poll() is not None)  # the work goes on
    workers = workers_of(together.pid)
    os.killpg(together.pid, signal.SIGINT)  # as a terminal does: everybody gets it
    _, shown = together.communicate()
    assert together.returncode == 130
    assert f"stopped; the same command goes on: paml compare {world.path}" in shown
    assert "Traceback" not in shown
    wait_until(lambda: not any(map(is_at_work, workers)), "a worker lives on")
    assert not (tmp_path / "together" / ".lock").exists()
    for out, jobs in (("together", 2), ("alone", 1)):
        compared = paml.compare(world, **ENTRIES, out=tmp_path / out, jobs=jobs, settings=SETTINGS)
        assert [cell.seed for cell in compared.failed] == [0, 1]
        assert "the loss is" in str(compared.failed[0].reason)
    assert not workers_of(os.getpid())
    assert finished(tmp_path / "together") == finished(tmp_path / "alone")
    assert len(finished(tmp_path / "alone")) == 8
    results = [(tmp_path / out / "results.json").read_bytes() for out in ("together", "alone")]
    assert results[0] == results[1]
    assert {one.threads for one in read_environments(tmp_path / "together")} == {1}
