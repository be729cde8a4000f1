"""Users per second of a full training step (embed, adapt, query loss, backward, Adam), all forms in one run.

Our engine against one user after the other (with and without embedding the whole batch at once first) and weights
copied per user and batched, at the paper's sizes and at MeLU's published setting (embeddings 32, layers 64-64, five
second-order steps), on lengths as in MovieLens-1M. All forms look embeddings up in the same sparse way and compute the
same loss. Each form has its own process, as it would run (ours keeps freed memory, as training does); they take turns,
each begins its turn with a step that does not count, since training does not begin anew with every step, and each one's
best time for a batch counts, because other work on the machine only ever makes it slower. With PAML_BENCH_COMPILE=1,
our step by torch.compile is a further form, for which a C++ compiler is needed.
"""

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

import paml
from paml.engine import products
from paml.episodes.batches import Loader, TensorBatch
from paml.episodes.tasks import Block, TaskBatch, Tasks
from paml.methods.learner import Learner
from paml.methods.objectives import query_loss
from paml.methods.registry import build_learner
from paml.network.build import DataShape
from paml.training.allocator import keep_freed_memory
from paml.training.recipe import load_recipe

Form = Callable[[Learner, Loader, TaskBatch], Tensor]
ROUNDS = int(os.environ.get("PAML_BENCH_ROUNDS", "7"))
BATCHES = 8  # outer steps per form and round; the slow forms take fewer
SETTINGS: dict[str, dict[str, object]] = {
    "paper sizes (320-192, one step)": {},
    "MeLU's setting (64-64, five steps)": {"hidden": (64, 64), "inner_steps": 5},
}


def one_user_at_a_time(learner: Learner, loader: Loader, tasks: TaskBatch) -> Tensor:
    """The usual way: for each user look embeddings up, differentiate the support loss, step, score the query set."""
    return torch.stack(
        [_adapt_users(learner, loader.load(_only(tasks, b)))[0] for b in range(len(tasks.user_B))]
    ).mean()


def embedded_at_once(learner: Learner, loader: Loader, tasks: TaskBatch) -> Tensor:
    """The same, but all users and distinct items of the batch are embedded together first."""
    return torch.stack(_adapt_users(learner, loader.load(tasks))).mean()


def _only(tasks: TaskBatch, b: int) -> TaskBatch:
    """The task of one user, without padding."""
    blocks = []
    for block in (tasks.support, tasks.query):
        rows = int(block.mask_BL[b].sum())
        blocks.append(Block(block.row_BL[b : b + 1, :rows], block.mask_BL[b : b + 1, :rows]))
    return TaskBatch(tasks.user_B[b : b + 1], *blocks)


def _adapt_users(learner: Learner, batch: TensorBatch) -> list[Tensor]:
    """Query loss of each user: weights copied, gradients by autograd."""
    h_BH = learner.network.embed_users(batch.users)
    table_ND = learner.network.items(batch.items, batch.item_N).vectors_ND
    rate_B = learner.rates(h_BH).per_user(len(h_BH))
    theta = [torch.cat(list(layer)) for layer in learner.network.decision.theta()]
    losses = []
    for b in range(len(h_BH)):
        weights = theta
        parts = []
        for block in (batch.support, batch.query):
            rows = int(block.mask_BR[b].sum())
            x = table_ND[block.index_BR[b, :rows]]
            x = torch.cat([x, h_BH[b].expand(rows, -1), x.new_ones(rows, 1)], dim=1)
            parts.append((x, block.y_BR[b, :rows]))
        for _ in range(learner.solver.steps):
            loss = _user_loss(learner, weights, *parts[0])
            grads = torch.autograd.grad(loss, weights, create_graph=True)
            weights = [w - rate_B[b] * grad for w, grad in zip(weights, grads, strict=True)]
        losses.append(_user_loss(learner, weights, *parts[1]))
    return losses


