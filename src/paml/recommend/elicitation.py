"""What to ask next: the item whose answer is expected to change the list or the predictions most.

A user's weights in the last layer have a prior N(theta, alpha), and a row's loss is a negative log-likelihood. So the
answers so far leave a covariance k of the predictions, and if the model is right, the squared error falls by as much as
the predictions are expected to move. With items j weighted by w, asking about item q moves them by

    gain(q)  =  p_q ( sum_j w_j k(j, q)^2 / (k(q, q) + 1 / c_q)  +  sum_j w_j (r_j m_q)^2 )

The first sum comes from the answer's value (c_q is the loss's curvature, 2 for squared error), exact for the closed
form; the second from knowing q at all: m_q is how the user prior moves, r_j an item's vector minus what earlier answers
explain of it. p_q is the probability that the user knows q, and w_j is the root of p_j: halfway between "predict what
the user would choose" and "predict everything". For gradient steps, alpha is the prior they amount to.

A run that knows about choice orders its lists by chances pi_j of being chosen, and asks for what moves these: lists
get better sooner, and predictions no later (docs/questions.md). To know q is one more choice, which moves the user's
weights by d_q = H^-1 (z_q - E z), H = 1 / alpha + (n + 1) Cov(z) with the mean and the covariance of the item vectors
under pi. The gain is how far the chances are expected to move, in nats:

    gain(q)  =  p_q d_q Cov(z) d_q / 2  ~  p_q KL(pi after || pi before)

Legend: B users, R items that may be asked about, S answers, F = D + 1 features of the last layer, D inputs, K outputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from paml.engine.adapt import forward
from paml.episodes.batches import QueryBlock
from paml.methods.learner import Adapted, Learner
from paml.recommend.familiarity import Familiarity

MAX_ITEMS = 4096  # best-known items that are considered: bounds the time per question in large catalogues
MAX_MEMBERS = 2  # of an ensemble that are asked: with sixteen, gains of ratings are 0.4 % larger


@dataclass(frozen=True)
class Question:
    """An item to ask about, how likely the user knows it, and how far the chances of being chosen are expected to move.

    The gain is in nats; for a run that knows nothing about choice, it is how far the squared error is expected to fall.
    """

    item: str
    title: str
    chance: float
    gain: float


def best_question(
    adapted: Sequence[tuple[Learner, Adapted]],
    block_of: Callable[[Tensor], QueryBlock],
    familiarity: Familiarity,
    rated: np.ndarray,
    skipped: np.ndarray,
) -> tuple[int, float, float] | None:
    """Row, chance and gain of the best item to ask one user about; None if none is left.

    `rated` are items that the user knows, `skipped` items that the user does not know: none is asked about again.
    `block_of` makes rows of items.
    """
    asked = np.concatenate([rated, skipped])
    known_A = torch.arange(len(asked)) < len(rated)
    chance_I = familiarity.chances(
        torch.from_numpy(asked).unsqueeze(0), known_A.float().unsqueeze(0), torch.ones(1, len(asked))
    )[0]
    open_I = torch.ones(len(chance_I), dtype=torch.bool)
    open_I[torch.from_numpy(asked)] = False
    item_R = open_I.nonzero().squeeze(1)
    if not len(item_R):
        return None
    item_R = item_R[chance_I[item_R].topk(min(MAX_ITEMS, len(item_R))).indices]
    chance_R = chance_I[item_R]
    gain_R = gains(adapted, block_of(item_R), chance_R.unsqueeze(0))[0]
    best = int(gain_R.argmax())
    return int(item_R[best]), float(chance_R[best]), float(gain_R[best])


@torch.no_grad()
def gains(adapted: Sequence[tuple[Learner, Adapted]], block: QueryBlock, chance_BR: Tensor) -> Tensor:
    """gain(q) of the block's items, (B, R), as a mean over members; these items are also the ones to be predicted."""
    weight_BR = chance_BR.sqrt()
    weight_BR = weight_BR / weight_BR.sum(dim=1, keepdim=True)
    parts = [_movement(learner, one, block, weight_BR) for learner, one in adapted]
    return chance_BR * torch.stack(parts).mean(dim=0).to(chance_BR.dtype)


