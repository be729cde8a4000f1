"""What may be concluded from the rows of a comparison: one row per method, seed and user.

Every estimate is what tables print: the mean over seeds of a seed's mean over users, or a difference of such means.
The unit of every test is the user: all rows of a user who occurs in several seeds are one observation (`balanced`),
since repeated users are not more users. So the tests are about new users, given these trained models; what another
training would change is shown by the spread over seeds. A value that is null, NaN or infinite is undefined: excluded
and counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from paml.analysis.plan import Better
from paml.analysis.tests import (
    RESAMPLES,
    Interval,
    finite,
    holm,
    mean_interval,
    mean_of,
    student,
    two_sided,
    wilcoxon_p,
)
from paml.errors import DataError, SettingsError, nearest

GROUPS = ("all", "major", "minor")
SIGNIFICANT = 0.05
_KEYS = ("method", "seed", "user", "group")


@dataclass(frozen=True)
class OverSeeds:
    """A method on a group of users: mean and standard deviation over seeds of the seed's mean over users."""

    mean: float | None
    deviation: float | None
    """None with a single seed."""
    seeds: int
    users: int
    """Distinct users, over all seeds."""
    rows: int
    undefined: int
    """Rows (a user in a seed) for which the metric is undefined."""


@dataclass(frozen=True)
class TTest:
    """Two-tailed Student's t-test of independent samples, as in the paper (`scipy.stats.ttest_ind`)."""

    left: float | None
    right: float | None
    p_value: float | None
    left_users: int
    right_users: int


@dataclass(frozen=True)
class Improvement:
    """A method against the best baseline, as in the paper's tables."""

    method: str
    reference: str
    test: TTest
    star: bool
    """p < 0.05, and the method is the better one."""


@dataclass(frozen=True)
class Paired:
    """method - reference, user by user."""

    method: str
    reference: str
    difference: float | None
    """The mean over seeds of `by_seed`, so never outside their range."""
    interval: Interval | None
    """Bootstrap over users (BCa)."""
    t_p: float | None
    wilcoxon_p: float | None
    holm_p: float | None
    """`t_p` corrected for the family of methods in the same table; None outside a table."""
    users: int
    undefined: int
    """Users without a seed in which both values are defined."""
    by_seed: tuple[float, ...]
    """The mean difference in each seed, which shows whether other trainings agree."""
    alike: int = 0
    """Users for whom both values are exactly the same in every seed."""

    @property
    def identical(self) -> bool:
        """Whether both values are exactly the same for every user."""
        return 0 < self.users == self.alike


def improves(better: Better, difference: float | None) -> bool:
    """Whether a difference method - reference favours the method, if lower (or higher) values are better."""
    return difference is not None and (difference < 0 if better == "lower" else difference > 0)


def method_names(rows: pl.DataFrame) -> list[str]:
    """The methods in the order of their first rows."""
    return rows["method"].unique(maintain_order=True).to_list()


def over_seeds(rows: pl.DataFrame, metric: str) -> dict[str, dict[str, OverSeeds]]:
    """Per method and group (all, major, minor), as in the paper: "mean and standard deviation" over trials."""
    values = _values(rows, metric)
    found: dict[str, dict[str, OverSeeds]] = {method: {} for method in method_names(rows)}
    for group in GROUPS:
        part = values if group == "all" else values.filter(pl.col("group") == group)
        means = part.group_by("method", "seed", maintain_order=True).agg(pl.col("value").mean())
        in_order = means.sort("method", "seed").group_by(
            "method", maintain_order=True
        )  # so that sums are always the same
        spread = in_order.agg(
            mean=pl.col("value").mean(), deviation=pl.col("value").std(ddof=1), seeds=pl.col("value").count()
        )
        spread = spread.with_columns(_finite(pl.col("mean")), _finite(pl.col("deviation")))
        counts = part.group_by("method").agg(
            users=pl.col("user").n_unique(), rows=pl.len(), undefined=pl.col("value").null_count()
        )
        known = {row.pop("method"): OverSeeds(**row) for row in spread.join(counts, on="method").to_dicts()}
        for method, summaries in found.items():
            summaries[group] = known.get(method, OverSeeds(None, None, 0, 0, 0, 0))
    return found


