"""Identities of ensembles, averaged weights, item factors, user priors and affinity."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import paml
from paml.data.schema import Field, Kind
from paml.episodes.batches import Loader, TensorBatch
from paml.episodes.features import Features, FeatureTable
from paml.episodes.tasks import Tasks
from paml.methods.learner import Ensemble
from paml.methods.objectives import query_loss, regularised_query_loss
from paml.methods.rates import PersonalRate
from paml.methods.registry import METHODS, build_ensemble, build_learner, fit_to_data
from paml.network.affinity import Affinity, AffinityTable
from paml.network.build import DataShape
from paml.network.embeddings import FieldEmbedder
from paml.network.items import ItemFactors
from paml.training.ema import WARMUP_STEPS, WeightAverage
from paml.training.recipe import load_recipe


def ensemble_of(data: paml.Dataset, method: str = "ridge", **settings: object) -> Ensemble:
    recipe = load_recipe("tuned", method, settings)
    ensemble = build_ensemble(method, DataShape.of(data), recipe, torch.Generator().manual_seed(0))
    fit_to_data(ensemble.members, data)
    return ensemble


def test_batch(data: paml.Dataset) -> TensorBatch:
    return Loader(data).load(next(Tasks.of(data, "test").stored(16)))


test_batch.__test__ = False  # type: ignore[attr-defined]


def test_an_ensemble_predicts_the_mean_of_its_members(world: paml.Dataset) -> None:
    ensemble, batch = ensemble_of(world, ensemble_size=3), test_batch(world)
    alone = [Ensemble([member]).predict(batch) for member in ensemble.members]
    prediction, rate = ensemble.predict(batch)
    assert torch.allclose(prediction, torch.stack([found[0] for found in alone]).mean(dim=0))
    assert torch.allclose(rate, torch.stack([found[1] for found in alone]).mean(dim=0))
    assert not torch.equal(alone[0][0], alone[1][0])


def test_rate_layers_start_like_linear_layers() -> None:
    """Uniform within 1 / sqrt(inputs), drawn from the generator alone; users without features have a rate, too."""
    first, again = (PersonalRate(100, 1e-3, torch.Generator().manual_seed(0)) for _ in range(2))
    for weights, bias in zip(first.weights, first.biases, strict=True):
        inside = torch.cat([weights, bias.unsqueeze(0)]) * len(weights) ** 0.5
        assert -1 <= inside.min() < -0.7
        assert 0.7 < inside.max() <= 1
        assert not (weights == bias).all(dim=1).any()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert (PersonalRate(0, 1e-3, torch.Generator().manual_seed(0)).biases[0].abs() > 0.75).any()


def test_the_average_follows_the_weights_and_can_replace_them() -> None:
    module = torch.nn.Linear(1, 1, bias=False)
    average = WeightAverage(module, 0.9)
    expected = now = float(module.weight.detach())
    for step in range(20):
        with torch.no_grad():
            module.weight += 1
        now += 1
        average.follow()
        decay = min(0.9, (1 + step) / (WARMUP_STEPS + step))
        expected = decay * expected + (1 - decay) * now
    with average.in_place():
        assert float(module.weight.detach()) == pytest.approx(expected, rel=1e-5)
    assert float(module.weight.detach()) == pytest.approx(now, rel=1e-5)
    other = WeightAverage(module, 0.9)
    other.restore(average.state())
    with other.in_place():
        assert float(module.weight.detach()) == pytest.approx(expected, rel=1e-5)


def test_no_average_leaves_the_weights_alone() -> None:
    module = torch.nn.Linear(2, 2)
    average = WeightAverage(module, 0.0)
    before = module.weight.detach().clone()
    average.follow()
    with average.in_place():
        assert torch.equal(module.weight, before)
    assert average.state() == {}


@pytest.mark.parametrize(("pooling", "power"), [("mean", 1.0), ("root", 0.5)])
def test_lists_are_divided_by_their_length_or_its_root(pooling: str, power: float) -> None:
    field = Field(name="genre", kind=Kind.MULTI)
    embedder = FieldEmbedder([field], {"genre": 6}, 3, 1.0, torch.Generator().manual_seed(0), multi_pooling=pooling)  # type: ignore[arg-type]
    lists = [[1, 2, 3, 4], [], [5]]
    codes = torch.tensor([code for some in lists for code in some])
    starts = torch.tensor([0, 4, 4])
    found = embedder(Features(3, {}, {"genre": (codes, starts)}, {}))
    table = embedder.tables["field_genre"]
    for row, some in zip(found, lists, strict=True):
        expected = table[some].sum(dim=0) / max(len(some), 1) ** power
        assert torch.allclose(row, expected, atol=1e-6)


def test_an_item_unknown_in_training_is_described_by_its_fields(world: paml.Dataset) -> None:
    network = ensemble_of(world, field_scale=0.1).members[0].network
    batch = test_batch(world)
    network.items.known.codes_I[batch.item_N[0]] = 0
    vectors = network.items(batch.items, batch.item_N).vectors_ND
    content = network.items.fields(batch.items)[:, : vectors.shape[1]]
    assert torch.equal(vectors[0], content[0])
    assert not torch.equal(vectors[1], content[1])


def test_the_choice_of_items_matters_without_any_rating(world: paml.Dataset) -> None:
    """Without inner steps ratings cannot matter; which items were rated can, and only with `prior_from_items`."""
    loader, tasks = Loader(world), Tasks.of(world, "test")
    batches = [loader.load(next(tasks.stored(16, shots))) for shots in (0, 3)]
    for size, matters in ((4, True), (0, False)):
        ensemble = ensemble_of(world, "melu", inner_steps=0, prior_from_items=size, ensemble_size=1)
        without, given = (ensemble.predict(batch)[0] for batch in batches)
        assert torch.allclose(without, given, atol=1e-6) is not matters


def test_affinity_is_as_strong_as_the_values_that_two_items_share() -> None:
    """z_j z_k is about the sum of scale^2 over shared values; two unknown values (0) are not shared."""
    fields = [Field(name="author", kind=Kind.CATEGORICAL), Field(name="year", kind=Kind.CATEGORICAL)]
    size = 1 << 14
    values = FieldEmbedder(fields, {"author": 9, "year": 9}, size, size**-0.5, torch.Generator().manual_seed(0))
    affinity = Affinity(values, 1.0)
    affinity.scale.data = torch.tensor([2.0, 1.0])
    author, year = torch.tensor([1, 1, 2, 0, 0]), torch.tensor([3, 3, 3, 4, 5])
    z_NW = affinity(Features(5, {}, {}, {}, hashed=Features(5, {"author": author, "year": year}, {}, {})))
    same_NN = 4.0 * (author == author.unsqueeze(1)) * (author > 0) + 1.0 * (year == year.unsqueeze(1))
    assert torch.allclose(z_NW @ z_NW.T, same_NN, atol=0.15)


@pytest.mark.parametrize("method", ["melu", "paml", "ridge"])
def test_a_rating_carries_over_to_items_with_the_same_value(method: str, world: paml.Dataset, tmp_path: Path) -> None:
    """Item vectors have no effect yet, so praise of a film raises those by its director more than all others."""
    settings = {
        "affinity_fields": "director",
        "affinity_dim": 256,
        "embedding_scale": 1e-6,
        "prior_from_items": 0,
        "ensemble_size": 6,
    }
    run = paml.train(world, method, out=tmp_path / "run", settings={**settings, "epochs": 0})
    items = world.items().select("item", "director").collect()
    related_I = (items["director"] == items["director"][0]).to_numpy()
    high_I, low_I = (run.adapt({}, {items["item"][0]: value}).scores(by="rating") for value in (4, 3))
    raised_I = high_I - low_I
    assert related_I.sum() > 1
    assert raised_I[related_I].min() > raised_I[~related_I].max()


def test_affinity_works_for_values_that_no_training_user_interacted_with(tmp_path: Path) -> None:
    few = paml.prepare("synthetic", out=tmp_path / "few", users=40, items=1500, median_rows=2, min_interactions=2)
    unseen_I = np.asarray(few.array("item.director")) == 0
    items = few.items().select("item", "director").collect()
    director = items.filter(pl.Series(unseen_I))["director"].drop_nulls().mode()[0]
    related_I = (items["director"] == director).to_numpy()
    settings = {
        "affinity_fields": "director",
        "affinity_dim": 256,
        "embedding_scale": 1e-6,
        "prior_from_items": 0,
        "ensemble_size": 6,
    }
    run = paml.train(few, "melu", out=tmp_path / "run", settings={**settings, "epochs": 0})
    first = items["item"][int(related_I.argmax())]
    raised_I = run.adapt({}, {first: 4}).scores() - run.adapt({}, {first: 3}).scores()
    assert related_I.sum() > 1
    assert raised_I[related_I].min() > np.median(raised_I[~related_I]) + 10 * raised_I[~related_I].std()


def test_vectors_of_affinity_are_fixed_and_its_scale_is_learned(world: paml.Dataset, tmp_path: Path) -> None:
    run = paml.train(
        world,
        "ridge",
        out=tmp_path / "run",
        ensemble_size=2,
        epochs=1,
        affinity_fields="director,genre",
        affinity_scale=0.5,
    )
    start = ensemble_of(world, ensemble_size=2, affinity_fields="director,genre", affinity_scale=0.5)
    for trained, fresh in zip(run.ensemble.members, start.members, strict=True):
        before, after = fresh.network.items.affinity, trained.network.items.affinity
        assert isinstance(before, Affinity)
        assert isinstance(after, Affinity)
        for name, values in before.values.tables.items():
            assert torch.equal(after.values.tables[name], values)
        assert not torch.allclose(after.scale, before.scale)


@pytest.mark.parametrize("gamma", [None, 0.1])
def test_the_outer_loss_discounts_a_share_of_the_users_bias(gamma: float | None, world: paml.Dataset) -> None:
    learner, batch = ensemble_of(world, "paml", ensemble_size=1).members[0], test_batch(world)
    query = batch.query
    with torch.no_grad():
        out_BR = learner.outputs(learner.adapt(learner.embed(batch)), query).squeeze(-1)
        rows = [query.mask_BR[b] > 0 for b in range(len(out_BR))]
        errors = [(out_BR[b] - query.y_BR[b])[rows[b]] for b in range(len(out_BR))]
        whole, half = (
            query_loss(learner, batch, share) if gamma is None else regularised_query_loss(gamma, share)(learner, batch)
            for share in (0.0, 0.5)
        )
        whole, half = whole.value, half.value
    levels = torch.stack([error.mean() ** 2 for error in errors]).mean()
    assert float(levels) > 0.01
    assert float(half) == pytest.approx(float(whole - 0.5 * levels), rel=1e-5)
    if gamma is None:
        assert float(whole) == pytest.approx(float(torch.stack([(e**2).mean() for e in errors]).mean()), rel=1e-5)


def test_ratings_squashed_onto_the_scale_keep_their_order(world: paml.Dataset) -> None:
    head = build_learner(
        "ridge", DataShape.of(world), load_recipe("tuned", "ridge", {}), torch.Generator().manual_seed(0)
    ).head
    low, high = world.schema.target.low, world.schema.target.high
    raw = torch.linspace(low - 0.2, high + 0.2, 200)
    squashed = head.predict(raw.view(1, -1, 1)).squeeze(0)
    assert (torch.diff(squashed) > 0).all()
    assert squashed.min() >= low
    assert squashed.max() <= high
    inside = (raw > low + 0.1) & (raw < high - 0.1)
    assert torch.equal(squashed[inside], raw[inside])


def test_invalid_networks_are_refused(world: paml.Dataset) -> None:
    with pytest.raises(paml.SettingsError, match="needs the size of item vectors; set item_embedding"):
        ensemble_of(world, item_embedding=0)
    with pytest.raises(paml.SettingsError, match="user priors and affinity need item vectors; set network=factors"):
        ensemble_of(world, network="fields")
    with pytest.raises(paml.SettingsError, match="a softmax over levels has no closed form; use head=value"):
        ensemble_of(world, head="classes")
    with pytest.raises(
        paml.SettingsError,
        match="user_bias_discount needs a squared error; use head=value, or set",
    ):
        ensemble_of(world, "melu", head="classes", user_bias_discount=0.5)
    for name in ("drector", "year", "gender"):  # misspelt, a number, a user's
        with pytest.raises(paml.SettingsError, match=f"affinity_fields: '{name}' is not a categorical item field"):
            ensemble_of(world, affinity_fields=name)


def test_members_have_their_own_episodes(world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same initial weights, only the episodes can make members differ."""

    def all_alike(*arguments: object) -> Ensemble:
        ensemble = build_ensemble(*arguments)  # type: ignore[arg-type]
        for member in ensemble.members[1:]:
            member.load_state_dict(ensemble.members[0].state_dict())
        return ensemble

    monkeypatch.setattr("paml.training.loop.build_ensemble", all_alike)
    run = paml.train(world, "ridge", out=tmp_path / "run", settings={"ensemble_size": 2, "merged_size": 0, "epochs": 1})
    first, second = (torch.cat([p.flatten() for p in member.parameters()]) for member in run.ensemble.members)
    assert not torch.allclose(first, second)


