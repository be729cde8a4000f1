"""`paml compare --jobs 2` against `--jobs 1`, one thread each, on the embedded world: a ratio of one run.

Whole commands in processes of their own, the start of Python and the report included. The first pair is 1 then 2 jobs,
the second 2 then 1, so that a machine that slows down favours neither; the results must be the same file. The load is
that of the system beforehand: on two cores, anything but 0 costs two jobs more than one.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import paml

JOBS = int(os.environ.get("PAML_BENCH_JOBS", "2"))
SEEDS = int(os.environ.get("PAML_BENCH_SEEDS", "6"))
OPTIONS = ["--methods", "melu,reg_paml,ridge", "--baselines", "none", "--threads", "1", "epochs=10", "ensemble_size=2"]


def compare(data: Path, out: Path, jobs: int) -> float:
    """Seconds of a whole comparison."""
    command = ["compare", str(data), "--seeds", str(SEEDS), "--jobs", str(jobs), "--out", str(out), *OPTIONS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "paml", *command], env=environment, capture_output=True, check=True)
    return time.perf_counter() - started


def main() -> None:
    """Two pairs, and what several jobs gain."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = paml.prepare("synthetic", out=folder / "data", progress=False)
        load = os.getloadavg()[0]
        print(f"{3 * SEEDS} cells, {os.cpu_count()} cores, load {load:.1f} before")
        seconds: dict[int, list[float]] = {1: [], JOBS: []}
        for pair, order in enumerate(((1, JOBS), (JOBS, 1))):
            for jobs in order:
                seconds[jobs].append(compare(data.path, folder / f"{pair}-{jobs}", jobs))
                print(f"  {jobs} jobs: {seconds[jobs][-1]:6.1f} s")
        results = {(folder / f"{pair}-{jobs}" / "results.json").read_bytes() for pair in (0, 1) for jobs in seconds}
        ratio = sum(seconds[1]) / sum(seconds[JOBS])
        print(f"{JOBS} jobs are {ratio:.2f} times as fast as one; results are the same: {len(results) == 1}")


if __name__ == "__main__":
    main()