def _movement(learner: Learner, adapted: Adapted, block: QueryBlock, weight_BR: Tensor) -> Tensor:
    """How far each item's answer is expected to move the predictions, squared, (B, R).

    In double precision, and never below 0: numbers of a profile may lie far beyond those of training.
    """
    if learner.head.over_items:
        return _movement_of_chances(learner, adapted, block)
    support = adapted.embedded.batch.support
    known_BSF, curvature_BS = (part.double() for part in _features(learner, adapted, support, support.y_BR))
    weighted_BSF = known_BSF * (curvature_BS.clamp(min=0) * support.mask_BR).unsqueeze(-1)
    covariance_BFF = _covariance(weighted_BSF.mT @ known_BSF)
    item_BRF, curvature_BR = (part.double() for part in _features(learner, adapted, block, None))
    spread_BFF = covariance_BFF @ (item_BRF.mT * weight_BR.unsqueeze(1)) @ item_BRF @ covariance_BFF
    moved_BR = _quadratic(item_BRF, spread_BFF) / (_quadratic(item_BRF, covariance_BFF) + 1 / curvature_BR.clamp(min=0))
    shift_BRDK = _prior_shifts(learner, adapted, block)
    if shift_BRDK is None:
        return moved_BR
    explained_BFS = covariance_BFF @ weighted_BSF.mT
    unexplained_BRD = _prior_inputs(adapted, block).double()
    unexplained_BRD = unexplained_BRD - item_BRF @ (explained_BFS @ _prior_inputs(adapted, support).double())
    spread_BDD = (unexplained_BRD.mT * weight_BR.unsqueeze(1)) @ unexplained_BRD
    return moved_BR + sum(_quadratic(shift_BRD, spread_BDD) for shift_BRD in shift_BRDK.double().unbind(dim=-1))


def _movement_of_chances(learner: Learner, adapted: Adapted, block: QueryBlock) -> Tensor:
    """How far one more choice moves the chances of the block's items, in nats, (B, R)."""
    item_BRF, _ = _features(learner, adapted, block, None)
    chance_BR = torch.softmax(learner.outputs(adapted, block)[..., -1], dim=1)
    centred_BRF = item_BRF - chance_BR.unsqueeze(1) @ item_BRF
    spread_BFF = (centred_BRF.mT * chance_BR.unsqueeze(1)) @ centred_BRF
    count_B11 = adapted.embedded.batch.support.mask_BR.sum(dim=1).view(-1, 1, 1)
    precision_BFF = torch.eye(spread_BFF.shape[-1], dtype=spread_BFF.dtype) + (count_B11 + 1) * spread_BFF
    covariance_BFF = torch.cholesky_inverse(torch.linalg.cholesky(precision_BFF))
    return _quadratic(centred_BRF, covariance_BFF @ spread_BFF @ covariance_BFF) / 2


def _covariance(information_BFF: Tensor) -> Tensor:
    """The inverse of 1 + A, where A has no eigenvalue below 0 but for rounding.

    By Cholesky's factor or, if rounding has left none, by eigenvalues, which take thirty times as long.
    """
    one_FF = torch.eye(information_BFF.shape[-1], dtype=information_BFF.dtype)
    factor_BFF, failed_B = torch.linalg.cholesky_ex(information_BFF + one_FF)
    if not failed_B.any():
        return torch.cholesky_inverse(factor_BFF)
    size_BF, axis_BFF = torch.linalg.eigh(information_BFF)
    covariance_BFF: Tensor = (axis_BFF / (1 + size_BF.clamp(min=0)).unsqueeze(1)) @ axis_BFF.mT
    return covariance_BFF


def _quadratic(x_BRF: Tensor, matrix_BFF: Tensor) -> Tensor:
    """x A x of every row, (B, R), where A has no eigenvalue below 0 but for rounding."""
    return ((x_BRF @ matrix_BFF) * x_BRF).sum(dim=-1).clamp(min=0)


def _features(learner: Learner, adapted: Adapted, block: QueryBlock, y_BR: Tensor | None) -> tuple[Tensor, Tensor]:
    """The last layer's features, scaled so that the prior of their weights is N(0, 1), and the loss's curvature.

    Where no answer is known, the curvature is taken at the prediction.
    """
    x = learner.network.first_input(adapted.embedded, block)
    out_BRK, inputs = forward(adapted.adaptation.layers, x)
    offset_BRK = adapted.embedded.offsets(x)
    out_BRK = out_BRK if offset_BRK is None else out_BRK + offset_BRK
    curvature_BR = learner.head.row_curvature(out_BRK, y_BR)
    mask_BS = adapted.embedded.batch.support.mask_BR
    sd_B1D, level_B = learner.solver.prior_sd(adapted.rate, mask_BS, inputs[-1].shared_BC)
    scaled_BRD = inputs[-1].x_BRD * sd_B1D
    return torch.cat([scaled_BRD, level_B.view(-1, 1, 1).expand(*curvature_BR.shape, 1)], dim=-1), curvature_BR


def _prior_shifts(learner: Learner, adapted: Adapted, block: QueryBlock) -> Tensor | None:
    """How the user prior would move if one more item were known, (B, R, D + 1, K)."""
    support, choice_NG = adapted.embedded.batch.support, adapted.embedded.items.choice_NG
    return learner.network.user_prior.shifts(choice_NG, support.index_BR, support.mask_BR, block.index_BR)


def _prior_inputs(adapted: Adapted, block: QueryBlock) -> Tensor:
    """What the user prior is multiplied by: item vectors without affinity, and a 1, (B, R, D + 1)."""
    embedded = adapted.embedded
    assert embedded.prior_BDK is not None
    vectors_BRD = embedding(block.index_BR, embedded.items.vectors_ND[:, : embedded.prior_BDK.shape[1] - 1])
    return torch.cat([vectors_BRD, vectors_BRD.new_ones(*block.index_BR.shape, 1)], dim=-1)
