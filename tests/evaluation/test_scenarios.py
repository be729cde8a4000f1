"""Entries that predict, rank, or do both; ranking is blind to what it is judged by."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
import torch

import paml
from paml.episodes.batches import Loader
from paml.episodes.tasks import Known, Tasks
from paml.errors import SettingsError, TrainingError
from paml.evaluation import ranking
from paml.evaluation.blinding import BlindedDataset
from paml.evaluation.item_facts import ItemFacts
from paml.evaluation.metrics import exposure_metrics, list_metrics, row_metrics
from paml.evaluation.ranking import Orders, rank_users
from paml.evaluation.scenarios import SHOTS, score
from paml.evaluation.scoring import predict_rows, rank_with, summarise

QUICK = {"epochs": 1, "ensemble_size": 2, "hidden": (8,), "embedding_size": 4, "item_embedding": 4}


@pytest.fixture(scope="module", params=["rating", "click"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> paml.Dataset:
    out = tmp_path_factory.mktemp("scenarios") / "world"
    return paml.prepare("synthetic", out=out, users=150, items=60, settings={"target": request.param})


def popular(data: paml.Dataset) -> ranking.Rank:
    count_I = torch.from_numpy(ItemFacts.of(data).popularity_I)
    return lambda known: count_I.expand(len(known.user_B), -1)


def middling(data: paml.Dataset) -> Callable[[int | None], tuple[np.ndarray, None]]:
    rows = int(np.diff(Tasks.of(data, "test").offsets).sum())
    return lambda shots: (np.full(rows, 0.5), None)


def test_an_entry_that_only_ranks_has_lists_and_no_errors(data: paml.Dataset) -> None:
    found, kind = score(data, "popular", None, few=True, orders=Orders.single(popular(data))), data.schema.target.kind
    for metric in row_metrics(kind):
        assert found.rows[metric.name].null_count() == len(found.rows)
    lists = rank_users(data, Tasks.of(data, "test"), popular(data))
    for listed in list_metrics(kind):
        expected = listed.compute(lists, ItemFacts.of(data))
        assert np.array_equal(found.rows[listed.name].to_numpy(), expected, equal_nan=True)
    assert set(found.scenarios["scenario"]) == {"shots"}  # known and new items are about predictions
    assert set(found.scenarios["value"]) == {*map(str, SHOTS), "all"}
    assert found.pooled is not None
    assert found.pooled.columns == [metric.name for metric in exposure_metrics(kind)]
    assert (found.milliseconds, found.predictions) == (None, None)
    assert found.rank_milliseconds is not None
    assert "mse" not in summarise(found.rows)
    assert summarise(found.rows)["ndcg10"]["all"] > 0


def test_an_entry_that_only_predicts_has_errors_and_no_lists(data: paml.Dataset) -> None:
    found, kind = score(data, "middling", middling(data), few=False), data.schema.target.kind
    assert all(found.rows[metric.name].null_count() == len(found.rows) for metric in list_metrics(kind))
    assert found.rows[row_metrics(kind)[0].name].is_finite().all()
    assert found.rank_milliseconds is None
    both = score(data, "both", middling(data), few=False, orders=Orders.single(popular(data))).rows
    errors = [metric.name for metric in row_metrics(kind)]
    assert both.select(errors).equals(found.rows.select(errors))


def test_candidates_are_the_same_however_many_ratings_are_known(data: paml.Dataset) -> None:
    scenarios = score(data, "popular", None, few=True, orders=Orders.single(popular(data))).scenarios
    for _, one in scenarios.group_by("user"):  # a ranker that ignores ratings has the same list for any number
        assert one.select(pl.col("mrr").fill_nan(-1).n_unique()).item() == 1


def test_scores_that_are_not_numbers_are_refused(data: paml.Dataset) -> None:
    def broken(known: Known) -> torch.Tensor:
        return torch.full((len(known.user_B), 60), torch.nan)

    with pytest.raises(TrainingError, match="scores of 'broken' are not numbers"):
        score(data, "broken", None, few=False, orders=Orders.single(broken))


def test_the_liked_level_decides_what_is_relevant(data: paml.Dataset) -> None:
    tasks, target = Tasks.of(data, "test"), data.schema.target
    usual, high = (rank_users(data, tasks, popular(data), liked=level) for level in (None, target.high))
    assert (high.relevant_U <= usual.relevant_U).all()
    for wrong in (target.low, target.high + 1):
        with pytest.raises(SettingsError, match=f"liked is {wrong:g}; expected a value of the scale"):
            ranking.relevant_level(target, wrong)


def test_ranking_runs_without_the_items_of_query_rows(data: paml.Dataset) -> None:
    tasks = Tasks.of(data, "test")
    query_N, rows = tasks.query_mask(), slice(int(tasks.offsets[0]), int(tasks.offsets[-1]))
    blind = BlindedDataset(data, "items")
    item_N = blind.array("item")[rows]
    assert np.array_equal(item_N[~query_N], data.array("item")[rows][~query_N])
    assert np.isnan(blind.array("target")[rows][query_N]).all()
    with pytest.raises(IndexError):
        np.zeros(60)[item_N[query_N]]
    hidden = blind.interactions().filter(pl.col("user") >= tasks.first, "query").collect()
    assert hidden["item"].null_count() == len(hidden) == hidden["target"].null_count()
    fitting = BlindedDataset(data, "all")
    with pytest.raises(IndexError):
        np.zeros(60)[fitting.array("item")[rows]]
    reference = BlindedDataset(data, "targets")
    assert np.array_equal(reference.array("item"), data.array("item"))
    assert np.isnan(reference.array("target")[rows]).all()
    assert not np.isnan(data.array("target")).any()  # the files themselves are not changed


@pytest.mark.parametrize("method", ["reg_paml", "ridge"])
@pytest.mark.parametrize("shots", [None, 2])
def test_a_methods_ranking_is_by_its_predictions(
    data: paml.Dataset, method: str, shots: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ensemble = paml.train(data, method, out=tmp_path_factory.mktemp("run") / "run", settings=QUICK).ensemble
    tasks = Tasks.of(data, "test")
    rank = rank_with(ensemble, Loader(BlindedDataset(data, "items"), ensemble.inputs))
    expected_N, _ = predict_rows(ensemble, Loader(data, ensemble.inputs), tasks, shots)
    item_N, base = data.array("item"), int(tasks.offsets[0])
    for batch in tasks.stored(len(tasks), shots):
        score_BI = rank(Known(batch.user_B, batch.support)).numpy()
        owner_Q, place_Q = np.nonzero(batch.query.mask_BL)
        row_Q = batch.query.row_BL[owner_Q, place_Q]
        assert score_BI[owner_Q, item_N[row_Q]] == pytest.approx(expected_N[row_Q - base], abs=1e-5)


def test_lists_by_several_things_come_from_one_pass(data: paml.Dataset) -> None:
    first, second = popular(data), lambda known: -popular(data)(known)
    calls = []

    def scores(known: Known) -> dict[str, torch.Tensor]:
        calls.append(known)
        return {"usual": first(known), "other": second(known)}

    found = score(data, "both", None, few=True, orders=Orders(("usual", "other"), scores))
    assert len(calls) == len(SHOTS) + 1  # all test users fit into one block
    alone = [score(data, "one", None, few=True, orders=Orders.single(rank)) for rank in (first, second)]
    assert found.rows.equals(alone[0].rows)
    other = found.scenarios.filter(pl.col("scenario") == "by")
    assert set(other["value"]) == {"other"}
    for known in ("3", "all"):
        expected = alone[1].scenarios.filter(pl.col("value") == known)
        for name in ("ndcg10", "mrr", "hit10"):
            values = other.filter(pl.col("known") == known)[name]
            assert np.array_equal(values.to_numpy(), expected[name].to_numpy(), equal_nan=True)
    assert found.scenarios.filter(pl.col("scenario") == "shots")["known"].null_count() == len(found.rows) * 7
