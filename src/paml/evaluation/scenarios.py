"""One fitted entry of a comparison on the test users: all support ratings, few of them, known and new items.

Legend: N rows of the test users, Q their query rows, U users.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from paml.data.dataset import Dataset
from paml.episodes.tasks import Tasks
from paml.evaluation.blinding import require_untouched
from paml.evaluation.metrics import metrics_for
from paml.evaluation.scoring import per_user_metrics, score_rows

SHOTS = (0, 1, 3, 5, 10, 20)
SAMPLE = 20_000
"""Query rows whose predicted probabilities are kept, for calibration."""

Predict = Callable[[int | None], tuple[np.ndarray, np.ndarray | None]]
"""From a number of known support rows (None: all) to predictions for all rows and, for methods, each user's rate."""


@dataclass(frozen=True)
class Scores:
    """What an entry achieved with one seed."""

    rows: pl.DataFrame
    """One row per user."""
    scenarios: pl.DataFrame
    """One row per user, scenario and value."""
    predictions: pl.DataFrame | None
    """Clicks: a sample of labels and predicted probabilities."""
    pooled: pl.DataFrame | None
    """One row: the metrics that are also computed over the query rows of all users together, if there are any."""
    milliseconds: float | None
    """To adapt to one user and score the query rows; None for entries that cannot adapt."""


def score(data: Dataset, entry: str, predict: Predict, *, few: bool) -> Scores:
    """Score an entry on the test users; `few` also asks for the k-shot scenarios."""
    tasks = Tasks.of(data, "test")
    query_N = tasks.query_mask()
    started = time.perf_counter()
    prediction_N, rate_U = predict(None)
    seconds = time.perf_counter() - started
    require_untouched(prediction_N[query_N], entry)
    rate = np.zeros(len(tasks)) if rate_U is None else rate_U
    rows = score_rows(data, tasks, prediction_N, rate)
    if rate_U is None:
        rows = rows.with_columns(rate=pl.lit(None, dtype=pl.Float64))
    scenarios = [rows.with_columns(scenario=pl.lit("shots"), value=pl.lit("all"))]
    for shots in SHOTS if few else ():
        fewer_N, _ = predict(shots)
        require_untouched(fewer_N[query_N], f"{entry} with {shots} ratings")
        scored = score_rows(data, tasks, fewer_N, rate)
        scenarios.append(scored.with_columns(scenario=pl.lit("shots"), value=pl.lit(str(shots))))
    scenarios += _by_item(data, tasks, query_N, prediction_N)
    profile = data.users().slice(tasks.first, len(tasks)).collect()
    fields = [pl.Series(f"user.{field.name}", _as_text(profile[field.name])) for field in data.schema.features("user")]
    return Scores(
        rows.with_columns(fields),
        pl.concat([frame.drop("rate", "support_rows", strict=False) for frame in scenarios], how="diagonal"),
        _sample(data, tasks, query_N, prediction_N) if data.schema.target.kind == "click" else None,
        _pooled(data, tasks, query_N, prediction_N),
        1000 * seconds / max(len(tasks), 1),
    )


def _by_item(data: Dataset, tasks: Tasks, query_N: np.ndarray, prediction_N: np.ndarray) -> list[pl.DataFrame]:
    """The metrics on query rows of items that training users interacted with (warm) and did not (cold)."""
    rows = slice(int(tasks.offsets[0]), int(tasks.offsets[-1]))
    warm_N = data.interacted_in_training()[data.array("item")[rows]]
    user_N = np.repeat(np.arange(len(tasks)), np.diff(tasks.offsets))
    users = data.users().slice(tasks.first, len(tasks)).select("user", "group").collect()
    frames = []
    for value, chosen_N in (("warm", query_N & warm_N), ("cold", query_N & ~warm_N)):
        count_U = np.bincount(user_N[chosen_N], minlength=len(tasks))
        present = np.flatnonzero(count_U)
        target_Q = data.array("target")[rows][chosen_N]
        kind = data.schema.target.kind
        columns = per_user_metrics(kind, target_Q, prediction_N[chosen_N], count_U[present])
        frames.append(
            users[present].with_columns(
                pl.Series("query_rows", count_U[present]),
                *(pl.Series(name, values) for name, values in columns.items()),
                scenario=pl.lit("items"),
                value=pl.lit(value),
            )
        )
    return frames


def _sample(data: Dataset, tasks: Tasks, query_N: np.ndarray, prediction_N: np.ndarray) -> pl.DataFrame:
    label_Q = data.array("target")[int(tasks.offsets[0]) : int(tasks.offsets[-1])][query_N]
    chosen = np.random.default_rng(0).permutation(len(label_Q))[:SAMPLE]
    return pl.DataFrame({"label": label_Q[chosen].astype(np.int8), "p": prediction_N[query_N][chosen]})


def _pooled(data: Dataset, tasks: Tasks, query_N: np.ndarray, prediction_N: np.ndarray) -> pl.DataFrame | None:
    wanted = [metric for metric in metrics_for(data.schema.target.kind) if metric.pooled is not None]
    target_N = data.array("target")[int(tasks.offsets[0]) : int(tasks.offsets[-1])]
    values = {metric.name: [metric.over_all_rows(target_N[query_N], prediction_N[query_N])] for metric in wanted}
    return pl.DataFrame(values, schema=dict.fromkeys(values, pl.Float64)) if values else None


def _as_text(column: pl.Series) -> pl.Series:
    return column.list.join("|") if isinstance(column.dtype, pl.List) else column.cast(pl.String)
