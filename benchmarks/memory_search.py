"""AT-PAML's memory: the three back ends from 1,000 nodes up, and what the memory adds to a training step.

Nodes are as in a real memory: concatenated field embeddings of users with skewed profiles, which have drifted a little.
The approximate back ends are rebuilt every 50 batches, so a fiftieth of the building time counts for each batch.
PAML_BENCH_FULL=1 goes on to 1,000,000 nodes (many minutes, most of them building the graph).
"""

import itertools
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

import paml
from paml.episodes.batches import Loader
from paml.episodes.tasks import Tasks
from paml.methods.memory import MemoryRate
from paml.methods.neighbours import INDEXES, make_index, recall
from paml.methods.registry import build_learner, find_method
from paml.network.build import DataShape
from paml.training.allocator import keep_freed_memory
from paml.training.recipe import load_recipe

SIZES = [1_000, 10_000, 100_000] + ([1_000_000] if os.environ.get("PAML_BENCH_FULL") == "1" else [])
FIELD_VALUES = (2, 7, 21, 3400)  # gender, age, occupation, zip of MovieLens-1M
BATCH, NEIGHBOURS, REBUILD_EVERY, ROUNDS = 32, 20, 50, 5


def embeddings(users: int, rng: torch.Generator) -> Tensor:
    """Embeddings of users: a table of 32 numbers for each value of each field, Zipf-distributed values, some drift."""
    parts = []
    for values in FIELD_VALUES:
        table = torch.randn(values, 32, generator=torch.Generator().manual_seed(values))
        code = torch.multinomial(1 / torch.arange(1, values + 1), users, replacement=True, generator=rng)
        parts.append(table[code])
    h = torch.cat(parts, dim=1)
    return h + 0.05 * torch.randn(h.shape, generator=rng)


def search_times() -> None:
    """A line per size and back end."""
    rng = torch.Generator().manual_seed(0)
    fastest: dict[str, list[str]] = {"training": [], "serving": []}
    for size in SIZES:
        cost: dict[str, dict[str, float]] = {"training": {}, "serving": {}}
        keys, queries = embeddings(size, rng), embeddings(BATCH, rng)
        for name in INDEXES:
            index = make_index(name)
            build = min(_build_time(index, keys) for _ in range(ROUNDS if name == "exact" else 1))
            search = min(_search_time(index, queries) for _ in range(ROUNDS))
            per_batch = search + (build if name == "exact" else build / REBUILD_EVERY)
            found = recall(index, keys, queries, NEIGHBOURS)
            cost["training"][name], cost["serving"][name] = per_batch, search
            print(
                f"{size:>9,} nodes  {name:<7} {1e3 * per_batch:9.2f} ms per batch of {BATCH}"
                f" (search {1e3 * search:.2f}, build {1e3 * build:.0f}), recall {found:.3f}"
            )

        for use, times in cost.items():
            fastest[use].append(f"{min(times, key=lambda name: times[name])} at {size:,}")
    for use, names in fastest.items():
        print(f"fastest in {use}: {', '.join(names)}")


def _build_time(index: object, keys: Tensor) -> float:
    started = time.perf_counter()
    index.build(keys)  # type: ignore[attr-defined]
    return time.perf_counter() - started


def _search_time(index: object, queries: Tensor) -> float:
    started = time.perf_counter()
    index.search(queries, NEIGHBOURS + 1)  # type: ignore[attr-defined]
    return time.perf_counter() - started


def step_cost() -> None:
    """Time of an AT-PAML step over that of a PAML step, with 10,000 nodes, at the paper's sizes, in one run."""
    with TemporaryDirectory() as folder:
        data = paml.prepare("synthetic", out=Path(folder) / "data", users=6040, items=3883, median_rows=96)
        loader = Loader(data)
        batches = [*itertools.islice(Tasks.of(data, "train").episodes(BATCH, np.random.default_rng(0)), 8)]
        seconds: dict[str, dict[int, float]] = {"paml": {}, "at_paml": {}}
        learners = {}
        for method in seconds:
            recipe = load_recipe("paper", method, {})
            learner = build_learner(method, DataShape.of(data), recipe, torch.Generator().manual_seed(0))
            optimizer = torch.optim.Adam(learner.parameters(), lr=recipe.outer_rate, fused=True)
            learners[method] = (learner, optimizer, find_method(method).objective(recipe))
            if isinstance(learner.rates, MemoryRate):
                nodes = embeddings(recipe.memory_size, torch.Generator().manual_seed(1))
                users = torch.arange(1_000_000, 1_000_000 + len(nodes))
                learner.rates.memory.store(users, nodes, torch.full((len(nodes),), 5e-4))
                learner.rates.begin_epoch(recipe.warmup_epochs)
        for _ in range(12):
            for method, (learner, optimizer, objective) in learners.items():
                for number, task_batch in enumerate(batches):
                    started = time.perf_counter()
                    optimizer.zero_grad()
                    loss = objective(learner, loader.load(task_batch))
                    loss.value.backward()
                    optimizer.step()
                    if loss.memory is not None:
                        learner.rates.finish_step(loss.memory, recipe.outer_rate)
                    taken = time.perf_counter() - started
                    seconds[method][number] = min(taken, seconds[method].get(number, taken))
    plain, with_memory = (sum(seconds[method].values()) for method in ("paml", "at_paml"))
    print(f"a step of AT-PAML with 10,000 nodes takes {with_memory / plain:.2f} times a step of PAML")


def main() -> None:
    """Print search times and the cost of a step."""
    torch.set_num_threads(2)
    keep_freed_memory()
    step_cost()
    search_times()


if __name__ == "__main__":
    main()
