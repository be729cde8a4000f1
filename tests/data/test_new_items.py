"""New items: nobody in training has them, and known users are asked about them."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import paml
from paml.episodes.tasks import Tasks
from paml.evaluation.blinding import BlindedDataset


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> paml.Dataset:
    return paml.prepare("synthetic", out=tmp_path_factory.mktemp("plain") / "data", users=400, items=80)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> paml.Dataset:
    out = tmp_path_factory.mktemp("held") / "data"
    return paml.prepare("synthetic", out=out, users=400, items=80, new_items=0.25)


def pairs(data: paml.Dataset, split: str) -> pl.DataFrame:
    """user, item, target and query of a split's rows, by identifier."""
    users = (
        data.users().with_row_index("row").filter(pl.col("split") == split).select("row", pl.col("user").alias("id"))
    )
    rows = data.interactions().join(users, left_on="user", right_on="row")
    items = data.items().with_row_index("row").select("row", pl.col("item").alias("item_id"))
    found = rows.join(items, left_on="item", right_on="row").select("id", "item_id", "target", "query")
    return found.sort("id", "item_id").collect()


def test_training_and_validation_have_no_new_items(plain: paml.Dataset, held: paml.Dataset) -> None:
    asked = pairs(held, "known").filter("query")
    new = set(asked["item_id"])
    seen = pl.concat([pairs(held, "train"), pairs(held, "validation")])
    assert not new & set(seen["item_id"])
    used = plain.interactions().select(pl.col("item").n_unique()).collect().item()
    warm = int(held.interacted_in_training().sum())
    assert used - warm == round(0.25 * used)
    assert held.array("offsets")[-1] == held.manifest.interactions


def test_test_users_keep_all_rows(plain: paml.Dataset, held: paml.Dataset) -> None:
    assert pairs(held, "test").drop("query").equals(pairs(plain, "test").drop("query"))


def test_known_users_are_training_users_with_the_rest_of_their_rows(plain: paml.Dataset, held: paml.Dataset) -> None:
    known, training = pairs(held, "known"), pairs(held, "train")
    whole = pl.concat([pairs(plain, "train")])
    for (user,), rows in known.group_by("id"):
        support, query = rows.filter(~pl.col("query")), rows.filter("query")
        assert support.drop("query").equals(training.filter(id=user).drop("query"))
        both = pl.concat([support, query]).drop("query").sort("item_id")
        assert both.equals(whole.filter(id=user).drop("query").sort("item_id"))
    tasks = Tasks.of(held, "known")
    assert 0 < len(tasks) <= len(Tasks.of(held, "test"))
    assert (tasks.support >= 2).all()


def test_what_is_asked_is_erased_for_fitting(held: paml.Dataset) -> None:
    blind, tasks = BlindedDataset(held, "query"), Tasks.of(held, "known")
    rows = slice(int(tasks.offsets[0]), int(tasks.offsets[-1]))
    assert np.array_equal(np.isnan(blind.array("target")[rows]), tasks.query_mask())
    assert np.isnan(BlindedDataset(held, "all").array("target")[rows]).all()


def test_a_comparison_has_a_column_for_known_users(held: paml.Dataset, tmp_path: Path) -> None:
    settings = {"epochs": 1, "ensemble_size": 1, "choice_part": False}
    results = paml.compare(
        held, ["melu"], seeds=1, baselines=["bias", "item_mean"], out=tmp_path / "comparison", settings=settings
    )
    found = results.items
    assert found.known_users == len(Tasks.of(held, "known"))
    assert all(found.known[name] > 0 for name in ("melu", "bias", "item_mean"))
    assert "known users, cold items" in (tmp_path / "comparison" / "report.html").read_text()
    rows = pl.read_parquet(tmp_path / "comparison" / "scenarios.parquet")
    mine = rows.filter((pl.col("value") == "known") & (pl.col("method") == "bias"))
    assert mine["mse"].mean() == pytest.approx(found.known["bias"])


def test_new_items_by_time(tmp_path: Path) -> None:
    """Item 30 + k appears on day 50 + k; training users come in the first 40 days and stay for long."""
    rows = [
        (u, item, 1 + (u + item) % 5, 86_400.0 * (u + 3 * k))
        for u in range(60)
        for k in range(25)
        for item in [(u + k) % 30 if u + 3 * k < 50 or k % 2 else 30 + (u + k) % 10]
    ]
    log = pl.DataFrame(rows, ["user", "item", "rating", "time"], orient="row")
    settings = {
        "split": "time",
        "new_items": "time",
        "validation_from": f"{86_400 * 42}",
        "test_from": f"{86_400 * 48}",
    }
    schema = {
        "target": {"kind": "rating", "low": 1, "high": 5},
        "interactions": {"user": "user", "item": "item", "target": "rating", "time": "time"},
    }
    data = paml.prepare(
        interactions=log, schema=schema, out=tmp_path / "data", cold_share=1, active_users="drop", **settings
    )
    known = pairs(data, "known")
    assert {int(item) for item in known.filter("query")["item_id"]} <= set(range(30, 40))
    assert {int(item) for item in pairs(data, "train")["item_id"]} <= set(range(30))
    assert known["id"].n_unique() > 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"new_items": 1}, "a share of the items"),
        ({"new_items": "some"}, "a share of the items"),
        ({"new_items": "time"}, "new_items=time with split=time only"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(paml.SettingsError, match=message):
        paml.prepare("synthetic", out=tmp_path / "data", users=100, **settings)
