"""The slow, obvious form of every method: one user after the other, weights copied, gradients by autograd alone.

It shares the embeddings, the rate source and the row losses with the engine, and nothing of the inner loop.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from paml.data.batches import RowBlock, TensorBatch
from paml.learner import Learner


@dataclass
class OracleResult:
    """Per user: query loss, query outputs (flat), regulariser's gradient norm, rate; and the support and query rows."""

    query_loss_B: Tensor
    outputs: list[Tensor]
    gradient_norm_B: Tensor
    rate: object
    row_losses: list[Tensor]


def _rows(
    learner: Learner, h_H: Tensor, table_ND: Tensor, block: RowBlock, b: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Inputs of the first layer with the user's embedding repeated and a one for the bias, targets, offsets."""
    keep = block.mask_BR[b].bool()
    item = block.index_BR[b][keep]
    parts = [table_ND[item]]
    if learner.network.context.fields:
        assert block.context is not None
        context = learner.network.context(block.context).view(*block.index_BR.shape, -1)
        parts.append(context[b][keep])
    parts += [h_H.expand(len(item), -1), h_H.new_ones(len(item), 1)]
    return torch.cat(parts, dim=1), block.y_BR[b][keep], item


def _forward(weights: list[Tensor], x: Tensor, offset: Tensor | None) -> Tensor:
    z = x @ weights[0]
    for w in weights[1:]:
        z = torch.cat([z.relu(), z.new_ones(len(z), 1)], dim=1) @ w
    return z if offset is None else z + offset


def _offset(learner: Learner, batch: TensorBatch, item: Tensor) -> Tensor | None:
    whole = learner.network.offsets(batch.item_N, item.unsqueeze(0))
    return None if whole is None else whole[0]


def run_oracle(learner: Learner, batch: TensorBatch, *, training: bool = True) -> OracleResult:
    h_BH = learner.network.embed_users(batch.users)
    table_ND = learner.network.embed_items(batch.items, batch.item_N).vectors_ND
    rate = learner.rates(h_BH, batch.user_B if training else None)
    losses, outputs, norms, row_losses = [], [], [], []
    for b in range(len(h_BH)):
        weights = [torch.cat(list(layer)) for layer in learner.network.decision.theta()]
        x, y, item = _rows(learner, h_BH[b], table_ND, batch.support, b)
        norm = h_BH.new_zeros(())
        for step in range(learner.steps):
            out = _forward(weights, x, _offset(learner, batch, item))
            loss = learner.head.row_loss(out.unsqueeze(0), y.unsqueeze(0)).mean()
            grads = torch.autograd.grad(loss, weights, create_graph=True)
            if learner.first_order:
                grads = tuple(grad.detach() for grad in grads)
            if step == 0:
                norm = sum(((grad**2).sum() for grad in grads), h_BH.new_zeros(()))
            if isinstance(rate, Tensor):
                weights = [w - rate[b] * grad for w, grad in zip(weights, grads, strict=True)]
            else:
                weights = [w - torch.cat(list(r)) * grad for w, r, grad in zip(weights, rate, grads, strict=True)]
        xq, yq, item_q = _rows(learner, h_BH[b], table_ND, batch.query, b)
        out = _forward(weights, xq, _offset(learner, batch, item_q))
        row_loss = learner.head.row_loss(out.unsqueeze(0), yq.unsqueeze(0)).squeeze(0)
        losses.append(row_loss.mean())
        outputs.append(out)
        norms.append(norm)
        start = [torch.cat(list(layer)) for layer in learner.network.decision.theta()]
        for xs, ys, items in ((x, y, item), (xq, yq, item_q)):
            plain = _forward(start, xs, _offset(learner, batch, items))
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
