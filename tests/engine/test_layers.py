"""Layers: the same outputs for rows and for the whole table, for some users and for all, and the cheaper form."""

from dataclasses import replace

import pytest
import torch

import paml
from paml.engine import layers
from paml.engine.inputs import ItemInput, ItemTable, LayerInput, Weights
from paml.engine.layers import AttendingLayer, PersonalLayer, SharedLayer
from paml.episodes.batches import QueryBlock
from paml.episodes.features import Features
from paml.methods.learner import Adapted, Learner
from paml.testing.learners import FACTORS, deviation, make

TOLERANCE = 1e-10
FORMS = [("melu", "attention", AttendingLayer), ("melu", "weights", PersonalLayer), ("meta_sgd", "any", PersonalLayer)]
SETTINGS = {"fields": {"item_bias": True, "item_embedding": 3}, "factors": {**FACTORS, "hidden": (5,)}}


def adapted_of(data: paml.Dataset, method: str, form: str, monkeypatch: pytest.MonkeyPatch, **settings: object):
    monkeypatch.setattr(layers, "attention_is_cheaper", lambda *_: form == "attention")
    learner, batch, _ = make(data, method, inner_steps=2, **settings)
    with torch.no_grad():
        return learner, batch, learner.adapt(learner.embed(batch))


def all_rows(adapted: Adapted, context: Features | None) -> QueryBlock:
    """Every item of the batch for every user, all in one context."""
    users, items = len(adapted.embedded.h_BH), adapted.embedded.batch.items.count
    index_BR = torch.arange(items).expand(users, -1)
    return QueryBlock(index_BR, None if context is None else context.repeated(users * items))


