"""Tasks on other processes: what they return and raise arrives, and who dies is replaced."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from paml.errors import InputError, PamlError, SettingsError
from paml.experiments.workers import MAX_TRIES, Outcome, WorkerDied, Workers, check_jobs
from paml.progress import Progress
from waiting import wait_until


def facts(progress: Progress) -> tuple[int, int, str]:
    return os.getpid(), torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]


def fail(kind: str, progress: Progress) -> None:
    if kind == "ours":
        raise PamlError("it failed", where="here", remedy="do better")
    if kind == "peculiar":  # its class cannot be made from its arguments
        raise InputError("it failed", field="age", value=3, expected="a word")
    raise KeyError("missing")


def die_until(folder: Path, times: int, progress: Progress) -> int:
    """Kill this process so many times, then return how many times that was."""
    tries = len(list(folder.iterdir()))
    if tries < times:
        (folder / str(tries)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return tries


def tell(progress: Progress) -> None:
    with progress.step("telling") as step:
        step.advance(1, "half")
    time.sleep(600)


def results(workers: Workers) -> dict[Any, Outcome]:
    found: dict[Any, Outcome] = {}
    while workers.at_work:
        found |= {outcome.key: outcome for outcome in workers.ended()}
    return found


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_results_errors_and_threads(tmp_path: Path) -> None:
    with Workers(2, threads=1) as workers:
        workers.begin("a", facts)
        assert workers.is_free
        workers.begin("b", facts)
        assert not workers.is_free
        found = results(workers)
        processes = {outcome.result()[0] for outcome in found.values()}
        assert len(processes - {os.getpid()}) == 2
        assert {outcome.result()[1:] for outcome in found.values()} == {(1, "1")}
        for kind in ("ours", "peculiar"):
            workers.begin(kind, fail, kind)
        for outcome in results(workers).values():
            with pytest.raises(PamlError, match=r"^(here: it failed; do better|it failed; expected a word)$"):
                outcome.result()
        workers.begin("other", fail, "other")
        with pytest.raises(KeyError) as raised:
            results(workers)["other"].result()
        assert 'raise KeyError("missing")' in raised.value.__notes__[0]  # where it happened
        # a task whose process dies is done again, the other goes on; one that always dies is given up
        folders = [tmp_path / name for name in ("twice", "always")]
        for folder, times in zip(folders, (MAX_TRIES - 1, 99), strict=True):
            folder.mkdir()
            workers.begin(folder.name, die_until, folder, times)
        found = results(workers)
        assert found["twice"].result() == MAX_TRIES - 1
        with pytest.raises(WorkerDied, match=rf"its process died {MAX_TRIES} times \(killed by SIGKILL\)"):
            found["always"].result()
        assert len(list(folders[1].iterdir())) == MAX_TRIES
        workers.begin("note", tell)
        while not any(note for _, note in workers.at_work):
            workers.ended()
        assert workers.at_work == [("note", "half")]
        processes = {worker.process.pid for worker in workers._workers}
    assert not any(map(is_alive, processes))  # also the one that would have slept on


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    program = (
        "import sys, test_workers as t\n"
        "from paml.experiments.workers import Workers\n"
        "with Workers(1, 1) as workers:\n"
        "    workers.begin('f', t.facts)\n"
        "    print(t.results(workers)['f'].value[0], flush=True)\n"
        "    workers.begin('t', t.tell)\n"
        "    workers.ended(), print('begun', flush=True), workers.ended()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert parent.stdout.readline() == "begun\n"
        assert is_alive(worker)
        parent.kill()
    wait_until(lambda: not is_alive(worker), "the worker lives on")


@pytest.mark.slow
def test_a_process_that_cannot_start(tmp_path: Path) -> None:
    """A script without a guard would start itself again and again: Python stops that, and we say what to do."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "from paml.experiments.workers import Workers\n"
        "with Workers(1, 1) as workers:\n"
        "    workers.begin('a', os.getpid)\n"
        "    workers.ended(), workers.ended(), workers.ended()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "SettingsError: no further process can be started (exit code 1); in a script, call it below" in done.stderr


@pytest.mark.parametrize(("jobs", "threads", "what"), [(0, 1, "jobs is 0"), (2, 0, "threads_per_job is 0")])
def test_at_least_one(jobs: int, threads: int, what: str) -> None:
    with pytest.raises(SettingsError, match=f"{what}; at least one is needed"):
        check_jobs(jobs, threads)
