"""What training costs as users, items, rows per user and members grow: time per user, and private memory.

One epoch of a method on generated logs; one size is changed at a time, and each training runs in a process of its own
(one thread). Times are processor time of the whole command, with reading, validation and saving; their ratios are what
matters.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

import paml
from benchmarks.growth import WATCHED

METHOD = os.environ.get("PAML_BENCH_METHOD", "ridge")
USERS, ITEMS, ROWS, MEMBERS = (int(part) for part in os.environ.get("PAML_BENCH_BASE", "20000,10000,30,1").split(","))
GROWTH = (1, 4, 16)
SETTINGS = {"epochs": 1, "batch_size": 128, "item_embedding": 32, "prior_from_items": 32, "choice_part": False}
CHILD = (
    WATCHED
    + """
data, method, out, settings = sys.argv[1:]
imported, begun = private(), time.process_time()
paml.train(data, method, out=out, settings=json.loads(settings), progress=False)
print(json.dumps({"seconds": time.process_time() - begun, "mib": (peak[0] - imported) / 1024}))
"""
)


def log(users: int, items: int, rows: int) -> pl.DataFrame:
    """Ratings of users for items by the square of a uniform number, from 1 to 5; that many per user."""
    rng = np.random.default_rng(0)
    item_N = (items * rng.random(users * rows) ** 2).astype(np.int64)
    value_N = np.clip(np.round(3 + (item_N % 7) / 3 - 1 + rng.normal(0, 1, users * rows)), 1, 5)
    return pl.DataFrame({"user": np.repeat(np.arange(users), rows), "item": item_N, "rating": value_N})


def train(folder: Path, users: int, items: int, rows: int, members: int) -> None:
    """Prepare and train one size, and print a line."""
    name = f"{users}-{items}-{rows}"
    if not (folder / name).exists():
        paml.prepare(interactions=log(users, items, rows), out=folder / name, progress=False, cold_share=1.0)
    given = json.dumps({**SETTINGS, "ensemble_size": members})
    command = [sys.executable, "-c", CHILD, str(folder / name), METHOD, str(folder / f"{name}-{members}"), given]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found = json.loads(done.stdout.splitlines()[-1])
    cost = 1e6 * found["seconds"] / paml.open_data(folder / name).manifest.splits["train"][1]
    what = f"{users:9,} users {items:10,} items {rows:4} rows per user {members:2} members"
    print(f"{what}: {cost:8,.0f} microseconds per training user, {found['mib']:7,.0f} MiB", flush=True)


def main() -> None:
    """Each size by itself."""
    base = {"users": USERS, "items": ITEMS, "rows": ROWS, "members": MEMBERS}
    print(f"{METHOD}, one thread, one epoch; memory beyond that of the imports")
    with TemporaryDirectory() as name:
        train(Path(name), **base)
        for axis in base:
            for factor in GROWTH[1:]:
                train(Path(name), **{**base, axis: base[axis] * factor})


if __name__ == "__main__":
    main()
