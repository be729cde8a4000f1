"""Means of a comparison's entries, and which of them are best by a metric.

An entry that only ranks has no errors, and one that only predicts has no lists: such a metric is null in all of its
rows, and it has no mean by it.
"""

from collections.abc import Sequence
from typing import Literal

import polars as pl

from paml.analysis import comparisons
from paml.analysis.comparisons import OverSeeds
from paml.analysis.plan import MetricFacts, Plan
from paml.analysis.results import Best

LEARNED = ("method", "variant")
Table = dict[str, dict[str, OverSeeds]]
"""Entry -> group (all, major, minor)."""


def with_values(rows: pl.DataFrame, metric: str) -> pl.DataFrame:
    """The rows of entries that have the metric; NaN is a value, which is undefined and counted."""
    return rows.filter(pl.col(metric).is_not_null().any().over("method")) if len(rows) else rows


def over_seeds(rows: pl.DataFrame, metric: str, names: Sequence[str]) -> Table:
    """Mean and deviation of every entry; nobody's for those without rows."""
    found = comparisons.over_seeds(with_values(rows, metric), metric)
    nobody = dict.fromkeys(comparisons.GROUPS, OverSeeds(None, None, 0, 0, 0, 0))
    return {name: found.get(name, nobody) for name in names}


def means(rows: pl.DataFrame, metric: str, names: Sequence[str]) -> dict[str, float | None]:
    """Means over seeds of means over users."""
    return {name: groups["all"].mean for name, groups in over_seeds(rows, metric, names).items()}


def sign(metric: MetricFacts) -> Literal[1, -1]:
    """The factor that makes lower values better."""
    return 1 if metric.better == "lower" else -1


def best(mean: dict[str, float | None], metric: MetricFacts, among: Sequence[str]) -> str | None:
    """The best of the entries that have a value at all; the first of equals."""
    known = {name: sign(metric) * value for name in among if (value := mean[name]) is not None}
    return min(known, key=lambda name: known[name]) if known else None


def best_in(table: Table, metric: MetricFacts, among: Sequence[str]) -> str | None:
    """The same from a table of means."""
    return best({name: groups["all"].mean for name, groups in table.items()}, metric, among)


def best_entries(plan: Plan, table: Table, metric: MetricFacts) -> Best:
    """The best baseline, and the best method or variant."""
    return Best(
        baseline=best_in(table, metric, plan.names("baseline")), method=best_in(table, metric, plan.names(*LEARNED))
    )
