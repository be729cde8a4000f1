"""A comparison's rows -> what its report says. Works on a half-finished grid: what is missing is listed."""

from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl

from paml.analysis import comparisons, fairness
from paml.analysis.comparisons import OverSeeds
from paml.analysis.entries import LEARNED, Table, best_entries, best_in, means, over_seeds, sign, with_values
from paml.analysis.environment import read_environments
from paml.analysis.orders import orders
from paml.analysis.paper import beside_paper
from paml.analysis.plan import AGAIN, Entry, MetricFacts, Plan, read_plan
from paml.analysis.quoted import PAPER_BASELINES
from paml.analysis.rates import rates_of
from paml.analysis.results import (
    ActivityBin,
    Best,
    ByActivity,
    ByProfile,
    Cost,
    Groups,
    Items,
    MissingCell,
    Pooled,
    ProfileMean,
    Rates,
    Results,
    read_failures,
)
from paml.analysis.shots import by_shots, scenario, shot_tests, shots
from paml.analysis.tests import RESAMPLES
from paml.analysis.verdict import verdict
from paml.files import read_parquet

BINS = 4
MAX_PAIRED = 7
"""With more methods and variants than this, not every variant is compared with everything."""
BY_DEFINITION = {"auc": 0.5}
"""Metrics whose level by chance needs no column."""
_KEYS = {"method": pl.String, "seed": pl.Int64, "user": pl.String, "group": pl.String}


def summarise_comparison(folder: Path, *, resamples: int = RESAMPLES) -> Results:
    """Results from `plan.json` and the Parquet files of a comparison's folder; writes nothing.

    `resamples` is the number of bootstrap samples for each interval.
    """
    plan = read_plan(folder)
    frames = ("rows", "scenarios", "cost", "pooled")
    rows, scenarios, cost, pooled = (_frame(folder / f"{name}.parquet", plan) for name in frames)
    missing = _missing(plan, [rows, cost], read_failures(folder))
    seeds = _comparable_seeds(plan, missing)
    failed = {cell.method for cell in missing if cell.reason is not None}
    comparable = pl.col("seed").is_in(seeds) & ~pl.col("method").is_in(failed)
    rows, scenarios, cost, pooled = (frame.filter(comparable) for frame in (rows, scenarios, cost, pooled))
    names, headline, lists = plan.names(), plan.headline.name, plan.list_headline
    table = {metric.name: over_seeds(rows, metric.name, names) for metric in plan.metrics}
    best = best_entries(plan, table[headline], plan.headline)
    best_lists = Best(baseline=None, method=None) if lists is None else best_entries(plan, table[lists.name], lists)
    judged, parts = [metric for metric in plan.metrics if metric.judged], by_shots(scenarios)
    found = Results(
        plan=plan,
        missing=tuple(missing),
        seeds=tuple(seeds),
        table=table,
        pooled={metric.name: _pooled(pooled, metric.name, names) for metric in plan.pooled},
        best=best,
        best_lists=best_lists,
        loses_to=_losses(plan, table[headline]),
        improvements={metric.name: _improvements(rows, plan, table[metric.name], metric) for metric in judged},
        paired={metric.name: _paired(rows, plan, table[metric.name], metric, resamples) for metric in judged},
        pairs=tuple(comparisons.pairs_table(rows, _pairs(plan), headline, resamples=resamples)),
        against_paml={metric.name: _against_paml(rows, plan, metric) for metric in judged},
        chance=_chance(rows, plan),
        groups={entry.name: _groups(rows, headline, entry, best.baseline, resamples) for entry in plan.entries},
        list_groups=_list_groups(rows, plan, best_lists.baseline, resamples),
        rates=_rates(rows, plan, resamples),
        by_group=_by_profile(rows, headline, names, plan.group_by),
        by_activity=ByActivity(bins=_by_activity(rows, headline, names)),
        shots={metric.name: shots(parts, metric.name, names) for metric in (plan.headline, *plan.about("list"))},
        shot_tests={metric.name: shot_tests(parts, plan, metric, resamples) for metric in plan.about("list")},
        by=orders(scenarios, rows, plan, resamples),
        items=_items(scenarios, headline, names),
        cost=_cost(cost, names),
        environments=read_environments(folder),
    )
    found = found.model_copy(update={"paper": beside_paper(found)})
    return found.model_copy(update={"verdict": tuple(verdict(found))})


