"""A log of user, item and time alone, to a served answer: each command as a user gives it, its time and its memory.

    python -m benchmarks.log --rows 10000000 [--folder FOLDER] [key=value ...]

The log is generated: users have tastes over kinds of items, items of a kind have popularities that fall as 1 / rank,
and every user begins at some time and goes on for a while. Settings are those of `paml train`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
import polars as pl

ROWS_PER_USER = 50
KINDS = 60
ITEMS = 20_000
PATIENCE = 120.0


def write(rows: int, file: Path, seed: int = 0) -> None:
    """A log of about that many rows, in order of time."""
    rng = np.random.default_rng(seed)
    users = max(rows // ROWS_PER_USER, 1)
    count_U = rng.geometric(1 / ROWS_PER_USER, users)
    user_N = np.repeat(np.arange(users), count_U)[:rows]
    favourite_UK = rng.integers(KINDS, size=(users, 3))
    kind_N = favourite_UK[user_N, rng.choice(3, size=len(user_N), p=[0.6, 0.3, 0.1])]
    per_kind = ITEMS // KINDS
    rank_N = np.minimum(np.exp(rng.random(len(user_N)) * np.log(per_kind)).astype(np.int64), per_kind) - 1
    first_U = rng.uniform(1_700_000_000, 1_730_000_000, users)
    time_N = (first_U[user_N] + rng.exponential(86_400 * 20, len(user_N))).astype(np.int64)
    columns = {"user_id": user_N, "item_id": rank_N * KINDS + kind_N, "timestamp": time_N}
    pl.DataFrame(columns).sort("timestamp").write_parquet(file)


def measured(*command: object) -> None:
    """Run a command of paml; print its time and the most memory it had."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "paml", *map(str, command)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(process.returncode)
    seconds, processor = time.perf_counter() - started, usage.ru_utime + usage.ru_stime
    told = f"{seconds:,.0f} s ({processor:,.0f} s of processor time), {usage.ru_maxrss / 2**20:.2f} GiB"
    print(f"paml {' '.join(map(str, command))}\n  {told}", flush=True)


def served(run: Path) -> None:
    """Start the service, ask for the list of somebody who chose three items, and print what came when."""
    command = [sys.executable, "-m", "paml", "serve", str(run), "--port", "0", "--store", f"sqlite:///{run}.sqlite"]
    started = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            address = next(line for line in process.stderr if "http://" in line)
            url = "http://" + address.split("http://")[1].split()[0].strip('",/')
            ready = time.perf_counter() - started
            body = {"ratings": [{"item": item, "value": 1} for item in ("3", "63", "123")], "n": 10}
            asked = urllib.request.Request(f"{url}/v1/recommend", json.dumps(body).encode())
            asked.add_header("Content-Type", "application/json")
            waits = []
            for _ in range(20):
                begun = time.perf_counter()
                with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
                    found = json.load(answer)
                waits.append(time.perf_counter() - begun)
        finally:
            process.terminate()
    items = [int(entry["item"]) for entry in found["items"]]
    print(f"paml serve {run}\n  answers after {ready:.1f} s; a new user's list takes {1000 * np.median(waits):.1f} ms")
    print(f"  somebody with three choices of kind 3 is shown: {items}, of kinds {[item % KINDS for item in items]}")


def main() -> None:
    """From the log to the answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, help="where everything is written, and stays")
    parser.add_argument("settings", nargs="*", help="of the training, such as epochs=1")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write(given.rows, folder / "log.parquet")
        measured("data", "inspect", folder / "log.parquet", "--out", folder / "schema.toml")
        measured("data", "prepare", "tables", "--schema", folder / "schema.toml", "--out", folder / "data")
        measured("train", folder / "data", "--out", folder / "run", *given.settings)
        served(folder / "run")


if __name__ == "__main__":
    main()
