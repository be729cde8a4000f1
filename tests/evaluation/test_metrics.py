import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st
from scipy.stats import mannwhitneyu, ttest_ind
from sklearn.metrics import roc_auc_score

from paml.data.schema import Target
from paml.evaluation import metrics
from paml.evaluation.metrics import METRICS, exposure_metrics, headline, metrics_for, row_metrics
from paml.evaluation.scoring import per_user_metrics, summarise
from paml.testing import MetricSuite


def test_ndcg_by_hand() -> None:
    target, prediction = np.array([3.0, 1.0, 2.0, 5.0]), np.array([0.9, 0.8, 0.1, 7.0])
    count = np.array([3, 1])
    dcg = 7 / np.log2(2) + 1 / np.log2(3)
    ideal = 7 / np.log2(2) + 3 / np.log2(3)
    assert metrics.ndcg(target, prediction, count, 2) == pytest.approx([dcg / ideal, 1.0])


@pytest.mark.parametrize(
    ("low", "high", "grade"), [(1, 5, [1, 3, 5]), (0, 20, [0, 10, 20]), (-10, 10, [0, 10, 20]), (0, 5000, [0, 2.5, 5])]
)
def test_gains_of_any_scale(low: float, high: float, grade: list[float]) -> None:
    """From 0 on, so that a perfect order has 1, and none of 2^5000."""
    scale = Target(kind="rating", low=low, high=high)
    targets = np.array([low, (low + high) / 2, high])
    assert metrics.grades(scale, targets).tolist() == grade
    found = per_user_metrics(scale, np.tile(targets, 2), np.concatenate([targets, -targets]), np.array([3, 3]))
    assert found["ndcg3"][0] == 1
    assert 0 < found["ndcg3"][1] < found["ndcg3_chance"][1] < 1


def test_ties_are_broken_at_random_with_a_fixed_seed_and_chance_is_their_mean() -> None:
    target, flat = np.array([5.0, 1.0, 1.0, 2.0, 4.0]), np.zeros(5)
    count = np.array([5])
    drawn = [metrics.ndcg(target, flat, count, 3, seed)[0] for seed in range(4000)]
    assert len(set(drawn)) > 10
    assert metrics.ndcg(target, flat, count, 3) == metrics.ndcg(target, flat, count, 3)
    assert metrics.ndcg_by_chance(target, count, 3)[0] == pytest.approx(np.mean(drawn), abs=0.01)


def test_ndcg_is_the_same_in_single_precision_and_its_seed_is_0() -> None:
    rng = np.random.default_rng(0)
    target, prediction, count = rng.integers(1, 60, 40) / 10, np.repeat([0.5, 0.25], 20), np.array([25, 15])
    single = target.astype(np.float32)
    whole = single.astype(np.float64)
    assert metrics.ndcg(single, prediction, count, 5) == pytest.approx(
        metrics.ndcg(whole, prediction, count, 5), rel=1e-12
    )
    assert metrics.ndcg_by_chance(single, count, 5) == pytest.approx(metrics.ndcg_by_chance(whole, count, 5), rel=1e-12)
    assert (
        metrics.ndcg(whole, prediction, count, 5).tolist() == metrics.ndcg(whole, prediction, count, 5, seed=0).tolist()
    )


def test_ndcg_without_gains_is_undefined() -> None:
    found = metrics.ndcg(np.array([0.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0]), np.array([2, 1]), 3)
    assert np.isnan(found[0])
    assert found[1] == 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=30), st.integers(1, 5))
def test_auc_is_mann_whitney_per_user(rows: list[tuple[bool, int]], cut: int) -> None:
    label, score = np.array([r[0] for r in rows], dtype=float), np.array([r[1] for r in rows], dtype=float)
    count = np.array([len(rows) - min(cut, len(rows) - 1), min(cut, len(rows) - 1)])
    count = count[count > 0]
    start = 0
    for n, found in zip(count, metrics.auc(label, score, count), strict=True):
        positive, negative = (score[start : start + n][label[start : start + n] == value] for value in (1, 0))
        start += n
        if len(positive) and len(negative):
            expected = mannwhitneyu(positive, negative).statistic / (len(positive) * len(negative))
            assert found == pytest.approx(expected)
        else:
            assert np.isnan(found)


def test_weighted_entropy_by_hand() -> None:
    found = metrics.weighted_entropy(np.array([1.0, 0.0]), np.array([0.8, 0.3]), np.array([2]))
    q, other = 0.9 * 0.8 / (0.9 * 0.8 + 0.1 * 0.2), 0.9 * 0.3 / (0.9 * 0.3 + 0.1 * 0.7)  # as the loss has them
    assert found[0] == pytest.approx((-0.9 * np.log(q) - 0.1 * np.log(1 - other)) / 2)
    assert np.isfinite(metrics.weighted_entropy(np.array([1.0]), np.array([0.0]), np.array([1]))).all()


