import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet
from scipy.optimize import minimize_scalar

import paml
from paml.baselines import (
    BASELINES,
    Baseline,
    BiasModel,
    SplitRows,
    baselines_for,
    find_baseline,
)
from paml.baselines.factorisation import factorise
from paml.baselines.features import ITEM_SHRINKAGE, USER_SHRINKAGE, VALUE_SHRINKAGE, Statistics, Values, episode
from paml.baselines.rows import to_target
from paml.data.schema import Target
from paml.errors import SettingsError
from paml.evaluation.metrics import per_user_mean, reweighted, squared_error
from paml.testing import BaselineSuite
from paml.testing.baselines import fitted
from paml.testing.worlds import sparse_world


def case(kind: str, one: Baseline) -> ParameterSet:
    """A baseline outside the `dev` extra is tested where its package is installed."""
    missing = pytest.mark.skipif(not one.is_installed(), reason=f"{one.needs} is not installed: paml[{one.extra}]")
    return pytest.param((kind, one.name), marks=missing, id=f"{kind} {one.name}")


CASES = [case(kind, one) for kind in ("rating", "click") for one in baselines_for(kind).values()]


@pytest.mark.parametrize("case", CASES)
class TestContract(BaselineSuite):
    """Every baseline that predicts keeps the contract that others' baselines are held to."""


def test_the_reference_reports_the_cost_of_new_users() -> None:
    assert [name for name, baseline in BASELINES.items() if baseline.reference] == ["retrained_mf"]
    assert fitted("retrained_mf", "rating").refit_seconds > 0
    assert fitted("lenskit_mf", "rating").refit_seconds is None


