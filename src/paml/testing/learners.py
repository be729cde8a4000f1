"""A small learner in double precision and a batch of users, to be compared with the oracle."""

import itertools

import numpy as np
import torch
from torch import Tensor

from paml.data.dataset import Dataset
from paml.episodes.batches import Loader, TensorBatch
from paml.episodes.candidates import Candidates
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
CHOICE = {**FACTORS, "head": "choice", "bias_by_count": True, "field_scale": 0.3, "embedding_scale": 0.5}


def make(data: Dataset, method: str, users: int = 4, **settings: object) -> tuple[Learner, TensorBatch, Recipe]:
    """A learner in double precision and one training batch; AT-PAML's memory holds some nodes."""
    recipe = load_recipe("paper", method, {**SMALL, **STRONG, **settings})
    learner = build_learner(method, DataShape.of(data), recipe, torch.Generator().manual_seed(1)).double()
    fit_to_data([learner], data)
    bias = getattr(learner.network.items, "bias", None)
    if isinstance(bias, Tensor):
        torch.nn.init.normal_(bias, generator=torch.Generator().manual_seed(2))
    candidates = Candidates(data, recipe.sampled_items) if recipe.head == "choice" else None
    loader = Loader(data, dtype=torch.float64, candidates=candidates)
    batches = Tasks.of(data, "train").episodes(users, np.random.default_rng(3), random_support=True)
    first, second = (loader.load(batch) for batch in itertools.islice(batches, 2))
    learner.rates.begin_epoch(0)
    with torch.no_grad():
        step = learner.rates.in_training(learner.embed(second).h_BH, second.user_B).memory
        if step is not None:
            learner.rates.finish_step(step, recipe.outer_rate)
        learner.rates.begin_epoch(1)
    return learner, first, recipe


def make_choice(data: Dataset, method: str, users: int = 4, **settings: object) -> tuple[Learner, TensorBatch, Recipe]:
    """The same for a choice among all items, with the powers of counts, which start at 0, at other values."""
    learner, batch, recipe = make(data, method, users, **{**CHOICE, **settings})
    with torch.no_grad():
        power = learner.solver.count_power
        assert isinstance(power, Tensor), "a head over items"
        power.fill_(0.3)
        if learner.network.bias_power is not None:
            learner.network.bias_power.fill_(-0.2)
    return learner, batch, recipe


def gradients(loss: Tensor, learner: Learner) -> list[Tensor]:
    """Of all parameters; zeros where a loss does not depend on one."""
    parameters = list(learner.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def deviation(left: list[Tensor], right: list[Tensor]) -> float:
    """The largest difference, relative to the size of the expected values on the right."""
    return max(
        float(((a - b).abs().max() / (1 + b.abs().max())).detach())
        for a, b in zip(left, right, strict=True)
        if a.numel()
    )