def _frame(path: Path, plan: Plan) -> pl.DataFrame:
    """The planned entries' rows in the order of the tables; no rows where there is no file yet."""
    frame = read_parquet(path, AGAIN) if path.exists() else pl.DataFrame(schema=_KEYS)
    order = {name: k for k, name in enumerate(plan.names())}
    lacking = [metric.name for metric in plan.metrics if metric.name not in frame.columns]
    planned = frame.filter(pl.col("method").is_in(list(order)) & pl.col("seed").is_in(plan.seeds))
    place = pl.col("method").replace_strict(order, default=None, return_dtype=pl.Int64)
    ordered = planned.sort(place, "seed", maintain_order=True)
    return ordered.with_columns(pl.lit(None, pl.Float64).alias(metric) for metric in lacking)


def _missing(plan: Plan, frames: list[pl.DataFrame], failures: dict[tuple[str, int], str]) -> list[MissingCell]:
    """Cells without rows and without a cost; a finished cell has a cost even if there is no test user."""
    finished = {pair for frame in frames for pair in frame.select("method", "seed").unique().iter_rows()}
    return [
        MissingCell(method=name, seed=seed, reason=failures.get((name, seed)))
        for name in plan.names()
        for seed in plan.seeds
        if (name, seed) not in finished
    ]


def _comparable_seeds(plan: Plan, missing: list[MissingCell]) -> list[int]:
    """The seeds that all entries have, because users differ between seeds; if none, the one that most entries have.

    An entry that failed with any seed is not waited for: it is excluded from the comparison.
    """
    failed = {cell.method for cell in missing if cell.reason is not None}
    waited_for = dict.fromkeys(plan.seeds, 0)
    for cell in missing:
        if cell.method not in failed:
            waited_for[cell.seed] += 1
    complete = [seed for seed, count in waited_for.items() if not count]
    return complete or ([min(waited_for, key=lambda seed: waited_for[seed])] if plan.seeds else [])


def _pooled(frame: pl.DataFrame, metric: str, names: list[str]) -> dict[str, Pooled]:
    """A frame with one row per entry and seed."""
    if metric not in frame.columns:
        frame = frame.with_columns(pl.lit(None, pl.Float64).alias(metric))
    finite = pl.col(metric).cast(pl.Float64).filter(pl.col(metric).cast(pl.Float64).is_finite())
    found = frame.group_by("method", maintain_order=True).agg(
        mean=finite.mean(), deviation=finite.std(), seeds=finite.count()
    )
    lines = {row.pop("method"): Pooled(**row) for row in found.to_dicts()}
    return {name: lines.get(name, Pooled(mean=None, deviation=None, seeds=0)) for name in names}


def _losses(plan: Plan, table: Table) -> dict[str, tuple[str, ...]]:
    """For methods and variants: the baselines whose mean is better by the headline metric, the best first."""
    means = {name: table[name]["all"].mean for name in plan.names("baseline")}
    known = {name: mean for name, mean in means.items() if mean is not None}
    in_order = sorted(known, key=lambda name: sign(plan.headline) * known[name])
    losses = {}
    for name in plan.names(*LEARNED):
        own, better = table[name]["all"].mean, plan.headline.better
        ahead = [other for other in in_order if own is not None and comparisons.improves(better, known[other] - own)]
        losses[name] = tuple(ahead)
    return losses