def _user_loss(learner: Learner, weights: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    for w in weights[:-1]:
        x = torch.cat([(x @ w).relu(), x.new_ones(len(x), 1)], dim=1)
    return learner.head.row_loss((x @ weights[-1]).unsqueeze(0), y.unsqueeze(0)).mean()


def copied_and_batched(learner: Learner, loader: Loader, tasks: TaskBatch) -> Tensor:
    """Weights copied per user, all users at once: vmap of the usual way over padded rows."""
    batch = loader.load(tasks)
    h_BH, table_ND = (
        learner.network.embed_users(batch.users),
        learner.network.items(batch.items, batch.item_N).vectors_ND,
    )
    rate_B = learner.rates(h_BH).per_user(len(h_BH))
    theta = tuple(torch.cat(list(layer)) for layer in learner.network.decision.theta())

    def inputs(block_index: Tensor) -> Tensor:
        x = table_ND[block_index]
        h = h_BH.unsqueeze(1).expand(-1, x.shape[1], -1)
        return torch.cat([x, h, x.new_ones(*x.shape[:2], 1)], dim=2)

    def loss(weights: tuple[Tensor, ...], x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        for w in weights[:-1]:
            x = torch.cat([(x @ w).relu(), x.new_ones(len(x), 1)], dim=1)
        row_loss = learner.head.row_loss((x @ weights[-1]).unsqueeze(0), y.unsqueeze(0)).squeeze(0)
        return (row_loss * mask).sum() / mask.sum()

    def user(rate: Tensor, xs: Tensor, ys: Tensor, ms: Tensor, xq: Tensor, yq: Tensor, mq: Tensor) -> Tensor:
        weights = theta
        for _ in range(learner.solver.steps):
            grads = torch.func.grad(loss)(weights, xs, ys, ms)
            weights = tuple(w - rate * grad for w, grad in zip(weights, grads, strict=True))
        return loss(weights, xq, yq, mq)

    support, query = batch.support, batch.query
    rows = (inputs(support.index_BR), support.y_BR, support.mask_BR, inputs(query.index_BR), query.y_BR, query.mask_BR)
    return torch.func.vmap(user)(rate_B, *rows).mean()


def multiplications(learner: Learner, batches: list[TensorBatch]) -> float:
    """Floating-point operations of the products that one epoch over `batches` cannot do without, at one inner step.

    Support rows pass every layer but the first forward and, written out, backward, query rows forward; autograd doubles
    each product. Item vectors pass the first layer once per batch. A layer's attention costs Q S (D + K) per user.
    """
    total = 0.0
    theta = learner.network.decision.theta()
    for batch in batches:
        S_B, Q_B = batch.support.mask_BR.sum(dim=1), batch.query.mask_BR.sum(dim=1)
        for k, (rows_DK, _) in enumerate(theta):
            D, K = rows_DK.shape
            if k == 0:
                total += len(batch.item_N) * D * K
            else:
                total += float((2 * S_B + Q_B).sum()) * D * K
            total += float((S_B * Q_B).sum()) * (D + K)
    return 2 * 3 * total


def peak(times: Callable[[Tensor, Tensor], Tensor] = torch.mm) -> float:
    """Floating-point operations per second of a large matrix product, the best of several."""
    a, b = torch.randn(2048, 1024), torch.randn(1024, 1024)
    best = min(_timed(lambda: times(a, b)) for _ in range(30))
    return 2 * 2048 * 1024 * 1024 / best


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def ours(learner: Learner, loader: Loader, tasks: TaskBatch) -> Tensor:
    """PAML's objective as it is trained."""
    return query_loss(learner, loader.load(tasks)).value


def compiled(learner: Learner, loader: Loader, tasks: TaskBatch) -> Tensor:
    """The same by torch.compile, for batches of any shape."""
    return _compiled(learner, loader.load(tasks)).value


_compiled = torch.compile(query_loss, dynamic=True)  # when it is first called
FORMS: dict[str, Form] = {
    "one user at a time": one_user_at_a_time,
    "- embedded at once": embedded_at_once,
    "copied and batched": copied_and_batched,
    "paml": ours,
    **({"paml, compiled": compiled} if os.environ.get("PAML_BENCH_COMPILE") == "1" else {}),
}


class Setting:
    """One setting prepared for measuring: data, learner and batches."""

    def __init__(self, path: str, settings: dict[str, object]) -> None:
        data = paml.open_data(path)
        recipe = load_recipe("paper", "paml", settings)
        self.learner = build_learner("paml", DataShape.of(data), recipe, torch.Generator().manual_seed(0))
        self.optimizer = torch.optim.Adam(self.learner.parameters(), lr=recipe.outer_rate, fused=True)
        self.loader = Loader(data)
        episodes = Tasks.of(data, "train").episodes(32, np.random.default_rng(0))
        self.batches = list(itertools.islice(episodes, BATCHES))

    def step(self, form: Form, number: int) -> None:
        """One outer step on one batch."""
        self.optimizer.zero_grad()
        form(self.learner, self.loader, self.batches[number]).backward()
        self.optimizer.step()


def worker(name: str, path: str, settings: dict[str, object], pipe: Connection) -> None:
    """A separate process for each form: receives batch numbers, answers with seconds; only one works at a time."""
    torch.set_num_threads(2)
    if FORMS[name] in (ours, compiled):
        keep_freed_memory()  # as `paml train` does
    setting = Setting(path, settings)
    for number in iter(pipe.recv, None):
        pipe.send(_timed(lambda number=number: setting.step(FORMS[name], number)))


def measure(path: str, settings: dict[str, object]) -> Iterator[str]:
    """Lines of the result for one setting."""
    setting = Setting(path, settings)
    values = [form(setting.learner, setting.loader, setting.batches[0]).item() for form in FORMS.values()]
    assert max(values) - min(values) < 1e-4 * max(values), f"the forms disagree: {values}"
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    for name in FORMS:
        pipes[name], theirs = context.Pipe()
        context.Process(target=worker, args=(name, path, settings, theirs), daemon=True).start()
    seconds: dict[str, dict[int, float]] = {name: {} for name in FORMS}
    usual_peak = own_peak = 0.0
    for _ in range(ROUNDS):
        usual_peak, own_peak = max(usual_peak, peak()), max(own_peak, peak(products.times))
        for name, pipe in pipes.items():
            _taken(pipe, BATCHES - 1)
            for number in range(BATCHES):
                taken = _taken(pipe, number)
                seconds[name][number] = min(taken, seconds[name].get(number, taken))
    for pipe in pipes.values():
        pipe.send(None)
    users = sum(len(batch.user_B) for batch in setting.batches)
    total = {name: sum(by_batch.values()) for name, by_batch in seconds.items()}
    for name, taken in total.items():
        usual, sharper = (total[other] / taken for other in ("one user at a time", "- embedded at once"))
        ratios = f"{usual:5.2f} times one user at a time, {sharper:5.2f} times embedded at once"
        yield f"  {name:<20} {users / taken:7.0f} users/s   {ratios}"
    if setting.learner.solver.steps == 1:
        useful = multiplications(setting.learner, [setting.loader.load(batch) for batch in setting.batches])
        rate = useful / sum(seconds["paml"].values())
        usual, own = (f"{rate / one:.0%} of the {one / 1e9:.0f} of" for one in (usual_peak, own_peak))
        yield f"  useful arithmetic: {rate / 1e9:.0f} GFLOP/s, {usual} PyTorch's product, {own} ours (products.py)"


def _taken(pipe: Connection, number: int) -> float:
    """Seconds that a form's process takes for a batch."""
    pipe.send(number)
    taken: float = pipe.recv()
    return taken


def main() -> None:
    """Print users per second and ratios for each setting."""
    torch.set_num_threads(2)
    with TemporaryDirectory() as folder:
        data = paml.prepare("synthetic", out=Path(folder) / "data", users=6040, items=3883, median_rows=96)
        for title, settings in SETTINGS.items():
            print(f"{title}, batches of 32 users, {torch.get_num_threads()} threads:")
            for line in measure(str(data.path), settings):
                print(line)


if __name__ == "__main__":
    main()
