"""Data sets of choices in comparisons and searches: judged by lists alone, and blind to what is to be chosen."""

import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import paml
from paml.analysis.results import read_results
from paml.errors import SettingsError
from paml.evaluation.blinding import BlindedDataset
from paml.report.tables import all_tables

QUICK = {"epochs": 1, "ensemble_size": 1, "item_embedding": 8}
BASELINES = ("popular", "popular_profile", "edlae")


@pytest.fixture(scope="module")
def done(choice_world: paml.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("choices") / "out"
    variants = ["ridge head=choice"]
    paml.compare(choice_world, ["paml", "ridge"], 1, out=out, baselines=BASELINES, variants=variants, settings=QUICK)
    return out


def test_entries_are_compared_by_their_lists(done: Path, choice_world: paml.Dataset) -> None:
    results = read_results(done)
    plan = results.plan
    assert (plan.headline.name, plan.data.target, plan.liked) == ("ndcg10", "choice", 1)
    assert {metric.about for metric in plan.metrics} == {"list", "contents"}
    assert results.best == results.best_lists
    assert all(0 < (results.mean(name) or 0) < 1 for name in plan.names())
    assert set(results.rates) == {"paml", "ridge head=choice"}  # ridge itself is MeLU's choice part
    by = {entry.name: entry.choice_method for entry in plan.entries if entry.learned}
    assert by == {"paml": "paml", "ridge": "melu", "ridge head=choice": "ridge"}
    rows = pl.read_parquet(done / "rows.parquet")
    assert "mse" not in rows.columns
    own = paml.evaluate(done / "runs" / "paml@0", choice_world)
    found = rows.filter((pl.col("method") == "paml") & (pl.col("seed") == 0))
    assert own["ndcg10"]["all"] == pytest.approx(found["ndcg10"].drop_nans().mean())


def test_the_report_says_nothing_twice_and_nothing_of_errors(done: Path) -> None:
    results = read_results(done)
    said = " ".join(results.verdict)
    assert said.count("nDCG@10, catalogue 0.") == 1
    assert "shows users the best list" not in said
    assert len(results.verdict) == len(set(results.verdict))
    tables = {table.name: table for table in all_tables(results)}
    assert not {"comparison", "shots", "list_groups"} & set(tables)
    assert {"lists", "groups", "list_shots", "list_orders", "paired_lists", "rates", "cost"} <= set(tables)
    assert tables["list_orders"].columns == ("metric", "", "by choice", "by preference")
    assert "The choice part of closed-form ridge is learnt by melu." in tables["list_orders"].note
    assert "that the user chose;" in tables["lists"].note
    page = re.sub(r"<svg.*?</svg>|<style.*?</style>|<[^>]+>", " ", (done / "report.html").read_text(), flags=re.DOTALL)
    assert not re.search(r"\b(MSE|NEL|MAE|clicked;|predicted rating|Users' errors)\b", page)
    assert "known choices" in page
    assert "--liked 1" in page


def test_a_run_learns_nothing_from_test_users(choice_world: paml.Dataset, tmp_path: Path) -> None:
    """Neither their choices nor which items these are: with all of it erased, weights and preference are the same."""
    blinded = BlindedDataset(choice_world, "all")
    assert np.isnan(blinded.array("target")[int(choice_world.array("offsets")[-2]) :]).all()
    runs = [
        paml.train(data, "paml", out=tmp_path / f"{k}", settings=QUICK)
        for k, data in enumerate((choice_world, blinded))
    ]
    assert runs[0].preference is not None
    assert runs[1].preference is not None
    assert runs[0].preference.blend == runs[1].preference.blend
    for one, other in zip(runs[0].ensemble.parameters(), runs[1].ensemble.parameters(), strict=True):
        assert torch.equal(one, other)
    state = runs[1].preference.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in runs[0].preference.state_dict().items())


def test_what_cannot_be_compared(choice_world: paml.Dataset, tmp_path: Path) -> None:
    for arguments, message in (
        ({"baselines": ["bias"]}, "the baseline 'bias' does not predict a choice; choose from popular"),
        ({"recipe": "paper"}, "the recipe 'paper' says nothing about choices"),
        ({"liked": 3.0}, "liked is 3; expected a value of the scale"),
    ):
        with pytest.raises(SettingsError, match=message):
            paml.compare(choice_world, ["melu"], 1, out=tmp_path / "out", **{"baselines": [], **arguments})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_search_is_judged_by_lists_and_its_recipe_trains_the_same(choice_world: paml.Dataset, tmp_path: Path) -> None:
    settings = {"epochs": 1, "ensemble_size": 1}
    found = paml.tune(choice_world, budget=2, out=tmp_path / "out", settings=settings)
    assert (found.metric, found.method) == ("ndcg10", "melu")  # that of ridge's choice part
    trials = [json.loads(line) for line in (tmp_path / "out" / "trials.jsonl").read_text().splitlines()]
    assert found.best.validation == pytest.approx(max(-trial["validation"] for trial in trials))
    run = paml.train(choice_world, recipe=found.best_recipe, out=tmp_path / "run")
    assert run.settings.method == "melu"
    assert paml.evaluate(run, split="validation")["ndcg10"]["all"] == pytest.approx(found.best.validation)
