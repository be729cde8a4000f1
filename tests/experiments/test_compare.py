"""Comparisons: resumable, honest about what is missing, and blind to the targets of test users."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import roc_auc_score

import paml
from paml.analysis.environment import read_environments, write_environments
from paml.analysis.plan import RateFacts, cell_name, read_plan, write_plan
from paml.analysis.results import MissingCell, Results, read_results
from paml.baselines import BASELINES, Fitted, SplitRows
from paml.baselines.registry import Baseline
from paml.episodes.batches import Loader
from paml.episodes.tasks import Known, Tasks
from paml.errors import FormatError, LeakageError, PamlError, SettingsError, TrainingError
from paml.evaluation import metrics
from paml.evaluation.blinding import BlindedDataset, require_untouched
from paml.evaluation.ranking import Rank, discounted_gain, rank_users
from paml.evaluation.scenarios import SAMPLE
from paml.evaluation.scoring import evaluate_ensemble, predict_rows
from paml.experiments.compare import ABLATION
from paml.experiments.environment import record_environment
from paml.experiments.plan import open_comparison, variant, with_facts
from paml.report.refresh import refresh
from report.comparison import write_comparison

QUICK = {"epochs": 1, "ensemble_size": 1, "hidden": (8,), "embedding_size": 4, "item_embedding": 4}
SIMPLE = ("training_mean", "bias")


def quick_compare(data: paml.Dataset, out: Path, **more: Any) -> Results:
    arguments = {"methods": ("melu", "reg_paml"), "seeds": 2, "baselines": SIMPLE, "settings": QUICK, **more}
    return paml.compare(data, out=out, **arguments)


@pytest.fixture(scope="module")
def done(world: paml.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compare") / "out"
    quick_compare(world, out, variants=["reg_paml gamma=0.5"], group_by="age")
    return out


def test_rows_agree_with_evaluate(done: Path, world: paml.Dataset) -> None:
    rows = pl.read_parquet(done / "rows.parquet")
    assert set(rows["method"]) == {"training_mean", "bias", "melu", "reg_paml", "reg_paml gamma=0.5"}
    run = paml.load(done / "runs" / "reg_paml@0")
    expected = evaluate_ensemble(run.ensemble, world, "test")
    found = rows.filter((pl.col("method") == "reg_paml") & (pl.col("seed") == 0))
    assert found["user"].to_list() == expected["user"].to_list()
    assert np.allclose(found["mse"].to_numpy(), expected["mse"].to_numpy())
    assert np.allclose(found["rate"].to_numpy(), expected["rate"].to_numpy())
    assert rows.filter(pl.col("method") == "bias")["rate"].null_count() > 0
    test = SplitRows.of(world, "test")
    fitted = BASELINES["bias"].fit(world, 0)
    error = test.query_error(fitted.predictor.predict(test))
    bias = rows.filter((pl.col("method") == "bias") & (pl.col("seed") == 0))
    assert np.allclose(bias["mse"].to_numpy(), error)


def test_every_seed_has_its_own_users_and_entries_share_them(done: Path) -> None:
    rows = pl.read_parquet(done / "rows.parquet")
    users = rows.group_by("method", "seed").agg(pl.col("user").sort()).sort("seed", "method")
    for seed in (0, 1):
        assert users.filter(pl.col("seed") == seed)["user"].n_unique() == 1
    assert users["user"].n_unique() == 2


def test_scenarios(done: Path, world: paml.Dataset) -> None:
    scenarios = pl.read_parquet(done / "scenarios.parquet")
    rows = pl.read_parquet(done / "rows.parquet")
    shots = scenarios.filter(pl.col("scenario") == "shots")
    assert set(shots["value"]) == {"0", "1", "3", "5", "10", "20", "all"}
    whole = shots.filter(pl.col("value") == "all")
    assert whole["mse"].to_list() == rows["mse"].to_list()
    mean = {value: part["mse"].mean() for (value,), part in shots.filter(pl.col("method") == "bias").group_by("value")}
    assert mean["all"] < mean["3"] < mean["0"]
    constant = shots.filter(pl.col("method") == "training_mean")
    assert constant.group_by("user", "seed").agg(pl.col("mse").n_unique())["mse"].to_list().count(1) == len(
        constant.select("user", "seed").unique()
    )
    items = scenarios.filter(pl.col("scenario") == "items")
    assert set(items["value"]) <= {"warm", "cold"}
    both = items.group_by("method", "seed", "user").agg(pl.col("query_rows").sum())
    query = rows.select("method", "seed", "user", "query_rows")
    assert both.sort("method", "seed", "user").equals(query.sort("method", "seed", "user"), null_equal=True)


def test_no_support_rows_leave_theta_as_it_is(done: Path, world: paml.Dataset) -> None:
    ensemble = paml.load(done / "runs" / "melu@0").ensemble
    tasks, loader = Tasks.of(world, "test"), Loader(world)
    none, _ = predict_rows(ensemble, loader, tasks, shots=0)
    for member in ensemble.members:
        member.solver.steps = 0
        member.network.user_prior.choice = None  # what was chosen is not known, either
    unadapted, _ = predict_rows(ensemble, loader, tasks)
    assert np.allclose(none, unadapted, atol=1e-5)


def test_results_and_report_are_written(done: Path) -> None:
    results = read_results(done)
    assert results.missing == ()
    assert results.verdict
    assert set(results.plan.names()) >= {"bias", "reg_paml gamma=0.5"}
    assert results.by_group is not None
    assert results.by_group.values
    assert (done / "report.html").stat().st_size > 10_000
    rows = pl.read_parquet(done / "rows.parquet").filter(pl.col("method") == "melu")
    mean = rows.group_by("seed").agg(pl.col("mse").mean())["mse"].mean()
    assert results.mean("melu") == pytest.approx(mean)


def test_the_environment_is_recorded_beside_the_plan(done: Path, tmp_path: Path) -> None:
    (found,) = read_results(done).environments
    assert found.packages["torch"] == version("torch")
    assert found.threads == torch.get_num_threads()
    assert f"Python {found.python}, torch {found.packages['torch']}" in (done / "report.html").read_text()
    assert "torch" not in (done / "results.json").read_text()  # which is the same on every machine
    folder = shutil.copytree(done, tmp_path / "other")
    record_environment(folder)
    assert read_environments(folder) == (found,)
    write_environments(folder, (found.model_copy(update={"python": "3.9"}),))
    record_environment(folder)  # a comparison that is continued elsewhere
    assert [one.python for one in read_environments(folder)] == ["3.9", found.python]
    (folder / "environment.json").write_text("{}")
    with pytest.raises(FormatError, match=r"environment\.json: is not a list of environments; remove it"):
        refresh(folder)
    (folder / "environment.json").unlink()
    assert refresh(folder).environments == ()


def test_the_plan_knows_the_bounds_of_rates(done: Path, world: paml.Dataset, tmp_path: Path) -> None:
    facts = {entry.name: entry.rate for entry in read_plan(done).entries}
    assert {name for name, rate in facts.items() if rate is not None} == {"reg_paml", "reg_paml gamma=0.5"}
    assert facts["reg_paml"] == RateFacts(label="learning rate", bound=0.5)
    entry = variant("at_paml rate_scale=0.01 warmup_rate=0.03")
    assert with_facts(entry, "paper", {}, "", "rating").rate == RateFacts(label="learning rate", bound=0.04)
    entry = variant("at_paml memory_stores=alpha")
    assert with_facts(entry, "paper", {}, "", "rating").rate == RateFacts(label="learning rate", bound=None)
    assert with_facts(variant("ridge"), "paper", {"rate_scale": 2}, "", "rating").rate == RateFacts(
        label="prior variance", bound=2
    )
    old = shutil.copytree(done, tmp_path / "old")  # begun before rates were in the plan
    plan = read_plan(old)
    without = tuple(entry.model_copy(update={"rate": None}) for entry in plan.entries)
    write_plan(old, plan.model_copy(update={"entries": without}))
    assert refresh(old).rates["reg_paml"].bound is None
    assert quick_compare(world, old, group_by="age").rates["reg_paml"].bound == 0.5  # the same command adds them


def test_a_second_call_reuses_everything(done: Path, world: paml.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (done / "results.json").read_text()
    monkeypatch.setattr("paml.experiments.compare.run_cell", lambda *_: pytest.fail("a finished cell was run again"))
    quick_compare(world, done, variants=["reg_paml gamma=0.5"], group_by="age")
    assert (done / "results.json").read_text() == before


@pytest.mark.slow
def test_killed_and_continued_it_gives_the_same_results(world: paml.Dataset, tmp_path: Path) -> None:
    quick_compare(world, tmp_path / "whole")
    program = (
        "import paml, sys, torch; torch.set_num_threads(1); data = paml.open_data(sys.argv[1]);"
        f"paml.compare(data, ('melu', 'reg_paml'), 2, out=sys.argv[2], baselines={SIMPLE!r}, settings={QUICK!r})"
    )
    command = [sys.executable, "-c", program, str(world.path), str(tmp_path / "killed")]
    process = subprocess.Popen(command)
    while len(list((tmp_path / "killed" / "cells").glob("[!.]*"))) < 3:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    half = refresh(tmp_path / "killed")
    assert half.missing
    assert "report.html" in {file.name for file in (tmp_path / "killed").iterdir()}
    continued = quick_compare(world, tmp_path / "killed")
    assert (tmp_path / "killed" / "results.json").read_bytes() == (tmp_path / "whole" / "results.json").read_bytes()
    assert set(continued.cost) == {*SIMPLE, "melu", "reg_paml"}


def test_other_data_or_settings_are_refused(
    done: Path, world: paml.Dataset, click_world: paml.Dataset, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="was begun with another data set"):
        paml.compare(click_world, out=done, baselines=(), settings=QUICK)
    with pytest.raises(SettingsError, match="was begun with another recipe"):
        quick_compare(world, done, recipe="paper")
    with pytest.raises(SettingsError, match=r"out: was begun with other settings \(epochs was 1, now 2\); repeat"):
        quick_compare(world, done, settings={**QUICK, "epochs": 2})
    with pytest.raises(SettingsError, match="already has a comparison; choose another folder, or reuse"):
        quick_compare(world, done, reuse=False)
    other = shutil.copytree(done, tmp_path / "other")
    plan = read_plan(other)
    assert plan.created_by == f"paml {paml.__version__}"
    write_plan(other, plan.model_copy(update={"created_by": "paml 0"}))
    with pytest.raises(SettingsError, match=f"other: was begun with paml 0, and this is paml {paml.__version__};"):
        quick_compare(world, other)
    assert refresh(other).table == read_results(done).table  # a report may be made
    write_plan(other, plan.model_copy(update={"metrics": plan.metrics[:2]}))
    with pytest.raises(SettingsError, match="was begun with other metrics"):
        quick_compare(world, other)
    (other / "plan.json").write_text(json.dumps({"format": 1, "created_by": plan.created_by}))
    with pytest.raises(FormatError, match=r"is of format 1, .*; compare again with this version"):
        quick_compare(world, other)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(SettingsError, match="is neither empty nor a comparison"):
        quick_compare(world, tmp_path / "full")
    with pytest.raises(PamlError, match="a folder made by `paml compare` expected"):
        refresh(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": ["melo"]}, "unknown method 'melo'; did you mean 'melu'"),
        ({"methods": ["melu", "melu"]}, "'melu' is named twice"),
        ({"baselines": ["biass"]}, "unknown baseline 'biass'"),
        ({"baselines": ["logistic"]}, "baseline 'logistic' does not predict a rating"),
        ({"variants": ["reg_paml gama=1"]}, "unknown setting 'gama'; did you mean 'gamma'"),
        (
            {"variants": ["melu choice_part=false choice.epochs=1"]},
            "'choice.epochs' is for the choice part, which 'melu",
        ),
        (
            {"settings": {"choice_part": False, "choice.epochs": 1}},
            "'choice.epochs' is for the choice part, which the methods here do not",
        ),
        ({"variants": ["ridge head=classes"]}, "'ridge head=classes': a softmax over levels has no closed form"),
        ({"variants": ["melu exclude_fields=item.nope"]}, "'melu exclude_fields=item.nope': there is no field 'item."),
        ({"methods": ["melu", "ridge"], "settings": {"head": "classes"}}, "'ridge': a softmax over levels has no"),
        ({"group_by": "agee"}, "no user field 'agee' to group by; did you mean 'age'"),
        ({"methods": [], "baselines": []}, "nothing to compare"),
        ({"seeds": 0}, "0 seeds; at least one"),
    ],
)
def test_invalid_requests(world: paml.Dataset, tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        quick_compare(world, tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_no_test_users(tmp_path: Path) -> None:
    data = paml.prepare("synthetic", out=tmp_path / "data", users=100, items=30, user_ratio="9:1:0")
    with pytest.raises(SettingsError, match="the data set has no test users; prepare it with another user_ratio"):
        quick_compare(data, tmp_path / "out")


def test_the_papers_ablation_is_understood() -> None:
    assert [variant(text).settings.get("gamma") for text in ABLATION[:3]] == ["1e-5", "1e-4", "1e-2"]
    assert ABLATION[3:] == ("at_paml outer_rate=5e-4", "paml outer_rate=5e-5", "reg_paml head=classes")
    found = variant(ABLATION[0])
    assert (found.name, found.label, found.method) == ("reg_paml gamma=1e-5", "REG-PAML gamma=1e-5", "reg_paml")
    assert (found.kind, variant("melu").kind) == ("variant", "method")
    with pytest.raises(SettingsError, match="unknown method ''"):
        variant(" ")
    assert cell_name("reg_paml a=<b>/..", 1) == "reg_paml a= b .. 1".replace(" 1", "@1")


def test_fitting_and_prediction_see_no_target_that_they_must_not_know(world: paml.Dataset) -> None:
    first, end = (int(world.array("offsets")[user]) for user in world.manifest.splits["test"])
    whole = world.array("target")
    erased = BlindedDataset(world, "all").array("target")
    assert np.isnan(erased[first:end]).all()
    assert np.array_equal(erased[:first], whole[:first])
    query = BlindedDataset(world, "query").array("target")
    assert np.array_equal(np.isnan(query[first:end]), Tasks.of(world, "test").query_mask())
    assert not np.isnan(world.array("target")).any()  # the file itself is not changed


def test_whoever_peeks_is_found_out(world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def peek(data: paml.Dataset, seed: int) -> Fitted:
        class Cheat:
            def predict(self, rows: SplitRows) -> np.ndarray:
                return rows.target_N.astype(np.float64)

        return Fitted(Cheat(), {}, [], 0.0)

    monkeypatch.setitem(BASELINES, "cheat", Baseline("cheat", "cheat", frozenset({"rating"}), peek))
    results = quick_compare(world, tmp_path / "out", methods=(), seeds=1, baselines=["cheat"])
    assert results.missing[0].reason is not None
    assert "predictions of 'cheat' are not finite" in results.missing[0].reason
    with pytest.raises(TrainingError):
        require_untouched(np.array([1.0, np.nan]), "x")


@dataclass(frozen=True)
class Ranking:
    """A ranker from a function of the data set whose users are ranked."""

    of: Callable[[paml.Dataset], Rank]

    def rank(self, data: paml.Dataset) -> Rank:
        return self.of(data)


def ranks_only(data: paml.Dataset, seed: int) -> Fitted:
    """How often training users interacted; the user's own items last, as they are known only now."""
    trained_N = data.array("item")[: data.training_rows]
    count_I = torch.from_numpy(np.bincount(trained_N, minlength=data.manifest.items)).to(torch.float32)

    def of(data: paml.Dataset) -> Rank:
        item_N = data.array("item")

        def rank(known: Known) -> torch.Tensor:
            own_BS = torch.from_numpy(item_N[known.support.row_BL].astype(np.int64))
            return count_I.repeat(len(known.user_B), 1).scatter(1, own_BS, 0.0)

        return rank

    return Fitted(None, {}, [], 0.0, ranker=Ranking(of))


