"""The engine against the oracle, finite differences, and identities."""

import itertools

import pytest
import torch
from torch import Tensor

import paml
from paml.engine import adapt as engine, layers
from paml.engine.layers import PersonalLayer
from paml.episodes.batches import Loader, TensorBatch
from paml.episodes.tasks import Tasks
from paml.methods.learner import Ensemble, Learner
from paml.methods.memory import MemoryRate
from paml.methods.objectives import query_loss, regularised_query_loss
from paml.methods.registry import METHODS, build_learner, find_method
from paml.network.build import DataShape
from paml.testing import Oracle
from paml.testing.learners import FACTORS, deviation, gradients, make
from paml.training.recipe import load_recipe

TOLERANCE = 1e-8
HEADS = ("value", "classes", "click")


def fits(method: str, head: str) -> bool:
    """A softmax over levels has no closed form."""
    return head != "classes" or METHODS[method].solver == "gradient"


PAIRS = [(method, head) for method in METHODS for head in HEADS if fits(method, head)]


LARGEST: dict[str, float] = {}


@pytest.fixture(scope="module", autouse=True)
def report_largest_deviation():
    yield
    if LARGEST:
        worst = max(LARGEST, key=lambda name: LARGEST[name])
        print(f"\nlargest relative deviation from the oracle: {LARGEST[worst]:.1e} ({worst})")  # noqa: T201


@pytest.mark.parametrize(("steps", "form"), [(0, "attention"), *itertools.product([1, 3], ["attention", "weights"])])
@pytest.mark.parametrize(("method", "head"), PAIRS)
def test_agrees_with_the_oracle(
    method: str,
    head: str,
    steps: int,
    form: str,
    world: paml.Dataset,
    click_world: paml.Dataset,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers, "attention_is_cheaper", lambda *_: form == "attention")
    data = click_world if head == "click" else world
    learner, batch, recipe = make(data, method, head=head, inner_steps=steps)
    loss = find_method(method).objective(recipe)(learner, batch).value
    expected = Oracle(method, learner, batch, recipe).objective()
    found = [deviation([loss], [expected]), deviation(gradients(loss, learner), gradients(expected, learner))]
    oracle = Oracle(method, learner, batch, recipe).run()
    adapted = learner.adapt_in_training(learner.embed(batch), batch.user_B)
    outputs = learner.outputs(adapted, batch.query)
    predicted = learner.head.finish(learner.head.predict(outputs))
    for whole, expected_rows in ((outputs, oracle.outputs), (predicted, oracle.predictions)):
        rows = [row_R[mask.bool()] for row_R, mask in zip(whole, batch.query.mask_BR, strict=True)]
        found.append(deviation(rows, expected_rows))
    if steps and METHODS[method].solver == "gradient":
        found.append(deviation([adapted.adaptation.gradient_norm()], [oracle.gradient_norm_B]))
    LARGEST[f"{method} {head} {steps} steps {form}"] = max(found)
    assert max(found) < TOLERANCE


@pytest.mark.parametrize(("method", "head"), PAIRS)
def test_predictions_in_use_agree_with_the_oracle(
    method: str, head: str, world: paml.Dataset, click_world: paml.Dataset
) -> None:
    """Outside training: AT-PAML reads its memory with fewer neighbours, and users have no nodes of their own."""
    learner, batch, recipe = make(click_world if head == "click" else world, method, head=head, neighbours_inference=2)
    oracle = Oracle(method, learner, batch, recipe).run(training=False)
    predicted_BR, rate_B = Ensemble([learner]).predict(batch)
    rows = [row_R[mask.bool()] for row_R, mask in zip(predicted_BR, batch.query.mask_BR, strict=True)]
    assert deviation(rows, oracle.predictions) < TOLERANCE
    mean = [torch.cat([part.flatten() for part in ([r] if isinstance(r, Tensor) else r)]).mean() for r in oracle.rate]
    assert deviation([rate_B], [torch.stack(mean)]) < TOLERANCE


@pytest.mark.parametrize("method", METHODS)
def test_agrees_with_item_embedding_bias_context_and_first_order(method: str, context_world: paml.Dataset) -> None:
    for first_order in (False, True):
        settings = {"item_embedding": 3, "item_bias": True, "inner_steps": 2, "first_order": first_order}
        learner, batch, recipe = make(context_world, method, **settings)
        assert learner.network.context.fields
        loss = find_method(method).objective(recipe)(learner, batch).value
        expected = Oracle(method, learner, batch, recipe).objective()
        assert deviation([loss], [expected]) < TOLERANCE
        assert deviation(gradients(loss, learner), gradients(expected, learner)) < TOLERANCE


@pytest.mark.parametrize("head", HEADS)
def test_agrees_to_first_order_without_context(head: str, world: paml.Dataset, click_world: paml.Dataset) -> None:
    data = click_world if head == "click" else world
    learner, batch, recipe = make(data, "paml", head=head, inner_steps=2, first_order=True)
    loss = find_method("paml").objective(recipe)(learner, batch).value
    expected = Oracle("paml", learner, batch, recipe).objective()
    assert deviation([loss], [expected]) < TOLERANCE
    assert deviation(gradients(loss, learner), gradients(expected, learner)) < TOLERANCE


