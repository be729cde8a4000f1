import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from paml.analysis import tests as inference
from paml.analysis.tests import Interval, equivalence, holm, mean_of, student, t_interval, two_sided, welch


@pytest.fixture
def samples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.gamma(2, size=40), rng.gamma(2, 1.3, size=23)


def test_t_tests_agree_with_scipy(samples: tuple[np.ndarray, np.ndarray]) -> None:
    left, right = samples
    assert two_sided(student(left, right)) == pytest.approx(stats.ttest_ind(left, right).pvalue)
    assert two_sided(welch(left, right)) == pytest.approx(stats.ttest_ind(left, right, equal_var=False).pvalue)
    assert two_sided(mean_of(left - 2)) == pytest.approx(stats.ttest_1samp(left, 2).pvalue)
    expected = stats.ttest_ind(left, right, equal_var=False).confidence_interval()
    found = t_interval(welch(left, right))
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_wilcoxon_agrees_with_scipy_and_excludes_zeros() -> None:
    value = np.random.default_rng(2).normal(0.2, size=80)
    assert inference.wilcoxon_p(value) == pytest.approx(stats.wilcoxon(value).pvalue)
    assert inference.wilcoxon_p(np.append(value, np.zeros(9))) == inference.wilcoxon_p(value)


def test_equivalence_by_hand_and_by_two_one_sided_tests(samples: tuple[np.ndarray, np.ndarray]) -> None:
    # With two degrees of freedom the distribution is 1/2 + t / (2 sqrt(2 + t^2)); here t = -2 / sqrt(2).
    assert equivalence(student(np.array([0.0, 2.0]), np.array([0.0, 2.0])), 2.0) == pytest.approx(0.5 - 2**0.5 / 4)
    left, right = samples
    for margin in (0.1, 1.5):
        above = stats.ttest_ind(left + margin, right, equal_var=False, alternative="greater").pvalue
        below = stats.ttest_ind(left - margin, right, equal_var=False, alternative="less").pvalue
        assert equivalence(welch(left, right), margin) == pytest.approx(max(above, below))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, None, 0.6]) == [1.0, None, 1.0]  # a test that was not made does not count
    assert holm([0.02]) == [0.02]
    assert holm([None]) == [None]
    assert holm([]) == []


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -7e20])
def test_what_does_not_vary_has_no_p_value_unless_it_is_zero(value: float) -> None:
    same = np.full(30, value)
    assert two_sided(mean_of(same)) == (1.0 if value == 0 else None)
    assert two_sided(student(same, same[:7])) == 1.0
    assert two_sided(welch(same, same[:7])) == 1.0
    assert two_sided(welch(same, same + 1 + abs(value))) is None
    assert equivalence(welch(same, same), 0.1) is None
    assert inference.wilcoxon_p(same) == (1.0 if value == 0 else pytest.approx(0, abs=1e-6))
    found = inference.mean_interval(same, np.random.default_rng(0))
    assert found is not None
    assert (found.low, found.high) == pytest.approx((value, value))


def test_rounding_does_not_count_as_spread() -> None:
    shifted = np.random.default_rng(0).random(50)
    assert two_sided(mean_of((shifted + 0.1) - shifted)) is None


@pytest.mark.parametrize("left", [np.zeros(0), np.ones(1)])
def test_fewer_than_two_users_decide_nothing(left: np.ndarray) -> None:
    right, rng = np.arange(5.0), np.random.default_rng(0)
    for estimate in (mean_of(left), student(left, right), student(right, left), welch(left, right)):
        assert estimate is None
        assert two_sided(estimate) is t_interval(estimate) is equivalence(estimate, 0.1) is None
    assert inference.wilcoxon_p(left) is inference.mean_interval(left, rng) is None
    assert inference.difference_interval(left, right, rng) is None


def test_two_users_are_enough() -> None:
    left, right = np.array([1.0, 2.5]), np.array([4.0, 4.5])
    assert two_sided(mean_of(left)) == pytest.approx(stats.ttest_1samp(left, 0).pvalue)
    assert two_sided(student(left, right)) == pytest.approx(stats.ttest_ind(left, right).pvalue)
    assert two_sided(welch(left, right)) == pytest.approx(stats.ttest_ind(left, right, equal_var=False).pvalue)
    assert inference.wilcoxon_p(left) == pytest.approx(stats.wilcoxon(left).pvalue)
    found = inference.difference_interval(left, right, np.random.default_rng(0))
    assert found is not None
    assert found.high < 0


