"""Few known ratings: every entry's means, and the best method against the best baseline with as many."""

import math

import polars as pl

from paml.analysis import comparisons, entries
from paml.analysis.plan import MetricFacts, Plan
from paml.analysis.results import Shots, ShotTest
from paml.analysis.tests import RESAMPLES

ALL = "all"
"""The number of known ratings if nothing is withheld."""


def scenario(scenarios: pl.DataFrame, name: str) -> pl.DataFrame:
    """The rows of one scenario."""
    if "scenario" not in scenarios.columns:
        return scenarios.clear().with_columns(value=pl.lit(None, pl.String))
    return scenarios.filter(pl.col("scenario") == name)


def by_shots(scenarios: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The rows of each number of known ratings, fewest first; "all" is the last. The query rows are the same."""
    part = scenario(scenarios, "shots")
    return {value: part.filter(pl.col("value") == value) for value in in_order(part["value"])}


def in_order(numbers: pl.Series) -> list[str]:
    """Different numbers of known ratings, fewest first."""
    return sorted(numbers.unique().to_list(), key=lambda number: math.inf if number == ALL else int(number))


def shots(parts: dict[str, pl.DataFrame], metric: str, names: list[str]) -> Shots:
    """Means of all entries."""
    columns = [entries.means(part, metric, names) for part in parts.values()]
    return Shots(values=tuple(parts), means={name: tuple(column[name] for column in columns) for name in names})


def shot_tests(
    parts: dict[str, pl.DataFrame], plan: Plan, metric: MetricFacts, resamples: int = RESAMPLES
) -> tuple[ShotTest, ...]:
    """For each number of known ratings: the best method or variant and the best baseline, user by user."""
    found = []
    for value, part in parts.items():
        mean = entries.means(part, metric.name, plan.names())
        method = entries.best(mean, metric, plan.names(*entries.LEARNED))
        baseline = entries.best(mean, metric, plan.names("baseline"))
        paired = None
        if method is not None and baseline is not None:
            both = part.filter(pl.col("method").is_in([method, baseline]))
            paired = comparisons.paired(both, method, baseline, metric.name, resamples=resamples)
        found.append(
            ShotTest(
                value=value,
                baseline=baseline,
                baseline_mean=None if baseline is None else mean[baseline],
                method=method,
                method_mean=None if method is None else mean[method],
                paired=paired,
            )
        )
    return tuple(found)