def improvement(rows: pl.DataFrame, method: str, reference: str, metric: str, better: Better) -> Improvement:
    """The paper's test: the values of two methods as if they came from different users (`paired` is sounder)."""
    left, right = (balanced(of_method(rows, name, metric)) for name in (method, reference))
    test = _t_test(left, right)
    favourable = test.left is not None and test.right is not None and improves(better, test.left - test.right)
    return Improvement(method, reference, test, favourable and test.p_value is not None and test.p_value < SIGNIFICANT)


def groups_test(rows: pl.DataFrame, method: str, metric: str) -> TTest:
    """The paper's test of major (left) against minor (right) users; a large p does not show that they are equal."""
    return _t_test(*balanced_groups(of_method(rows, method, metric)))


def paired(
    rows: pl.DataFrame, method: str, reference: str, metric: str, *, seed: int = 0, resamples: int = RESAMPLES
) -> Paired:
    """method - reference for each user within the same seed: the mean over seeds of its mean over users, tested.

    Finds smaller effects than the paper's test wherever the same users are hard for both. Wilcoxon's test ranks users
    by the mean over their own seeds. `seed` is for the bootstrap.
    """
    per_seed = differences(rows, method, reference, metric)
    value_U, own_U = balanced(per_seed), defined(per_user(per_seed))
    same = per_seed.drop_nulls("value").group_by("user").agg((pl.col("value") == 0).all())
    seeds = per_seed.drop_nulls("value").group_by("seed", maintain_order=True).agg(pl.col("value").mean()).sort("seed")
    return Paired(
        method=method,
        reference=reference,
        difference=mean(value_U),
        interval=mean_interval(value_U, np.random.default_rng(seed), resamples),
        t_p=two_sided(mean_of(value_U)),
        wilcoxon_p=wilcoxon_p(own_U),
        holm_p=None,
        users=len(value_U),
        undefined=per_seed["user"].n_unique() - len(value_U),
        by_seed=tuple(seeds["value"].to_list()),
        alike=int(same["value"].sum()),
    )


def paired_table(
    rows: pl.DataFrame, reference: str, metric: str, *, seed: int = 0, resamples: int = RESAMPLES
) -> list[Paired]:
    """All other methods against a reference; they are one family of tests, with Holm's correction."""
    table = [
        paired(rows, method, reference, metric, seed=seed, resamples=resamples)
        for method in method_names(rows)
        if method != reference
    ]
    return corrected(table)


def pairs_table(
    rows: pl.DataFrame, pairs: Sequence[tuple[str, str]], metric: str, *, seed: int = 0, resamples: int = RESAMPLES
) -> list[Paired]:
    """Of each pair that has rows, the second minus the first; one family of tests, with Holm's correction."""
    present = set(method_names(rows))
    known = [(first, second) for first, second in pairs if {first, second} <= present]
    return corrected([paired(rows, second, first, metric, seed=seed, resamples=resamples) for first, second in known])


def corrected(table: list[Paired]) -> list[Paired]:
    """Tests as one family, with Holm's correction."""
    return [replace(line, holm_p=p) for line, p in zip(table, holm([line.t_p for line in table]), strict=True)]


def of_method(rows: pl.DataFrame, method: str, metric: str) -> pl.DataFrame:
    """seed, user, group and value of one method, in order; each user at most once per seed."""
    _check_method(rows, method)
    values = _values(rows.filter(pl.col("method") == method), metric).drop("method").sort("user", "seed")
    repeated = values.filter((pl.col("user") == pl.col("user").shift()) & (pl.col("seed") == pl.col("seed").shift()))
    if len(repeated):
        where = f"method '{method}', seed {repeated['seed'][0]}"
        raise DataError(f"user '{repeated['user'][0]}' occurs twice", where=where, remedy="one row per user expected")
    return values


