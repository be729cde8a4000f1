"""The gap between minor and major users: how large, how certain, and whether it is small enough to count as none."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from paml.analysis.comparisons import balanced, balanced_groups, differences, mean, of_method
from paml.analysis.tests import RESAMPLES, Interval, difference_interval, equivalence, t_interval, two_sided, welch
from paml.errors import SettingsError

MARGIN = 0.05


@dataclass(frozen=True)
class GroupGap:
    """minor - major, of the groups' means as printed; for an error metric, positive if minor users fare worse."""

    major: float | None
    minor: float | None
    difference: float | None
    interval: Interval | None
    """Bootstrap within the groups (BCa)."""
    welch: Interval | None
    welch_p: float | None
    margin: float | None
    """Smaller gaps count as none, in the metric's unit; None where there is no margin to compare with."""
    equivalence_p: float | None
    """Welch TOST: below 0.05 the gap is smaller than the margin. A large `welch_p` does not show that."""
    major_users: int
    minor_users: int
    undefined: int


def gap(
    rows: pl.DataFrame,
    method: str,
    metric: str,
    *,
    margin: float = MARGIN,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> GroupGap:
    """The gap between minor and major users of a method, and whether it is smaller than a margin.

    `margin` is a fraction of the mean over all users (by default 5 %): with an overall MSE of 1.00, groups less
    than 0.05 apart count as equal. Choose it before looking at the results.
    """
    if margin <= 0:
        raise SettingsError(f"margin {margin} is not positive", remedy="a fraction above 0 expected, such as 0.05")
    values = of_method(rows, method, metric)
    overall = mean(balanced(values))
    return _gap(values, None if overall is None else margin * abs(overall), seed, resamples)


def gap_difference(
    rows: pl.DataFrame, method: str, reference: str, metric: str, *, seed: int = 0, resamples: int = RESAMPLES
) -> GroupGap:
    """gap(method) - gap(reference) on the users for whom both are defined.

    Means are linear, so this is the gap of the users' own differences: `major` and `minor` are how far the method is
    from the reference in each group, and resampling users resamples both methods together.
    """
    return _gap(differences(rows, method, reference, metric), None, seed, resamples)


def _gap(values: pl.DataFrame, margin: float | None, seed: int, resamples: int) -> GroupGap:
    major, minor = balanced_groups(values)
    estimate = welch(minor, major)
    means = mean(major), mean(minor)
    return GroupGap(
        major=means[0],
        minor=means[1],
        difference=None if means[0] is None or means[1] is None else means[1] - means[0],
        interval=difference_interval(minor, major, np.random.default_rng(seed), resamples),
        welch=t_interval(estimate),
        welch_p=two_sided(estimate),
        margin=margin,
        equivalence_p=equivalence(estimate, margin),
        major_users=len(major),
        minor_users=len(minor),
        undefined=values["user"].n_unique() - len(major) - len(minor),
    )
