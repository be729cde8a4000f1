"""A comparison's rows -> what its report says: one JSON-able value that tables, figures and page are made from.

Works on a half-finished grid: what is missing is listed, and null wherever it would stand.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from paml.analysis import comparisons as statistics, fairness as gaps
from paml.analysis.comparisons import OverSeeds
from paml.analysis.format import method_label, variant_label
from paml.analysis.paper import beside_paper
from paml.analysis.tests import RESAMPLES
from paml.analysis.verdict import verdict
from paml.baselines.registry import BASELINES
from paml.errors import FormatError

FORMAT = 1
METRICS = {"rating": ["mse", "ndcg3", "ndcg5", "mae"], "click": ["nel", "auc"]}
PAPER_BASELINES = ("melu", "meta_sgd", "transfer")
COSTS = ("fit_seconds", "seconds_per_epoch", "users_per_second", "adapt_ms", "peak_mb", "refit_seconds")
BINS = 4
Table = dict[str, dict[str, OverSeeds]]
_KEYS = {"method": pl.String, "seed": pl.Int64, "user": pl.String, "group": pl.String}


def summarise_comparison(folder: Path, *, resamples: int = RESAMPLES) -> dict[str, Any]:
    """What `plan.json` and the Parquet files of a comparison's folder say; writes nothing.

    `cost` alone is of the machine and the hour; all else is the same whenever the comparison is made.
    `resamples` are the bootstrap's, for each interval.
    """
    plan = read_plan(folder)
    metrics = METRICS[plan["data"]["target"]]
    headline = metrics[0]
    entries = entries_of(plan)
    rows = _frame(folder / "rows.parquet", entries, plan["seeds"], metrics)
    scenarios = _frame(folder / "scenarios.parquet", entries, plan["seeds"], metrics)
    cost = _frame(folder / "cost.parquet", entries, plan["seeds"], [])
    names = [entry["name"] for entry in entries]
    missing = _missing(plan, names, [rows, cost], read_failures(folder))
    seeds = _comparable_seeds(plan["seeds"], names, missing)
    failed = {cell["method"] for cell in missing if "reason" in cell}
    rows, scenarios, cost = (
        frame.filter(pl.col("seed").is_in(seeds) & ~pl.col("method").is_in(failed)) for frame in (rows, scenarios, cost)
    )
    trained = [entry["name"] for entry in entries if entry["kind"] in ("method", "variant")]
    baselines = [entry["name"] for entry in entries if entry["kind"] == "baseline"]
    table = {metric: _over_seeds(rows, metric, names) for metric in metrics}
    baseline = _best(table[headline], headline, baselines)
    against = baselines or [name for name in trained if name in PAPER_BASELINES]
    found = {
        "format": FORMAT,
        "plan": plan,
        "missing": missing,
        "seeds": seeds,
        "metrics": metrics,
        "headline": headline,
        "entries": entries,
        "table": table,
        "best": {"baseline": baseline, "method": _best(table[headline], headline, trained)},
        "loses_to": {name: _losses(table[headline], name, baselines, headline) for name in trained},
        "improvements": {metric: _improvements(rows, table[metric], metric, trained) for metric in metrics},
        "paired": {
            metric: _paired(rows, _best(table[metric], metric, against), metric, trained, resamples)
            for metric in metrics
        },
        "groups": {name: _groups(rows, headline, name, baseline, name in trained, resamples) for name in names},
        "by_group": _by_group(rows, headline, names, plan.get("group_by")),
        "by_activity": {"bins": _by_activity(rows, headline, names)},
        "shots": _shots(scenarios, headline, names),
        "items": _items(scenarios, headline, names),
        "cost": _cost(cost, names),
    }
    results: dict[str, Any] = _plain(found)
    results["paper"] = beside_paper(results)
    results["verdict"] = verdict(results)
    return results


def read_plan(folder: Path) -> dict[str, Any]:
    """What was asked for."""
    path = folder / "plan.json"
    remedy = "a folder made by `paml compare` expected"
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror})", where=path, remedy=remedy) from None
    except ValueError:
        raise FormatError("is no JSON", where=path, remedy=remedy) from None
    if not isinstance(plan, dict) or plan.get("format") != FORMAT:
        raise FormatError(f"is not of format {FORMAT}", where=path, remedy="compare again with this version")
    lacking = [key for key in ("data", "seeds", "methods", "baselines") if key not in plan]
    if lacking or plan["data"].get("target") not in METRICS:
        raise FormatError(f"lacks {', '.join(lacking) or 'the kind of target'}", where=path, remedy=remedy)
    return {"settings": {}, "variants": {}, **plan}


def entries_of(plan: dict[str, Any]) -> list[dict[str, str]]:
    """The lines of the tables, in their order: baselines, references, methods, variants."""
    simple = []
    for name in plan["baselines"]:
        baseline = BASELINES.get(name)
        kind = "reference" if baseline is not None and baseline.reference else "baseline"
        simple.append({"name": name, "label": name if baseline is None else baseline.label, "kind": kind})
    methods = [{"name": name, "label": method_label(name), "kind": "method"} for name in plan["methods"]]
    variants = [
        {"name": name, "label": variant_label(name, variant["method"]), "kind": "variant"}
        for name, variant in (plan.get("variants") or {}).items()
    ]
    simple.sort(key=lambda entry: entry["kind"] == "reference")
    return [*simple, *methods, *variants]


def _frame(path: Path, entries: list[dict[str, str]], seeds: list[int], metrics: list[str]) -> pl.DataFrame:
    """The planned entries' rows in the order of the tables; no rows where there is no file yet."""
    frame = pl.read_parquet(path) if path.exists() else pl.DataFrame(schema=_KEYS)
    order = {entry["name"]: k for k, entry in enumerate(entries)}
    lacking = [pl.lit(None, pl.Float64).alias(metric) for metric in metrics if metric not in frame.columns]
    planned = frame.filter(pl.col("method").is_in(list(order)) & pl.col("seed").is_in(seeds)).with_columns(lacking)
    place = pl.col("method").replace_strict(order, default=None, return_dtype=pl.Int64)
    return planned.sort(place, "seed", maintain_order=True)


