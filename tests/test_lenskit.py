"""A run in a LensKit pipeline: LensKit's runner and metrics give the figures that paml gives."""

import contextlib
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

import paml
from docs.examples import BLOCKS
from paml.errors import SettingsError

pytest.importorskip("lenskit", reason="LensKit is not installed: pip install 'paml[lenskit]'")

from lenskit.batch import BatchPipelineRunner
from lenskit.data import ItemList, RecQuery
from lenskit.metrics import NDCG, RMSE, RunAnalysis
from lenskit.metrics.ranking import LogRankWeight
from lenskit.pipeline import Pipeline, topn_pipeline

from paml.baselines.lenskit import start_lenskit
from paml.lenskit import LensKitSplit, PamlScorer, split_of

SMALL = {"epochs": 2, "ensemble_size": 1}


@pytest.fixture(scope="module", autouse=True)
def _threads() -> None:
    start_lenskit()


@pytest.fixture(scope="module")
def run(world: paml.Dataset, tmp_path_factory: pytest.TempPathFactory) -> paml.Run:
    return paml.train(world, out=tmp_path_factory.mktemp("lenskit") / "run", settings=SMALL)


@pytest.fixture(scope="module")
def split(world: paml.Dataset) -> LensKitSplit:
    return split_of(world)


def trained(scorer: PamlScorer, split: LensKitSplit) -> Pipeline:
    pipeline = topn_pipeline(scorer, n=10, predicts_ratings=True)
    pipeline.train(split.train)
    return pipeline


def test_the_pipelines_errors_are_ours(run: paml.Run, world: paml.Dataset, split: LensKitSplit) -> None:
    runner = BatchPipelineRunner(n_jobs=1)
    runner.predict()
    pipeline = trained(PamlScorer(run=run.path, profiles=world.path, by="rating"), split)
    predictions = runner.run(pipeline, split.queries).output("predictions")
    ours = dict(run.evaluate(world).select("user", "mse").iter_rows())
    assert len(ours) == len(predictions) == len(split.truth)
    for key, found in predictions.items():
        truth = split.truth.lookup(key)
        assert truth is not None
        assert RMSE().measure_list(found, truth) ** 2 == pytest.approx(ours[key.user_id], rel=1e-5)


def test_the_pipelines_lists_are_ours(run: paml.Run, world: paml.Dataset, split: LensKitSplit) -> None:
    runner = BatchPipelineRunner(n_jobs=1)
    runner.recommend(n=10)
    pipeline = trained(PamlScorer(run=run, profiles=world), split)
    shown = runner.run(pipeline, split.queries).output("recommendations")
    metric = NDCG(10, weight=LogRankWeight(offset=1))
    found = RunAnalysis(metric).measure(shown, split.liked).list_metrics(fill_missing=False)["NDCG@10"]
    expected = paml.evaluate(run, world)
    assert all(len(items) == 10 for items in shown.lists())
    assert found.isna().sum() == expected["undefined"]["ndcg10"] > 0  # who liked nothing
    assert found.mean() == pytest.approx(expected["ndcg10"]["all"], abs=1e-6)
    assert 0 < found.mean() < 1


def test_the_documented_example_prints_our_figures(
    run: paml.Run, world: paml.Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, path in (("ML", world.path), ("run", run.path)):
        (tmp_path / name).symlink_to(path)
    (block,) = (one for one in BLOCKS if one.document == "docs/lenskit.md")
    with contextlib.chdir(tmp_path):
        exec(block.text, {"__name__": "__main__"})
    found = dict(line.split() for line in capsys.readouterr().out.splitlines())
    ours = paml.evaluate(run, world)
    assert float(found["mse"]) == pytest.approx(ours["mse"]["all"], abs=1e-6)
    assert float(found["ndcg10"]) == pytest.approx(ours["by"]["rating"]["ndcg10"]["all"], abs=1e-6)


def test_a_new_user_without_history_or_profile_is_scored(run: paml.Run) -> None:
    scorer = PamlScorer(run=run.path, by="rating")
    found = scorer(None, ItemList(item_ids=["3", "no such item", "7"])).scores()
    assert found is not None
    assert np.isnan(found).tolist() == [False, True, False]
    assert found[[0, 2]] == pytest.approx(run.adapt().predict(["3", "7"]))
    history = ItemList(item_ids=["5", "no such item"], rating=[5.0, 1.0])
    adapted = scorer(RecQuery(history_items=history), ItemList(item_ids=[3, 7])).scores()
    assert adapted == pytest.approx(run.adapt(ratings={"5": 5}).predict(["3", "7"]))


def test_ratings_are_needed_by_a_run_of_ratings_alone(run: paml.Run, click_world: paml.Dataset, tmp_path: Path) -> None:
    bare = RecQuery(history_items=ItemList(item_ids=["5"]))
    with pytest.raises(SettingsError, match=r"no ratings.*give the list a field 'rating'"):
        PamlScorer(run=run.path)(bare, ItemList(item_ids=["3"]))
    clicks = paml.train(click_world, out=tmp_path / "run", settings=SMALL)
    found = PamlScorer(run=clicks.path, by="rating")(bare, ItemList(item_ids=["3"])).scores()
    assert found == pytest.approx(clicks.adapt(ratings={"5": 1}).predict(["3"]))


def test_another_process_and_a_copied_pipeline_open_the_run_themselves(
    run: paml.Run, world: paml.Dataset, split: LensKitSplit
) -> None:
    scorer = PamlScorer(run=run, profiles=world, by="rating")
    query, items = split.queries[0]
    expected = scorer(query, items).scores()
    copy = pickle.loads(pickle.dumps(scorer))
    assert "run" not in vars(copy)
    assert copy(query, items).scores() == pytest.approx(expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone = topn_pipeline(scorer).clone()
    assert clone.node("scorer").component.dump_config() == scorer.dump_config()


def test_training_rows_are_those_of_training_users(world: paml.Dataset, split: LensKitSplit) -> None:
    assert split.train.interaction_count == world.training_rows
    assert split.train.item_count == world.manifest.items
    assert split.train.user_count == world.manifest.splits["train"][1]
    assert len(split.queries) == world.manifest.users - world.manifest.splits["test"][0]
    assert not set(split.train.users.ids()) & {query.user_id for query, _ in split.queries}
