"""The meta-losses: what the outer step minimises, each a function of a learner and a batch."""

from collections.abc import Callable

import torch
from torch import Tensor

from paml.adapt import Adaptation
from paml.data.batches import TensorBatch
from paml.layers import SharedLayer
from paml.learner import Adapted, Learner
from paml.rates import rate_per_user

Objective = Callable[[Learner, TensorBatch], Tensor]


def query_loss(learner: Learner, batch: TensorBatch) -> Tensor:
    """Mean over users of L_i(theta_i) on the query set (Eq. 1)."""
    adapted = learner.adapt(learner.embed(batch), batch.user_B)
    return learner.loss(adapted, batch.query).mean()


def regularised_query_loss(gamma: float) -> Objective:
    """Mean over users of L_i(theta_i) + gamma * ||dL_i/dtheta||^2 * |alpha_i| (REG-PAML, Sec. 4.3 and Eq. 4).

    The gradient is that of the support loss at theta: the first inner step's.
    """

    def objective(learner: Learner, batch: TensorBatch) -> Tensor:
        adapted = learner.adapt(learner.embed(batch), batch.user_B)
        loss_B = learner.loss(adapted, batch.query)
        if gamma == 0 or learner.inner.steps == 0:
            return loss_B.mean()
        alpha_B = rate_per_user(adapted.rate, len(loss_B))
        return (loss_B + gamma * adapted.adaptation.gradient_norm() * alpha_B.abs()).mean()

    return objective


def pooled_loss(learner: Learner, batch: TensorBatch) -> Tensor:
    """Mean over all rows of all users at theta, support and query alike: ordinary supervised training."""
    embedded = learner.embed(batch)
    theta = Adaptation(tuple(SharedLayer(weights) for weights in learner.network.decision.theta()))
    unadapted = Adapted(embedded, embedded.h_BH.new_zeros(len(embedded.h_BH)), theta)
    total, count = [], []
    for block in (batch.support, batch.query):
        row_loss_BR = learner.head.row_loss(learner.outputs(unadapted, block), block.y_BR)
        total.append((row_loss_BR * block.mask_BR).sum())
        count.append(block.mask_BR.sum())
    return torch.stack(total).sum() / torch.stack(count).sum()
