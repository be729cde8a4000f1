"""From samples to what may be concluded: t-tests, Wilcoxon's test, equivalence, Holm's correction, bootstrap intervals.

Samples are arrays of finite values, one per user. What cannot be computed is None, never NaN: fewer than two users, or
values that do not vary. Legend: U users, R resamples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

LEVEL = 0.95
RESAMPLES = 2000
DRAWS_AT_ONCE = 1 << 20  # bounds the bootstrap's memory: 16 MB, or 16 bytes per user where there are more users
ROUNDING = 1e-12  # a spread this small, relative to the values, is rounding


@dataclass(frozen=True)
class Interval:
    """A confidence interval of level 95 %."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A mean or a difference of means, with its standard error and degrees of freedom."""

    value: float
    error: float
    freedom: float


def finite(value: float) -> float | None:
    """The value, None where it is not finite: for numbers so large that their squares overflow."""
    return value if math.isfinite(value) else None


def mean_of(value_U: np.ndarray) -> Estimate | None:
    """The mean of one sample; for differences, this is the paired t-test."""
    n = len(value_U)
    return Estimate(float(value_U.mean()), (_variance(value_U) / n) ** 0.5, n - 1) if n > 1 else None


def student(left: np.ndarray, right: np.ndarray) -> Estimate | None:
    """mean(left) - mean(right) of independent samples with a common variance (Student)."""
    n, m = len(left), len(right)
    if min(n, m) < 2:
        return None
    pooled = ((n - 1) * _variance(left) + (m - 1) * _variance(right)) / (n + m - 2)
    return Estimate(_difference(left, right), (pooled * (1 / n + 1 / m)) ** 0.5, n + m - 2)


def welch(left: np.ndarray, right: np.ndarray) -> Estimate | None:
    """mean(left) - mean(right) of independent samples, each with its own variance (Welch)."""
    n, m = len(left), len(right)
    if min(n, m) < 2:
        return None
    a, b = _variance(left) / n, _variance(right) / m
    share = a / (a + b) if a + b > 0 else 0.5
    freedom = 1 / (share**2 / (n - 1) + (1 - share) ** 2 / (m - 1))
    return Estimate(_difference(left, right), (a + b) ** 0.5, freedom)


def two_sided(estimate: Estimate | None) -> float | None:
    """p of "the value is 0". Without any spread: 1 if the value is 0, otherwise undefined."""
    from scipy.special import stdtr  # slow to import, and only statistics need it

    if estimate is None:
        return None
    if estimate.error == 0:
        return 1.0 if estimate.value == 0 else None
    return finite(float(2 * stdtr(estimate.freedom, -abs(estimate.value) / estimate.error)))


def equivalence(estimate: Estimate | None, margin: float | None) -> float | None:
    """p of "the value is at least the margin away from 0": two one-sided tests (TOST), the larger p of the two."""
    from scipy.special import stdtr

    if estimate is None or margin is None or estimate.error == 0:
        return None
    return finite(float(stdtr(estimate.freedom, (abs(estimate.value) - margin) / estimate.error)))


def t_interval(estimate: Estimate | None) -> Interval | None:
    """value -+ t * error."""
    from scipy.special import stdtrit

    if estimate is None:
        return None
    reach = float(stdtrit(estimate.freedom, (1 + LEVEL) / 2)) * estimate.error
    return _interval(estimate.value - reach, estimate.value + reach)