def differences(rows: pl.DataFrame, method: str, reference: str, metric: str) -> pl.DataFrame:
    """method - reference within the same seed, for users whom both have; null where either is undefined."""
    left, right = (of_method(rows, name, metric) for name in (method, reference))
    both = left.join(right.drop("group"), on=["seed", "user"], maintain_order="left")
    return both.select("seed", "user", "group", value=pl.col("value") - pl.col("value_right"))


def per_user(values: pl.DataFrame) -> pl.DataFrame:
    """One row per user, in order: the mean over the user's seeds; the group belongs to the user, not to the seed."""
    return values.group_by("user", maintain_order=True).agg(pl.col("group").first(), pl.col("value").mean())


def balanced(values: pl.DataFrame) -> np.ndarray:
    """One value per user, whose mean over users is the mean over seeds of the seeds' means.

        theta = 1/S sum_s m_s,    value_u = theta + sum over u's seeds s of U / (S n_s) (x_us - m_s)

    for S seeds with n_s users and the mean m_s, and U users in all. The second term is user u's influence on theta, so
    that the usual standard error of the mean of `value_u` is the one with users as clusters, and resampling users
    resamples all their rows. If every user is in every seed, value_u is simply the user's mean.

    Averaging each user's rows first, and then over users, would estimate something else: users who are test users in
    several seeds would count less per row, and the result could lie outside the range of the seeds' own means.
    """
    known = values.drop_nulls("value")
    if not len(known):
        return np.zeros(0)
    value_N = known["value"].to_numpy()
    seed_N, user_N = (np.unique(known[name].to_numpy(), return_inverse=True)[1] for name in ("seed", "user"))
    count_S = np.bincount(seed_N)
    mean_S = np.bincount(seed_N, weights=value_N) / count_S
    users = int(user_N.max()) + 1
    weight_S = users / (len(count_S) * count_S)
    pull_U = np.bincount(user_N, weights=weight_S[seed_N] * (value_N - mean_S[seed_N]))
    value_U: np.ndarray = mean_S.mean() + pull_U
    return value_U


def balanced_groups(values: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The same of major and of minor users, each group by itself."""
    major, minor = (balanced(values.filter(pl.col("group") == group)) for group in ("major", "minor"))
    return major, minor


def by_group(users: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The defined values of major and of minor users."""
    major, minor = (defined(users.filter(pl.col("group") == group)) for group in ("major", "minor"))
    return major, minor


def defined(users: pl.DataFrame) -> np.ndarray:
    """The defined values."""
    value_U: np.ndarray = users["value"].drop_nulls().to_numpy()
    return value_U


def mean(value_U: np.ndarray) -> float | None:
    """The mean, None without users."""
    return finite(float(value_U.mean())) if len(value_U) else None


def _t_test(left: np.ndarray, right: np.ndarray) -> TTest:
    return TTest(mean(left), mean(right), two_sided(student(left, right)), len(left), len(right))


def _values(rows: pl.DataFrame, metric: str) -> pl.DataFrame:
    """The rows' keys and the metric as `value`, null where undefined."""
    if metric not in rows.columns or metric in _KEYS:
        known = [name for name in rows.columns if name not in _KEYS]
        raise SettingsError(f"the rows have no metric '{metric}'", remedy=nearest(metric, known))
    return rows.select(*_KEYS, value=_finite(pl.col(metric).cast(pl.Float64)))


def _finite(value: pl.Expr) -> pl.Expr:
    """The value, null where it is not finite."""
    return pl.when(value.is_finite()).then(value)


def _check_method(rows: pl.DataFrame, method: str) -> None:
    """Refuse an unknown method; without any rows there is nobody to compare, which is not an error."""
    names = method_names(rows)
    if names and method not in names:
        raise SettingsError(f"the rows have no method '{method}'", remedy=nearest(method, names))