def _improvements(
    rows: pl.DataFrame, plan: Plan, table: Table, metric: MetricFacts
) -> dict[str, comparisons.Improvement]:
    """The paper's test: against the best of the paper's baselines, which are methods here."""
    trained, present = plan.names(*LEARNED), comparisons.method_names(with_values(rows, metric.name))
    reference = best_in(table, metric, [name for name in trained if name in PAPER_BASELINES])
    if reference is None:
        return {}
    others = [name for name in trained if name in present and name not in PAPER_BASELINES]
    return {name: comparisons.improvement(rows, name, reference, metric.name, metric.better) for name in others}


def _paired(
    rows: pl.DataFrame, plan: Plan, table: Table, metric: MetricFacts, resamples: int
) -> tuple[comparisons.Paired, ...]:
    """Methods and variants against the baseline that is best by this metric (without baselines: the paper's)."""
    trained = plan.names(*LEARNED)
    against = plan.names("baseline") or [name for name in trained if name in PAPER_BASELINES]
    reference = best_in(table, metric, against)
    if reference is None:
        return ()
    family = with_values(rows, metric.name).filter(pl.col("method").is_in([reference, *trained]))
    return tuple(comparisons.paired_table(family, reference, metric.name, resamples=resamples))


def _pairs(plan: Plan) -> list[tuple[str, str]]:
    """Every two methods, and each variant with its method; if they are few, every two of all.

    REG-PAML is PAML with a regulariser, so PAML's variants (which may have REG-PAML's outer rate) are compared with it.
    """
    trained, methods = plan.names(*LEARNED), plan.names("method")
    if len(trained) <= MAX_PAIRED:
        return list(combinations(trained, 2))
    variants = [entry for entry in plan.entries if entry.kind == "variant" and entry.method is not None]
    own = [(entry.method, entry.name) for entry in variants if entry.method in methods]
    regularised = [("reg_paml", entry.name) for entry in variants if entry.method == "paml" and "reg_paml" in methods]
    return [*combinations(methods, 2), *own, *regularised]


def _against_paml(rows: pl.DataFrame, plan: Plan, metric: MetricFacts) -> dict[str, comparisons.Improvement]:
    """The paper's test against PAML, which its ablation shows."""
    present = comparisons.method_names(with_values(rows, metric.name))
    others = [name for name in plan.names(*LEARNED) if name in present and name != "paml"]
    if "paml" not in present:
        return {}
    return {name: comparisons.improvement(rows, name, "paml", metric.name, metric.better) for name in others}


def _chance(rows: pl.DataFrame, plan: Plan) -> dict[str, OverSeeds]:
    """What a random order of a user's query rows gives, the same for every entry: that of the first that predicts."""
    found = {}
    for metric in plan.metrics:
        column = f"{metric.name}_chance"
        known = rows.filter(pl.col(column).is_not_null()) if column in rows.columns else rows.clear()
        first = known.filter(pl.col("method") == pl.col("method").first())
        if len(first):
            found[metric.name] = comparisons.over_seeds(first, column)[first["method"][0]]["all"]
        elif metric.name in BY_DEFINITION:
            found[metric.name] = OverSeeds(BY_DEFINITION[metric.name], None, 0, 0, 0, 0)
    return found


def _groups(rows: pl.DataFrame, metric: str, entry: Entry, baseline: str | None, resamples: int) -> Groups:
    """An entry's gap; for a method, also compared with the best baseline's."""
    own = rows.filter(pl.col("method") == entry.name)
    against = None
    if entry.learned and baseline is not None and len(own):
        against = fairness.gap_difference(rows, entry.name, baseline, metric, resamples=resamples)
    return Groups(
        test=comparisons.groups_test(own, entry.name, metric),
        gap=fairness.gap(own, entry.name, metric, resamples=resamples),
        gap_against_baseline=against,
    )


