"""Peak private memory and time per user of one epoch, from 10,000 to 1,000,000 users, for REG-PAML and AT-PAML.

Private memory is what the process alone holds (RssAnon): the data set is memory-mapped, its pages are shared and can
be dropped by the system at any time. Each training runs in its own process and includes validation and saving.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import paml

SIZES = [int(size) for size in os.environ.get("PAML_BENCH_USERS", "10000,100000,1000000").split(",")]
SETTINGS = {
    "hidden": (32, 16),
    "embedding_size": 8,
    "epochs": 1,
    "batch_size": 128,
    "warmup_epochs": 0,
    "memory_size": 10_000,
}
WATCHED = """
import json, sys, threading, time
import torch, paml

def private():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

peak = [0]
def watch():
    while True:
        peak[0] = max(peak[0], private())
        time.sleep(0.01)

threading.Thread(target=watch, daemon=True).start()
"""
"""The beginning of a program whose private memory is watched: `peak[0]` in KiB, and `private()`."""
CHILD = (
    WATCHED
    + """
torch.set_num_threads(2)
data, method, out, settings = sys.argv[1:]
imported = private()
run = paml.train(data, method, "paper", out=out, settings=json.loads(settings))
seconds = run.settings.summary["seconds"]
print(json.dumps({"peak_mib": peak[0] / 1024, "imported_mib": imported / 1024, "seconds": seconds}))
"""
)


def train_apart(data: Path, method: str, out: Path, settings: Mapping[str, Any]) -> dict[str, float]:
    """Train with recipe `paper` in a process of its own: peak private memory, that after the imports, and seconds."""
    arguments = [str(data), method, str(out), json.dumps(settings)]
    done = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """A line per method and size, and the growth from the size before."""
    before: dict[str, float] = {}
    for size in SIZES:
        with TemporaryDirectory() as folder:
            started = time.perf_counter()
            data = paml.prepare("synthetic", out=Path(folder) / "data", users=size, items=200, median_rows=8)
            prepared = time.perf_counter() - started
            users = data.manifest.splits["train"][1]
            print(f"{size:>9,} users prepared in {prepared:.0f} s, {users:,} of them train:")
            for method in ("reg_paml", "at_paml"):
                result = train_apart(data.path, method, Path(folder) / method, SETTINGS)
                growth = (
                    f", {result['peak_mib'] / before[method]:.3f} times the size before" if method in before else ""
                )
                before[method] = result["peak_mib"]
                print(
                    f"  {method:<9} peak private memory {result['peak_mib']:6.0f} MiB{growth}; "
                    f"{1e6 * result['seconds'] / users:.0f} microseconds per user"
                )


if __name__ == "__main__":
    main()