def test_an_entry_that_only_ranks_is_compared_by_its_lists(
    world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BASELINES, "popular", Baseline("popular", "popular", frozenset({"rating"}), ranks_only))
    out = tmp_path / "out"
    results = quick_compare(world, out, methods=("melu",), baselines=["bias", "popular"], seeds=1, liked=3.5)
    assert results.plan.liked == 3.5
    assert (results.best.baseline, results.best_lists.baseline) == ("bias", "popular")  # bias does not rank
    assert results.mean("popular") is None
    rows = pl.read_parquet(out / "rows.parquet")
    assert rows.filter(pl.col("method") == "popular")["mse"].null_count() == len(rows) / 3
    lists = rows.filter(pl.col("method") == "popular")["ndcg10"]
    assert results.mean("popular", "ndcg10") == pytest.approx(lists.drop_nans().mean())
    assert [line.reference for line in results.paired["ndcg10"]] == ["popular"]
    assert [line.reference for line in results.paired["mse"]] == ["bias"]
    assert [test.baseline for test in results.shot_tests["recall20"]] == ["popular"] * 7
    assert set(results.list_groups) == {"popular", "melu"}
    assert all(0 < results.pooled["coverage"][name].mean < 1 for name in ("popular", "melu"))
    assert results.pooled["coverage"]["bias"].mean is None
    said = " ".join(results.verdict)
    assert "shows users the best list" in said
    assert "popular" in said
    assert "–" in (out / "tables" / "comparison.txt").read_text()
    assert "only ranks" in (out / "tables" / "comparison.txt").read_text()
    assert "bias" not in (out / "tables" / "lists.txt").read_text()
    assert "What a user would be shown" in (out / "report.html").read_text()
    with pytest.raises(SettingsError, match="was begun with another level of liked items"):
        quick_compare(world, out, methods=("melu",), baselines=["bias", "popular"], seeds=1)
    alone = quick_compare(world, tmp_path / "alone", methods=(), baselines=["popular"], seeds=1)
    assert alone.best.baseline is None
    assert "there is no method that ranks" in " ".join(alone.verdict)


