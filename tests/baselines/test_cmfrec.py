"""Collective factorisation: what it knows about a side, and that a new user is folded in by the right equations."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import paml
from paml.baselines import BASELINES, Fitted, SplitRows
from paml.baselines.cmfrec import BIAS_REGULARISATION, CollectiveModel, fit_collective, side_table
from paml.baselines.rows import Scaled
from paml.evaluation.blinding import BlindedDataset

needs_cmfrec = pytest.mark.skipif(
    not BASELINES["cmfrec"].is_installed(), reason="cmfrec is not installed: pip install 'paml[cmfrec]'"
)
WHO_RATED = 0.5  # the weight that cmfrec gives to who rated what


@pytest.fixture(scope="module")
def fitted(world: paml.Dataset) -> Fitted:
    return BASELINES["cmfrec"].fit(world, seed=3)


def model_of(fitted: Fitted) -> CollectiveModel:
    assert isinstance(fitted.predictor, Scaled)
    assert isinstance(fitted.predictor.raw, CollectiveModel)
    return fitted.predictor.raw


def test_a_side_has_a_column_per_known_value_and_numbers_as_they_are(world: paml.Dataset) -> None:
    table = side_table(world, "item")
    sizes, arrays = world.manifest.vocabulary, world.array
    genres, years = sizes["item.genre"] - 1, arrays("item.year")
    names = [field.name for field in world.schema.features("item")]
    assert names == ["genre", "director", "year"]
    assert table.shape == (world.manifest.items, genres + sizes["item.director"] - 1 + 1)
    offsets, codes = arrays("item.genre.offsets"), arrays("item.genre")
    for item in range(world.manifest.items):
        row = table[[item]].toarray()[0]
        mine = codes[offsets[item] : offsets[item + 1]]
        assert set(np.flatnonzero(row[:genres]) + 1) == set(mine[mine > 0])
        director = arrays("item.director")[item]
        assert np.flatnonzero(row[genres:-1]).tolist() == ([director - 1] if director else [])
        assert row[-1] == pytest.approx(years[item])
    assert set(np.unique(table[:, : genres + 1].data)) == {1.0}


@needs_cmfrec
def test_folding_in_solves_the_equations_of_least_squares(world: paml.Dataset, fitted: Fitted) -> None:
    """(B'B + C'C + w Bi'Bi + lambda) p = B'r + C'u + w Bi'1, with a column of ones for the user's bias."""
    found, test = model_of(fitted), SplitRows.of(world, "test").with_shots(6)
    factor_UF, bias_U = found.fold_in(test)
    model, user = found.model, int(np.argmax(test.user_sum(np.ones(len(test.user_N))) == 6))
    known = np.flatnonzero((test.user_N == user) & test.support_N)
    item, features = test.item_N[known], model.B_.shape[1]
    assert len(known) == 6
    rest = test.target_N[known].astype(np.float64) / found.scale - model.glob_mean_ - model.item_bias_[item]
    with_one = np.column_stack([model.B_[item], np.ones(len(item))])
    left, right = with_one.T @ with_one, with_one.T @ rest
    profile = found.profile_UV[[test.first_user + user]].toarray()[0]
    left[:features, :features] += model.C_.T @ model.C_ + WHO_RATED * model.Bi_.T @ model.Bi_
    right[:features] += model.C_.T @ profile + WHO_RATED * model.Bi_[item].sum(0)
    left += np.diag([fitted.chosen["regularisation"]] * features + [BIAS_REGULARISATION])
    solution = np.linalg.solve(left, right)
    assert np.allclose(factor_UF[user], solution[:features], atol=1e-9)
    assert bias_U[user] == pytest.approx(solution[features], abs=1e-9)
    prediction_N = found.predict(test)
    asked = np.flatnonzero((test.user_N == user) & test.query_N)
    expected = model.glob_mean_ + model.item_bias_[test.item_N[asked]] + solution[features]
    expected = found.scale * (expected + model.B_[test.item_N[asked]] @ solution[:features])
    assert np.allclose(prediction_N[asked], expected, atol=1e-9)


@needs_cmfrec
def test_without_ratings_the_profile_decides_and_there_is_no_bias(world: paml.Dataset, fitted: Fitted) -> None:
    found, test = model_of(fitted), SplitRows.of(world, "test").with_shots(0)
    factor_UF, bias_U = found.fold_in(test)
    assert not bias_U.any()
    profile_UV = found.profile_UV[test.first_user : test.first_user + test.users].toarray()
    side, rated = found.model.C_, found.model.Bi_
    left = side.T @ side + WHO_RATED * rated.T @ rated + fitted.chosen["regularisation"] * np.eye(factor_UF.shape[1])
    assert np.allclose(factor_UF, np.linalg.solve(left, side.T @ profile_UV.T).T, atol=1e-9)
    assert factor_UF.any(axis=1).all()


@needs_cmfrec
def test_folding_in_is_as_good_as_retraining(world: paml.Dataset, fitted: Fitted) -> None:
    """The reference is refitted with the new users; both are far better than the biases they contain."""
    test, target = SplitRows.of(world, "test"), world.schema.target
    predictors = {name: BASELINES[name].fit(world, seed=3).predictor for name in ("bias", "retrained_mf")}
    losses = {name: test.loss(target, one.predict(test)) for name, one in predictors.items() if one is not None}
    assert fitted.predictor is not None
    loss = test.loss(target, fitted.predictor.predict(test))
    assert loss < losses["bias"]
    assert loss < 1.05 * losses["retrained_mf"]


@needs_cmfrec
def test_neither_profiles_nor_contents_are_needed(tmp_path: Path) -> None:
    pairs = [(user, item) for user in range(60) for item in range(user % 3, 40, 3)]
    log = pl.DataFrame(pairs, ["user", "item"], orient="row")
    log = log.with_columns(rating=1 + (pl.col("user") * pl.col("item")) % 5)
    schema = {
        "target": {"kind": "rating", "low": 1, "high": 5},
        "interactions": {"user": "user", "item": "item", "target": "rating"},
    }
    data = paml.prepare(interactions=log, schema=schema, out=tmp_path / "data", cold_share=1)
    assert side_table(data, "user").shape == (data.manifest.users, 0)
    result, test = fit_collective(data, 0), SplitRows.of(data, "test")
    assert result.predictor is not None
    assert np.isfinite(result.predictor.predict(test)[test.query_N]).all()
    by_item_alone = result.predictor.predict(test.with_shots(0))
    for item in np.unique(test.item_N):
        assert np.ptp(by_item_alone[test.item_N == item]) == pytest.approx(0)


@needs_cmfrec
def test_fitting_does_not_look_at_test_users(world: paml.Dataset, fitted: Fitted) -> None:
    again = fit_collective(BlindedDataset(world, "all"), 3)
    assert again.tried == fitted.tried
