"""Users per second of a full training step (embed, adapt, query loss, backward, Adam), all forms in one run.

Our engine against one user after the other and against weights copied per user and batched, at the paper's sizes and at
MeLU's published setting (embeddings 32, layers 64-64, five second-order steps), on lengths as in MovieLens-1M. All
forms look embeddings up in the same sparse way and compute the same loss; the forms take turns, and each one's best
round counts, because other work on the machine only ever makes a round slower.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

import paml
from paml.allocator import keep_freed_memory
from paml.data.batches import Loader, TensorBatch
from paml.data.tasks import Tasks
from paml.learner import Learner
from paml.methods import DataShape, build_learner, find_method
from paml.recipe import Recipe, load_recipe

ROUNDS = int(os.environ.get("PAML_BENCH_ROUNDS", "7"))
BATCHES = 8  # outer steps per form and round; the slow forms take fewer
SETTINGS = {
    "paper sizes (320-192, one step)": {},
    "MeLU's setting (64-64, five steps)": {"hidden": (64, 64), "inner_steps": 5},
}


def one_user_at_a_time(learner: Learner, batch: TensorBatch) -> Tensor:
    """The usual way: for each user copy the weights, differentiate the support loss, step, and score the query set."""
    h_BH, table_ND = (
        learner.network.embed_users(batch.users),
        learner.network.embed_items(batch.items, batch.item_N).vectors_ND,
    )
    rate_B = learner.rates(h_BH)
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
        for _ in range(learner.steps):
            loss = _user_loss(learner, weights, *parts[0])
            grads = torch.autograd.grad(loss, weights, create_graph=True)
            weights = [w - rate_B[b] * grad for w, grad in zip(weights, grads, strict=True)]
        losses.append(_user_loss(learner, weights, *parts[1]))
    return torch.stack(losses).mean()


def _user_loss(learner: Learner, weights: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    for w in weights[:-1]:
        x = torch.cat([(x @ w).relu(), x.new_ones(len(x), 1)], dim=1)
    return learner.head.row_loss((x @ weights[-1]).unsqueeze(0), y.unsqueeze(0)).mean()


def copied_and_batched(learner: Learner, batch: TensorBatch) -> Tensor:
    """Weights copied per user, all users at once: vmap of the usual way over padded rows."""
    h_BH, table_ND = (
        learner.network.embed_users(batch.users),
        learner.network.embed_items(batch.items, batch.item_N).vectors_ND,
    )
    rate_B = learner.rates(h_BH)
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
        for _ in range(learner.steps):
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


def peak() -> float:
    """Floating-point operations per second of a large matrix product, the best of several."""
    a, b = torch.randn(2048, 1024), torch.randn(1024, 1024)
    best = min(_timed(lambda: a @ b) for _ in range(30))
    return 2 * 2048 * 1024 * 1024 / best


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(data: paml.PreparedData, recipe: Recipe) -> Iterator[str]:
    """Lines of the result for one setting."""
    learner = build_learner("paml", DataShape.of(data), recipe, torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(learner.parameters(), lr=recipe.outer_rate, fused=True)
    loader = Loader(data)
    task_batches = list(itertools.islice(Tasks.of(data, "train").episodes(32, np.random.default_rng(0)), BATCHES))
    ours = find_method("paml").objective(recipe)
    forms = {
        "one user at a time": (one_user_at_a_time, BATCHES),
        "copied and batched": (copied_and_batched, BATCHES),
        "paml": (ours, BATCHES),
    }
    values = {name: form(learner, loader.load(task_batches[0])).item() for name, (form, _) in forms.items()}
    assert max(values.values()) - min(values.values()) < 1e-4 * max(values.values()), values
    seconds: dict[str, dict[int, float]] = {name: {} for name in forms}
    flops_per_second = 0.0

    def step(form: Callable[[Learner, TensorBatch], Tensor], number: int) -> None:
        batch = loader.load(task_batches[number])
        optimizer.zero_grad()
        form(learner, batch).backward()
        optimizer.step()

    for _ in range(ROUNDS):
        flops_per_second = max(flops_per_second, peak())
        for name, (form, count) in forms.items():
            for number in range(count):
                taken = _timed(lambda form=form, number=number: step(form, number))
                seconds[name][number] = min(taken, seconds[name].get(number, taken))
    shared = range(min(count for _, count in forms.values()))  # batches that every form has done
    slow = sum(seconds["one user at a time"][number] for number in shared)
    users = sum(len(task_batches[number].user_B) for number in shared)
    for name, taken_by_batch in seconds.items():
        taken = sum(taken_by_batch[number] for number in shared)
        yield f"  {name:<20} {users / taken:7.0f} users/s   {slow / taken:5.2f} times one user at a time"
    if recipe.inner_steps == 1:
        useful = multiplications(learner, [loader.load(batch) for batch in task_batches])
        rate = useful / sum(seconds["paml"].values())
        share = rate / flops_per_second
        yield f"  useful arithmetic: {rate / 1e9:.0f} of {flops_per_second / 1e9:.0f} GFLOP/s, {share:.0%} of the peak"


def main() -> None:
    """Print users per second and ratios for each setting."""
    torch.set_num_threads(2)
    keep_freed_memory()
    with TemporaryDirectory() as folder:
        data = paml.prepare("synthetic", out=Path(folder) / "data", users=6040, items=3883, median_rows=96)
        for title, settings in SETTINGS.items():
            print(f"{title}, batches of 32 users, {torch.get_num_threads()} threads:")
            for line in measure(data, load_recipe("paper", "paml", settings)):
                print(line)


if __name__ == "__main__":
    main()
