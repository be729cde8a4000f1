"""What it costs that every file is checked: opening a data set for training, and opening a run.

    python -m benchmarks.verification --rows 40_000_000 --folder /mnt/large --run RUN

The data set is made of a generated log, as `benchmarks.prepare` makes it; without a run, a small one is trained. Each
time is the best of three, on the clock and of the processor, with the files in the system's cache.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import paml
from benchmarks.prepare import PREPARE, run_apart, write_log

REPEATS = 3


def best(action: Callable[[], object]) -> str:
    """The shortest of three times, on the clock and of the processor."""
    found = []
    for _ in range(REPEATS):
        clock, processor = time.perf_counter(), time.process_time()
        action()
        found.append((time.perf_counter() - clock, time.process_time() - processor))
    clock, processor = min(found)
    return f"{1000 * clock:8,.1f} ms, {1000 * processor:8,.1f} ms of processor time"


def digests(files: Iterable[Path]) -> None:
    """SHA-256 of files one after the other, and nothing else."""
    for path in files:
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")


def size(files: Iterable[Path]) -> str:
    """Together, in MB."""
    return f"{sum(file.stat().st_size for file in files) / 1e6:,.0f} MB"


def of_data(path: Path) -> None:
    """Open a data set, and verify it: for the first time, and again in the same process."""
    data = paml.open_data(path)
    files = [path / name for name in data.manifest.files]
    print(f"a data set of {data.manifest.interactions:,} rows, {size(files)} in {len(files)} files")
    print(f"  opened                  {best(lambda: paml.open_data(path))}")
    print(f"  verified                {best(data.verify)}")
    print(f"  of which digests        {best(lambda: digests(files))} (one after the other)")
    data.verify_once()
    print(f"  verified again          {best(data.verify_once)}")


def of_run(path: Path) -> None:
    """Open a run, all files of which are verified."""
    paml.load(path)
    read = [
        file for file in path.rglob("*") if file.is_file() and file.suffix != ".jsonl" and file.name != "rows.parquet"
    ]
    beside = [file for file in read if file.suffix != ".safetensors"]
    print(f"a run of {size(read)}, of which {size(beside)} beside weights and preference")
    print(f"  opened and verified     {best(lambda: paml.load(path))}")
    print(f"  of which digests        {best(lambda: digests(read))}")
    print(f"  of the files beside     {best(lambda: digests(beside))}")


def main(arguments: Sequence[str] = ()) -> None:
    """Both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder of the system if not given")
    parser.add_argument("--run", type=Path, help="a run of your own; if not given, a small one is trained")
    chosen = parser.parse_args(arguments)
    with TemporaryDirectory(dir=chosen.folder) as name:
        folder = Path(name)
        write_log(folder / "raw", chosen.rows, max(chosen.rows // 30, 10), 100_000, "parquet")
        run_apart(PREPARE, "data", "prepare", "tables", "--from", str(folder / "raw"), "--out", str(folder / "data"))
        of_data(folder / "data")
        run = chosen.run
        if run is None:
            small = paml.prepare("synthetic", out=folder / "small", progress=False)
            run = paml.train(small, out=folder / "run", epochs=1, progress=False).path
        of_run(run)


if __name__ == "__main__":
    main(sys.argv[1:])