def read_failures(folder: Path) -> dict[tuple[str, int], str]:
    """Cells that could not be fitted, and why."""
    path = folder / "failures.json"
    if not path.exists():
        return {}
    return {(cell["method"], cell["seed"]): cell["reason"] for cell in json.loads(path.read_text(encoding="utf-8"))}


def _missing(
    plan: dict[str, Any], names: list[str], frames: list[pl.DataFrame], failures: dict[tuple[str, int], str]
) -> list[dict[str, Any]]:
    """Cells without rows and without a cost; a finished cell has a cost even if there is no test user."""
    finished = {pair for frame in frames for pair in frame.select("method", "seed").unique().iter_rows()}
    cells = [(name, seed) for name in names for seed in plan["seeds"] if (name, seed) not in finished]
    return [
        {"method": name, "seed": seed, **({"reason": failures[name, seed]} if (name, seed) in failures else {})}
        for name, seed in cells
    ]


def _comparable_seeds(seeds: list[int], names: list[str], missing: list[dict[str, Any]]) -> list[int]:
    """The seeds that all entries have, for every seed has other users; if there is none, the one that most have.

    An entry that failed with any seed is not waited for: it is left out of the comparison.
    """
    failed = {cell["method"] for cell in missing if "reason" in cell}
    waited_for = dict.fromkeys(seeds, 0)
    for cell in missing:
        if cell["method"] not in failed:
            waited_for[cell["seed"]] += 1
    complete = [seed for seed, count in waited_for.items() if not count]
    return complete or ([min(waited_for, key=lambda seed: waited_for[seed])] if seeds else [])


def _over_seeds(rows: pl.DataFrame, metric: str, names: list[str]) -> Table:
    found = statistics.over_seeds(rows, metric)
    nobody = dict.fromkeys(statistics.GROUPS, OverSeeds(None, None, 0, 0, 0, 0))
    return {name: found.get(name, nobody) for name in names}


def _means(rows: pl.DataFrame, metric: str, names: list[str]) -> dict[str, float | None]:
    """Means over seeds of means over users."""
    return {name: groups["all"].mean for name, groups in _over_seeds(rows, metric, names).items()}


def _best(table: Table, metric: str, among: list[str]) -> str | None:
    """The best of the entries that have a value at all; the first of equals."""
    sign = 1 if statistics.better(metric) == "lower" else -1
    known = {name: sign * mean for name in among if (mean := table[name]["all"].mean) is not None}
    return min(known, key=lambda name: known[name]) if known else None


def _losses(table: Table, name: str, baselines: list[str], metric: str) -> list[str]:
    """The baselines whose mean is better, the best first."""
    own = table[name]["all"].mean
    by_lead = {
        baseline: mean - own
        for baseline in baselines
        if own is not None and (mean := table[baseline]["all"].mean) is not None
    }
    sign = 1 if statistics.better(metric) == "lower" else -1
    ahead = [baseline for baseline, lead in by_lead.items() if statistics.improves(metric, lead)]
    return sorted(ahead, key=lambda baseline: sign * by_lead[baseline])


def _improvements(
    rows: pl.DataFrame, table: Table, metric: str, trained: list[str]
) -> dict[str, statistics.Improvement]:
    """The paper's test: against the best of the paper's baselines, which are methods here."""
    present = statistics.method_names(rows)
    reference = _best(table, metric, [name for name in trained if name in PAPER_BASELINES])
    others = [name for name in trained if name in present and name not in PAPER_BASELINES]
    return {} if reference is None else {n: statistics.improvement(rows, n, reference, metric) for n in others}