def wilcoxon_p(value_U: np.ndarray) -> float | None:
    """Wilcoxon's signed-rank test of "symmetric about 0", zeros excluded; 1 if there are only zeros.

    With ties, such as those of hits, the normal approximation: SciPy would permute small samples, which takes seconds.
    """
    from scipy.stats import wilcoxon

    if len(value_U) < 2:
        return None
    moved = value_U[value_U != 0]
    tied = len(np.unique(np.abs(moved))) < len(moved)
    return float(wilcoxon(moved, method="approx" if tied else "auto").pvalue) if len(moved) else 1.0


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction for a family of tests; None (not tested) stays None.

    The k-th smallest of m p-values is multiplied by m - k + 1, and no result may be below that of a smaller p-value.
    """
    known = [k for k, p in enumerate(p_values) if p is not None]
    p_K = np.array([p for p in p_values if p is not None])
    order = np.argsort(p_K, kind="stable")
    adjusted = np.minimum(np.maximum.accumulate(p_K[order] * np.arange(len(p_K), 0, -1)), 1.0)
    found: list[float | None] = [None] * len(p_values)
    for k, p in zip(order, adjusted, strict=True):
        found[known[k]] = float(p)
    return found


def mean_interval(value_U: np.ndarray, rng: np.random.Generator, resamples: int = RESAMPLES) -> Interval | None:
    """BCa bootstrap interval of the mean over users; None without resamples."""
    if len(value_U) < 2 or not resamples:
        return None
    mean = float(value_U.mean())
    return _bca(mean, _resampled_means(value_U, rng, resamples), value_U - mean)


def difference_interval(
    left: np.ndarray, right: np.ndarray, rng: np.random.Generator, resamples: int = RESAMPLES
) -> Interval | None:
    """BCa bootstrap interval of mean(left) - mean(right), each sample resampled separately; None without resamples."""
    if min(len(left), len(right)) < 2 or not resamples:
        return None
    drawn_R = _resampled_means(left, rng, resamples) - _resampled_means(right, rng, resamples)
    pull_U = np.concatenate([(left - left.mean()) / len(left), (right.mean() - right) / len(right)])
    return _bca(_difference(left, right), drawn_R, pull_U)


def _resampled_means(value_U: np.ndarray, rng: np.random.Generator, resamples: int) -> np.ndarray:
    """Means of samples of U users drawn with replacement."""
    users = len(value_U)
    chunk = max(DRAWS_AT_ONCE // users, 1)
    mean_R = np.empty(resamples)
    for start in range(0, resamples, chunk):
        part = mean_R[start : start + chunk]
        part[:] = value_U[rng.integers(users, size=(len(part), users))].mean(1)
    return mean_R


def _bca(value: float, drawn_R: np.ndarray, pull_U: np.ndarray) -> Interval | None:
    """Bias-corrected and accelerated interval (Efron 1987); `pull_U` is each user's influence on the value.

    For users' errors, which are skewed, plain percentiles would be too low.
    """
    from scipy.special import ndtr, ndtri

    size = max(abs(value), float(np.abs(drawn_R).max()))
    if np.ptp(drawn_R) <= ROUNDING * size:
        return Interval(value, value)
    below = np.mean(drawn_R < value) + np.mean(drawn_R == value) / 2
    bias = ndtri(np.clip(below, 1 / (len(drawn_R) + 1), len(drawn_R) / (len(drawn_R) + 1)))
    pull_U = pull_U / np.abs(pull_U).max()
    acceleration = np.sum(pull_U**3) / (6 * np.sum(pull_U**2) ** 1.5)
    z = bias + ndtri([(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    low, high = np.quantile(drawn_R, ndtr(bias + z / (1 - acceleration * z)))
    return _interval(float(low), float(high))


def _interval(low: float, high: float) -> Interval | None:
    return Interval(low, high) if math.isfinite(low) and math.isfinite(high) else None


def _variance(value_U: np.ndarray) -> float:
    """Unbiased; 0 where the values differ by rounding alone."""
    variance = float(value_U.var(ddof=1))
    return variance if variance**0.5 > ROUNDING * float(np.abs(value_U).max()) else 0.0


def _difference(left: np.ndarray, right: np.ndarray) -> float:
    """mean(left) - mean(right); 0 where they differ by rounding alone."""
    a, b = float(left.mean()), float(right.mean())
    return a - b if abs(a - b) > ROUNDING * max(abs(a), abs(b)) else 0.0
