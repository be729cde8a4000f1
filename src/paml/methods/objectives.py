"""The meta-losses: what the outer step minimises, each a function of a learner and a batch."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from paml.engine.adapt import Adaptation, RatePerUser
from paml.engine.heads import user_loss
from paml.engine.layers import SharedLayer
from paml.episodes.batches import RowBlock, TensorBatch
from paml.methods.learner import Adapted, Learner
from paml.methods.rates import MemoryStep
from paml.settings import Settings


class ObjectiveSettings(Settings):
    """The meta-loss."""

    user_bias_discount: float = Field(
        0.0, ge=0, lt=1, description="share of a user's squared mean error that the outer loss discounts"
    )
    gamma: float = Field(1e-3, ge=0, description="weight of REG-PAML's regulariser")


class MetaLoss(NamedTuple):
    """The loss of a batch, and the memory update that the outer step has to finish, if there is a memory."""

    value: Tensor
    memory: MemoryStep | None = None
    weight: Tensor | None = None
    """How much this mean counts beside those of other users; None for their number."""


Objective = Callable[[Learner, TensorBatch], MetaLoss]


def query_loss(learner: Learner, batch: TensorBatch, user_bias_discount: float = 0.0) -> MetaLoss:
    """Mean over users of L_i(theta_i) on the query set (Eq. 1)."""
    adapted = learner.adapt_in_training(learner.embed(batch), batch.user_B)
    return MetaLoss(_losses(learner, adapted, batch.query, user_bias_discount).mean(), adapted.memory)


def regularised_query_loss(gamma: float, user_bias_discount: float = 0.0) -> Objective:
    """Mean over users of L_i(theta_i) + gamma * ||dL_i/dtheta||^2 * |alpha_i| (REG-PAML, Sec. 4.3 and Eq. 4).

    The gradient is that of the support loss at theta: the first inner step's.
    """

    def objective(learner: Learner, batch: TensorBatch) -> MetaLoss:
        adapted = learner.adapt_in_training(learner.embed(batch), batch.user_B)
        loss_B = _losses(learner, adapted, batch.query, user_bias_discount)
        if gamma == 0 or learner.solver.steps == 0:
            return MetaLoss(loss_B.mean(), adapted.memory)
        alpha_B = adapted.rate.per_user(len(loss_B))
        regularised_B = loss_B + gamma * adapted.adaptation.gradient_norm() * alpha_B.abs()
        return MetaLoss(regularised_B.mean(), adapted.memory)

    return objective


def pooled_loss(learner: Learner, batch: TensorBatch) -> MetaLoss:
    """Mean over all rows of all users at theta, support and query alike: ordinary supervised training."""
    embedded = learner.embed(batch)
    theta = Adaptation(tuple(SharedLayer(weights) for weights in learner.network.decision.theta()))
    unadapted = Adapted(embedded, RatePerUser(embedded.h_BH.new_zeros(len(embedded.h_BH))), theta)
    total_B, count_B = learner.loss_and_count(learner.with_dropout(unadapted), [batch.support, batch.query])
    count = count_B.sum()
    return MetaLoss(total_B.sum() / torch.where(count > 0, count, 1.0), weight=count)  # a batch may like nothing


def _losses(learner: Learner, adapted: Adapted, block: RowBlock, user_bias_discount: float) -> Tensor:
    """Mean squared error of each user, with a discount o of the user's bias: mean e^2 - o (mean e)^2, (B).

    A few ratings show a user's bias whatever the weights are, and what they do not show is noise in the gradient;
    what the weights have to learn is the differences between items.
    """
    if not user_bias_discount:
        return learner.loss(adapted, block)
    out_BRK = learner.outputs(adapted, block)
    loss_B = user_loss(learner.head.row_loss(out_BRK, block.y_BR), block.mask_BR)
    return loss_B - user_bias_discount * user_loss(out_BRK.squeeze(-1) - block.y_BR, block.mask_BR) ** 2