@pytest.mark.parametrize(("method", "head"), PAIRS)
def test_agrees_with_item_factors_user_priors_and_pseudo_count(
    method: str, head: str, context_world: paml.Dataset, click_world: paml.Dataset
) -> None:
    for hidden in ((), (5,)):
        data = click_world if head == "click" else context_world
        learner, batch, recipe = make(data, method, **{**FACTORS, "head": head, "hidden": hidden, "inner_steps": 2})
        loss = find_method(method).objective(recipe)(learner, batch).value
        expected = Oracle(method, learner, batch, recipe).objective()
        assert deviation([loss], [expected]) < TOLERANCE
        assert deviation(gradients(loss, learner), gradients(expected, learner)) < TOLERANCE


@pytest.mark.parametrize(("method", "head"), PAIRS)
def test_meta_gradients_agree_with_finite_differences(
    method: str, head: str, world: paml.Dataset, click_world: paml.Dataset
) -> None:
    data = click_world if head == "click" else world
    learner, batch, recipe = make(data, method, head=head, inner_steps=2, gamma=0.1)
    objective = find_method(method).objective(recipe)
    found = gradients(objective(learner, batch).value, learner)
    rng = torch.Generator().manual_seed(5)
    parameters = list(learner.parameters())
    direction = [torch.randn(p.shape, generator=rng, dtype=p.dtype) for p in parameters]
    size = 1e-7
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            for p, d in zip(parameters, direction, strict=True):
                p.add_(d, alpha=sign * size)
            values.append(objective(learner, batch).value.item())
            for p, d in zip(parameters, direction, strict=True):
                p.add_(d, alpha=-sign * size)
    slope = sum(float((g * d).sum()) for g, d in zip(found, direction, strict=True))
    assert (values[0] - values[1]) / (2 * size) == pytest.approx(slope, rel=1e-4, abs=1e-7)


def losses(learner: Learner, batch: TensorBatch) -> Tensor:
    return learner.loss(learner.adapt(learner.embed(batch)), batch.query)


def test_reg_paml_at_gamma_zero_is_paml(world: paml.Dataset) -> None:
    paml_learner, batch, recipe = make(world, "paml")
    reg_learner, _, _ = make(world, "reg_paml", gamma=0.0)
    left = find_method("paml").objective(recipe)(paml_learner, batch).value
    right = find_method("reg_paml").objective(recipe.model_copy(update={"gamma": 0.0}))(reg_learner, batch).value
    assert deviation(gradients(left, paml_learner), gradients(right, reg_learner)) == 0


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.5])
def test_the_regulariser_agrees_with_the_oracle_and_keeps_the_memory(gamma: float, world: paml.Dataset) -> None:
    learner, batch, recipe = make(world, "reg_paml", gamma=gamma)
    expected = Oracle("reg_paml", learner, batch, recipe).objective()
    assert deviation([regularised_query_loss(gamma)(learner, batch).value], [expected]) < TOLERANCE
    assert deviation([find_method("reg_paml").objective(recipe)(learner, batch).value], [expected]) < TOLERANCE
    if gamma == 0:
        assert deviation([query_loss(learner, batch).value], [expected]) < TOLERANCE
    with_memory, batch, _ = make(world, "at_paml")
    assert regularised_query_loss(gamma)(with_memory, batch).memory is not None
    assert query_loss(with_memory, batch).memory is not None


@pytest.mark.parametrize("method", ["paml", "reg_paml"])
def test_the_discount_of_a_users_bias_reaches_the_objective(method: str, world: paml.Dataset) -> None:
    learner, batch, recipe = make(world, method, user_bias_discount=0.5)
    plain = find_method(method).objective(recipe.model_copy(update={"user_bias_discount": 0.0}))(learner, batch)
    found = find_method(method).objective(recipe)(learner, batch)
    adapted = learner.adapt(learner.embed(batch))
    error_BR = learner.outputs(adapted, batch.query).squeeze(-1) - batch.query.y_BR
    means = [row_R[mask.bool()].mean() for row_R, mask in zip(error_BR, batch.query.mask_BR, strict=True)]
    discount = 0.5 * torch.stack(means).square().mean()
    assert deviation([plain.value - found.value], [discount]) < TOLERANCE


def test_meta_sgd_starts_as_melu(world: paml.Dataset) -> None:
    melu, batch, _ = make(world, "melu", inner_steps=3)
    meta_sgd, _, _ = make(world, "meta_sgd", inner_steps=3)
    assert torch.allclose(losses(melu, batch), losses(meta_sgd, batch), rtol=1e-12)