@pytest.mark.parametrize(("begun", "again"), [(3.8, 3.8000000000000003), (0.857142857143, 6 / 7)])
def test_a_level_of_liked_items_is_the_same_however_it_was_written(tmp_path: Path, begun: float, again: float) -> None:
    plan = read_plan(write_comparison(tmp_path / "made", methods=["paml"], variants=(), baselines=["bias"], users=6))
    open_comparison(tmp_path / "OUT", plan.model_copy(update={"liked": begun}))
    open_comparison(tmp_path / "OUT", plan.model_copy(update={"liked": again}))
    with pytest.raises(SettingsError, match="another level of liked items"):
        open_comparison(tmp_path / "OUT", plan.model_copy(update={"liked": 4.0}))


def test_whoever_reads_items_of_query_rows_is_stopped(
    world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def peeking(data: paml.Dataset) -> Rank:
        def rank(known: Known) -> torch.Tensor:
            item_R = data.array("item")[data.array("offsets")[known.user_B + 1] - 1].astype(np.int64)
            return torch.eye(data.manifest.items)[torch.from_numpy(item_R)]

        return rank

    def peek(data: paml.Dataset, seed: int) -> Fitted:
        return Fitted(None, {}, [], 0.0, ranker=Ranking(peeking))

    monkeypatch.setitem(BASELINES, "cheat", Baseline("cheat", "cheat", frozenset({"rating"}), peek))
    with pytest.raises(IndexError):
        quick_compare(world, tmp_path / "out", methods=(), seeds=1, baselines=["cheat"])


def test_lists_are_those_of_evaluate(done: Path, world: paml.Dataset) -> None:
    found = paml.evaluate(done / "runs" / "reg_paml@0", world)
    rows = pl.read_parquet(done / "rows.parquet").filter((pl.col("method") == "reg_paml") & (pl.col("seed") == 0))
    for name in ("ndcg10", "recall20", "hit10", "mrr", "liked10", "popularity", "novelty", "diversity"):
        for group in ("major", "minor"):
            own = rows.filter(pl.col("group") == group)[name].drop_nans()
            assert found[name][group] == (pytest.approx(own.mean()) if len(own) else None)
    pooled = pl.read_parquet(done / "pooled.parquet").filter(pl.col("method") == "reg_paml", pl.col("seed") == 0)
    assert found["coverage"]["all"] == pytest.approx(pooled["coverage"][0])
    assert found["coverage"]["minor"] <= found["coverage"]["all"]
    assert found["liked"] == 4.0
    strict = paml.evaluate(done / "runs" / "reg_paml@0", world, liked=5)
    assert strict["undefined"]["ndcg10"] >= found["undefined"]["ndcg10"]
    assert strict["mse"] == found["mse"]
    with pytest.raises(SettingsError, match="liked is 9; expected a value of the scale, above 1 and at most 5"):
        paml.evaluate(done / "runs" / "reg_paml@0", world, liked=9)


def test_lists_by_choice_and_by_rating_are_those_of_the_run(done: Path, world: paml.Dataset) -> None:
    run, tasks = paml.load(done / "runs" / "reg_paml@0"), Tasks.of(world, "test")
    scenarios = pl.read_parquet(done / "scenarios.parquet").filter(
        pl.col("scenario") == "by", pl.col("method") == "reg_paml", pl.col("seed") == 0
    )
    results, evaluated = read_results(done), paml.evaluate(run, world)
    assert evaluated["ordered_by"] == "preference"
    assert evaluated["by"]["preference"]["ndcg10"] == evaluated["ndcg10"]
    for order in ("choice", "rating"):
        for shots in (3, None):
            expected = discounted_gain(rank_users(world, tasks, run.rank(world, order), shots), 10)
            known = "all" if shots is None else str(shots)
            found = scenarios.filter(pl.col("value") == order, pl.col("known") == known)["ndcg10"]
            assert np.allclose(found.to_numpy(), expected, equal_nan=True)
        assert evaluated["by"][order]["ndcg10"]["all"] == pytest.approx(float(np.nanmean(expected)))
    assert list(results.by.means) == ["melu", "reg_paml", "reg_paml gamma=0.5"]
    assert [line.method for line in results.by.personal_rates["ndcg10"]] == ["reg_paml"]
    assert "What lists are ordered by" in (done / "report.html").read_text()


def test_variants_that_only_rank(world: paml.Dataset, tmp_path: Path) -> None:
    out, variants = tmp_path / "out", ["melu head=choice", "paml head=choice"]
    with pytest.raises(SettingsError, match="a choice among all items needs item vectors and no hidden layer"):
        quick_compare(world, out, methods=["melu"], variants=variants, seeds=1)
    assert not out.exists()  # found before anything is trained
    short = {"epochs": 1, "ensemble_size": 1}
    results = quick_compare(world, out, methods=["melu"], variants=variants, seeds=1, settings=short)
    entries = {entry.name: entry for entry in results.plan.entries}
    assert entries["paml head=choice"].rate == RateFacts(label="learning rate", bound=2.0)  # that of a choice
    assert {name: entry.choice_method for name, entry in entries.items() if entry.learned} == {
        "melu": "melu",
        "melu head=choice": "melu",
        "paml head=choice": "paml",
    }
    assert results.mean("melu head=choice") is None
    assert results.mean("melu head=choice", "ndcg10") is not None
    assert list(results.by.means["melu head=choice"]) == ["choice", "preference"]
    assert list(results.by.choice_over_rating["ndcg10"]) == ["melu"]
    assert "MeLU head=choice" in (out / "tables" / "lists.txt").read_text()
    assert "only ranks" in (out / "tables" / "comparison.txt").read_text()
    alone = quick_compare(
        world, tmp_path / "alone", methods=(), variants=variants[:1], baselines=(), seeds=1, settings=short
    )
    assert any("MeLU head=choice shows users the best list" in sentence for sentence in alone.verdict)
    only = paml.evaluate(out / "runs" / "melu head=choice@0", world)
    assert "mse" not in only
    assert list(only["by"]) == ["preference", "choice"]


def test_training_that_reads_other_rows_is_stopped(world: paml.Dataset) -> None:
    end = int(Tasks.of(world, "train").offsets[-1])
    loader = Loader(world)
    loader.load(next(Tasks.of(world, "train").stored(4)), end)
    with pytest.raises(LeakageError, match="a row of another split"):
        loader.load(next(Tasks.of(world, "validation").stored(4)), end)


def test_clicks(click_world: paml.Dataset, tmp_path: Path) -> None:
    results = paml.compare(
        click_world, ("melu",), 1, out=tmp_path / "out", baselines=("constant_rate", "user_rate"), settings=QUICK
    )
    assert results.plan.headline.name == "nel"
    first = click_world.manifest.splits["test"][0]
    rows = click_world.interactions().filter((pl.col("user") >= first) & pl.col("query")).collect()
    assert len(rows) < SAMPLE  # so that the sample of predictions is all of them
    predictions = pl.read_parquet(tmp_path / "out" / "predictions.parquet")
    assert set(predictions["label"]) == {0, 1}
    assert predictions["p"].is_between(0, 1).all()
    assert len(predictions) == 3 * len(rows)
    for name, found in results.pooled["auc"].items():
        own = predictions.filter(pl.col("method") == name)
        assert found.mean == pytest.approx(roc_auc_score(own["label"], own["p"]), abs=1e-12)
    assert results.pooled["auc"]["constant_rate"].mean == 0.5 < results.pooled["auc"]["user_rate"].mean
    table = (tmp_path / "out" / "tables" / "comparison.md").read_text()
    assert "| NEL ↓ | AUC per user ↑ | AUC, pooled over users ↑ |" in table


def test_small_groups_and_single_rows_cause_no_trouble(tmp_path: Path) -> None:
    data = paml.prepare("synthetic", out=tmp_path / "data", users=60, items=30, median_rows=3, major_above=9)
    results = quick_compare(data, tmp_path / "out", seeds=1, same_split=True)
    text = (tmp_path / "out" / "report.html").read_text()
    assert results.summary("melu", group="major").mean is None
    assert ">nan<" not in text.lower()
    assert ">None<" not in text
    shutil.rmtree(tmp_path / "out" / "cells" / "melu@0")
    assert refresh(tmp_path / "out").missing == (MissingCell(method="melu", seed=0),)


def test_a_training_that_diverges_does_not_stop_the_others(world: paml.Dataset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    results = quick_compare(world, out, methods=("melu",), seeds=1, variants=["melu outer_rate=1e30"])
    assert [cell.method for cell in results.failed] == ["melu outer_rate=1e30"]
    assert "the loss is" in str(results.failed[0].reason)
    assert any("failed with seed 0 and is excluded" in sentence for sentence in results.verdict)
    assert results.mean("melu") is not None
    assert "failed with seed 0" in (out / "report.html").read_text()


def test_later_calls_add_to_a_comparison(world: paml.Dataset, tmp_path: Path) -> None:
    quick_compare(world, tmp_path / "out", methods=("melu",), seeds=1, group_by="age")
    results = quick_compare(world, tmp_path / "out", methods=("paml",), seeds=2, baselines=("item_mean",))
    assert results.plan.names() == ["training_mean", "bias", "item_mean", "melu", "paml"]
    assert results.plan.group_by == "age"
    assert results.missing == ()
    again = quick_compare(
        world,
        tmp_path / "out",
        settings={
            "epochs": "1",
            "hidden": "8",
            **{name: str(QUICK[name]) for name in ("ensemble_size", "embedding_size", "item_embedding")},
        },
    )
    assert again.plan.names("method") == ["melu", "paml", "reg_paml"]  # settings are the same however they were given


def test_half_a_grid_compares_only_seeds_that_all_have(done: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(done, half)
    shutil.rmtree(half / "cells" / "melu@1")
    results = refresh(half)
    assert results.seeds == (0,)
    assert results.verdict[0].startswith("Preliminary: 1 of 10 cells is not finished (MeLU with seed 1); numbers")
    assert {results.summary(name).seeds for name in results.plan.names()} == {1}


def test_a_folder_without_cells_keeps_its_rows(done: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shutil.copytree(done, shared, ignore=shutil.ignore_patterns("cells", "runs", "splits"))
    assert refresh(shared).table == read_results(done).table
    assert (shared / "rows.parquet").exists()


def test_packages_that_are_not_installed(world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paml.baselines.registry.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="'lenskit_mf' needs the package 'lenskit'; pip install"):
        quick_compare(world, tmp_path / "a", baselines=["bias", "lenskit_mf"])
    assert not (tmp_path / "a").exists()
    results = quick_compare(world, tmp_path / "b", methods=(), seeds=1, baselines=None)
    assert "lenskit_mf" not in results.plan.names()
    assert "bias" in results.plan.names()


def test_a_further_metric_is_one_entry_of_the_registry(
    world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def within_one(target_N: np.ndarray, prediction_N: np.ndarray, count_U: np.ndarray) -> np.ndarray:
        return metrics.per_user_mean(np.abs(target_N - prediction_N) <= 1, count_U)

    further = metrics.Metric("within1", "within 1", "higher", 2, metrics.RATING, within_one)
    monkeypatch.setitem(metrics.METRICS, "within1", further)
    out = tmp_path / "out"
    results = quick_compare(world, out, methods=("melu",), seeds=1, baselines=("bias",))
    rows = pl.read_parquet(out / "rows.parquet")
    mean = rows.filter(pl.col("method") == "bias")["within1"].mean()
    assert 0 < mean < 1
    assert results.mean("bias", "within1") == pytest.approx(mean)
    assert results.plan.metric("within1").better == "higher"
    assert [line.method for line in results.paired["within1"]] == ["melu"]
    stored = json.loads((out / "results.json").read_text())
    assert stored["table"]["within1"]["bias"]["all"]["mean"] == pytest.approx(mean)
    for text in ((out / "tables" / "comparison.txt").read_text(), (out / "report.html").read_text()):
        assert "within 1 ↑" in text
        assert f"{mean:.2f}" in text
    assert "within 1" in (out / "tables" / "paired.txt").read_text()
    evaluated = paml.evaluate(out / "runs" / "melu@0")
    assert evaluated["within1"]["all"] == pytest.approx(results.mean("melu", "within1"))
    assert evaluated["undefined"]["within1"] == 0


def test_settings_are_the_same_however_they_are_written(world: paml.Dataset, tmp_path: Path) -> None:
    same = {"methods": [], "seeds": 1, "baselines": ["bias"]}
    quick_compare(
        world, tmp_path / "out", **same, settings={"choice_part": False, "outer_rate": 1e-3, "hidden": (8, 4)}
    )
    typed = {"choice_part": "false", "outer_rate": "1e-3", "hidden": "8,4"}
    quick_compare(world, tmp_path / "out", **same, settings=typed)
    with pytest.raises(SettingsError, match=r"outer_rate was 0.001, now 0.002"):
        quick_compare(world, tmp_path / "out", **same, settings={**typed, "outer_rate": "2e-3"})