def known_ratings(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Half of the cells of a 200 x 120 matrix with biases and two factors, on an unusual scale, without noise."""
    user, item = np.divmod(rng.permutation(200 * 120)[:12_000], 120)
    bias = rng.normal(size=200)[user] + rng.normal(size=120)[item]
    product = (rng.normal(size=(200, 2))[user] * rng.normal(size=(120, 2))[item]).sum(1)
    return user, item, 50 + 10 * (bias + product)


def test_factorisation_finds_biases_and_factors_on_any_scale() -> None:
    user, item, rating = known_ratings(np.random.default_rng(0))
    known = np.arange(len(user)) < 10_000
    columns = user[known], item[known]

    def predict(unit: float) -> np.ndarray:
        generator = torch.Generator().manual_seed(0)
        return factorise(*columns, unit * rating[known], 201, 121, 8, 0.01, generator).predict(user, item)

    prediction = predict(1.0)
    assert np.mean((prediction - rating)[~known] ** 2) < 0.1 * rating.var()
    assert predict(0.1) == pytest.approx(0.1 * prediction, rel=1e-3)


def test_factorisation_is_neutral_for_users_and_items_without_ratings() -> None:
    user, item, rating = known_ratings(np.random.default_rng(1))
    factors = factorise(user, item, rating, 201, 121, 8, 0.05, torch.Generator().manual_seed(0))
    everyone, unrated = np.arange(200), np.full(200, 120)
    assert factors.predict(np.array([200]), np.array([120])) == pytest.approx([rating.mean()])
    bias = factors.predict(everyone, unrated) - rating.mean()
    assert np.array_equal(factors.user_UF[200], np.eye(10)[9])
    assert bias == pytest.approx(factors.scale * factors.user_UF[:200, 8], abs=1e-4)


@pytest.mark.slow  # threads wait for each other in a loop, which costs minutes on busy cores
def test_factorisation_does_not_depend_on_threads() -> None:
    columns, threads = known_ratings(np.random.default_rng(2)), torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(factorise(*columns, 200, 120, 32, 0.05, torch.Generator().manual_seed(5)).user_UF)
    finally:
        torch.set_num_threads(threads)
    assert np.array_equal(*results)


@pytest.mark.parametrize("clicked", [0.0, 1.0])
def test_identical_clicks_get_the_constant(clicked: float, click_world: paml.Dataset, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(click_world.path, tmp_path / "identical"))
    np.save(folder / "arrays" / "target.npy", np.full_like(click_world.array("target"), clicked))
    data = paml.open_data(folder)
    test = SplitRows.of(data, "test")
    prediction, constant = (BASELINES[name].fit(data).predictor.predict(test) for name in ("logistic", "constant_rate"))
    assert np.array_equal(prediction, constant)


def test_a_baseline_that_cannot_be_fitted_explains_why(world: paml.Dataset) -> None:
    with pytest.raises(SettingsError, match=r"needs the package 'no_such_package'; pip install 'paml\[baselines\]'"):
        Baseline("x", "x", frozenset({"rating"}), BASELINES["bias"].fitting, needs="no_such_package").fit(world)
    with pytest.raises(SettingsError, match=r"pip install 'paml\[other\]'"):
        Baseline("x", "x", frozenset({"rating"}), BASELINES["bias"].fitting, "no_such_package", "other").fit(world)
    with pytest.raises(SettingsError, match="'logistic' does not predict a rating; choose from training_mean"):
        BASELINES["logistic"].fit(world)
    with pytest.raises(SettingsError, match="did you mean 'lightgbm'"):
        find_baseline("lightgbn")


def test_large_packages_are_imported_late_and_leave_threads_and_output_alone() -> None:
    program = """
import sys, torch, paml.baselines
assert not {"cmfrec", "lenskit", "lightgbm", "sklearn", "pandas"} & set(sys.modules)
torch.ones(2, 2) @ torch.ones(2, 2)
torch.set_num_threads(3)
from paml.baselines.lenskit import start_lenskit
start_lenskit()
assert torch.get_num_threads() == 3
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_known_support_rows_by_hand() -> None:
    rows = SplitRows(
        item_N=np.arange(6),
        target_N=np.ones(6),
        user_N=np.array([0, 0, 0, 1, 1, 1]),
        query_N=np.array([False, False, True, True, False, False]),
    )
    assert np.flatnonzero(rows.support_N).tolist() == [0, 1, 4, 5]
    assert np.flatnonzero(rows.with_shots(1).support_N).tolist() == [0, 4]
    assert not rows.with_shots(0).support_N.any()
    assert np.array_equal(rows.with_shots(9).support_N, rows.support_N)


def test_squashing_onto_the_scale_keeps_the_order() -> None:
    raw = np.linspace(0.0, 6.0, 601)
    squashed = to_target(raw, Target(kind="rating", low=1, high=5))
    assert squashed.min() >= 1.0
    assert squashed.max() <= 5.0
    assert (np.diff(squashed) > 0).all()
    inside = (raw > 1.05) & (raw < 4.95)
    assert np.array_equal(squashed[inside], raw[inside])


@pytest.mark.parametrize("p", [0.02, 0.1, 0.5, 0.93])
def test_reweighting_minimises_the_weighted_entropy(p: float) -> None:
    def entropy(q: float) -> float:
        return float(-0.9 * p * np.log(q) - 0.1 * (1 - p) * np.log(1 - q))

    best = minimize_scalar(entropy, bounds=(1e-6, 1 - 1e-6), method="bounded", options={"xatol": 1e-10})
    assert reweighted(np.array([p]))[0] == pytest.approx(best.x, abs=1e-5)


def test_episodes_cover_small_and_large_support_sets(world: paml.Dataset) -> None:
    train = SplitRows.of(world, "train")
    rows = episode(train, 0.8, np.random.default_rng(0))
    support_U, count_U = np.bincount(train.user_N, weights=rows.support_N), np.bincount(train.user_N)
    assert (support_U < count_U).all()
    assert (support_U == 0).any()
    assert np.mean(np.abs(support_U / count_U - 0.8) < 0.1) > 0.4
    assert np.array_equal(rows.query_N, episode(train, 0.8, np.random.default_rng(0)).query_N)


@pytest.mark.parametrize("kind", ["rating", "click"])
@pytest.mark.parametrize("training", [True, False])
def test_statistics_exclude_the_users_own_rows(kind: str, training: bool) -> None:
    """Compared with the slow, obvious form: one row at a time, over all rows of other users."""
    data = sparse_world(kind)
    train = SplitRows.of(data, "train")
    rows = episode(train, 0.8, np.random.default_rng(1)) if training else SplitRows.of(data, "test").with_shots(6)
    statistics, pick_P = Statistics(data), np.flatnonzero(rows.query_N)[::7]
    columns = statistics.columns(rows, pick_P, training=training)
    mean, profile = train.target_N.mean(dtype=np.float64), data.array("user.occupation")
    fields = [field for field in data.schema.features("item") if field.name == "genre"]
    codes = Values.of(data, "item", fields[0]) if fields else None

    def genres(item: int) -> list[int]:
        return codes.pairs(np.array([item]))[1].tolist() if codes else []

    def others(user: int) -> np.ndarray:
        return train.user_N != user if training else np.ones(len(train.user_N), dtype=bool)

    def item_bias(item: int, user: int) -> float:
        liked = train.target_N[others(user) & (train.item_N == item)] - mean
        return float(liked.sum() / (len(liked) + ITEM_SHRINKAGE))

    for place, row in enumerate(pick_P[:25]):
        user, item = rows.user_N[row], rows.item_N[row]
        known = np.flatnonzero((rows.user_N == user) & rows.support_N)
        residual = np.array([rows.target_N[r] - mean - item_bias(rows.item_N[r], user) for r in known])
        user_bias = residual.sum() / (len(known) + USER_SHRINKAGE)
        expected = {"item_bias": item_bias(item, user), "user_bias": user_bias, "user_rows": np.log1p(len(known))}
        expected["bias"] = mean + expected["item_bias"] + user_bias
        like = profile[train.user_N] == profile[rows.first_user + user]
        shared = train.target_N[others(user) & like & (train.item_N == item)] - mean - expected["item_bias"]
        expected["shared.occupation"] = shared.sum() / (len(shared) + ITEM_SHRINKAGE)
        if codes:
            interacted = [
                value - user_bias
                for n, value in zip(known, residual, strict=True)
                for g in genres(rows.item_N[n])
                if g in genres(item)
            ]
            expected["affinity.item.genre"] = sum(interacted) / (len(interacted) + VALUE_SHRINKAGE)
            liked = [
                train.target_N[n] - mean
                for n in np.flatnonzero(others(user))
                for g in genres(train.item_N[n])
                if g in genres(item)
            ]
            expected["liked.item.genre"] = sum(liked) / (len(liked) + VALUE_SHRINKAGE)
        for name, value in expected.items():
            assert columns[name][place] == pytest.approx(value, abs=1e-6), name


def test_metrics_are_per_user() -> None:
    error = squared_error(np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0, 1.0]), np.array([2, 1]))
    assert error.tolist() == [0.5, 4.0]
    assert per_user_mean(np.array([1.0, 2.0, 6.0]), np.array([1, 2])).tolist() == [1.0, 4.0]


