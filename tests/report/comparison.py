"""A comparison's folder made by hand: simulated rows whose truth is known. Legend: U users."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from paml.analysis.plan import DataFacts, Plan, in_order, write_plan
from paml.analysis.results import Results
from paml.analysis.summarise import summarise_comparison
from paml.experiments.plan import choose_entries, metric_facts, pooled_facts, with_facts

QUICK = 30  # resamples where the interval is not what is tested
METHODS = ["melu", "paml", "reg_paml"]
VARIANTS = ("reg_paml gamma=0.01", "reg_paml gamma=1e-05")
BASELINES = {"rating": ["training_mean", "item_mean", "bias"], "click": ["constant_rate", "user_rate", "logistic"]}
REFERENCE = "retrained_mf"
ONLY_PREDICTS = ("training_mean", "constant_rate")  # all other entries also rank
SHOTS = ["0", "1", "3", "5", "10", "20", "all"]
TRUTH = {  # how far an entry's errors lie above those of the best baseline
    "training_mean": 0.4,
    "item_mean": 0.2,
    "bias": 0.0,
    "constant_rate": 0.4,
    "user_rate": 0.2,
    "logistic": 0.0,
    "retrained_mf": -0.4,
    "melu": 0.1,
    "paml": 0.0,
    "reg_paml": -0.2,
    "reg_paml gamma=0.01": -0.1,
    "reg_paml gamma=1e-05": 0.3,
    "reg_paml outer_rate=5e-4": 0.3,
    "at_paml": 0.05,
    "at_paml outer_rate=5e-4": 0.5,
    "paml outer_rate=5e-5": -0.05,
    "reg_paml head=classes": 0.15,
    "ridge": -0.3,
    "paml rate_scale=0.3": 0.0,
}


def write_comparison(
    folder: Path,
    *,
    target: Literal["rating", "click"] = "rating",
    source: str = "ml-1m",
    methods: Sequence[str] = METHODS,
    variants: Sequence[str] = VARIANTS,
    baselines: Sequence[str] | None = None,
    seeds: tuple[int, ...] = (0, 1),
    users: int = 60,
    minor: float = 1 / 3,
    gap: float = 0.3,
    effect: float = 1.0,
    noise: float = 0.1,
    undefined: float = 0.0,
    unfinished: tuple[tuple[str, int], ...] = (),
    group_by: str | None = "age",
    recipe: str = "tuned",
    seed: int = 0,
) -> Path:
    """A folder as `paml compare` leaves it, without its report.

    `effect` scales TRUTH (0: all entries are equal), `gap` is how much worse minor users fare, `undefined` the share of
    users without a ranking metric, `unfinished` the cells that are missing.
    """
    rng = np.random.default_rng(seed)
    references = [REFERENCE] if target == "rating" else []
    baselines = [*BASELINES[target], *references] if baselines is None else baselines
    people = _people(rng, users, minor, undefined)
    hard_U = rng.gamma(4, 0.2, users) + gap * (people["group"] == "minor").to_numpy()
    rows, shots, items, cost, pooled = [], [], [], [], []
    for name in [*baselines, *methods, *variants]:
        for run in seeds:
            if (name, run) in unfinished:
                continue
            error_U = np.abs(hard_U + effect * TRUTH[name] + noise * rng.normal(size=users)) + 0.01
            keys = [pl.lit(name).alias("method"), pl.lit(run, pl.Int64).alias("seed")]
            cell = people.select(*keys, pl.all())
            rows.append(_scored(cell, error_U, target, rng).with_columns(_rate(name, people, name in baselines)))
            for k, value in enumerate(SHOTS):
                more = 0.1 * (len(SHOTS) - 1 - k) * (1.0 if name in methods else 0.5)
                shots.append(_scored(_under(cell, "shots", value), error_U + more, target, rng))
            if name in methods and target == "rating":
                shots += _by_orders(cell, error_U, target)
            items.append(_scored(_under(cell, "items", "warm"), error_U, target, rng))
            cold = np.arange(users) < users // 4
            items.append(_scored(_under(cell.filter(cold), "items", "cold"), error_U[cold] + 0.2, target, rng))
            cost.append(_cost(name, run, name in baselines))
            pooled.append(_pooled(name, run, 1 / (1 + error_U.sum() / max(users, 1)), target))
    folder.mkdir(parents=True, exist_ok=True)
    entries = choose_entries(target, recipe, methods, baselines, variants)
    plan = Plan(
        created_by="paml 0",
        data=DataFacts(
            path="data",
            fingerprint="0" * 16,
            source=source,
            target=target,
            users=10 * users,
            items=80,
            interactions=400 * users,
        ),
        recipe=recipe,
        recipe_digest="",
        settings={},
        gamma=1e-3,
        seeds=seeds,
        same_split=True,
        group_by=group_by,
        liked=4.0 if target == "rating" else 1.0,
        entries=in_order([with_facts(entry, recipe, {}, source, target) for entry in entries]),
        metrics=metric_facts(target),
        pooled=pooled_facts(target),
    )
    write_plan(folder, plan)
    (folder / "pooled.parquet").unlink(missing_ok=True)  # of an earlier comparison in the same folder
    if rows:
        pl.concat(rows).write_parquet(folder / "rows.parquet")
        pl.concat([*shots, *items], how="diagonal").drop("support_rows", "user.age").write_parquet(
            folder / "scenarios.parquet"
        )
        pl.DataFrame(cost, infer_schema_length=None).write_parquet(folder / "cost.parquet")
    if rows and users:
        pl.DataFrame(pooled, infer_schema_length=None).write_parquet(folder / "pooled.parquet")
    return folder


_MADE: dict[str, Results] = {}


def summarised(folder: Path, **wishes: Any) -> Results:
    """The results of such a comparison, made once; `folder` is used if it is the first."""
    key = repr(sorted(wishes.items()))
    if key not in _MADE:
        _MADE[key] = summarise_comparison(write_comparison(folder, **wishes), resamples=QUICK)
    return _MADE[key]


def _rate(name: str, people: pl.DataFrame, baseline: bool) -> pl.Expr | pl.Series:
    """None for baselines, 0.01 for MeLU's users; personal ones are about 0.2 for major and 0.3 for minor users."""
    if baseline or name == "melu":
        return pl.lit(None if baseline else 0.01, pl.Float64).alias("rate")
    noise_U = np.random.default_rng(len(name)).uniform(-0.05, 0.05, len(people))
    return pl.Series("rate", np.where(people["group"] == "minor", 0.3, 0.2) + noise_U)


