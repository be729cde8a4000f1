"""Preparing a large log in bounded memory: time, peak memory and rows per second, against Polars sorting the same file.

    python -m benchmarks.prepare --rows 100_000_000 --folder /mnt/large

The log is generated: skewed users and items, in no order, as Parquet or CSV. Everything runs in processes of its own,
whose peak is what the system reports for them (ru_maxrss). The folder holds the log, the prepared data set and, while
that is made, temporary files; all are removed at the end.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

ROWS = 4_000_000
CHUNK = 2_000_000
SCHEMA = """
[target]
kind = "rating"
low = 1
high = 5
[interactions]
file = "{file}"
user = "user"
item = "item"
target = "rating"
time = "time"
"""
PREPARE = "from paml.cli import main; main()"
SORT = """
import sys, polars as pl
log, out = sys.argv[1:]
scanned = pl.scan_parquet(log) if log.endswith(".parquet") else pl.scan_csv(log)
scanned.sort("user", "time").sink_parquet(out)
"""


def write_log(folder: Path, rows: int, users: int, items: int, ending: str) -> Path:
    """Generate a log in chunks: users and items by the square of a uniform number, ratings 1 to 5, any order."""
    folder.mkdir()
    (folder / "schema.toml").write_text(SCHEMA.format(file=f"log.{ending}"))
    rng, path = np.random.default_rng(0), folder / f"log.{ending}"
    parts = []
    for number, start in enumerate(range(0, rows, CHUNK)):
        size = min(CHUNK, rows - start)
        frame = pl.DataFrame(
            {
                "user": (users * rng.random(size) ** 2).astype(np.int64),
                "item": (items * rng.random(size) ** 2).astype(np.int64),
                "rating": rng.integers(1, 6, size, dtype=np.int8),
                "time": 1_500_000_000 + rng.integers(0, 10**8, size),
            }
        )
        if ending == "csv":
            with path.open("ab") as file:
                frame.write_csv(file, include_header=not number)
        else:
            parts.append(folder / f"part-{number:05}.parquet")
            frame.write_parquet(parts[-1])
    if parts:
        pl.scan_parquet(parts).sink_parquet(path)
        for part in parts:
            part.unlink()
    return path


def run_apart(*command: str) -> tuple[float, float]:
    """Seconds and peak GiB of a Python process."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"failed: {command[1:]}")
    return time.perf_counter() - started, usage.ru_maxrss / (1 << 20)


class DiskPeak:
    """The largest size of a folder within a `with` block, looked at twice a second."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ended, self.peak = folder, threading.Event(), 0

    def __enter__(self) -> "DiskPeak":
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            size = 0
            for folder, _, names in os.walk(self._folder):
                for name in names:
                    path = Path(folder, name)
                    size += path.stat().st_size if path.exists() else 0
            self.peak = max(self.peak, size)


def main(arguments: Sequence[str] = ()) -> None:
    """A line for each of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--users", type=int, help="rows / 30 if not given")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--format", choices=["parquet", "csv"], default="parquet")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder of the system if not given")
    chosen = parser.parse_args(arguments)
    users = chosen.users or max(chosen.rows // 30, 10)
    with TemporaryDirectory(dir=chosen.folder) as name:
        folder = Path(name)
        log = write_log(folder / "raw", chosen.rows, users, chosen.items, chosen.format)
        size = log.stat().st_size / 1e9
        print(f"{chosen.rows:,} rows of {users:,} users and {chosen.items:,} items, {chosen.format} of {size:.2f} GB")
        sorting, sort_peak = run_apart(SORT, str(log), str(folder / "sorted.parquet"))
        (folder / "sorted.parquet").unlink()
        speed = f"{chosen.rows / sorting / 1e6:.2f} million rows/s"
        print(f"Polars alone sorts it in {sorting:.1f} s ({speed}), peak {sort_peak:.2f} GiB")
        with DiskPeak(folder) as disk:
            command = ["data", "prepare", "tables", "--from", str(folder / "raw"), "--out", str(folder / "data")]
            seconds, peak = run_apart(PREPARE, *command)
        print(
            f"paml prepares it in {seconds:.1f} s ({chosen.rows / seconds / 1e6:.2f} million rows/s), "
            f"{seconds / sorting:.1f} times Polars' sort, peak {peak:.2f} GiB, on disk {disk.peak / 1e9:.1f} GB at most"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
