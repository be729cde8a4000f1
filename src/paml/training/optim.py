"""The outer optimiser: weight decay, and the schedule of its rate."""

import math

import torch

from paml.methods.learner import Ensemble
from paml.training.recipe import OuterSettings

LAST_SHARE = 0.05  # of the outer rate, at the end of a cosine
KINDS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def make_optimizer(ensemble: Ensemble, settings: OuterSettings) -> torch.optim.Optimizer:
    """Adam or AdamW over all members; rates, biases and whatever is not a matrix do not decay."""
    free = {id(parameter) for member in ensemble.members for parameter in member.without_decay()}
    learned = [parameter for parameter in ensemble.parameters() if parameter.requires_grad]
    decays = [parameter for parameter in learned if parameter.ndim > 1 and id(parameter) not in free]
    others = [parameter for parameter in learned if parameter.ndim < 2 or id(parameter) in free]
    groups = [{"params": decays, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer: torch.optim.Optimizer = KINDS[settings.optimizer](groups, lr=settings.outer_rate, fused=True)
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, settings: OuterSettings, epoch: int) -> None:
    """Set the outer rate of an epoch: constant, or falling along a cosine to a twentieth."""
    falling = max(0.5 * (1 + math.cos(math.pi * epoch / settings.epochs)), LAST_SHARE)
    for group in optimizer.param_groups:
        group["lr"] = settings.outer_rate * (1.0 if settings.schedule == "constant" else falling)
