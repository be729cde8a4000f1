"""Two ranks with one thread each against one: users per second, memory per rank, losses, and ranks that are killed.

    PAML_BENCH_USERS=1000000 PAML_BENCH_KILLS=20 python -m benchmarks ranks

PAML_BENCH_BATCH: users per step; PAML_BENCH_ROWS: rows per user; PAML_BENCH_SETTINGS: of the network, such as
"hidden=32,16 embedding_size=8"; without, it has the paper's sizes. PAML_BENCH_METHOD, PAML_BENCH_RECIPE for others.

A large embedded world is trained by torchrun with one rank and with two, twice, in turn (1, 2, 2, 1), so that a machine
that slows down favours neither; the faster training of each is compared, too, as other work only ever makes it slower.
Memory is private memory (RssAnon): the data set is memory-mapped, and its pages are shared. A last training loses a
random rank again and again, each time after it has got further than before.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import paml

USERS = int(os.environ.get("PAML_BENCH_USERS", "50000"))
KILLS = int(os.environ.get("PAML_BENCH_KILLS", "3"))
METHOD = os.environ.get("PAML_BENCH_METHOD", "reg_paml")
RECIPE = os.environ.get("PAML_BENCH_RECIPE", "paper")
BATCH = os.environ.get("PAML_BENCH_BATCH", "1024")
ROWS = int(os.environ.get("PAML_BENCH_ROWS", "28"))
NETWORK = os.environ.get("PAML_BENCH_SETTINGS", "").split()
SMALL = ["hidden=32,16", "embedding_size=8"]  # of trainings that are killed
EPOCHS = 20 * KILLS  # of a small training, so that it outlasts the kills
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PAML_PROGRESS": "0"}


def torchrun(data: Path, out: Path, ranks: int, *more: str, restarts: int = 0) -> "subprocess.Popen[bytes]":
    """Start a training of so many ranks."""
    where = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(ranks)]
    command = ["-m", "torch.distributed.run", *where, "--max-restarts", str(restarts), "-m", "paml", "train", str(data)]
    given = [f"batch_size={BATCH}", "patience=0", *more, "--method", METHOD, "--recipe", RECIPE, "--out", str(out)]
    return subprocess.Popen(
        [sys.executable, *command, *given], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def ranks_of(process: int) -> list[int]:
    """The processes that torchrun has started."""
    try:
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except FileNotFoundError:
        return []


def private(process: int) -> float:
    """MiB that a process alone holds; 0 if it has ended."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("RssAnon")), 0.0)


def watched(process: "subprocess.Popen[bytes]", look: Callable[[], None]) -> None:
    """Look at a training every tenth of a second until it has ended."""
    while process.poll() is None:
        look()
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"torchrun ended with {process.returncode}")


def epochs_of(run: Path) -> list[dict[str, float]]:
    """What the training says about its epochs."""
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def losses(run: Path) -> list[float]:
    """Training and validation losses of all epochs."""
    return [
        value for epoch in epochs_of(run) for name, value in epoch.items() if name == "loss" or "validation" in name
    ]


def speed(data: Path, out: Path, ranks: int) -> float:
    """Users per second in training; prints them with the memory of each rank."""
    peaks: dict[int, float] = {}

    def look() -> None:
        for rank in ranks_of(process.pid):
            peaks[rank] = max(peaks.get(rank, 0.0), private(rank))

    process = torchrun(data, out, ranks, "epochs=1", *NETWORK)
    watched(process, look)
    found = epochs_of(out)[-1]["users_per_second"]
    memory = " and ".join(f"{peak:,.0f}" for peak in peaks.values())
    print(f"  {ranks} ranks: {found:8,.0f} users/s; {memory} MiB", flush=True)
    return found


def killed(data: Path, out: Path, kills: int) -> int:
    """Train with two ranks, of which a random one is killed so many times; how often that was done."""
    rng, seen, done = random.Random(0), "", 0

    def progress() -> str:
        state = out / "resume" / "state.safetensors"
        return f"{len(epochs_of(out))} {state.stat().st_mtime_ns if state.exists() else 0}"

    def look() -> None:
        nonlocal seen, done
        now, ranks = progress(), ranks_of(process.pid)
        if done < kills and now != seen and not now.endswith(" 0") and len(ranks) == 2:
            time.sleep(2 * rng.random())
            try:
                os.kill(rng.choice(ranks), signal.SIGKILL)
            except ProcessLookupError:
                return
            seen, done = now, done + 1

    process = torchrun(data, out, 2, f"epochs={EPOCHS}", *SMALL, restarts=kills)
    watched(process, look)
    return done


def _with(settings: list[str]) -> str:
    return f" with {' '.join(settings)}" if settings else ""


def main() -> None:
    """Speed, memory, equality, kills."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = paml.prepare("synthetic", out=folder / "data", progress=False, users=USERS, median_rows=ROWS).path
        cores, load = os.cpu_count(), os.getloadavg()[0]
        print(
            f"{USERS:,} users of {ROWS} rows (median), {METHOD} of recipe {RECIPE}{_with(NETWORK)}, "
            f"batches of {BATCH}, one thread a rank, {cores} cores, load {load:.1f} before",
            flush=True,
        )
        found: dict[int, list[float]] = {1: [], 2: []}
        for number, ranks in enumerate((1, 2, 2, 1)):
            found[ranks].append(speed(data, folder / f"run-{number}", ranks))
        mean, best = (part(found[2]) / part(found[1]) for part in (sum, max))
        print(f"two ranks train {mean:.2f} times as many users per second as one; the faster of each, {best:.2f} times")
        apart = [abs(one - two) for one, two in zip(losses(folder / "run-0"), losses(folder / "run-1"), strict=True)]
        print(f"their losses differ by at most {max(apart):.1e}", flush=True)
        if KILLS:
            small = paml.prepare("synthetic", out=folder / "small", progress=False).path
            watched(torchrun(small, folder / "whole", 2, f"epochs={EPOCHS}", *SMALL), lambda: None)
            count = killed(small, folder / "killed", KILLS)
            same = losses(folder / "whole") == losses(folder / "killed")
            print(f"{count} kills of a rank: all continued; the losses of all {EPOCHS} epochs are the same: {same}")


if __name__ == "__main__":
    main()
