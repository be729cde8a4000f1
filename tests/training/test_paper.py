"""Recipe `paper` against the paper's own numbers, written out here with their source; tables as the LaTeX counts them.

Tab. 7 has columns for AT-PAML, REG-PAML and PAML; the other methods are "similar to PAML" (D.2).
"""

from typing import Any

import pytest
import torch
from torch.nn import functional

import paml
from paml.methods.memory import MemoryRate
from paml.methods.rates import PersonalRate
from paml.methods.registry import build_learner, methods_of
from paml.network.build import DataShape
from paml.training.recipe import load_recipe

METHODS = ("melu", "meta_sgd", "transfer", "paml", "at_paml", "reg_paml")

PAPER: dict[str, tuple[Any, str]] = {
    "embedding_size": (32, "Tab. 7: embedding size for each feature"),
    "hidden": ((320, 192), "Tab. 7: decision layer size 320,192,d"),
    "epochs": (20, "Tab. 7"),
    "batch_size": (32, "Tab. 7"),
    "memory_size": (10_000, "Tab. 7: tree memory size"),
    "warmup_epochs": (1, "Tab. 7"),
    "warmup_rate": (5e-4, "D.2, text below the listing; Tab. 7 says 5e-6"),
    "neighbours_inference": (5, "Tab. 7: number of neighbours for inference"),
    "gamma": (1e-3, "Tab. 7"),
    "kernel_delta": (2.0, "Tab. 7"),
    "neighbours": (20, "Tab. 7: the number of nearest users K"),
    "rate_scale": (1e-3, "listing in D.2: 0.001 * torch.sigmoid"),
    "kernel_sigma": (1e-5, "Sec. 4.2, and kernel_sum in the listing of D.2"),
    "inner_rate": (1e-5, "D.2: MeLU's fixed inner LR"),
    "inner_steps": (1, "Eq. 1 and Alg. 1"),
    "first_order": (False, "Eqs. 5 and 6 have the second derivative"),
    "optimizer": ("adam", "D.4"),
    "support_share": (0.8, "D.1, step 4"),
    "random_support": (False, "D.1, step 4"),
    "embedding_scale": (1.0, "D.2: torch.nn.Embedding, which draws from N(0, 1)"),
    "network": ("fields", "D.2: embeddings, concatenated"),
    "head": ("auto", "D.5: mean squared loss for ratings, weighted entropy for clicks"),
    "multi_pooling": ("mean", "not in the paper: its genres are a list, and the mean is what keeps their size"),
    "memory_stores": ("own", "not in the paper, which stores alpha: see docs/paper.md"),
    "memory_index": ("exact", "not in the paper, which approximates: see docs/paper.md"),
}
OUTER_RATE = {"paml": 5e-6, "at_paml": 5e-5, "reg_paml": 5e-5, "melu": 5e-5, "meta_sgd": 5e-5, "transfer": 5e-5}
NOT_IN_THE_PAPER = {
    "affinity_fields": (),
    "bias_by_count": False,
    "choice_method": "",
    "choice_part": False,
    "clip_norm": 0.0,
    "ema_decay": 0.0,
    "ensemble_size": 1,
    "exclude_fields": (),
    "item_bias": False,
    "item_embedding": 0,
    "on_scale": False,
    "patience": 0,
    "prior_from_items": 0,
    "prior_from_profile": False,
    "pseudo_count": 0.0,
    "schedule": "constant",
    "start_at_mean": False,
    "taste_dropout": 0.0,
    "user_bias_discount": 0.0,
    "weight_decay": 0.0,
}
WITHOUT_EFFECT = {  # of what is off
    *("affinity_dim", "affinity_scale", "field_scale", "index_every"),
    *("liked", "unliked_weight", "sampled_items"),
}


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_is_the_papers(method: str) -> None:
    found = load_recipe("paper", method, {}).model_dump()
    expected = {name: value for name, (value, _) in PAPER.items()} | NOT_IN_THE_PAPER
    expected["outer_rate"] = OUTER_RATE[method]
    assert {name: value for name, value in found.items() if name not in WITHOUT_EFFECT} == expected


def test_the_methods_are_the_papers() -> None:
    assert methods_of("paper") == METHODS


def test_features_that_the_paper_does_not_use_are_excluded() -> None:
    """Sec. 5: genre, director and actor of films; year and publisher of books."""
    assert load_recipe("paper", "paml", {}, "ml-1m").exclude_fields == ("item.year",)
    assert load_recipe("paper", "paml", {}, "bookcrossing").exclude_fields == ("item.author",)


@pytest.mark.parametrize(("head", "outputs"), [("value", 1), ("classes", 5), ("click", 2)])
@pytest.mark.parametrize("method", METHODS)
def test_networks_have_the_sizes_of_the_table(
    method: str, head: str, outputs: int, world: paml.Dataset, click_world: paml.Dataset
) -> None:
    """Tab. 7: embeddings of 32, decision layers 320, 192, d, rate layers 64, 32, 1, and 10,000 nodes of memory."""
    data = click_world if head == "click" else world
    assert data.schema.target.kind == "click" or len(data.schema.target.levels) == 5
    recipe = load_recipe("paper", method, {"head": head})
    learner = build_learner(method, DataShape.of(data), recipe, torch.Generator().manual_seed(0))
    network, rates = learner.network, learner.rates
    for embedder in (network.user, network.items.fields):
        assert embedder.width == 32 * len(embedder.fields)
        assert {table.shape[1] for table in [*embedder.tables.values(), *embedder.numbers.values()]} == {32}
    assert [rows.shape[1] for rows in network.decision.rows] == [320, 192, outputs]
    assert learner.head.outputs == outputs
    if isinstance(rates, MemoryRate):
        assert rates.memory.keys_MH.shape == (10_000, network.user.width)
        rates = rates.own
    if method in ("paml", "at_paml", "reg_paml"):
        assert isinstance(rates, PersonalRate)
        assert [tuple(weights.shape) for weights in rates.weights] == [(network.user.width, 64), (64, 32), (32, 1)]


def test_the_rate_network_is_that_of_the_listing(world: paml.Dataset) -> None:
    """D.2: fc1_1, ReLU, fc1_2, fc_lr, then 0.001 * sigmoid; with weights so large that every layer matters."""
    recipe = load_recipe("paper", "paml", {})
    learner = build_learner("paml", DataShape.of(world), recipe, torch.Generator().manual_seed(0)).double()
    rates, rng = learner.rates, torch.Generator().manual_seed(1)
    assert isinstance(rates, PersonalRate)
    fc1_1, fc1_2, fc_lr = (torch.nn.Linear(*w.shape).double() for w in rates.weights)
    with torch.no_grad():
        for layer, weights, bias in zip((fc1_1, fc1_2, fc_lr), rates.weights, rates.biases, strict=True):
            layer.weight.copy_(weights.T)
            layer.bias.copy_(bias)
        user_emb = 3 * torch.randn(50, learner.network.user.width, generator=rng, dtype=torch.float64)
        lremb = functional.relu(fc1_1(user_emb))
        lremb = fc1_2(lremb)
        assert (lremb < 0).any(dim=1).all(), "a second ReLU would change every rate"
        expected = 0.001 * torch.sigmoid(fc_lr(lremb)).squeeze(-1)
        torch.testing.assert_close(rates(user_emb).per_user(50), expected)
        assert expected.std() > 1e-5