def test_training_mean_is_the_mean_of_training_rows(world: paml.Dataset) -> None:
    end = world.array("offsets")[world.manifest.splits["train"][1]]
    prediction_N = fitted("training_mean", "rating").predictor.predict(SplitRows.of(world, "test"))
    assert prediction_N == pytest.approx(world.array("target")[:end].mean())


def test_bias_by_hand() -> None:
    """One item of bias 1 above a mean of 3; a user whose two support rows lie 0.5 above that."""
    model = BiasModel(mean=3.0, item_bias_I=np.array([1.0, 0.0]), user_shrinkage=2.0)
    rows = SplitRows(
        item_N=np.array([0, 1, 0]),
        target_N=np.array([4.5, 3.5, 9.0]),
        user_N=np.array([0, 0, 0]),
        query_N=np.array([False, False, True]),
    )
    assert model.predict(rows)[2] == pytest.approx(3.0 + 1.0 + (0.5 + 0.5) / (2 + 2.0))
    assert rows.query_error(model.predict(rows)) == pytest.approx([(9 - 4.25) ** 2])


@pytest.mark.parametrize("name", ["bias", "item_mean", "lenskit_mf", "retrained_mf", "edlae"])
def test_without_validation_users_the_first_setting_is_taken(name: str) -> None:
    """Grids begin with what is right for data of an ordinary size."""
    found = find_baseline(name).fit(sparse_world("rating"), 0)
    assert all(found.chosen[key] == value for key, value in found.tried[0].items() if key in found.chosen)
    assert len({str(one) for one in found.tried}) == len(found.tried)
