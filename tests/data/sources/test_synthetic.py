import hashlib
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
import pytest

import paml
from paml.baselines import BASELINES, SplitRows, tuned_bias
from paml.data.sources import synthetic
from paml.testing import SourceSuite


def test_profiles_are_skewed_and_unusual_profiles_have_unusual_tastes(tmp_path: Path) -> None:
    settings = synthetic.SyntheticSettings(users=2000, items=100)
    world = synthetic._make_world(settings, np.random.default_rng([0, 0]))
    strength = np.linalg.norm(world.tastes["zip"], axis=1)  # values by falling frequency
    assert strength[:3].mean() < 0.8 * strength[20:].mean()
    data = paml.prepare("synthetic", out=tmp_path / "data", users=2000, items=100)
    counts = data.users().collect()["zip"].value_counts().sort("count", descending=True)["count"]
    assert counts[0] > 20 * counts[-1]
    assert 0.55 < sum(data.manifest.major.values()) / data.manifest.users < 0.8


def test_recorded_floor_is_the_error_of_the_true_mean() -> None:
    rng = np.random.default_rng(0)
    mean = rng.normal(3.3, 0.8, size=400_000)
    rating, variance = synthetic._draw_ratings(mean, rng)
    buckets = np.digitize(mean, np.linspace(0.5, 6, 300))
    expected = np.bincount(buckets, weights=rating) / np.maximum(np.bincount(buckets), 1)
    assert np.mean((rating - expected[buckets]) ** 2) == pytest.approx(variance.mean(), rel=0.01)


def test_recorded_click_floor_is_the_lowest_weighted_entropy() -> None:
    rng = np.random.default_rng(0)
    logit = rng.normal(-1.5, 1.0, size=200_000)
    click, floor = synthetic._draw_clicks(logit, rng)
    p = 1 / (1 + np.exp(-logit))

    def loss(shift: float) -> float:
        q = 1 / (1 + np.exp(-(logit + np.log(9) + shift)))  # weights 0.9 : 0.1 add log 9 to the logit
        return float(np.mean(np.where(click == 1, -0.9 * np.log(q), -0.1 * np.log(1 - q))))

    assert loss(0.0) == pytest.approx(floor.mean(), rel=0.01)
    assert loss(0.0) < min(loss(-0.5), loss(0.5))
    assert np.mean(click) == pytest.approx(p.mean(), abs=0.005)


def test_baselines_lie_between_the_floor_and_a_constant(tmp_path: Path) -> None:
    data = paml.prepare("synthetic", out=tmp_path / "data")
    test = SplitRows.of(data, "test")
    constant = test.query_error(BASELINES["training_mean"].fit(data, seed=0).predictor.predict(test)).mean()
    bias = test.query_error(tuned_bias(data).predict(test)).mean()
    assert data.manifest.source.facts["best_mse"] * 1.3 < bias < constant * 0.9


def test_minor_users_are_harder(tmp_path: Path) -> None:
    data = paml.prepare("synthetic", out=tmp_path / "data", users=10_000)
    test = SplitRows.of(data, "test")
    error = test.query_error(tuned_bias(data).predict(test))
    first, end = data.manifest.splits["test"]
    major = data.array("major")[first:end]
    assert error[~major].mean() > 1.05 * error[major].mean()


def test_click_version_has_the_columns_of_the_papers_production_set(click_world: paml.Dataset) -> None:
    assert [field.name for field in click_world.schema.features("user")] == list(synthetic.CLICK_PROFILE)
    assert len(click_world.schema.features("item")) == 9
    assert set(np.unique(click_world.array("target"))) == {0.0, 1.0}


def test_click_version_has_the_papers_proportions(tmp_path: Path) -> None:
    data = paml.prepare("synthetic", out=tmp_path / "data", target="click")
    assert sum(data.manifest.major.values()) / data.manifest.users == pytest.approx(0.71, abs=0.02)
    assert 0.1 < data.array("target").mean() < 0.2


def test_users_interact_with_distinct_items(world: paml.Dataset) -> None:
    rows = world.interactions().collect()
    assert not rows.select("user", "item").is_duplicated().any()