def test_many_gradient_steps_converge_to_the_closed_form(world: paml.Dataset) -> None:
    """On the same features and with the same penalty, gradient descent ends at the solution of ridge."""
    ridge, batch, _ = make(world, "ridge", **{**FACTORS, "hidden": ()})
    adapted = ridge.adapt(ridge.embed(batch))
    layer = adapted.adaptation.layers[-1]
    assert isinstance(layer, PersonalLayer)
    theta = ridge.network.decision.theta()[-1]
    x = ridge.network.first_input(adapted.embedded, batch.support)
    level, mask_BS = ridge.solver.level, batch.support.mask_BR
    features = torch.cat([x.x_BRD, level.expand(*mask_BS.shape, 1)], dim=-1) * mask_BS.unsqueeze(-1)
    plain, _ = engine.forward([engine.SharedLayer(theta)], x)
    residual = (batch.support.y_BR - (plain + adapted.embedded.offsets(x)).squeeze(-1)) * mask_BS
    d = torch.zeros(len(residual), features.shape[-1], dtype=residual.dtype)
    for _ in range(4000):
        slope = -2 * (features.mT @ (residual - (features @ d.unsqueeze(-1)).squeeze(-1)).unsqueeze(-1)).squeeze(-1)
        d = d - 0.01 * (slope + d / adapted.rate.per_user(len(d)).unsqueeze(-1))
    assert torch.allclose(layer.rows_BDK.squeeze(-1) - theta.rows_DK.squeeze(-1), d[:, :-1], atol=1e-6)


def test_the_prior_variance_limits_how_far_a_user_moves(world: paml.Dataset) -> None:
    none, batch, _ = make(world, "ridge", **FACTORS, inner_steps=0)
    tight, _, _ = make(world, "ridge", **FACTORS, rate_scale=1e-6)
    wide, _, _ = make(world, "ridge", **FACTORS, rate_scale=1e6)
    assert torch.allclose(losses(none, batch), losses(tight, batch), rtol=1e-3)
    support = wide.loss(wide.adapt(wide.embed(batch)), batch.support)
    assert (support <= none.loss(none.adapt(none.embed(batch)), batch.support) + 1e-9).all()


def test_by_default_one_step_of_second_order_is_taken(world: paml.Dataset) -> None:
    learner, batch, _ = make(world, "melu")
    embedded, support = learner.embed(batch), batch.support
    x, theta = learner.network.first_input(embedded, support), learner.network.decision.theta()
    rate = learner.rates(embedded.h_BH)
    adaptation = engine.adapt(theta, x, support.y_BR, support.mask_BR, learner.head, rate)
    assert len(adaptation.steps) == 1
    assert adaptation.steps[0].gradients[0].requires_grad
    with pytest.raises(AssertionError, match="no gradient was computed"):
        engine.Adaptation(adaptation.layers).gradient_norm()


def test_zero_steps_and_zero_rate_return_theta(world: paml.Dataset) -> None:
    none, batch, _ = make(world, "melu", inner_steps=0)
    zero, _, _ = make(world, "melu", inner_steps=3, inner_rate=0.0)
    assert torch.allclose(losses(none, batch), losses(zero, batch), rtol=1e-12)


def test_padding_of_the_support_set_is_never_read(world: paml.Dataset) -> None:
    learner, batch, _ = make(world, "paml")
    changed = batch.support.y_BR + 100 * (1 - batch.support.mask_BR)
    other = TensorBatch(
        **{**batch.__dict__, "support": type(batch.support)(**{**batch.support.__dict__, "y_BR": changed})}
    )
    assert torch.equal(losses(learner, batch), losses(learner, other))


def test_serving_builds_no_graph(world: paml.Dataset) -> None:
    learner, batch, _ = make(world, "paml")
    with torch.inference_mode():
        assert not losses(learner, batch).requires_grad


def test_at_paml_adds_similar_users_rates(world: paml.Dataset) -> None:
    learner, batch, _ = make(world, "at_paml")
    assert isinstance(learner.rates, MemoryRate)
    h_BH = learner.embed(batch).h_BH
    alpha_B, own_B = learner.rates(h_BH).per_user(len(h_BH)), learner.rates.own.alpha(h_BH)
    assert (alpha_B > own_B).all()
    assert (alpha_B - own_B <= learner.rates.memory.values_M.max()).all()


def test_value_head_starts_at_the_training_mean(world: paml.Dataset) -> None:
    recipe = load_recipe("tuned", "melu", {"embedding_scale": 1e-6})
    learner = build_learner("melu", DataShape.of(world), recipe, torch.Generator().manual_seed(0))
    batch = Loader(world).load(next(Tasks.of(world, "test").stored(4)))
    end = world.array("offsets")[world.manifest.splits["train"][1]]
    mean = world.array("target")[:end].mean()
    out = learner.outputs(learner.adapt(learner.embed(batch)), batch.query)
    assert out.mean().item() == pytest.approx(float(mean), abs=1.5)


def test_unknown_names_are_refused(world: paml.Dataset) -> None:
    with pytest.raises(paml.SettingsError, match="unknown method 'mellu'; did you mean 'melu'"):
        find_method("mellu")
    with pytest.raises(paml.SettingsError, match="head 'click' does not fit a rating target"):
        make(world, "melu", head="click")
