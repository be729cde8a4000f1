"""The rates that methods give their users: how large, how different, and whether they are personal at all.

A rate alpha'(h) = scale * sigmoid(...) cannot exceed its scale. Where almost all users are there, or where users hardly
differ, a method with a rate per user is a method with one rate for all, whatever its name.
"""

from collections.abc import Mapping

import polars as pl

from paml.analysis import fairness
from paml.analysis.comparisons import of_method
from paml.analysis.format import amount, listing, percent
from paml.analysis.plan import Entry, RateFacts
from paml.analysis.results import Rates
from paml.analysis.tests import RESAMPLES

NEAR_BOUND = 0.99
"""A rate is at the bound if it is at least this share of it."""
ALMOST_ALL = 0.95
"""Of the users at the bound: rates are not personal."""
HARDLY = 0.01
"""A standard deviation between users below this share of the mean: rates are not personal."""
LEARNING_RATE = "learning rate"
UNKNOWN = RateFacts(label=LEARNING_RATE, bound=None)
"""For plans that were made before this was recorded."""


def rates_of(rows: pl.DataFrame, entry: Entry, resamples: int = RESAMPLES) -> Rates | None:
    """The rates of an entry; None where all users of a seed have the same."""
    own = rows.filter(pl.col("method") == entry.name)
    if "rate" not in own.columns or not len(own):
        return None
    values = of_method(own, entry.name, "rate").drop_nulls("value")
    facts = entry.rate or (UNKNOWN if _vary(values) else None)
    if facts is None or not len(values):
        return None
    value, by_seed = pl.col("value"), values.group_by("seed", maintain_order=True).agg
    at_bound = None
    if facts.bound is not None:
        at_bound = _over_seeds(by_seed((value >= NEAR_BOUND * facts.bound).mean()))
    return Rates(
        label=facts.label,
        mean=_over_seeds(by_seed(value.mean())),
        deviation=_over_seeds(by_seed(value.std())),
        bound=facts.bound,
        at_bound=at_bound,
        gap=fairness.gap(own, entry.name, "rate", resamples=resamples),
        gap_by_seed=_gap_by_seed(values),
    )


def not_personal(rates: Mapping[str, Rates], labels: Mapping[str, str]) -> list[str]:
    """In sentences: the entries whose personal rates are the same for (almost) all users."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, line in rates.items():
        why = _why_not(line)
        if why and name in labels:
            found.setdefault((line.label, why), []).append(labels[name])
    return [f"The personal {label} is not at work with {listing(who)}: {why}." for (label, why), who in found.items()]


def _why_not(line: Rates) -> str:
    """Why rates are not personal; empty where they are."""
    if line.mean is None:
        return ""
    most = line.bound is not None and line.at_bound is not None and line.at_bound >= 0.5
    near = f"within {percent(1 - NEAR_BOUND, 0)} of the largest one, {amount(line.bound)}"
    at_bound = f"{percent(line.at_bound or 0)} of the users are {near}" if most else ""
    if line.at_bound is not None and line.at_bound >= ALMOST_ALL:
        return at_bound
    if line.deviation is not None and line.deviation < HARDLY * line.mean:
        between = f"its standard deviation between users is {percent(line.deviation / line.mean, 2)} of its mean"
        return f"{between}, and {at_bound}" if most else between
    return ""


def _vary(values: pl.DataFrame) -> bool:
    spans = values.group_by("seed").agg(pl.col("value").max() > pl.col("value").min())
    return bool(spans["value"].any())


def _over_seeds(by_seed: pl.DataFrame) -> float | None:
    """The mean over the seeds that have a value, always in the same order."""
    mean = by_seed.sort("seed")["value"].mean()
    assert mean is None or isinstance(mean, float)
    return mean


def _gap_by_seed(values: pl.DataFrame) -> tuple[float, ...]:
    """Minor less major users' mean in each seed that has both."""
    means = {
        group: values.filter(pl.col("group") == group).group_by("seed", maintain_order=True).agg(pl.col("value").mean())
        for group in ("major", "minor")
    }
    both = means["minor"].join(means["major"], on="seed").sort("seed")
    return tuple((both["value"] - both["value_right"]).to_list())
