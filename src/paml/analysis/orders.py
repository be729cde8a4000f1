"""What lists are ordered by: an entry's lists by choice and by predicted rating alone, beside its usual ones.

Rows of the scenario `by` have what a list was ordered by as `value`, and how many ratings were known as `known`. Two
questions are tested, user by user: what the choice part brings over the predicted rating, and whether a rate of the
user's own brings anything in the choice part.
"""

import polars as pl

from paml.analysis import comparisons, entries
from paml.analysis.comparisons import Paired
from paml.analysis.plan import MetricFacts, Plan
from paml.analysis.results import ListOrders, Shots
from paml.analysis.shots import ALL, in_order, scenario
from paml.analysis.tests import RESAMPLES

PREFERENCE, CHOICE, RATING = "preference", "choice", "rating"
ORDERS = (RATING, CHOICE, PREFERENCE)
"""In the order of tables; the last is the usual one of an entry with a choice part."""
PERSONAL, FIXED = ("paml", "at_paml", "reg_paml"), "melu"
"""Methods with a rate per user, and what they are without one."""
TESTED = 2
"""Metrics of lists by which they are tested: the first so many."""


def orders(scenarios: pl.DataFrame, rows: pl.DataFrame, plan: Plan, resamples: int = RESAMPLES) -> ListOrders:
    """Means, curves and tests; nothing if no entry has lists by several things."""
    part, metrics = scenario(scenarios, "by"), plan.about("list")
    if not len(part) or "known" not in part.columns or not metrics:
        return ListOrders()
    full = {order: _of(part, order).filter(pl.col("known") == ALL) for order in (CHOICE, RATING)}
    full = {order: frame for order, frame in full.items() if len(frame)}
    if not full:
        return ListOrders()
    present = comparisons.method_names(part)
    frames = {**full, PREFERENCE: rows.filter(pl.col("method").is_in(present))}
    names, tested = [name for name in plan.names() if name in present], metrics[:TESTED]
    return ListOrders(
        means={name: _means(frames, metrics, name) for name in names},
        shots={order: _curves(_of(part, order), metrics[0].name, names) for order in full},
        choice_over_rating={one.name: _choice_over_rating(full, one.name, names, resamples) for one in tested},
        personal_rates={one.name: _personal_rates(full, one.name, resamples) for one in tested},
    )


def _of(part: pl.DataFrame, order: str) -> pl.DataFrame:
    return part.filter(pl.col("value") == order)


def _means(
    frames: dict[str, pl.DataFrame], metrics: list[MetricFacts], name: str
) -> dict[str, dict[str, float | None]]:
    """What an entry's lists are ordered by -> metric."""
    own = {order: frame for order in ORDERS if (frame := _of_method(frames.get(order), name)) is not None}
    return {
        order: {metric.name: entries.means(frame, metric.name, [name])[name] for metric in metrics}
        for order, frame in own.items()
    }


def _of_method(frame: pl.DataFrame | None, name: str) -> pl.DataFrame | None:
    own = None if frame is None else frame.filter(pl.col("method") == name)
    return None if own is None or not len(own) else own


def _curves(part: pl.DataFrame, metric: str, names: list[str]) -> Shots:
    """By the number of known ratings."""
    values = in_order(part["known"])
    columns = [entries.means(part.filter(pl.col("known") == value), metric, names) for value in values]
    return Shots(values=tuple(values), means={name: tuple(column[name] for column in columns) for name in names})


def _choice_over_rating(
    full: dict[str, pl.DataFrame], metric: str, names: list[str], resamples: int
) -> dict[str, Paired]:
    """For every entry with both: its lists by choice less those by predicted rating; one family of tests."""
    both = pl.concat([frame.with_columns(order=pl.lit(order)) for order, frame in full.items()])
    found = {}
    for name in names:
        own = both.filter(pl.col("method") == name).with_columns(method=pl.col("order"))
        if {CHOICE, RATING} <= set(own["order"]):
            found[name] = comparisons.paired(own, CHOICE, RATING, metric, resamples=resamples)
    return dict(zip(found, comparisons.corrected(list(found.values())), strict=True))


def _personal_rates(full: dict[str, pl.DataFrame], metric: str, resamples: int) -> tuple[Paired, ...]:
    """By choice alone: methods with a rate per user less MeLU, whose rate is the same for all."""
    frame = full.get(CHOICE)
    if frame is None or FIXED not in comparisons.method_names(frame):
        return ()
    family = frame.filter(pl.col("method").is_in([FIXED, *PERSONAL]))
    return tuple(comparisons.paired_table(family, FIXED, metric, resamples=resamples))
