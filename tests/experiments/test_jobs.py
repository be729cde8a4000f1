"""Comparisons on several processes: the same results as on one, also if processes die or the command is stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

import paml
from paml.analysis.environment import read_environments
from paml.analysis.plan import cell_name
from paml.analysis.results import read_results
from waiting import wait_until

QUICK = ("epochs=2", "ensemble_size=1", "hidden=8", "embedding_size=4", "item_embedding=4")
CHOICE = ("--methods", "melu,reg_paml", "--baselines", "training_mean,bias", "--variant", "melu outer_rate=1e30")


def finished(out: Path) -> set[str]:
    return {cell.name for cell in (out / "cells").glob("[!.]*")}


def workers_of(process: int) -> list[psutil.Process]:
    return [one for one in psutil.Process(process).children() if "spawn_main" in " ".join(one.cmdline())]


def is_at_work(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE  # nobody may wait for it any more


@pytest.mark.slow
def test_jobs_give_the_same_results_whoever_dies(world: paml.Dataset, tmp_path: Path) -> None:
    def start(out: str, jobs: int) -> "subprocess.Popen[str]":
        options = ["--seeds", "2", "--threads", "1", "--jobs", str(jobs), "--out", out]
        command = [sys.executable, "-m", "paml", "compare", str(world.path), *CHOICE, *options, *QUICK]
        return subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)

    together = start("together", 2)
    wait_until(lambda: finished(tmp_path / "together") or together.poll() is not None)
    workers = workers_of(together.pid)
    assert len(workers) == 2
    workers[0].send_signal(signal.SIGKILL)
    wait_until(lambda: len(finished(tmp_path / "together")) >= 4 or together.poll() is not None)  # the work goes on
    workers = workers_of(together.pid)
    os.killpg(together.pid, signal.SIGINT)  # as a terminal does: everybody gets it
    _, shown = together.communicate()
    assert together.returncode == 130
    assert f"stopped; the same command goes on: paml compare {world.path}" in shown
    assert "Traceback" not in shown
    wait_until(lambda: not any(map(is_at_work, workers)), "a worker lives on")
    assert not (tmp_path / "together" / ".lock").exists()
    assert len(finished(tmp_path / "together")) < 8
    for out, jobs in (("together", 2), ("alone", 1)):
        done = start(out, jobs)
        _, shown = done.communicate()
        assert done.returncode == 1
        assert "error: melu outer_rate=1e30 with seed 0 failed: the loss is" in shown
    assert finished(tmp_path / "together") == finished(tmp_path / "alone")
    assert cell_name("melu", 1) in finished(tmp_path / "alone")
    results = [(tmp_path / out / "results.json").read_bytes() for out in ("together", "alone")]
    assert results[0] == results[1]
    assert [cell.seed for cell in read_results(tmp_path / "together").failed] == [0, 1]


@pytest.mark.slow
def test_jobs_in_the_library(world: paml.Dataset, tmp_path: Path) -> None:
    def compare(out: str, **more: int) -> paml.Results:
        return paml.compare(world, [], 1, baselines=["training_mean", "bias"], out=tmp_path / out, **more)

    together, alone = compare("together", jobs=3), compare("alone")
    assert [together.mean(name) for name in ("training_mean", "bias")] == [
        alone.mean("training_mean"),
        alone.mean("bias"),
    ]
    assert {one.threads for one in read_environments(tmp_path / "together")} == {1}
    assert not workers_of(os.getpid())
    assert torch.get_num_threads() == 1