def _paired(
    rows: pl.DataFrame, reference: str | None, metric: str, trained: list[str], resamples: int
) -> list[statistics.Paired]:
    """Methods and variants against the baseline that is best by this metric (without baselines: the paper's own)."""
    if reference is None:
        return []
    family = rows.filter(pl.col("method").is_in([reference, *trained]))
    return statistics.paired_table(family, reference, metric, resamples=resamples)


def _groups(
    rows: pl.DataFrame, metric: str, name: str, baseline: str | None, against: bool, resamples: int
) -> dict[str, Any]:
    own = rows.filter(pl.col("method") == name)
    compared = against and baseline is not None and len(own)
    return {
        "test": statistics.groups_test(own, name, metric),
        "gap": gaps.gap(own, name, metric, resamples=resamples),
        "gap_against_baseline": gaps.gap_difference(rows, name, str(baseline), metric, resamples=resamples)
        if compared
        else None,
    }


def _by_group(rows: pl.DataFrame, metric: str, names: list[str], field: str | None) -> dict[str, Any] | None:
    """By a field of the users' profiles, which may have thousands of values; no value is a group of its own."""
    column = f"user.{field}"
    if field is None or column not in rows.columns:
        return None
    value = pl.col(metric).cast(pl.Float64)
    labelled = rows.select(
        "method", "seed", "user", label=pl.col(column).cast(pl.String).fill_null("unknown"), value=value
    )
    means = labelled.group_by("label", "method", "seed").agg(pl.col("value").filter(pl.col("value").is_finite()).mean())
    means = means.sort("seed").group_by("label", "method").agg(mean=pl.col("value").mean())
    users = labelled.group_by("label", "method").agg(users=pl.col("user").n_unique())
    values: dict[str, dict[str, Any]] = {}
    for row in means.join(users, on=["label", "method"]).sort("label").to_dicts():
        nobody = {name: {"mean": None, "users": 0} for name in names}
        values.setdefault(row["label"], nobody)[row["method"]] = {"mean": row["mean"], "users": row["users"]}
    return {"field": field, "values": values}


def _by_activity(rows: pl.DataFrame, metric: str, names: list[str]) -> list[dict[str, Any]]:
    """Users by their number of support rows: quartiles, fewer where many users have the same number."""
    if not len(rows):
        return []
    support_U = rows.select("seed", "user", "support_rows").unique()["support_rows"].to_numpy()
    inner = np.unique(np.quantile(support_U, np.arange(1, BINS) / BINS, method="inverted_cdf"))
    edges = [*(int(edge) for edge in inner if edge < support_U.max()), int(support_U.max())]
    bins = []
    below = -1
    for edge in edges:
        part = rows.filter((pl.col("support_rows") > below) & (pl.col("support_rows") <= edge))
        low, high = int(support_U[support_U > below].min()), int(support_U[support_U <= edge].max())
        label = str(low) if low == high else f"{low}-{high}"
        bins.append({"label": label, "users": part["user"].n_unique(), "means": _means(part, metric, names)})
        below = edge
    return bins


def _shots(scenarios: pl.DataFrame, metric: str, names: list[str]) -> dict[str, Any]:
    """By the number of ratings that are known, on the same query rows."""
    part = _scenario(scenarios, "shots")
    values = sorted(part["value"].unique().to_list(), key=lambda v: int(v) if v.isdigit() else math.inf)
    columns = [_means(part.filter(pl.col("value") == value), metric, names) for value in values]
    return {"values": values, "means": {name: [column[name] for column in columns] for name in names}}


def _items(scenarios: pl.DataFrame, metric: str, names: list[str]) -> dict[str, Any]:
    part = _scenario(scenarios, "items")
    kinds = {kind: part.filter(pl.col("value") == kind) for kind in ("warm", "cold")}
    means = {kind: _means(rows, metric, names) for kind, rows in kinds.items()}
    return {**means, "cold_users": kinds["cold"]["user"].n_unique()}


def _scenario(scenarios: pl.DataFrame, name: str) -> pl.DataFrame:
    if "scenario" not in scenarios.columns:
        return scenarios.clear().with_columns(value=pl.lit(None, pl.String))
    return scenarios.filter(pl.col("scenario") == name)


def _cost(cost: pl.DataFrame, names: list[str]) -> dict[str, dict[str, float | None]]:
    """Means over seeds."""
    columns = [name for name in COSTS if name in cost.columns]
    finite = [pl.col(name).cast(pl.Float64) for name in columns]
    means = cost.group_by("method").agg(column.filter(column.is_finite()).mean() for column in finite)
    found = {row["method"]: row for row in means.to_dicts()}
    return {name: {column: found.get(name, {}).get(column) for column in COSTS} for name in names}


def _plain(value: Any) -> Any:
    """As JSON knows it: no dataclasses, no tuples, and null for what is not finite."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