def _list_groups(rows: pl.DataFrame, plan: Plan, baseline: str | None, resamples: int) -> dict[str, Groups]:
    """The same for lists, of the entries that rank."""
    metric = plan.list_headline
    if metric is None:
        return {}
    ranked = with_values(rows, metric.name)
    present = set(comparisons.method_names(ranked))
    entries = [entry for entry in plan.entries if entry.name in present]
    return {entry.name: _groups(ranked, metric.name, entry, baseline, resamples) for entry in entries}


def _rates(rows: pl.DataFrame, plan: Plan, resamples: int) -> dict[str, Rates]:
    found = {entry.name: rates_of(rows, entry, resamples) for entry in plan.entries}
    return {name: rates for name, rates in found.items() if rates is not None}


def _by_profile(rows: pl.DataFrame, metric: str, names: list[str], field: str | None) -> ByProfile | None:
    """By a field of the users' profiles, which may have thousands of values; users without a value are one group."""
    column = f"user.{field}"
    if field is None or column not in rows.columns:
        return None
    value = pl.col(metric).cast(pl.Float64)
    labelled = rows.select(
        "method", "seed", "user", label=pl.col(column).cast(pl.String).fill_null("unknown"), value=value
    )
    means = labelled.group_by("label", "method", "seed", maintain_order=True).agg(
        pl.col("value").filter(pl.col("value").is_finite()).mean()
    )
    means = means.sort("seed").group_by("label", "method", maintain_order=True).agg(mean=pl.col("value").mean())
    users = labelled.group_by("label", "method").agg(users=pl.col("user").n_unique())
    nobody = ProfileMean(mean=None, users=0)
    values: dict[str, dict[str, ProfileMean]] = {}
    for row in means.join(users, on=["label", "method"]).sort("label").to_dicts():
        line = values.setdefault(row["label"], dict.fromkeys(names, nobody))
        line[row["method"]] = ProfileMean(mean=row["mean"], users=row["users"])
    return ByProfile(field=field, values=values)


def _by_activity(rows: pl.DataFrame, metric: str, names: list[str]) -> tuple[ActivityBin, ...]:
    """Users by their number of support rows: quartiles, fewer groups where many users have the same number."""
    if not len(rows):
        return ()
    support_U = rows.select("seed", "user", "support_rows").unique()["support_rows"].to_numpy()
    inner = np.unique(np.quantile(support_U, np.arange(1, BINS) / BINS, method="inverted_cdf"))
    edges = [*(int(edge) for edge in inner if edge < support_U.max()), int(support_U.max())]
    bins = []
    below = -1
    for edge in edges:
        part = rows.filter((pl.col("support_rows") > below) & (pl.col("support_rows") <= edge))
        low, high = int(support_U[support_U > below].min()), int(support_U[support_U <= edge].max())
        label = str(low) if low == high else f"{low}-{high}"
        bins.append(ActivityBin(label=label, users=part["user"].n_unique(), means=means(part, metric, names)))
        below = edge
    return tuple(bins)


def _items(scenarios: pl.DataFrame, metric: str, names: list[str]) -> Items:
    part = scenario(scenarios, "items")
    warm, cold, known = (part.filter(pl.col("value") == kind) for kind in ("warm", "cold", "known"))
    return Items(
        warm=means(warm, metric, names),
        cold=means(cold, metric, names),
        cold_users=cold["user"].n_unique(),
        known=means(known, metric, names) if len(known) else {},
        known_users=known["user"].n_unique(),
    )


def _cost(cost: pl.DataFrame, names: list[str]) -> dict[str, Cost]:
    """Means over seeds."""
    columns = [name for name in Cost.model_fields if name in cost.columns]
    finite = [pl.col(name).cast(pl.Float64) for name in columns]
    means = cost.group_by("method", maintain_order=True).agg(
        column.filter(column.is_finite()).mean() for column in finite
    )
    found = {row["method"]: {name: row[name] for name in columns} for row in means.to_dicts()}
    return {name: Cost(**found.get(name, {})) for name in names}
