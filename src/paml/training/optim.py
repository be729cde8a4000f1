"""The outer optimiser of a recipe: what decays, and how its rate falls."""

import math
import re

import torch

from paml.methods.learner import Ensemble
from paml.training.recipe import Recipe

LAST_SHARE = 0.05  # of the outer rate, where it falls
KINDS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
_FREE = re.compile(r"_members\.\d+\.((rates|inner)\.|network\.decision\.shared)")


def make_optimizer(ensemble: Ensemble, recipe: Recipe) -> torch.optim.Optimizer:
    """Adam or AdamW over all members; rates, what is no matrix, and the layers' biases do not decay."""
    named = [(name, parameter) for name, parameter in ensemble.named_parameters() if parameter.requires_grad]
    decays = [parameter for name, parameter in named if parameter.ndim > 1 and not _FREE.match(name)]
    others = [parameter for name, parameter in named if parameter.ndim < 2 or _FREE.match(name)]
    groups = [{"params": decays, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer: torch.optim.Optimizer = KINDS[recipe.optimizer](groups, lr=recipe.outer_rate, fused=True)
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, recipe: Recipe, epoch: int) -> None:
    """The outer rate of an epoch: as it is, or along a cosine to a twentieth."""
    falling = max(0.5 * (1 + math.cos(math.pi * epoch / recipe.epochs)), LAST_SHARE)
    for group in optimizer.param_groups:
        group["lr"] = recipe.outer_rate * (1.0 if recipe.schedule == "constant" else falling)
