"""A small learner in double precision and a batch of users, for tests of the engine."""

import itertools

import numpy as np
import torch
from torch import Tensor

import paml
from paml.episodes.batches import Loader, TensorBatch
from paml.episodes.tasks import Tasks
from paml.methods.learner import Learner
from paml.methods.registry import build_learner, fit_to_data
from paml.network.build import DataShape
from paml.training.recipe import Recipe, load_recipe

SMALL = {"embedding_size": 4, "hidden": (7, 5), "neighbours": 3, "memory_size": 12, "kernel_delta": 0.05}
STRONG = {
    "inner_rate": 0.25,
    "rate_scale": 0.5,
    "warmup_rate": 0.25,
    "gamma": 0.1,
}
FACTORS = {
    "network": "factors",
    "multi_pooling": "root",
    "hidden": (),
    "item_embedding": 3,
    "prior_from_profile": True,
    "prior_from_items": 2,
    "pseudo_count": 2.0,
}


def make(data: paml.Dataset, method: str, users: int = 4, **settings: object) -> tuple[Learner, TensorBatch, Recipe]:
    """A learner in double precision and one training batch; AT-PAML's memory holds some nodes."""
    recipe = load_recipe("paper", method, {**SMALL, **STRONG, **settings})
    learner = build_learner(method, DataShape.of(data), recipe, torch.Generator().manual_seed(1)).double()
    fit_to_data([learner], data)
    if getattr(learner.network.items, "bias", None) is not None:
        torch.nn.init.normal_(learner.network.items.bias, generator=torch.Generator().manual_seed(2))
    loader = Loader(data, dtype=torch.float64)
    batches = Tasks.of(data, "train").episodes(users, np.random.default_rng(3), random_support=True)
    first, second = (loader.load(batch) for batch in itertools.islice(batches, 2))
    learner.rates.begin_epoch(0)
    with torch.no_grad():
        step = learner.rates.in_training(learner.embed(second).h_BH, second.user_B).memory
        if step is not None:
            learner.rates.finish_step(step, recipe.outer_rate)
        learner.rates.begin_epoch(1)
    return learner, first, recipe


def deviation(left: list[Tensor], right: list[Tensor]) -> float:
    return max(
        float(((a - b).abs().max() / (1 + b.abs().max())).detach())
        for a, b in zip(left, right, strict=True)
        if a.numel()
    )
