"""Many networks as one: what must be equal, and what it is an approximation of."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import paml
from paml.episodes.batches import Loader, TensorBatch
from paml.episodes.tasks import Known, Tasks
from paml.methods.learner import Ensemble, Learner
from paml.methods.merge import can_merge, settings_in_use
from paml.methods.registry import build_ensemble, build_learner, fit_to_data
from paml.network.build import DataShape
from paml.training.merging import merged
from paml.training.recipe import Recipe, load_recipe
from paml.training.run import RunSettings

SIZES = {"item_embedding": 6, "field_scale": 0.3, "ensemble_size": 3, "merged_size": 100}
RATING = {**SIZES, "prior_from_items": 4}


def recipe_of(method: str, target: str = "rating", **settings: object) -> Recipe:
    return load_recipe("tuned", method, settings, target=target)


def random_ensemble(data: paml.Dataset, method: str, recipe: Recipe) -> Ensemble:
    """Untrained, with other numbers in every parameter, so that each of them matters."""
    rng = torch.Generator().manual_seed(1)
    ensemble = build_ensemble(method, DataShape.of(data), recipe, rng)
    fit_to_data(ensemble.members, data)
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=rng)
    return ensemble


def as_one(data: paml.Dataset, method: str, recipe: Recipe, ensemble: Ensemble) -> Learner:
    shape = DataShape.of(data)
    settings = RunSettings.model_construct(
        method=method,
        recipe=recipe,
        seed=0,
        data_schema=shape.schema,
        vocabulary=shape.vocabulary,
        items=shape.items,
        known_items=shape.known_items,
        training_mean=shape.training_mean,
    )
    used = settings_in_use(method, shape, recipe)
    one, value = merged(ensemble, used, settings, data, Loader(data), lambda _: None)
    assert value is None
    return one.members[0]


def batch_of(data: paml.Dataset, shots: int | None = None) -> TensorBatch:
    return Loader(data).load(next(Tasks.of(data, "test").stored(12, shots)))


@torch.no_grad()
def outputs(learner: Learner, batch: TensorBatch) -> Tensor:
    return learner.outputs(learner.adapt(learner.embed(batch)), batch.query)[..., 0]


def test_equal_networks_merge_into_the_same_network(world: paml.Dataset) -> None:
    """Even with as few dimensions as one of them has: all lie in these."""
    recipe = recipe_of("ridge", **{**RATING, "merged_size": 6})
    ensemble = random_ensemble(world, "ridge", recipe)
    for member in ensemble.members[1:]:
        member.load_state_dict(ensemble.members[0].state_dict())
    one, batch = as_one(world, "ridge", recipe, ensemble), batch_of(world)
    assert one.network.user_prior.width == 6
    torch.testing.assert_close(outputs(one, batch), outputs(ensemble.members[0], batch), atol=2e-4, rtol=1e-4)


def test_without_ratings_the_output_is_the_mean_of_the_members(world: paml.Dataset) -> None:
    """Vectors, biases, profiles and user embeddings are linear in what they read, and none is lost."""
    recipe = recipe_of("ridge", **RATING)
    ensemble = random_ensemble(world, "ridge", recipe)
    batch = batch_of(world, 0)
    mean = torch.stack([outputs(member, batch) for member in ensemble.members]).mean(dim=0)
    torch.testing.assert_close(outputs(as_one(world, "ridge", recipe, ensemble), batch), mean, atol=2e-4, rtol=1e-4)


def test_ratings_are_adapted_to_by_the_mean_of_the_kernels(world: paml.Dataset) -> None:
    """out + k (K + 1/2)^-1 r, where K is the mean of alpha (z z' + level^2), user by user."""
    recipe = recipe_of("ridge", **RATING)
    ensemble = random_ensemble(world, "ridge", recipe)
    for m, member in enumerate(ensemble.members):  # the same rate for all users, another for every member
        member.rates.weights[-1].data.zero_()  # type: ignore[union-attr,operator]
        member.rates.biases[-1].data.fill_(m - 1.0)  # type: ignore[union-attr,operator]
    batch, one = batch_of(world), as_one(world, "ridge", recipe, ensemble)
    found, count = outputs(one, batch), batch.support.mask_BR.sum(dim=1).int()
    with torch.no_grad():
        before_S, before_Q, K_SS, K_QS = (torch.zeros(()) for _ in range(4))
        for member in ensemble.members:
            member.solver.steps = 0
            adapted = member.adapt(member.embed(batch))
            before_S = before_S + member.outputs(adapted, batch.support)[..., 0] / 3
            before_Q = before_Q + member.outputs(adapted, batch.query)[..., 0] / 3
            vectors = adapted.embedded.items.vectors_ND
            z_S, z_Q = vectors[batch.support.index_BR], vectors[batch.query.index_BR]
            alpha = adapted.rate.per_user(len(z_S))[0] / 3
            level = member.solver.level**2
            K_SS, K_QS = K_SS + alpha * (z_S @ z_S.mT + level), K_QS + alpha * (z_Q @ z_S.mT + level)
        for b, n in enumerate(count.tolist()):
            system = K_SS[b, :n, :n] + 0.5 * torch.eye(n)
            solved = torch.linalg.solve(system, batch.support.y_BR[b, :n] - before_S[b, :n])
            torch.testing.assert_close(found[b], before_Q[b] + K_QS[b, :, :n] @ solved, atol=1e-3, rtol=1e-3)


def test_a_choice_is_adapted_by_the_members_together(world: paml.Dataset) -> None:
    """The same steps on all members' vectors side by side, with the chances that their mean outputs give."""
    recipe = recipe_of("melu", "choice", head="choice", **SIZES)
    ensemble = random_ensemble(world, "melu", recipe)
    with torch.no_grad():
        for member in ensemble.members[1:]:  # what is averaged before it is used is made equal
            for part in ("solver", "known_weights"):
                getattr(member, part).load_state_dict(getattr(ensemble.members[0], part).state_dict())
            member.network.bias_power.copy_(ensemble.members[0].network.bias_power)  # type: ignore[union-attr,arg-type]
    one, loader = as_one(world, "melu", recipe, ensemble), Loader(world)
    stored = next(Tasks.of(world, "test").stored(5))
    batch = loader.load_known(Known(stored.user_B, stored.support), loader.all_items())
    with torch.no_grad():
        adapted = one.adapt(one.embed(batch))
        found = one.outputs_of_all(adapted, slice(None), None)[..., 0]
        solver, out, tables = ensemble.members[0].solver, torch.zeros(()), []
        for member in ensemble.members:
            member.solver.steps = 0
            begun = member.adapt(member.embed(batch))
            out = out + member.outputs_of_all(begun, slice(None), None)[..., 0] / 3
            tables.append(begun.embedded.items.vectors_ND / 3**0.5)
        Z, weights = torch.cat(tables, dim=1), one.known_weights
        assert weights is not None
        k = weights(batch.support.y_BR) * batch.support.mask_BR
        chosen = torch.zeros_like(out).scatter_add(1, batch.support.index_BR, k)
        n = chosen.sum(dim=1, keepdim=True)
        rate = recipe.inner_rate * (1 + n) ** solver.count_power / (n + solver.log_pseudo_count.exp())
        moved = torch.zeros(len(n), Z.shape[1])
        for _ in range(recipe.inner_steps):
            moved = moved + rate * ((chosen - n * torch.softmax(out + moved @ Z.T, dim=1)) @ Z)
    torch.testing.assert_close(found, out + moved @ Z.T, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("meta_sgd", {}),  # a rate for every parameter
        ("at_paml", {}),  # a memory of its own embeddings
        ("reg_paml", {}),  # steps that also move what rows share
        ("ridge", {"hidden": "8"}),
        ("ridge", {"prior_from_profile": False}),
        ("ridge", {"affinity_fields": "director"}),
    ],
)
def test_what_cannot_be_merged_stays_an_ensemble(method: str, settings: dict[str, object], world: paml.Dataset) -> None:
    recipe = recipe_of(method, **RATING, **settings)
    shape = DataShape.of(world)
    assert not can_merge(build_learner(method, shape, recipe, torch.Generator()))
    assert settings_in_use(method, shape, recipe) == recipe


def test_a_single_network_is_not_merged(world: paml.Dataset) -> None:
    recipe = recipe_of("ridge", **{**RATING, "ensemble_size": 1})
    assert settings_in_use("ridge", DataShape.of(world), recipe) == recipe


def test_a_merged_run_is_stored_as_one_network(world: paml.Dataset, tmp_path: Path) -> None:
    """Its settings remember the members; what is validated, stored, loaded and served is the one network."""
    run = paml.train(world, out=tmp_path / "run", epochs=2, ensemble_size=3, settings={"choice.ensemble_size": 2})
    assert run.settings.recipe.ensemble_size == 3
    assert [len(run.ensemble.members), len(run.choice.members if run.choice else [])] == [1, 1]
    summary = run.settings.summary
    validation = run.evaluate(split="validation")["mse"].mean()
    assert summary["merged_validation"] == pytest.approx(validation, rel=1e-6)
    assert summary["merged_validation"] == pytest.approx(summary["best_validation"], rel=0.02)
    ratings = {"3": 5.0, "7": 2.0}
    again = paml.load(run.path)
    assert again.adapt(ratings=ratings).recommend(5) == run.adapt(ratings=ratings).recommend(5)
