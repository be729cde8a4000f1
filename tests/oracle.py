"""The slow, obvious form of every method: one user after the other, weights copied, gradients by autograd alone.

It shares embeddings, rate source and row losses with the engine, but nothing of the inner loop.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from paml.engine.adapt import RatePerUser
from paml.engine.solvers import ClosedForm, GradientSteps
from paml.episodes.batches import RowBlock, TensorBatch
from paml.methods.learner import Learner
from paml.network.network import Embedded


@dataclass
class OracleResult:
    """Per user: query loss, query outputs, the regulariser's gradient norm, rate, and losses of all rows at theta."""

    query_loss_B: Tensor
    outputs: list[Tensor]
    gradient_norm_B: Tensor
    rate: object
    row_losses: list[Tensor]


def _rows(learner: Learner, embedded: Embedded, block: RowBlock, b: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs of the first layer, with the user's embedding repeated and a 1 for the bias; targets; offsets."""
    keep = block.mask_BR[b].bool()
    item, h_H = block.index_BR[b][keep], embedded.h_BH[b]
    vectors = embedded.items.vectors_ND[item]
    parts = [vectors]
    if learner.network.context.fields:
        assert block.context is not None
        context = learner.network.context(block.context).view(*block.index_BR.shape, -1)
        parts.append(context[b][keep])
    parts += [h_H.expand(len(item), -1), h_H.new_ones(len(item), 1)]
    offset = vectors.new_zeros(len(item), learner.head.outputs)
    if embedded.items.bias_NK is not None:
        offset = offset + embedded.items.bias_NK[item]
    if embedded.prior_BDK is not None:
        learned = vectors[:, : embedded.prior_BDK.shape[1] - 1]  # the prior does not cover affinities
        offset = offset + torch.cat([learned, learned.new_ones(len(item), 1)], dim=1) @ embedded.prior_BDK[b]
    return torch.cat(parts, dim=1), block.y_BR[b][keep], offset


def _forward(weights: list[Tensor], x: Tensor, offset: Tensor) -> Tensor:
    z = x @ weights[0]
    for w in weights[1:]:
        z = torch.cat([z.relu(), z.new_ones(len(z), 1)], dim=1) @ w
    return z + offset


def _with_last_moved(weights: list[Tensor], d: Tensor, level: Tensor, free: int) -> list[Tensor]:
    """The last output's weights of the inputs that differ by row (the first `free`), and its bias, moved by d."""
    change = torch.zeros_like(weights[-1])
    rows = [*range(free), len(change) - 1]
    change = change.index_put((torch.tensor(rows), torch.tensor([-1] * len(rows))), torch.cat([d[:-1], level * d[-1:]]))
    return [*weights[:-1], weights[-1] + change]


def _closed_form(
    learner: Learner, weights: list[Tensor], x: Tensor, y: Tensor, offset: Tensor, variance: Tensor
) -> list[Tensor]:
    """Newton's method on sum of losses + |d|^2 / variance, gradient and Hessian by autograd."""
    assert isinstance(learner.solver, ClosedForm)
    free, level = len(learner.network.decision.theta()[-1].rows_DK), learner.solver.level

    def penalised(d: Tensor) -> Tensor:
        out = _forward(_with_last_moved(weights, d, level, free), x, offset)
        return learner.head.row_loss(out.unsqueeze(0), y.unsqueeze(0)).sum() + (d**2).sum() / variance / 2

    d = weights[0].new_zeros(free + 1)
    for _ in range(learner.solver.steps):
        point = d.detach().requires_grad_() if not d.requires_grad else d
        (slope,) = torch.autograd.grad(penalised(point), point, create_graph=True)
        hessian_FF = torch.autograd.functional.hessian(penalised, point, create_graph=True)
        d = d - torch.linalg.solve(hessian_FF, slope)
    return _with_last_moved(weights, d, level, free)


def _gradient_steps(
    learner: Learner, weights: list[Tensor], x: Tensor, y: Tensor, offset: Tensor, rate: Tensor | list[Tensor]
) -> tuple[list[Tensor], Tensor]:
    """Steps on the mean (or with a pseudo-count c: sum / (n + c)) of the losses, and the first gradient's norm."""
    assert isinstance(learner.solver, GradientSteps)
    norm = weights[0].new_zeros(())
    log_c = learner.solver.log_pseudo_count
    rows = len(y) if log_c is None else len(y) + log_c.exp()
    for step in range(learner.solver.steps):
        out = _forward(weights, x, offset)
        loss = learner.head.row_loss(out.unsqueeze(0), y.unsqueeze(0)).sum() / rows
        grads = torch.autograd.grad(loss, weights, create_graph=True)
        if learner.solver.first_order:
            grads = tuple(grad.detach() for grad in grads)
        if step == 0:
            norm = torch.stack([(grad**2).sum() for grad in grads]).sum()
        rates = [rate] * len(weights) if isinstance(rate, Tensor) else rate
        weights = [w - r * grad for w, r, grad in zip(weights, rates, grads, strict=True)]
    return weights, norm


def run_oracle(learner: Learner, batch: TensorBatch, *, training: bool = True) -> OracleResult:
    embedded = learner.embed(batch)
    given = learner.rates.in_training(embedded.h_BH, batch.user_B).rate if training else learner.rates(embedded.h_BH)
    rate = given.alpha_B if isinstance(given, RatePerUser) else given.theta
    losses, outputs, norms, row_losses = [], [], [], []
    for b in range(len(embedded.h_BH)):
        theta = [torch.cat(list(layer)) for layer in learner.network.decision.theta()]
        x, y, offset = _rows(learner, embedded, batch.support, b)
        user_rate = rate[b] if isinstance(rate, Tensor) else [torch.cat(list(r)) for r in rate]
        norm = x.new_zeros(())
        if isinstance(learner.solver, ClosedForm):
            assert isinstance(user_rate, Tensor)
            weights = _closed_form(learner, theta, x, y, offset, user_rate)
        else:
            weights, norm = _gradient_steps(learner, theta, x, y, offset, user_rate)
        xq, yq, offset_q = _rows(learner, embedded, batch.query, b)
        out = _forward(weights, xq, offset_q)
        row_loss = learner.head.row_loss(out.unsqueeze(0), yq.unsqueeze(0)).squeeze(0)
        losses.append(row_loss.mean())
        outputs.append(out)
        norms.append(norm)
        for xs, ys, offsets in ((x, y, offset), (xq, yq, offset_q)):
            plain = _forward(theta, xs, offsets)
            row_losses.append(learner.head.row_loss(plain.unsqueeze(0), ys.unsqueeze(0)).squeeze(0))
    return OracleResult(torch.stack(losses), outputs, torch.stack(norms), rate, row_losses)


def oracle_objective(method: str, learner: Learner, batch: TensorBatch, gamma: float) -> Tensor:
    """The meta-loss of a method, from the oracle's parts."""
    result = run_oracle(learner, batch)
    if method == "transfer":
        return torch.cat(result.row_losses).mean()
    if method == "reg_paml":
        assert isinstance(result.rate, Tensor)
        return (result.query_loss_B + gamma * result.gradient_norm_B * result.rate.abs()).mean()
    return result.query_loss_B.mean()