def test_errors_by_hand() -> None:
    target, prediction = np.array([4.0, 1.0, 5.0], dtype=np.float32), np.array([3.0, 3.0, 4.5], dtype=np.float32)
    count = np.array([2, 1])
    assert metrics.squared_error(target, prediction, count).tolist() == [2.5, 0.25]
    assert metrics.absolute_error(target, prediction, count).tolist() == [1.5, 0.5]
    single = np.float32([3.0]), np.float32([0.1])
    error = 3 - float(single[1][0])  # differences are taken in double precision
    assert metrics.squared_error(*single, np.array([1]))[0] == pytest.approx(error**2, rel=1e-12)
    assert metrics.absolute_error(*single, np.array([1]))[0] == pytest.approx(error, rel=1e-12)


def test_certain_and_wrong_predictions_of_clicks_cost_a_finite_amount() -> None:
    """Also in single precision, where 1 - 1e-12 is 1."""
    for dtype in (np.float32, np.float64):
        wrong = np.array([1.0, 0.0], dtype=dtype)
        found = metrics.weighted_entropy(np.array([0.0, 1.0]), wrong, np.array([1, 1]))
        assert found == pytest.approx([-0.1 * np.log(1e-12), -0.9 * np.log(1e-12)], rel=1e-4)


def test_auc_of_users_without_rows_is_undefined() -> None:
    found = metrics.auc(np.array([1.0, 0.0, 0.0, 1.0]), np.array([0.7, 0.2, 0.7, 0.2]), np.array([2, 2, 0]))
    assert found[:2].tolist() == [1, 0]
    assert np.isnan(found[2])


def test_summary_by_group() -> None:
    rows = pl.DataFrame(
        {
            "user": ["a", "b", "c", "d"],
            "group": ["major", "major", "minor", "minor"],
            "rate": [0.1, 0.2, 0.3, 0.5],
            "mse": [1.0, 2.0, 3.0, 5.0],
            "ndcg3": [1.0, float("nan"), 0.5, 0.5],
        }
    )
    summary = summarise(rows)
    assert summary["mse"] == {"all": 2.75, "major": 1.5, "minor": 4.0}
    assert summary["ndcg3"] == pytest.approx({"all": 2 / 3, "major": 1.0, "minor": 0.5})
    assert summary["undefined"] == {"mse": 0, "ndcg3": 1}
    assert summary["rate"]["minor"] == pytest.approx(0.4)
    assert summary["p_value"] == pytest.approx(ttest_ind([1.0, 2.0], [3.0, 5.0]).pvalue)
    assert summarise(rows.head(2))["p_value"] is None


def test_metrics_of_no_users_are_empty() -> None:
    target = Target(kind="rating", low=1, high=5)
    found = per_user_metrics(target, np.zeros(0), np.zeros(0), np.zeros(0))
    assert all(len(values) == 0 for values in found.values())


def test_the_registry_in_the_order_of_tables() -> None:
    lists = ["ndcg10", "recall20", "hit10", "mrr", "liked10", "popularity", "novelty", "diversity"]
    assert [metric.name for metric in metrics_for("rating")] == ["mse", "ndcg3", "ndcg5", "mae", *lists]
    assert [metric.name for metric in metrics_for("click")] == ["nel", "auc", *lists]
    assert [metric.name for metric in exposure_metrics("click")] == ["coverage", "gini"]
    assert all(name == metric.name for name, metric in METRICS.items())
    assert [metric.name for metric in metrics_for("choice")] == [name for name in lists if name != "liked10"]
    kinds = ("rating", "click", "choice")
    assert [headline(kind).name for kind in kinds] == ["mse", "nel", "ndcg10"]
    assert {headline(kind).better for kind in ("rating", "click")} == {"lower"}  # training and searches minimise it


@pytest.mark.parametrize("kind", ["rating", "click"])
def test_every_metric_is_a_column_and_chance_levels_stand_beside_them(kind: str) -> None:
    target = Target(kind=kind, low=0, high=1)  # type: ignore[arg-type]
    scored = per_user_metrics(target, np.array([1.0, 0.0, 1.0]), np.array([0.9, 0.2, 0.4]), np.array([2, 1]))
    chance = [f"{metric.name}_chance" for metric in row_metrics(kind) if metric.chance is not None]
    assert set(scored) == {*(metric.name for metric in row_metrics(kind)), *chance}
    assert all(len(values) == 2 for values in scored.values())
    nobody = per_user_metrics(target, np.zeros(0), np.zeros(0), np.zeros(0))
    assert list(nobody) == list(scored)


def test_pooled_auc_also_compares_rows_of_different_users() -> None:
    target_N, count_U = np.array([1.0, 0.0, 1.0, 0.0]), np.array([2, 2])
    prediction_N = np.array([0.4, 0.3, 0.9, 0.8])  # each user's click is ahead, but the second user's rows are, too
    assert METRICS["auc"].compute(target_N, prediction_N, count_U).tolist() == [1.0, 1.0]
    assert METRICS["auc"].over_all_rows(target_N, prediction_N) == 0.75


@pytest.mark.parametrize("levels", [3, 1000])
def test_pooled_auc_is_that_of_scikit_learn(levels: int) -> None:
    rng = np.random.default_rng(0)
    prediction_N = rng.integers(levels, size=2000) / levels
    target_N = (rng.random(2000) < 0.2 + 0.3 * prediction_N).astype(float)
    expected = roc_auc_score(target_N, prediction_N)
    assert METRICS["auc"].over_all_rows(target_N, prediction_N) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
class TestContract(MetricSuite):
    """Every metric keeps the contract that others' metrics are held to."""
