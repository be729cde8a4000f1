"""A training step of the factor network, which the recipe `tuned` trains: users per second, and what takes the time.

The same network, step and batches in three ways: all users of a batch at once, as `paml train` does; one user after the
other through the same engine; and, for what an ensemble costs, the members of the recipe one after the other, as one
outer step trains them. One thread and processor time, so that other work on the machine counts less; the best of
several rounds. PAML_BENCH_DATA names a prepared data set; otherwise MovieLens-1M is prepared from the folder in
PAML_DATA_HOME, or a synthetic data set of its size is made. With PAML_BENCH_COMPILE=1, the same step by torch.compile
is measured, too, for which a C++ compiler is needed.

What takes the time is what PyTorch's profiler says about all operations of the step. Matrix products and solves are
arithmetic; what goes through memory once for one operation per number (sums, products by element, copies, look-ups,
the optimiser) is bound by how fast memory is read.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

import paml
from benchmarks.engine import _only, peak
from benchmarks.predictor import data_set
from paml.episodes.batches import Loader
from paml.episodes.tasks import TaskBatch, Tasks
from paml.methods.learner import Learner
from paml.methods.objectives import ObjectiveSettings
from paml.methods.registry import build_ensemble, find_method
from paml.network.build import DataShape
from paml.training.allocator import keep_freed_memory
from paml.training.optim import OuterOptimizer
from paml.training.recipe import OuterSettings, load_recipe
from paml.training.sizing import DataSize

METHODS = ("ridge", "reg_paml", "melu")
ROUNDS = int(os.environ.get("PAML_BENCH_ROUNDS", "5"))
BATCHES = 8
COMPILE = os.environ.get("PAML_BENCH_COMPILE") == "1"
KINDS = {
    "matrix products": ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "dot", "linear"),
    "solving": ("linalg_cholesky_ex", "linalg_solve_triangular", "cholesky_solve", "tril", "triu"),
    "looking up": (
        "index_select", "index", "gather", "scatter_add_", "_embedding_bag", "embedding", "sort", "unique2",
        "_embedding_bag_dense_backward", "embedding_dense_backward", "index_add_", "index_put_",
    ),
    "the optimiser": ("_fused_adam_", "_foreach_add_", "_foreach_mul_", "_foreach_lerp_", "zero_"),
}  # fmt: skip
BY_ELEMENT = "by element, copying"
STARTING = "starting operations, Python"


class Steps:
    """A method's ensemble on a data set, with the batches that are measured."""

    def __init__(self, data: paml.Dataset, method: str, **settings: object) -> None:
        recipe = load_recipe("tuned", method, settings, size=DataSize.of(data))
        self.size = recipe.ensemble_size
        ensemble = build_ensemble(method, DataShape.of(data), recipe, torch.Generator().manual_seed(0))
        self._members = ensemble.members
        self._optimizer = OuterOptimizer(ensemble, recipe.part(OuterSettings))
        self._objective = find_method(method).objective(recipe.part(ObjectiveSettings))
        self._compiled = torch.compile(self._objective, dynamic=True)  # when it is first called
        self._loader = Loader(data, ensemble.inputs)
        episodes = Tasks.of(data, "train").episodes(recipe.batch_size, np.random.default_rng(0))
        self.batches = list(itertools.islice(episodes, BATCHES))

    def at_once(self, batch: TaskBatch) -> None:
        """One outer step of all members."""
        self._step(lambda: (self._loss(member, batch) for member in self._members))

    def one_by_one(self, batch: TaskBatch) -> None:
        """The same for the first member, user by user."""
        users = range(len(batch.user_B))
        self._step(lambda: [torch.stack([self._loss(self._members[0], _only(batch, b)) for b in users]).mean()])

    def compiled(self, batch: TaskBatch) -> None:
        """The step of one member by torch.compile, for batches of any shape."""
        self._step(lambda: [self._compiled(self._members[0], self._loader.load(batch)).value])

    def _loss(self, member: Learner, batch: TaskBatch) -> torch.Tensor:
        return self._objective(member, self._loader.load(batch)).value

    def _step(self, losses: Callable[[], Iterable[torch.Tensor]]) -> None:
        self._optimizer.zero_grad()
        for loss in losses():  # each is differentiated before the next is made, as in training
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


def users_per_second(step: Callable[[TaskBatch], None], batches: list[TaskBatch]) -> float:
    """The best of several rounds, by processor time."""
    seconds = {}
    for number, batch in itertools.product(range(ROUNDS + 1), batches):
        started = time.process_time()
        step(batch)
        taken = time.process_time() - started
        if number:  # the first round warms up
            seconds[id(batch)] = min(taken, seconds.get(id(batch), taken))
    return sum(len(batch.user_B) for batch in batches) / sum(seconds.values())


def shares(step: Callable[[TaskBatch], None], batches: list[TaskBatch]) -> dict[str, float]:
    """Of the time of a step, what kinds of operations take."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for batch in batches:
            step(batch)
    kinds = dict.fromkeys([*KINDS, BY_ELEMENT, STARTING], 0.0)
    of_name = {f"aten::{name}": kind for kind, names in KINDS.items() for name in names}
    of_name["mkldnn::_linear_pointwise"] = "matrix products"
    for event in found.key_averages():
        is_operation = event.key.startswith(("aten::", "mkldnn::"))
        kinds[of_name.get(event.key, BY_ELEMENT) if is_operation else STARTING] += event.self_cpu_time_total
    total = sum(kinds.values())
    return {kind: value / total for kind, value in kinds.items()}


def main() -> None:
    """A few lines for every method."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as `paml train` does
    with TemporaryDirectory() as folder:
        data = data_set(Path(folder))
        print(f"{data.manifest.source.name}, recipe tuned, one thread; peak {peak() / 1e9:.0f} GFLOP/s")
        for method in METHODS:
            steps, ensemble = Steps(data, method, ensemble_size=1), Steps(data, method)
            at_once = users_per_second(steps.at_once, steps.batches)
            one_by_one = users_per_second(steps.one_by_one, steps.batches[:2])
            together = users_per_second(ensemble.at_once, ensemble.batches)
            print(
                f"{method}, batches of {len(steps.batches[0].user_B)}: {at_once:,.0f} users/s, "
                f"{at_once / one_by_one:.1f} times one by one ({one_by_one:,.0f}); {ensemble.size} members in one step "
                f"see {together:,.0f} users/s, {together * ensemble.size / at_once:.2f} times one member's speed each"
            )
            if COMPILE:
                started = time.perf_counter()
                compiled = users_per_second(steps.compiled, steps.batches)
                seconds = time.perf_counter() - started
                print(f"  by torch.compile: {compiled / at_once:.2f} times as many, {seconds:.0f} s to get there")
            parts = [f"{kind} {share:.0%}" for kind, share in shares(steps.at_once, steps.batches).items()]
            print(f"  of the time: {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