@torch.no_grad()
@pytest.mark.parametrize("network", SETTINGS)
@pytest.mark.parametrize(("method", "form", "kind"), [*FORMS, ("ridge", "any", PersonalLayer)])
def test_the_whole_table_is_scored_like_its_rows(
    method: str, form: str, kind: type, network: str, context_world: paml.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, _, adapted = adapted_of(context_world, method, form, monkeypatch, **SETTINGS[network])
    assert isinstance(adapted.adaptation.layers[-1], kind)
    context = Features(1, {}, {}, {"late": torch.tensor([0.7], dtype=torch.float64)})
    whole_BRK = learner.outputs(adapted, all_rows(adapted, context))
    assert deviation([learner.outputs_of_all(adapted, slice(None), context)], [whole_BRK]) < TOLERANCE
    assert deviation([learner.outputs_of_all(adapted, slice(2, 5), context)], [whole_BRK[:, 2:5]]) < TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize(("method", "form", "kind"), [*FORMS, ("ridge", "any", PersonalLayer)])
def test_without_context_too(
    method: str, form: str, kind: type, world: paml.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, _, adapted = adapted_of(world, method, form, monkeypatch)
    assert isinstance(adapted.adaptation.layers[-1], kind)
    whole_BRK = learner.outputs(adapted, all_rows(adapted, None))
    assert deviation([learner.outputs_of_all(adapted, slice(3, 9), None)], [whole_BRK[:, 3:9]]) < TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize("network", SETTINGS)
@pytest.mark.parametrize(("method", "form", "kind"), [*FORMS, ("ridge", "any", PersonalLayer)])
def test_some_users_score_the_same(
    method: str, form: str, kind: type, network: str, context_world: paml.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, _, adapted = adapted_of(context_world, method, form, monkeypatch, **SETTINGS[network])
    context = Features(1, {}, {}, {"late": torch.tensor([0.7], dtype=torch.float64)})
    whole_BRK = learner.outputs_of_all(adapted, slice(None), context)
    some = adapted.of(slice(1, 3))
    assert len(some.embedded.h_BH) == 2
    assert deviation([learner.outputs_of_all(some, slice(None), context)], [whole_BRK[1:3]]) < TOLERANCE
    one = some.of(slice(0, 1))
    assert deviation([learner.outputs_of_all(one, slice(None), context)], [whole_BRK[1:2]]) < TOLERANCE
    assert one.of(slice(0, 1)).adaptation.layers is one.adaptation.layers  # there is only one
    single = replace(one, adaptation=replace(one.adaptation, steps=adapted.adaptation.steps))
    assert single.of(slice(0, 1)).adaptation.steps == ()
    assert adapted.adaptation.steps or adapted.adaptation.solution is not None
    assert not some.adaptation.steps
    assert some.adaptation.solution is None


def test_what_belongs_to_users_alone(world: paml.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of users counts these tensors: embedding, support rows, rate, prior, and each layer's own."""
    for method, form, own in (("melu", "attention", 4), ("melu", "weights", 2)):
        _, batch, adapted = adapted_of(world, method, form, monkeypatch, **SETTINGS["factors"])
        found = {id(tensor) for tensor in adapted.tensors()}
        assert len(adapted.tensors()) == 6 + own * len(adapted.adaptation.layers)
        known = (adapted.embedded.h_BH, adapted.embedded.prior_BDK, batch.support.index_BR, batch.support.y_BR)
        assert {id(tensor) for tensor in (*known, batch.support.mask_BR)} <= found
        assert {id(t) for layer in adapted.adaptation.layers for t in layer.own().values()} <= found
        _, _, without_prior = adapted_of(world, method, form, monkeypatch)
        assert len(without_prior.tensors()) == 5 + own * len(without_prior.adaptation.layers)
        assert all(isinstance(tensor, torch.Tensor) for tensor in without_prior.tensors())
    assert SharedLayer(Weights(torch.zeros(2, 1), torch.zeros(1, 1))).own() == {}


@pytest.mark.parametrize(
    ("first", "inputs", "outputs", "steps", "limit"),
    [
        # attention < materialised, in multiplications per support row
        (True, 100, 320, 1, 380),  # S (D + K) / 4           < D K (1/4 + 1)
        (True, 100, 320, 3, 198),  # S ((D + K) / 4 + D + 2 K) < D K (1/4 + 2 + 3)
        (False, 320, 192, 1, 599),  # S (D + K) / 4           < D K (1/4 + 1)
        (False, 320, 192, 3, 128),  # S (D + K) (3/4 + 2 * 3) < D K (1/4 + 2 * 2 + 3)
    ],
)
def test_the_cheaper_form_by_hand(first: bool, inputs: int, outputs: int, steps: int, limit: int) -> None:
    for rows, expected in ((limit, True), (limit + 1, False)):
        x = LayerInput(torch.zeros(1, rows, inputs), torch.ones(1, 1), is_first=first)
        assert layers.attention_is_cheaper(x, torch.zeros(1, rows, outputs), steps) is expected


@pytest.mark.parametrize("steps", [1, 3])
def test_the_form_changes_nothing_but_the_cost(
    steps: int, world: paml.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for form in (True, False):
        monkeypatch.setattr(layers, "attention_is_cheaper", lambda *_, form=form: form)
        learner, batch, _ = make(world, "paml", inner_steps=steps)
        adapted = learner.adapt(learner.embed(batch))
        assert isinstance(adapted.adaptation.layers[0], AttendingLayer if form else PersonalLayer)
        found.append(learner.outputs(adapted, batch.query))
    assert deviation(found[:1], found[1:]) < TOLERANCE


def test_products_of_the_table_are_computed_once(world: paml.Dataset) -> None:
    learner, batch, _ = make(world, "melu")
    assert isinstance(learner, Learner)
    table, weights = learner.embed(batch).table, learner.network.decision.theta()[0].rows_DK
    first = table.products(weights)
    assert table.products(weights) is first
    torch.testing.assert_close(first[: len(table.vectors_ND)], table.vectors_ND @ weights[: table.width])
    assert table.products(weights.clone()) is not first
    assert table.smallest_chunk == 1


@pytest.mark.parametrize("items", [2, 40])
@pytest.mark.parametrize("width", [2, 3])
def test_features_are_rows_with_a_one_and_zeros_for_padding(items: int, width: int) -> None:
    """However many items there are; with them, item vectors and the constant, or their first part, are multiplied."""
    rng = torch.Generator().manual_seed(0)
    vectors_ND = torch.randn(items, 3, generator=rng, requires_grad=True)
    index_BR = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 0]])
    mask_BR = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    expected = torch.cat([vectors_ND[index_BR], torch.ones(2, 4, 1)], dim=2) * mask_BR.unsqueeze(-1)
    x = ItemInput(ItemTable(vectors_ND), index_BR, torch.ones(2, 1), mask_BR=mask_BR)
    plain = ItemInput(x.table, index_BR, x.shared_BC)
    assert torch.equal(x.features(mask_BR), expected)
    assert torch.equal(x.x_BRD, expected[..., :3])
    assert torch.equal(plain.features(mask_BR), expected)
    assert torch.equal(LayerInput(plain.x_BRD, x.shared_BC).features(mask_BR), expected)
    weights_BFK = torch.randn(2, width + 1, 1, generator=rng)
    times = plain.x_BRD[..., :width] @ weights_BFK[:, :width] + weights_BFK[:, width:]
    torch.testing.assert_close(plain.items_times(weights_BFK), times)
    torch.testing.assert_close(x.items_times(weights_BFK)[mask_BR > 0], times[mask_BR > 0])
    grads = [torch.autograd.grad((one**3).sum(), vectors_ND)[0] for one in (x.features(mask_BR), expected)]
    torch.testing.assert_close(*grads)