@pytest.mark.parametrize("pooling", ["mean", "root"])
def test_affinity_looked_up_by_value_gives_the_same_vectors(
    pooling: str, world: paml.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vectors of all items, some of them, and products with weights, as if affinities were materialised."""
    monkeypatch.setattr(Affinity, "is_looked_up", lambda affinity, items: True)
    ensemble = ensemble_of(
        world, ensemble_size=1, affinity_fields="director,genre", affinity_dim=8, multi_pooling=pooling
    )
    network = ensemble.members[0].network
    assert isinstance(network.items, ItemFactors)
    index_I = np.arange(world.manifest.items)
    features = FeatureTable.of(world, "item", ensemble.inputs).rows(index_I)
    vectors_ID = network.items(features, torch.from_numpy(index_I)).vectors_ND
    _, table = network.items.catalogue(features, torch.from_numpy(index_I))
    assert isinstance(table, AffinityTable)
    assert table.width == vectors_ID.shape[1]
    rows_R = torch.tensor([7, 3, 3, 0, len(index_I) - 1])
    torch.testing.assert_close(table.rows(rows_R), vectors_ID[rows_R])
    weights_ED, add_E1 = torch.randn(3, table.width), torch.randn(3, 1)
    torch.testing.assert_close(table.products(weights_ED.mT), vectors_ID @ weights_ED.mT)
    for items in (slice(None), slice(5, 20), slice(70, 200), slice(4, 4)):
        found_ER = table.chunk_times(weights_ED, add_E1, items)
        torch.testing.assert_close(found_ER, weights_ED @ vectors_ID[items].mT + add_E1)


@pytest.mark.parametrize(
    ("method", "settings", "largest"),
    [
        ("paml", {}, 0.001),
        ("reg_paml", {"rate_scale": 0.2}, 0.2),
        ("at_paml", {}, 0.002),  # a mean of nodes is added, which are at most as large
        ("at_paml", {"warmup_rate": 0.01}, 0.011),
        ("at_paml", {"memory_stores": "alpha"}, None),  # sums of sums: no bound is known
    ],
)
def test_largest_rate(method: str, settings: dict[str, float], largest: float | None) -> None:
    found = METHODS[method].largest_rate
    assert found is not None
    assert found(load_recipe("paper", method, settings)) == (None if largest is None else pytest.approx(largest))


def test_methods_with_one_rate_for_all_have_no_largest() -> None:
    assert all(METHODS[method].largest_rate is None for method in ("melu", "meta_sgd", "transfer"))