def test_the_number_of_users_does_not_change_the_items(tmp_path: Path) -> None:
    small = paml.prepare("synthetic", out=tmp_path / "a", users=50)
    large = paml.prepare("synthetic", out=tmp_path / "b", users=100)
    assert small.items().collect().equals(large.items().collect())


def test_users_are_drawn_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "CELLS_PER_CHUNK", 80 * 70)
    data = paml.prepare("synthetic", out=tmp_path / "a", users=400, items=80, cold_share=1, drop_invalid_profiles=False)
    users = data.users().collect()["user"]
    assert len(users) >= 390
    assert users.n_unique() == len(users)


def test_dials_at_their_defaults_give_the_world_that_is_older_than_them(tmp_path: Path) -> None:
    assert synthetic.SyntheticSettings().model_dump_json() == (
        '{"users":2000,"items":500,"target":"rating","median_rows":28.0,"world":0}'
    )
    data = paml.prepare("synthetic", out=tmp_path / "a", users=200, items=60)
    rows = np.stack([data.array("item").astype(np.int64), np.rint(data.array("target")).astype(np.int64)])
    assert hashlib.sha256(rows.tobytes()).hexdigest()[:16] == "9ace4a7ad1fe5fba"
    given = paml.prepare("synthetic", out=tmp_path / "b", users=200, items=60, minor_distance=1, minor_spread=1)
    assert given.fingerprint == data.fingerprint
    for dial in ("minor_distance", "minor_spread"):
        other = paml.prepare("synthetic", out=tmp_path / dial, users=200, items=60, **{dial: 2})
        assert other.fingerprint != data.fingerprint
        assert other.manifest.source.settings[dial] == 2


def test_distance_scales_what_rare_values_contribute() -> None:
    def strength(distance: float) -> np.ndarray:
        settings = synthetic.SyntheticSettings(minor_distance=distance)
        return np.linalg.norm(synthetic._make_world(settings, np.random.default_rng(0)).tastes["zip"], axis=1)

    equal, usual, far = strength(0), strength(1), strength(4)
    assert equal[0] == usual[0] == far[0]  # the most common value
    assert far[-50:] == pytest.approx(usual[-50:] * 13 / 4, rel=0.02)  # 0.1 + 0.3 * 4 instead of 0.1 + 0.3
    assert usual[-50:] == pytest.approx(equal[-50:] * 4, rel=0.02)


def test_spread_is_the_ratio_of_personal_parts(tmp_path: Path) -> None:
    def ratio(spread: float) -> float:
        """Minor users' standard deviation of mean ratings relative to that of major users."""
        settings = {"users": 1500, "median_rows": 200, "minor_distance": 0, "minor_spread": spread}
        data = paml.prepare("synthetic", out=tmp_path / str(spread), settings=settings)
        of_user = data.interactions().group_by("user").agg(pl.col("target").cast(pl.Float64).mean()).sort("user")
        mean_U = of_user.collect()["target"]
        minor_U = data.users().collect()["group"] == "minor"
        return float(mean_U.filter(minor_U).std() / mean_U.filter(~minor_U).std())  # type: ignore[operator,arg-type]

    assert ratio(1) == pytest.approx(1, abs=0.15)
    assert ratio(4) > 2
    assert ratio(0.25) < 0.5


def test_minor_users_of_the_world_are_those_of_the_protocol(tmp_path: Path) -> None:
    data = paml.prepare("synthetic", out=tmp_path / "data", users=20_000, items=20, median_rows=4)
    world = synthetic._make_world(synthetic.SyntheticSettings(items=20), np.random.default_rng(0))
    users = data.users().collect()
    position = {name: {value: k for k, value in enumerate(values)} for name, values in world.values.items()}
    codes = {name: users[name].replace_strict(position[name]).to_numpy() for name in synthetic.RATING_PROFILE}
    assert np.mean(synthetic._is_minor(codes, world) == (users["group"] == "minor").to_numpy()) > 0.95


class TestRatings(SourceSuite):
    """The embedded worlds keep the contract that others' sources are held to."""

    name = "synthetic"
    settings: ClassVar = {"users": 100, "items": 40}


class TestClicks(TestRatings):
    settings: ClassVar = {"users": 100, "items": 40, "target": "click"}


class TestChoices(TestRatings):
    settings: ClassVar = {"users": 100, "items": 40, "target": "choice"}