def test_estimates_by_hand() -> None:
    left, right = np.array([1.0, 3.0, 5.0]), np.array([2.0, 4.0])
    assert mean_of(left) == pytest.approx((3.0, (4 / 3) ** 0.5, 2))
    assert student(left, right) == pytest.approx((0.0, (10 / 3 * (1 / 3 + 1 / 2)) ** 0.5, 3))
    freedom = (4 / 3 + 1) ** 2 / ((4 / 3) ** 2 / 2 + 1)
    assert welch(left, right + 1) == pytest.approx((-1.0, (4 / 3 + 1) ** 0.5, freedom))
    still = np.ones(4)
    assert welch(still, still) == pytest.approx((0.0, 0.0, 6))  # without any spread, as if both had the same


def test_what_is_not_finite_is_none() -> None:
    assert inference.finite(1.5) == 1.5
    assert inference.finite(float("nan")) is inference.finite(float("inf")) is None
    assert t_interval(inference.Estimate(1.7e308, 1e307, 5)) is None  # only one end overflows
    assert t_interval(inference.Estimate(-1.7e308, 1e307, 5)) is None
    assert t_interval(inference.Estimate(1.0, 0.0, 5)) == Interval(1.0, 1.0)
    assert two_sided(inference.Estimate(float("nan"), 1.0, 5)) is None
    assert equivalence(inference.Estimate(float("nan"), 1.0, 5), 0.1) is None


def test_two_users_give_an_interval() -> None:
    found = inference.mean_interval(np.array([1.0, 2.0]), np.random.default_rng(0))
    assert found == Interval(1.0, 2.0)


def test_huge_errors_stay_numbers() -> None:
    diverged, sane = np.array([1e76, 3e76, 1.0]), np.array([1.0, 2.0, 4.0])
    assert two_sided(welch(diverged, sane)) == pytest.approx(
        stats.ttest_ind(diverged, sane, equal_var=False).pvalue, rel=1e-6
    )
    assert inference.difference_interval(diverged, sane, np.random.default_rng(0)) is not None


def test_bootstrap_agrees_with_scipy(samples: tuple[np.ndarray, np.ndarray]) -> None:
    left, right = samples
    both = {"n_resamples": 20_000, "method": "BCa", "rng": np.random.default_rng(3)}
    pairs = [
        (inference.mean_interval(right, np.random.default_rng(4), 20_000), stats.bootstrap((right,), np.mean, **both)),
        (
            inference.difference_interval(left, right, np.random.default_rng(4), 20_000),
            stats.bootstrap(samples, lambda a, b, axis: a.mean(axis) - b.mean(axis), **both),
        ),
    ]
    for found, expected in pairs:
        assert found is not None
        low, high = expected.confidence_interval
        assert (found.low, found.high) == pytest.approx((low, high), abs=0.03 * (high - low))


def covered(interval: Callable[[np.random.Generator], Interval | None], truth: float, times: int) -> float:
    found = [interval(np.random.default_rng([7, k])) for k in range(times)]
    return float(np.mean([one is not None and one.low <= truth <= one.high for one in found]))


def test_bootstrap_intervals_cover_the_truth_of_skewed_errors() -> None:
    def mean(rng: np.random.Generator) -> Interval | None:
        return inference.mean_interval(rng.gamma(1.5, size=150), rng, 500)

    def difference(rng: np.random.Generator) -> Interval | None:
        return inference.difference_interval(rng.gamma(1.5, size=120), rng.gamma(1.0, size=80), rng, 500)

    assert 0.925 < covered(mean, 1.5, 1000) < 0.97
    assert 0.925 < covered(difference, 0.5, 1000) < 0.97


def test_bootstrap_in_chunks_is_the_same_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    value = np.random.default_rng(5).random(200)
    whole = inference.mean_interval(value, np.random.default_rng(6), 100)
    monkeypatch.setattr(inference, "DRAWS_AT_ONCE", 700)
    assert inference.mean_interval(value, np.random.default_rng(6), 100) == whole
    monkeypatch.undo()
    many = np.random.default_rng(5).random(200_000)
    tracemalloc.start()
    inference.mean_interval(many, np.random.default_rng(6), 30)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6  # all draws at once would take 96 MB


def test_no_resamples_no_interval() -> None:
    assert inference.mean_interval(np.arange(5.0), np.random.default_rng(0), 0) is None
    assert inference.difference_interval(np.arange(5.0), np.arange(3.0), np.random.default_rng(0), 0) is None
    assert inference.mean_interval(np.arange(5.0), np.random.default_rng(0), 1) is not None
