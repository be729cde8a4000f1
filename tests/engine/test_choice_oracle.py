"""A choice among all items, all of them or a sample: the engine against the oracle and finite differences."""

import pytest
import torch

import paml
from paml.episodes import candidates
from paml.methods.learner import Ensemble
from paml.methods.registry import METHODS, find_method
from paml.testing import ChoiceOracle
from paml.testing.learners import deviation, gradients, make_choice

TOLERANCE = 1e-8
SAMPLED = 30
"""Draws per batch, of 80 items."""


@pytest.fixture(params=["all", "sampled"])
def items(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether a batch has all items or a sample."""
    if request.param == "sampled":
        monkeypatch.setattr(candidates, "MAX_EXACT", 10)
    return str(request.param)


@pytest.mark.parametrize(("steps", "first_order"), [(0, False), (1, False), (3, False), (3, True)])
@pytest.mark.parametrize("method", METHODS)
def test_agrees_with_the_oracle(method: str, steps: int, first_order: bool, items: str, world: paml.Dataset) -> None:
    settings = {"inner_steps": steps, "first_order": first_order, "sampled_items": SAMPLED}
    learner, batch, recipe = make_choice(world, method, **settings)
    assert (batch.log_chance_N is None) == (items == "all")
    assert (len(batch.item_N) == world.manifest.items) == (items == "all")
    loss = find_method(method).objective(recipe)(learner, batch).value
    slow = ChoiceOracle(method, learner, batch, recipe)
    oracle = slow.run()
    expected = slow.objective(oracle)
    assert deviation([loss], [expected]) < TOLERANCE
    assert deviation(gradients(loss, learner), gradients(expected, learner)) < TOLERANCE
    adapted = learner.adapt_in_training(learner.embed(batch), batch.user_B)
    assert deviation([learner.loss(adapted, batch.query)], [oracle.query_loss_B]) < TOLERANCE
    whole = learner.outputs_of_all(adapted, slice(None), None).squeeze(-1)
    assert deviation([*whole], oracle.outputs) < TOLERANCE
    torch.testing.assert_close(learner.outputs(adapted, batch.query)[..., 0], whole.gather(1, batch.query.index_BR))
    if steps and METHODS[method].solver == "gradient":
        assert deviation([adapted.adaptation.gradient_norm()], [oracle.gradient_norm_B]) < TOLERANCE


@pytest.mark.parametrize("settings", [{"pseudo_count": 0.0}, {"bias_by_count": False, "liked": 3.0}])
@pytest.mark.parametrize("method", ["melu", "reg_paml", "ridge"])
def test_agrees_with_other_settings(method: str, settings: dict[str, object], world: paml.Dataset) -> None:
    """The mean instead of a sum with a pseudo-count; biases that do not depend on counts, another level of liking."""
    none = {"prior_from_profile": False, "prior_from_items": 0, "unliked_weight": 0.0}
    learner, batch, recipe = make_choice(world, method, **settings, **none, inner_steps=2)
    loss = find_method(method).objective(recipe)(learner, batch).value
    expected = ChoiceOracle(method, learner, batch, recipe).objective()
    assert deviation([loss], [expected]) < TOLERANCE
    assert deviation(gradients(loss, learner), gradients(expected, learner)) < TOLERANCE


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", ["context", "click"])
def test_agrees_with_clicks_and_with_a_context(
    method: str, target: str, context_world: paml.Dataset, click_world: paml.Dataset
) -> None:
    """A choice among all items is made in no context: what the data has of it is not an input."""
    learner, batch, recipe = make_choice(context_world if target == "context" else click_world, method, inner_steps=2)
    loss = find_method(method).objective(recipe)(learner, batch).value
    expected = ChoiceOracle(method, learner, batch, recipe).objective()
    assert deviation([loss], [expected]) < TOLERANCE
    assert deviation(gradients(loss, learner), gradients(expected, learner)) < TOLERANCE


@pytest.mark.parametrize("method", METHODS)
def test_outputs_in_use_agree_with_the_oracle(method: str, world: paml.Dataset) -> None:
    learner, batch, recipe = make_choice(world, method, neighbours_inference=2, inner_steps=2)
    oracle = ChoiceOracle(method, learner, batch, recipe).run(training=False)
    predicted_BQ, _ = Ensemble([learner]).predict(batch)
    for b, out_N in enumerate(oracle.outputs):
        assert deviation([predicted_BQ[b]], [out_N[batch.query.index_BR[b]]]) < TOLERANCE


GROUPS = {
    "item vectors and biases": "network.items.own",
    "fields of items": "network.items.fields",
    "theta": "network.decision.rows",
    "prior by profile": "network.user_prior.profile",
    "prior by chosen items": "network.user_prior.choice",
    "bias power": "network.bias_power",
    "level weights": "known_weights",
    "rate layers": "rates.weights",
    "count power": "solver.count_power",
    "pseudo-count": "solver.log_pseudo_count",
}
BOTH = ("melu", "ridge")
OF = {"rate layers": ("paml", "ridge"), "pseudo-count": ("melu",)}
"""The methods that have such parameters, if not both."""


@pytest.mark.parametrize(("group", "method"), [(group, method) for group in GROUPS for method in OF.get(group, BOTH)])
def test_meta_gradients_agree_with_finite_differences(group: str, method: str, items: str, world: paml.Dataset) -> None:
    learner, batch, recipe = make_choice(world, method, inner_steps=2, sampled_items=SAMPLED)
    objective = find_method(method).objective(recipe)
    chosen = [parameter for name, parameter in learner.named_parameters() if name.startswith(GROUPS[group])]
    found = torch.autograd.grad(objective(learner, batch).value, chosen)
    rng = torch.Generator().manual_seed(5)
    direction = [torch.randn(p.shape, generator=rng, dtype=p.dtype) for p in chosen]
    size, values = 1e-6, []
    for sign in (1, -1):
        with torch.no_grad():
            for p, d in zip(chosen, direction, strict=True):
                p.add_(d, alpha=sign * size)
            values.append(objective(learner, batch).value.item())
            for p, d in zip(chosen, direction, strict=True):
                p.add_(d, alpha=-sign * size)
    slope = sum(float((g * d).sum()) for g, d in zip(found, direction, strict=True))
    assert slope != 0
    assert (values[0] - values[1]) / (2 * size) == pytest.approx(slope, rel=1e-5, abs=1e-8)
