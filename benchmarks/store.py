"""Calls per second of the store, by threads: ratings written (durable when the call returns), versions and users read.

SQLite in a temporary folder; also PostgreSQL if PAML_BENCH_POSTGRES holds the address of an empty database. The disk's
time to flush is most of a write: the folder is where the results go.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from paml.recommend.requests import Rating
from paml.serve.store.database import file_url
from paml.serve.store.store import Store

THREADS = (1, 8, 32)
CALLS = int(os.environ.get("PAML_BENCH_CALLS", "640"))
RATINGS = 50  # of each user, before


def rate(threads: int, call: Callable[[int, int], object]) -> float:
    """Calls per second; each thread has a user of its own."""

    def work(thread: int) -> None:
        for nth in range(CALLS // threads):
            call(thread, nth)

    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return CALLS / (time.perf_counter() - started)


def measure(kind: str, url: str) -> None:
    """Print one row for each number of threads."""
    store = Store.open(url)
    for user in range(max(THREADS)):
        store.put_user(str(user), {"age": "25", "gender": "F"})
        store.add_ratings(str(user), [Rating(f"item{item}", 3) for item in range(RATINGS)])
    for threads in THREADS:
        written = rate(threads, lambda user, nth: store.add_ratings(str(user), [Rating(f"item{nth % RATINGS}", 4)]))
        versions = rate(threads, lambda user, nth: store.version(str(user)))
        users = rate(threads, lambda user, nth: store.user(str(user)))
        print(f"{kind:12} {threads:7} {written:12,.0f} {versions:12,.0f} {users:12,.0f}")
    store.close()


def main() -> None:
    """SQLite, and PostgreSQL if there is one."""
    print(f"{'':12} {'threads':>7} {'writes/s':>12} {'versions/s':>12} {'users/s':>12}   (users of {RATINGS} ratings)")
    with TemporaryDirectory(dir=Path(__file__).parent / "results") as folder:
        measure("SQLite", file_url(Path(folder) / "store.db"))
    if url := os.environ.get("PAML_BENCH_POSTGRES"):
        measure("PostgreSQL", url)


if __name__ == "__main__":
    main()
