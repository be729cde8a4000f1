"""Lists from an index of the catalogue against exact lists."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.catalogue import World

import paml
from paml.engine.joint import JointTable
from paml.recommend import candidates
from paml.recommend.candidates import CandidateIndex, Measured, Probe, index_of, recall
from paml.recommend.plan import Plan
from paml.recommend.predictor import Predictor
from recommend.test_plan import FACTORS, predictor_of

faiss = pytest.importorskip("faiss")

RATING = {**FACTORS, "on_scale": True, "ensemble_size": 3}


@pytest.fixture
def small_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index for any catalogue, however slow it may be next to a few items."""
    monkeypatch.setattr(candidates, "MIN_ITEMS", 1)
    monkeypatch.setattr(candidates, "MIN_GAIN", 0.0)


@pytest.fixture(scope="module")
def many_items(tmp_path_factory: pytest.TempPathFactory) -> paml.Dataset:
    return paml.prepare("synthetic", out=tmp_path_factory.mktemp("many") / "data", users=300, items=1500)


def lists(predictor: Predictor, **options: object) -> list[list[str]]:
    rated = [{}, {"3": 5, "7": 1}, {str(k): 1 + k % 5 for k in range(40)}]
    users = [predictor.adapt({"gender": "F"}, ratings) for ratings in rated]
    return [[found.item for found in user.recommend(**options)] for user in users]  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_counts")
@pytest.mark.parametrize("method", ["ridge", "melu"])
def test_with_all_items_as_candidates_lists_are_exact(
    method: str, many_items: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "CANDIDATES", 1500)
    indexed = predictor_of(many_items, tmp_path, method, RATING)
    monkeypatch.setattr(candidates, "MIN_ITEMS", 10_000)
    exact = predictor_of(many_items, tmp_path, method, RATING)
    assert exact.index is None
    assert indexed.measured is not None
    assert indexed.measured.recall == 1.0
    for options in (
        {},
        {"n": 100},
        {"exclude_seen": False},
        {"n": 101},
        {"among": ["1", "2", "9"]},
        {"among": ["3", "7"]},
    ):
        assert lists(indexed, **options) == lists(exact, **options)
    user = indexed.adapt_many([paml.NewUser()], score=True)[0]
    assert user.nbytes < 4 * 1500, "no scores of all items are kept"


@pytest.mark.usefixtures("small_counts")
def test_few_candidates_find_most_of_the_best(
    many_items: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = predictor_of(many_items, tmp_path, "ridge", {**RATING, "affinity_fields": ("genre",)})
    assert predictor.measured is not None
    assert predictor.measured.recall >= candidates.MIN_RECALL
    direction, exact = Plan.direction, predictor.adapt({}, {}).recommend(10, among=predictor.catalogue.ids)
    rated = [str(k) for k in range(0, 400, 2)]  # more than the candidates, were they not added to these
    found = predictor.adapt({}, dict.fromkeys(rated, 5)).recommend(10)
    assert len(found) == 10
    assert not {one.item for one in found} & set(rated)
    monkeypatch.setattr(Plan, "direction", lambda plan, users: torch.zeros_like(direction(plan, users)))
    assert predictor.adapt({}, {}).recommend(10) == exact, "FAISS finds nothing for zeros: all items are scored"


@torch.inference_mode()
def test_recall_on_a_medium_catalogue() -> None:
    world = World(12_000, 2, np.random.default_rng(1))
    index = CandidateIndex(world.table)

    def probes(count: int) -> list[Probe]:
        return [
            Probe(
                one.flatten(),
                lambda one=one: float(world.exact(one)[-1]),  # type: ignore[misc]
                lambda row_R, one=one: world.score(one, row_R),  # type: ignore[misc]
            )
            for one in world.users(count)
        ]

    assert index.measure(probes(20)).recall >= candidates.AIM
    few = [recall(np.sort(probe.score(torch.from_numpy(index.find(probe.weights_W, 10, 1))))[-10:], probe.exact())
           for probe in probes(5)]  # fmt: skip
    assert np.mean(few) < candidates.AIM, "ten candidates are not enough: the measure can fail"


def test_equal_scores_are_equally_right() -> None:
    assert recall(np.array([5.0] * 10), 5.0) == 1.0
    assert recall(np.array([5.0] * 7 + [4.9] * 3), 5.0) == 0.7


def test_an_index_that_misses_items_or_is_slow_is_not_used() -> None:
    assert Measured(500, 4, 0.98, 0.001, 0.002).suffices
    assert not Measured(500, 4, 0.97, 0.001, 0.002).suffices
    assert not Measured(500, 4, 1.0, 0.001, 0.0019).suffices


def test_without_faiss_all_items_are_scored(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(candidates, "MIN_ITEMS", 20)
    monkeypatch.setitem(sys.modules, "faiss", None)
    probes: Callable[[], list[Probe]] = list
    assert index_of(JointTable(torch.zeros(20, 1, 3)), probes) is None
    assert "pip install 'paml[faiss]'" in caplog.text
    caplog.clear()
    assert index_of(JointTable(torch.zeros(19, 1, 3)), probes) is None
    assert not caplog.text, "nobody is told about small catalogues"


@pytest.mark.usefixtures("small_counts")
def test_orders_that_depend_on_all_items_have_no_index(run: paml.Run) -> None:
    assert paml.Run.load(run.path).predictor.index is None, "chances of a choice do"
