"""`kill -9` of trainings at random moments, each resumed until it ends: the run is that of an uninterrupted training.

Equal means byte by byte, for every file of the run except what tells the time (settings and metrics), whose losses are
compared. Kills fall anywhere: while Python starts, within a batch, between the files of a checkpoint, at the end.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import paml
from benchmarks.attack.cases import arguments

PROGRAM = (
    "from importlib import import_module; import_module('paml.training.loop').CHECKPOINT_BATCHES = 4;"
    "from paml.cli import main; main()"
)
DYING = (
    "import os, signal; sync, left = os.fsync, iter(range({number}));"
    "os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL) if next(left, None) is None else sync(file);"
)
"""Put before the program, it ends the process when it wants to sync once more than so often."""
SETTINGS = ("epochs=6", "ensemble_size=1", "hidden=8", "item_embedding=4", "index_every=4", "memory_index=kdtree")
CHOICE = ("memory_size=100", "choice_part=true", "choice.item_embedding=4", "choice.memory_size=100")
TIMED = ("settings.json", "metrics.jsonl")


def command(data: Path, out: Path, before: str = "") -> list[str]:
    """A training of AT-PAML with a choice part: memory, an index, an optimiser and two parts to be resumed."""
    options = ["--method", "at_paml", "--out", str(out), "--threads", "1", *(["--resume"] if out.exists() else [])]
    return [sys.executable, "-c", before + PROGRAM, "train", str(data), *options, *SETTINGS, *CHOICE]


def files(run: Path) -> dict[str, bytes]:
    """Every file of a run; of those that tell the time, what does not."""
    found = {str(file.relative_to(run)): file.read_bytes() for file in sorted(run.rglob("*")) if file.is_file()}
    for name in [name for name in found if name.endswith(TIMED)]:
        text = found[name].decode()
        values = [json.loads(line) for line in (text.splitlines() if name.endswith("jsonl") else [text])]
        found[name] = _without_time(values)
    return found


def _without_time(values: list[dict[str, Any]]) -> bytes:
    """The same without what depends on time: seconds, and digests of files that tell them."""
    for entry in values:
        for part in (entry, entry.get("summary", {})):
            for key in ("seconds", "users_per_second", "metrics", "seal"):
                part.pop(key, None)
    return json.dumps(values).encode()


def kill_until_done(data: Path, out: Path, rng: random.Random, kills: int, longest: float) -> int:
    """Kill a training at most so often, each time after some seconds; the number of kills."""
    for done in range(kills + 1):
        process = subprocess.Popen(
            command(data, out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            _, errors = process.communicate(timeout=rng.uniform(0.3, longest) if done < kills else None)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            continue
        assert process.returncode == 0, errors
        return done
    raise AssertionError("unreachable")


def killed_at_sync(data: Path, out: Path, number: int) -> bool:
    """Whether a training was killed within its write after so many syncs; the moment does not depend on the machine."""
    ended = subprocess.run(command(data, out, DYING.format(number=number)), capture_output=True, check=False)
    return ended.returncode == -signal.SIGKILL


def main() -> None:
    """Kill trainings until `--count` kills were survived."""
    given = arguments(100)
    rng, kills, trainings, started = random.Random(given.seed), 0, 0, time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = paml.prepare("synthetic", out=folder / "data", users=400, items=80).path
        begun = time.perf_counter()
        subprocess.run(command(data, folder / "whole"), check=True, capture_output=True)
        quickest, whole = time.perf_counter() - begun, files(folder / "whole")
        while kills < given.count:
            out = folder / f"run-{trainings}"
            begun = time.perf_counter()
            survived = kill_until_done(data, out, rng, min(20, given.count - kills), quickest)
            quickest = quickest if survived else min(quickest, time.perf_counter() - begun)
            kills += survived
            trainings += 1
            found = files(out)
            differing = [name for name in whole | found if whole.get(name) != found.get(name)]
            if differing:
                print(f"seed {given.seed}: training {trainings} differs after kills in {differing}")
                sys.exit(1)
            print(f"{kills} kills in {trainings} trainings survived", flush=True)
    seconds = time.perf_counter() - started
    print(f"kills: {kills} in {trainings} trainings, seed {given.seed}: 0 lost, all files equal; {seconds:.0f} s")


if __name__ == "__main__":
    main()