def _people(rng: np.random.Generator, users: int, minor: float, undefined: float) -> pl.DataFrame:
    names = [f"u{k:04}" for k in range(users)]
    groups = ["minor" if k < round(minor * users) else "major" for k in range(users)]
    return pl.DataFrame(
        {
            "user": pl.Series(names, dtype=pl.String),
            "group": pl.Series(groups, dtype=pl.String),
            "support_rows": rng.integers(2, 60, users),
            "query_rows": rng.integers(1, 12, users),
            "user.age": pl.Series([str(18 + 7 * (k % 3)) for k in range(users)], dtype=pl.String),
            "ranked": np.arange(users) >= round(undefined * users),
        }
    )


def _under(cell: pl.DataFrame, scenario: str, value: str) -> pl.DataFrame:
    return cell.with_columns(scenario=pl.lit(scenario), value=pl.lit(value))


def _by_orders(cell: pl.DataFrame, error_U: np.ndarray, target: str) -> list[pl.DataFrame]:
    """Lists by choice are a little worse than usual, and those by rating much worse."""
    frames, rng = [], np.random.default_rng(0)
    for order, worse in (("choice", 0.1), ("rating", 1.0)):
        for k, known in enumerate(SHOTS):
            more = worse + 0.1 * (len(SHOTS) - 1 - k)
            found = _scored(_under(cell, "by", order), error_U + more, target, rng)
            frames.append(found.with_columns(known=pl.lit(known)))
    return frames


def _scored(cell: pl.DataFrame, error_U: np.ndarray, target: str, rng: np.random.Generator) -> pl.DataFrame:
    """The metrics of users with such errors; NaN where there is nothing to rank."""
    chance_U = np.full(len(error_U), 0.6)
    good_U = np.where(cell["ranked"].to_numpy(), 1 / (1 + error_U), np.nan)
    if target == "click":
        columns = {"auc": good_U, "nel": error_U / 10}
    else:
        rank = {"ndcg3": good_U, "ndcg3_chance": chance_U, "ndcg5": good_U + 0.02, "ndcg5_chance": chance_U}
        columns = {"mse": error_U, "mae": np.sqrt(error_U) * rng.uniform(0.8, 0.9, len(error_U)), **rank}
    lists = {"ndcg10": good_U / 2, "recall20": good_U / 3, "hit10": good_U > 0.5, "mrr": good_U / 4, "liked10": good_U}
    held = {"popularity": good_U / 5, "novelty": 3 - good_U, "diversity": 1 - good_U / 2}
    ranks = ~pl.col("method").is_in(ONLY_PREDICTS)
    return cell.drop("ranked").with_columns(
        *(pl.Series(name, values) for name, values in columns.items()),
        *(pl.when(ranks).then(pl.Series(values).cast(pl.Float64)).alias(k) for k, values in (lists | held).items()),
    )


def _pooled(name: str, seed: int, good: float, target: str) -> dict[str, Any]:
    """Metrics over all users together."""
    ranks = name not in ONLY_PREDICTS
    rows = {"auc": good} if target == "click" else {}
    return {
        "method": name,
        "seed": seed,
        **rows,
        "coverage": good / 3 if ranks else None,
        "gini": 1 - good / 3 if ranks else None,
    }


def _cost(name: str, seed: int, baseline: bool) -> dict[str, Any]:
    return {
        "method": name,
        "seed": seed,
        "fit_seconds": 0.5 if baseline else 40.0 + seed,
        "seconds_per_epoch": None if baseline else 2.0,
        "users_per_second": None if baseline else 800.0,
        "adapt_ms": 0.02 if baseline else 1.5,
        "rank_ms": None if name in ONLY_PREDICTS else 2.5,
        "peak_mb": 700.0,
        "refit_seconds": 3.0 if name == REFERENCE else None,
    }
