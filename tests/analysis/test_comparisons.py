"""Statistics on rows of simulated comparisons, where the truth is known. Legend: M methods, S seeds, U users."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom, nct, t, ttest_ind, ttest_rel, wilcoxon

from paml.analysis import comparisons as statistics, fairness
from paml.analysis.tests import Interval
from paml.errors import DataError, SettingsError

QUICK = 50  # resamples where the interval is not what is tested


def rows_of(value_MSU: np.ndarray, metric: str = "mse") -> pl.DataFrame:
    """Methods m0, m1, ...; every third user is a minor user."""
    methods, seeds, users = value_MSU.shape
    return pl.DataFrame(
        {
            "method": np.repeat([f"m{k}" for k in range(methods)], seeds * users),
            "seed": np.tile(np.repeat(np.arange(seeds), users), methods),
            "user": np.tile([f"u{k:04}" for k in range(users)], methods * seeds),
            "group": np.tile(np.where(np.arange(users) % 3 == 0, "minor", "major"), methods * seeds),
            metric: value_MSU.ravel(),
        }
    )


def simulated(rng: np.random.Generator, methods: int, seeds: int, users: int) -> np.ndarray:
    """Errors that differ far more between users than between methods, and are skewed as squared errors are."""
    hard_U = rng.gamma(3, size=users)
    seed_SU = hard_U + 0.2 * rng.gamma(2, size=(seeds, users))
    return seed_SU + 0.3 * rng.normal(size=(methods, seeds, users))


def within(hits: int, times: int, low: float, high: float) -> bool:
    """Whether this many hits are credible for a probability between low and high."""
    return bool(binom.ppf(0.001, times, low) <= hits <= binom.ppf(0.999, times, high))


def near(bootstrap: Interval | None, by_t: Interval | None) -> bool:
    """Whether two intervals of the same mean agree to a tenth of their width, as they do for so many users."""
    assert bootstrap is not None
    assert by_t is not None
    reach = 0.1 * (by_t.high - by_t.low)
    return abs(bootstrap.low - by_t.low) < reach and abs(bootstrap.high - by_t.high) < reach


def test_a_difference_improves_in_the_metrics_direction() -> None:
    assert statistics.improves("lower", -0.1)
    assert not statistics.improves("higher", -0.1)
    assert statistics.improves("higher", 0.1)
    assert not statistics.improves("lower", 0.1)
    assert not statistics.improves("lower", 0.0)
    assert not statistics.improves("higher", 0.0)
    assert not statistics.improves("lower", None)


def test_over_seeds_by_hand() -> None:
    rows = pl.DataFrame(
        {
            "method": ["a"] * 5 + ["b"] * 2,
            "seed": [0, 0, 0, 1, 1, 0, 0],
            "user": ["u", "v", "w", "v", "x", "u", "v"],
            "group": ["major", "major", "minor", "major", "minor", "major", "major"],
            "mse": [1.0, 2.0, 6.0, 5.0, float("nan"), 7.0, 8.0],
        }
    )
    found = statistics.over_seeds(rows, "mse")
    assert list(found) == ["a", "b"]
    assert found["a"]["all"] == statistics.OverSeeds(4.0, pytest.approx(2**0.5), 2, users=4, rows=5, undefined=1)
    assert found["a"]["major"] == statistics.OverSeeds(3.25, pytest.approx(1.75 * 2**0.5), 2, 2, 3, 0)
    assert found["a"]["minor"] == statistics.OverSeeds(6.0, None, 1, users=2, rows=2, undefined=1)
    assert found["b"]["all"] == statistics.OverSeeds(7.5, None, 1, 2, 2, 0)
    assert found["b"]["minor"] == statistics.OverSeeds(None, None, 0, 0, 0, 0)


def test_the_papers_tests_agree_with_scipy() -> None:
    value_MSU = simulated(np.random.default_rng(1), 3, 1, 60)
    value_MSU[2] -= 1.5
    rows = rows_of(value_MSU)
    found = statistics.improvement(rows, "m2", "m0", "mse", "lower")
    assert (found.method, found.reference) == ("m2", "m0")
    assert found.test.p_value == pytest.approx(ttest_ind(value_MSU[2, 0], value_MSU[0, 0]).pvalue)
    assert found.star
    assert not statistics.improvement(rows, "m0", "m2", "mse", "lower").star  # as sure, but for the worse
    higher = statistics.improvement(rows_of(value_MSU, "auc"), "m2", "m0", "auc", "higher")
    assert higher.test.p_value is not None
    assert not higher.star
    minor_U = np.arange(60) % 3 == 0
    groups = statistics.groups_test(rows, "m0", "mse")
    assert groups.p_value == pytest.approx(ttest_ind(value_MSU[0, 0, ~minor_U], value_MSU[0, 0, minor_U]).pvalue)
    assert (groups.left_users, groups.right_users) == (40, 20)


def test_paired_agrees_with_scipy_and_finds_what_the_papers_test_does_not() -> None:
    value_MSU = simulated(np.random.default_rng(2), 2, 2, 150)
    value_MSU[1] -= 0.1
    rows = rows_of(value_MSU)
    found = statistics.paired(rows, "m1", "m0", "mse")
    left_U, right_U = value_MSU[1].mean(0), value_MSU[0].mean(0)
    assert found.difference == pytest.approx((left_U - right_U).mean())
    assert found.t_p == pytest.approx(ttest_rel(left_U, right_U).pvalue)
    assert found.wilcoxon_p == pytest.approx(wilcoxon(left_U - right_U).pvalue)
    assert found.by_seed == pytest.approx((value_MSU[1] - value_MSU[0]).mean(1))
    assert near(found.interval, Interval(*ttest_rel(left_U, right_U).confidence_interval()))
    assert found.interval is not None
    assert found.interval.high < 0
    assert found.t_p < 0.01
    assert not statistics.improvement(rows, "m1", "m0", "mse", "lower").star


def test_repeated_users_do_not_shrink_p_values() -> None:
    once = rows_of(simulated(np.random.default_rng(3), 3, 1, 40))
    twice = pl.concat([once, once.with_columns(seed=pl.col("seed") + 1)])
    found = statistics.paired_table(twice, "m0", "mse")
    assert [replace(line, by_seed=line.by_seed[:1]) for line in found] == statistics.paired_table(once, "m0", "mse")
    for name in ("m1", "m2"):
        assert statistics.improvement(twice, name, "m0", "mse", "lower") == statistics.improvement(
            once, name, "m0", "mse", "lower"
        )
    assert statistics.groups_test(twice, "m1", "mse") == statistics.groups_test(once, "m1", "mse")
    assert fairness.gap(twice, "m1", "mse") == fairness.gap(once, "m1", "mse")
    assert fairness.gap_difference(twice, "m1", "m2", "mse") == fairness.gap_difference(once, "m1", "m2", "mse")


def test_each_seed_may_have_users_of_its_own_and_rows_any_order() -> None:
    rng = np.random.default_rng(4)
    value_MSU = simulated(rng, 2, 2, 50)
    value_MSU[:, 0, :10], value_MSU[:, 1, 40:] = np.nan, np.nan
    absent = rows_of(value_MSU).filter(pl.col("mse").is_not_nan())
    found = statistics.paired(absent, "m1", "m0", "mse")
    assert found == statistics.paired(absent.sample(fraction=1, shuffle=True, seed=1), "m1", "m0", "mse")
    seed_S = np.nanmean(value_MSU[1] - value_MSU[0], axis=1)
    assert found.difference == pytest.approx(seed_S.mean())
    assert (found.users, found.undefined) == (50, 0)


def overlapping(rng: np.random.Generator, methods: int, effect: float = 0.0) -> pl.DataFrame:
    """Three seeds with other test users each, some of whom are those of an earlier seed; m1 has the effect."""
    value_MSU = simulated(rng, methods, 3, 120) + 0.3 * rng.normal(size=(methods, 1, 120))  # users differ in taste
    value_MSU[1] += effect
    value_MSU[:, 0, 60:], value_MSU[:, 1, :40], value_MSU[:, 2, 50:] = np.nan, np.nan, np.nan
    return rows_of(value_MSU).filter(pl.col("mse").is_not_nan())


def test_what_is_tested_is_what_tables_print() -> None:
    """Never outside the range of the seeds' own, which a mean of users' means may be."""
    outside = 0
    for seed in range(20):
        rows = overlapping(np.random.default_rng(seed), 2)
        found, table = statistics.paired(rows, "m1", "m0", "mse", resamples=0), statistics.over_seeds(rows, "mse")
        assert min(found.by_seed) <= found.difference <= max(found.by_seed)
        assert found.difference == pytest.approx(table["m1"]["all"].mean - table["m0"]["all"].mean)
        users = statistics.per_user(statistics.differences(rows, "m1", "m0", "mse"))
        outside += not min(found.by_seed) <= users["value"].mean() <= max(found.by_seed)
        gap, groups = fairness.gap(rows, "m1", "mse", resamples=0), statistics.groups_test(rows, "m1", "mse")
        assert (gap.major, gap.minor) == pytest.approx((table["m1"]["major"].mean, table["m1"]["minor"].mean))
        assert (groups.left, groups.right) == (gap.major, gap.minor)
        both = fairness.gap_difference(rows, "m1", "m0", "mse", resamples=0)
        assert both.difference == pytest.approx(gap.difference - fairness.gap(rows, "m0", "mse").difference)
    assert outside > 0


def test_with_repeated_users_false_positives_and_intervals_are_as_promised() -> None:
    grids, rng = 400, np.random.default_rng(14)
    positive = covered = 0
    for _ in range(grids):
        found = statistics.paired(overlapping(rng, 2, effect=0.1), "m1", "m0", "mse", resamples=200)
        covered += found.interval.low <= 0.1 <= found.interval.high
        positive += statistics.paired(overlapping(rng, 2), "m1", "m0", "mse", resamples=0).t_p < 0.05
    assert within(positive, grids, 0.05, 0.05)
    assert within(covered, grids, 0.93, 0.96)


def test_resampling_users_resamples_all_their_rows() -> None:
    rows = overlapping(np.random.default_rng(15), 2)
    values = statistics.differences(rows, "m1", "m0", "mse")
    found = statistics.paired(rows, "m1", "m0", "mse")
    x_SU = np.full((3, 120), np.nan)
    x_SU[values["seed"].to_numpy(), values["user"].str.slice(1).cast(pl.Int64).to_numpy()] = values["value"].to_numpy()
    drawn_RU = np.random.default_rng(1).integers(120, size=(4000, 120))
    drawn_R = np.nanmean(x_SU[:, drawn_RU], axis=2).mean(0)
    assert near(found.interval, Interval(*np.quantile(drawn_R, [0.025, 0.975])))


def test_pairs_are_one_family() -> None:
    value_MSU = simulated(np.random.default_rng(16), 4, 2, 80)
    value_MSU[2] -= 0.3
    value_MSU[3] = value_MSU[1]
    rows = rows_of(value_MSU)
    found = statistics.pairs_table(
        rows, list(combinations(["m0", "m1", "absent", "m2", "m3"], 2)), "mse", resamples=QUICK
    )
    assert [(line.reference, line.method) for line in found] == [
        ("m0", "m1"), ("m0", "m2"), ("m0", "m3"), ("m1", "m2"), ("m1", "m3"), ("m2", "m3")
    ]  # fmt: skip
    assert [replace(line, holm_p=None) for line in found[:2]] == [
        statistics.paired(rows, name, "m0", "mse", resamples=QUICK) for name in ("m1", "m2")
    ]
    assert [line.holm_p for line in found] == statistics.holm([line.t_p for line in found])
    assert [line.identical for line in found] == [False, False, False, False, True, False]
    assert (found[4].difference, found[4].alike) == (0, 80)


def test_undefined_values_are_excluded_in_pairs_and_counted() -> None:
    value_MSU = simulated(np.random.default_rng(5), 2, 2, 60)
    value_MSU[0, :, :12] = np.nan
    value_MSU[1, 0, 6:30] = np.inf
    value_MSU[1, :, 50:] = np.nan
    rows = rows_of(value_MSU).with_columns(mse=pl.when(pl.col("user") != "u0059").then("mse"))
    found = statistics.paired(rows, "m1", "m0", "mse")
    assert (found.users, found.undefined) == (38, 22)
    difference_SU = np.where(np.isfinite(value_MSU[1]), value_MSU[1], np.nan) - value_MSU[0]
    assert found.difference == pytest.approx(np.nanmean(difference_SU[:, 12:50], axis=1).mean())
    gap = fairness.gap_difference(rows, "m1", "m0", "mse")
    assert (gap.major_users + gap.minor_users, gap.undefined) == (38, 22)
    summary = statistics.over_seeds(rows, "mse")["m1"]["all"]
    assert (summary.users, summary.rows, summary.undefined) == (60, 120, 44)


def all_results(rows: pl.DataFrame) -> list[Any]:
    groups = statistics.over_seeds(rows, "mse").values()
    return [
        *(summary for by_group in groups for summary in by_group.values()),
        *statistics.paired_table(rows, "m0", "mse", resamples=QUICK),
        statistics.paired(rows, "m1", "m0", "mse", resamples=QUICK),
        statistics.improvement(rows, "m1", "m0", "mse", "lower"),
        statistics.groups_test(rows, "m1", "mse"),
        fairness.gap(rows, "m1", "mse", resamples=QUICK),
        fairness.gap_difference(rows, "m1", "m0", "mse", resamples=QUICK),
    ]


@pytest.mark.parametrize("users", [0, 1, 2, 3, 4, 7, 30])
@pytest.mark.parametrize("what", ["drawn", "identical", "shifted", "constant", "undefined", "half", "major", "minor"])
def test_results_are_numbers_or_none_whatever_the_rows(users: int, what: str) -> None:
    value_MSU = simulated(np.random.default_rng(6), 2, 1, users)
    if what in ("identical", "shifted"):
        value_MSU[1] = value_MSU[0] + (0.1 if what == "shifted" else 0.0)
    elif what == "constant":
        value_MSU[:] = 0.1
    elif what in ("undefined", "half"):
        value_MSU[:, :, :: 1 if what == "undefined" else 2] = np.nan
    rows = rows_of(value_MSU)
    if what in ("major", "minor"):
        rows = rows.filter(pl.col("group") == what)
    for result in all_results(rows):
        json.dumps(asdict(result), allow_nan=False)


def test_identical_methods_do_not_differ() -> None:
    rows = rows_of(np.repeat(simulated(np.random.default_rng(7), 1, 2, 30), 2, axis=0))
    found = statistics.paired_table(rows, "m0", "mse", resamples=QUICK)[0]
    assert (found.difference, found.t_p, found.wilcoxon_p, found.holm_p) == (0, 1, 1, 1)
    assert asdict(found)["interval"] == {"low": 0, "high": 0}
    gap = fairness.gap_difference(rows, "m1", "m0", "mse")
    assert (gap.difference, gap.welch_p, gap.margin, gap.equivalence_p) == (0, 1, None, None)


def test_no_users_and_a_single_group() -> None:
    rows = rows_of(simulated(np.random.default_rng(8), 2, 2, 30))
    nobody = statistics.paired(rows.clear(), "m1", "m0", "mse")
    assert nobody == statistics.Paired("m1", "m0", None, None, None, None, None, 0, 0, ())
    assert statistics.over_seeds(rows.clear(), "mse") == {}
    gap = fairness.gap(rows.filter(pl.col("group") == "major"), "m1", "mse")
    assert gap.major is not None
    assert gap.minor is gap.difference is gap.interval is gap.welch is gap.equivalence_p is None
    assert (gap.major_users, gap.minor_users) == (20, 0)


def test_means_that_overflow_are_none_and_seeds_come_in_order() -> None:
    value_MSU = simulated(np.random.default_rng(15), 2, 3, 12)
    value_MSU[1, 2, :] = 1.7e308
    rows = rows_of(value_MSU)
    found = statistics.over_seeds(rows, "mse")["m1"]["all"]
    assert (found.mean, found.deviation, found.seeds) == (None, None, 3)
    rows = rows.filter(pl.col("seed") < 2)
    shuffled = rows.sample(fraction=1, shuffle=True, seed=3)
    by_seed = statistics.paired(shuffled, "m1", "m0", "mse", resamples=0).by_seed
    assert by_seed == pytest.approx((value_MSU[1, :2] - value_MSU[0, :2]).mean(1))
    assert statistics.method_names(rows.reverse()) == ["m1", "m0"]
    assert [line.method for line in statistics.paired_table(rows.reverse(), "m0", "mse", resamples=0)] == ["m1"]


def test_errors_name_what_is_wrong() -> None:
    rows = rows_of(simulated(np.random.default_rng(9), 2, 1, 5))
    with pytest.raises(SettingsError, match=r"no metric 'mes'.*did you mean 'mse'"):
        statistics.over_seeds(rows, "mes")
    with pytest.raises(SettingsError, match="no metric 'seed'"):  # a column, but not a metric
        statistics.over_seeds(rows, "seed")
    with pytest.raises(SettingsError, match="no method 'm9'"):
        statistics.paired(rows, "m0", "m9", "mse")
    with pytest.raises(SettingsError, match="no method 'm9'"):
        statistics.improvement(rows, "m9", "m0", "mse", "lower")
    with pytest.raises(DataError, match="method 'm0', seed 0: user 'u0000' occurs twice"):
        statistics.paired(pl.concat([rows, rows]), "m0", "m1", "mse")
    with pytest.raises(SettingsError, match="margin 0"):
        fairness.gap(rows, "m0", "mse", margin=0)


def test_false_positives_are_as_rare_as_promised() -> None:
    grids, rng = 400, np.random.default_rng(10)
    single = family = uncorrected = 0
    for _ in range(grids):
        table = statistics.paired_table(rows_of(simulated(rng, 4, 2, 100)), "m0", "mse", resamples=0)
        t_p, holm_p = ([getattr(line, name) for line in table] for name in ("t_p", "holm_p"))
        single += t_p[0] < 0.05
        uncorrected += min(t_p) < 0.05
        family += min(holm_p) < 0.05
    assert within(single, grids, 0.05, 0.05)
    assert within(family, grids, 0.03, 0.05)  # three comparisons with one reference depend on each other: below 5 %
    assert uncorrected > binom.ppf(0.999, grids, 0.05)  # and this is why they are corrected


def test_a_planted_effect_is_found_as_often_as_theory_says() -> None:
    grids, rng, effect, users = 100, np.random.default_rng(13), 0.1, 100
    planted = 0
    for _ in range(grids):
        value_MSU = simulated(rng, 3, 2, users)
        value_MSU[2] += effect
        planted += statistics.paired_table(rows_of(value_MSU), "m0", "mse", resamples=0)[1].holm_p < 0.05
    noise = 0.3  # of a difference of two methods, averaged over two seeds
    power = [nct.sf(t.isf(alpha / 2, users - 1), users - 1, effect / noise * users**0.5) for alpha in (0.05 / 2, 0.05)]
    assert power[0] > 0.8
    assert within(planted, grids, *power)


def test_gap_by_hand() -> None:
    value_MSU = simulated(np.random.default_rng(11), 2, 2, 90)
    value_MSU[1, :, ::3] += 0.5
    rows, minor_U = rows_of(value_MSU), np.arange(90) % 3 == 0
    user_MU = value_MSU.mean(1)
    expected_M = user_MU[:, minor_U].mean(1) - user_MU[:, ~minor_U].mean(1)
    found = fairness.gap(rows, "m1", "mse", margin=0.1)
    assert found.difference == pytest.approx(expected_M[1])
    assert found.margin == pytest.approx(0.1 * user_MU[1].mean())
    test = ttest_ind(user_MU[1, minor_U], user_MU[1, ~minor_U], equal_var=False)
    assert found.welch_p == pytest.approx(test.pvalue)
    assert asdict(found)["welch"] == pytest.approx(test.confidence_interval()._asdict())
    assert near(found.interval, found.welch)
    both = fairness.gap_difference(rows, "m1", "m0", "mse")
    assert both.difference == pytest.approx(expected_M[1] - expected_M[0])
    assert near(both.interval, both.welch)
    assert both.interval is not None
    assert found.interval is not None
    assert both.interval.low > 0
    # What makes a user hard for both methods cancels out.
    assert both.interval.high - both.interval.low < (found.interval.high - found.interval.low) / 3


def test_intervals_are_the_same_in_every_call_and_their_seed_is_0() -> None:
    rows = rows_of(simulated(np.random.default_rng(14), 2, 1, 30))
    calls: list[Callable[..., Any]] = [
        lambda **seed: fairness.gap(rows, "m1", "mse", resamples=QUICK, **seed),
        lambda **seed: fairness.gap_difference(rows, "m1", "m0", "mse", resamples=QUICK, **seed),
        lambda **seed: statistics.paired(rows, "m1", "m0", "mse", resamples=QUICK, **seed),
        lambda **seed: statistics.paired_table(rows, "m0", "mse", resamples=QUICK, **seed)[0],
    ]
    for call in calls:
        assert call() == call(seed=0)
        assert call().interval != call(seed=1).interval
    assert fairness.gap(rows, "m1", "mse", resamples=0).interval is None
    assert fairness.gap_difference(rows, "m1", "m0", "mse", resamples=0).interval is None
    assert statistics.paired(rows, "m1", "m0", "mse", resamples=0).interval is None
    assert statistics.paired_table(rows, "m0", "mse", resamples=0)[0].interval is None


def test_equality_is_found_where_it_is_and_rarely_where_the_gap_is_the_margin() -> None:
    rng, users = np.random.default_rng(12), 300
    minor_U = np.arange(users) % 3 == 0

    def found_equal(gap: float, times: int) -> int:
        """How often, for a mean error of 4 and minor users who also vary more."""
        mean_U = 4 + gap * (minor_U - minor_U.mean())
        value_TU = mean_U + rng.normal(0, np.where(minor_U, 0.5, 0.3), (times, users))
        drawn = [fairness.gap(rows_of(value_U[None, None]), "m0", "mse", resamples=0) for value_U in value_TU]
        return sum(one.equivalence_p < 0.05 for one in drawn)

    assert found_equal(0.0, 100) > 90
    assert within(found_equal(0.2, 600), 600, 0.05, 0.05)  # 5 % of the mean
    assert found_equal(0.4, 100) == 0


def test_the_same_rows_have_the_same_summary_to_the_last_bit() -> None:
    rows = rows_of(simulated(np.random.default_rng(5), 2, 3, 40_000))
    found = {statistics.paired(rows, "m1", "m0", "mse", resamples=0).by_seed for _ in range(20)}
    assert len(found) == 1
