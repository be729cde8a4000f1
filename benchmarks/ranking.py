"""Lists of all items for 1,000 users and their metrics, on a generated catalogue of a million items.

Scores are products of 64-wide vectors of users and items. `rank_users` takes users in blocks whose scores fit into a
bounded amount of memory; it is compared with a plain loop of one user at a time in the same run. Peak memory is how far
the process grew. PAML_BENCH_ITEMS and PAML_BENCH_USERS set other sizes.
"""

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paml.data.schema import Target
from paml.episodes.tasks import Known, Tasks
from paml.evaluation import ranking
from paml.training.allocator import return_freed_memory

WIDTH, SUPPORT, QUERY, LOOPED = 64, 40, 10, 50


class Generated:
    """As much of a data set as lists need: users with random items, liked or not."""

    def __init__(self, users: int, items: int) -> None:
        rng, rows = np.random.default_rng(0), SUPPORT + QUERY
        self.manifest, self.schema = Sizes(items), Sizes(Target(kind="rating", low=1, high=5))
        item_UR = rng.integers(items, size=(users, rows))
        self._arrays = {
            "item": item_UR.ravel().astype(np.int32),
            "target": rng.integers(1, 6, size=users * rows).astype(np.float32),
        }
        self.tasks = Tasks(0, np.arange(users + 1) * rows, np.full(users, SUPPORT))

    def array(self, name: str) -> np.ndarray:
        """The rows' items, or their targets."""
        return self._arrays[name]


class Sizes:
    """The number of items, or the target."""

    def __init__(self, value: Any) -> None:
        self.items = self.target = value


def one_at_a_time(data: Generated, w_UD: np.ndarray, z_ID: np.ndarray, users: int) -> list[float]:
    """nDCG@10 of some users, as one would write it down."""
    item, target, found = data.array("item"), data.array("target"), []
    discount = 1 / np.log2(np.arange(2, 12))
    for u in range(users):
        start = u * (SUPPORT + QUERY)
        score_I = z_ID @ w_UD[u]
        score_I[item[start : start + SUPPORT]] = -np.inf
        top = np.argpartition(-score_I, 10)[:10]
        order = top[np.argsort(-score_I[top], kind="stable")]
        query = slice(start + SUPPORT, start + SUPPORT + QUERY)
        relevant = set(item[query][target[query] >= 4].tolist()) - set(item[start : start + SUPPORT].tolist())
        gain = sum(discount[k] for k, i in enumerate(order.tolist()) if i in relevant)
        found.append(gain / discount[: len(relevant)].sum() if relevant else float("nan"))
    return found


def measured(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """What a call returns, its seconds, and by how many MB the process grew at the peak."""
    gc.collect()
    return_freed_memory()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    started = time.perf_counter()
    result = call()
    return result, time.perf_counter() - started, _status("VmHWM") - before


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1e3


def main() -> None:
    """Print time and memory in blocks, and the ratio to one user at a time."""
    torch.set_num_threads(1)
    users, items = (int(os.environ.get(f"PAML_BENCH_{k}", n)) for k, n in (("USERS", 1000), ("ITEMS", 1_000_000)))
    data, rng = Generated(users, items), np.random.default_rng(1)
    w_UD, z_ID = (rng.normal(size=(n, WIDTH)).astype(np.float32) for n in (users, items))
    w, z = torch.from_numpy(w_UD), torch.from_numpy(z_ID)

    def rank(known: Known) -> torch.Tensor:
        return w[torch.from_numpy(known.user_B)] @ z.mT

    def judge() -> np.ndarray:
        lists = ranking.rank_users(data, data.tasks, rank)  # type: ignore[arg-type]
        return ranking.discounted_gain(lists, 10)

    gain_U, seconds, grown = measured(judge)
    some = min(LOOPED, users)
    plain, slowly, grown_slowly = measured(lambda: one_at_a_time(data, w_UD, z_ID, some))
    assert np.allclose(gain_U[:some], plain, equal_nan=True)
    each, each_slowly = 1e3 * seconds / users, 1e3 * slowly / some
    block = ranking.users_at_once(items)
    print(f"{users:,} users, {items:,} items, vectors of {WIDTH}, one thread")
    print(f"in blocks of {block} users    {each:8.2f} ms a user, {seconds:6.1f} s in all, {grown:6.0f} MB")
    print(f"one user at a time      {each_slowly:8.2f} ms a user ({some} users), {grown_slowly:6.0f} MB")
    print(f"ratio                   {each_slowly / each:8.2f} times as fast in blocks")


if __name__ == "__main__":
    main()
