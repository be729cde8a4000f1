"""One fitted entry of a comparison on the test users: all support ratings, few of them, known and new items.

An entry predicts, ranks all items, or does both; the metrics of what it does not do are null. One whose lists may be
ordered by several things is judged by all of them. Legend: N rows of the
test users, Q their query rows, U users.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import Tensor

from paml.data.dataset import Dataset
from paml.episodes.tasks import Known, Tasks
from paml.errors import TrainingError
from paml.evaluation.blinding import require_untouched
from paml.evaluation.item_facts import ItemFacts
from paml.evaluation.metrics import exposure_metrics, list_metrics, row_metrics
from paml.evaluation.ranking import Lists, Orders, rank_by_all
from paml.evaluation.scoring import list_columns, per_user_metrics, score_rows, user_rows

SHOTS = (0, 1, 3, 5, 10, 20)
BY = "by"
"""The scenario of lists that are ordered by something else than usual."""
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
    """One row: the metrics that are computed over the rows, or the lists, of all users together, if there are any."""
    milliseconds: float | None
    """To adapt to one user and score the query rows; None for entries that cannot adapt."""
    rank_milliseconds: float | None
    """To adapt to one user and rank all items; None for entries that cannot rank."""


@dataclass(frozen=True)
class _Entry:
    """An entry on the test users, with any number of known ratings."""

    data: Dataset
    name: str
    predict: Predict | None
    orders: Orders | None
    liked: float | None
    tasks: Tasks
    items: ItemFacts | None

    def predictions(self, shots: int | None) -> tuple[np.ndarray, np.ndarray | None] | None:
        """For all rows, and each user's rate."""
        if self.predict is None:
            return None
        prediction_N, rate_U = self.predict(shots)
        known = "" if shots is None else f" with {shots} ratings"
        require_untouched(prediction_N[self.tasks.query_mask()], f"{self.name}{known}")
        return prediction_N, rate_U

    def lists(self, shots: int | None, whole: dict[str, Lists] | None = None) -> dict[str, Lists]:
        """What each user would be shown, by what it is ordered by; the usual first. `whole`: with all ratings known."""
        if self.orders is None:
            return {}
        return rank_by_all(self.data, self.tasks, _checked(self.orders, self.name), shots, self.liked, whole)

    def rows(self, predicted: tuple[np.ndarray, np.ndarray | None] | None, lists: Lists | None) -> pl.DataFrame:
        """One row per user; null for what the entry does not do."""
        target, nothing = self.data.schema.target, pl.lit(None, pl.Float64)
        if predicted is None:
            names = per_user_metrics(target, np.zeros(0), np.zeros(0), np.zeros(0))
            base = user_rows(self.data, self.tasks)
            rows = base.select("user", "group", nothing.alias("rate"), "support_rows", "query_rows")
            rows = rows.with_columns(nothing.alias(name) for name in names)
        else:
            prediction_N, rate_U = predicted
            rate = np.zeros(len(self.tasks)) if rate_U is None else rate_U
            rows = score_rows(self.data, self.tasks, prediction_N, rate)
            rows = rows.with_columns(rate=nothing) if rate_U is None else rows
        if lists is None or self.items is None:
            return rows.with_columns(nothing.alias(metric.name) for metric in list_metrics(target.kind))
        return rows.with_columns(list_columns(target.kind, lists, self.items))

    def further(self, lists: dict[str, Lists], shots: int | None) -> list[pl.DataFrame]:
        """Rows by each further thing that lists may be ordered by: scenario `by`, and how many ratings are known."""
        kind, items = self.data.schema.target.kind, self.items
        frames = []
        for order, found in list(lists.items())[1:]:
            assert items is not None  # as there are lists
            rows = user_rows(self.data, self.tasks).with_columns(list_columns(kind, found, items, judged=True))
            frames.append(_marked(rows, BY, order).with_columns(known=pl.lit(_number(shots))))
        return frames


def score(
    data: Dataset,
    entry: str,
    predict: Predict | None,
    *,
    few: bool,
    orders: Orders | None = None,
    liked: float | None = None,
    predict_known: Callable[[], np.ndarray] | None = None,
    rate_U: np.ndarray | None = None,
) -> Scores:
    """Score an entry on the test users; `few` also asks for the k-shot scenarios.

    `predict` is None for an entry that only ranks, `orders` for one that only predicts; `liked` is the lowest target of
    a relevant item (by default `ranking.liked_level`); `rate_U` are the rates of one that only ranks. `predict_known`
    predicts the rows of known users, who are asked about new items, if the data set has any.
    """
    tasks = Tasks.of(data, "test")
    one = _Entry(data, entry, predict, orders, liked, tasks, None if orders is None else ItemFacts.of(data))
    started = time.perf_counter()
    predicted = one.predictions(None)
    seconds = time.perf_counter() - started
    started = time.perf_counter()
    whole = one.lists(None)
    rank_seconds = time.perf_counter() - started
    lists = _usual(whole)
    rows = one.rows(predicted, lists)
    if rate_U is not None:
        rows = rows.with_columns(rate=pl.Series(rate_U))
    scenarios = [_marked(rows, "shots", _number(None)), *one.further(whole, None)]
    for shots in SHOTS if few else ():
        by = one.lists(shots, whole)
        scenarios.append(_marked(one.rows(one.predictions(shots), _usual(by)), "shots", _number(shots)))
        scenarios += one.further(by, shots)
    query_N, prediction_N = tasks.query_mask(), None if predicted is None else predicted[0]
    scenarios += [] if prediction_N is None else _by_item(data, tasks, query_N, prediction_N)
    known = Tasks.of(data, "known")
    if predict_known is not None and len(known):
        known_N = predict_known()
        require_untouched(known_N[known.query_mask()], f"{entry} for known users")
        scenarios.append(_marked(score_rows(data, known, known_N, np.zeros(len(known))), "items", "known"))
    clicks = data.schema.target.kind == "click" and prediction_N is not None
    return Scores(
        rows.with_columns(_profile(data, tasks)),
        pl.concat([frame.drop("rate", "support_rows", strict=False) for frame in scenarios], how="diagonal"),
        _sample(data, tasks, query_N, prediction_N) if clicks and prediction_N is not None else None,
        _pooled(one, query_N, prediction_N, lists),
        None if predict is None else 1000 * seconds / max(len(tasks), 1),
        None if orders is None else 1000 * rank_seconds / max(len(tasks), 1),
    )


def _usual(lists: dict[str, Lists]) -> Lists | None:
    """The lists as users would be shown them."""
    return next(iter(lists.values()), None)


def _number(shots: int | None) -> str:
    return "all" if shots is None else str(shots)


def _checked(orders: Orders, entry: str) -> Orders:
    """The same, refusing scores that are not numbers: the entry diverged, or it read what it must not know."""

    def checked(known: Known) -> Mapping[str, Tensor]:
        scores = orders.scores(known)
        if any(torch.isnan(score_BI).any() for score_BI in scores.values()):
            raise TrainingError(
                f"scores of '{entry}' are not numbers: it diverged, or it read what it must not know",
                remedy="lower its learning rates; if that does not help, report a bug",
            )
        return scores

    return Orders(orders.names, checked)


def _marked(rows: pl.DataFrame, scenario: str, value: str) -> pl.DataFrame:
    return rows.with_columns(scenario=pl.lit(scenario), value=pl.lit(value))


def _profile(data: Dataset, tasks: Tasks) -> list[pl.Series]:
    """The users' profiles as text."""
    profile = data.users().slice(tasks.first, len(tasks)).collect()
    return [pl.Series(f"user.{field.name}", _as_text(profile[field.name])) for field in data.schema.features("user")]


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
        columns = per_user_metrics(data.schema.target, target_Q, prediction_N[chosen_N], count_U[present])
        counted = users[present].with_columns(
            pl.Series("query_rows", count_U[present]), *(pl.Series(name, found) for name, found in columns.items())
        )
        frames.append(_marked(counted, "items", value))
    return frames


def _sample(data: Dataset, tasks: Tasks, query_N: np.ndarray, prediction_N: np.ndarray) -> pl.DataFrame:
    label_Q = data.array("target")[int(tasks.offsets[0]) : int(tasks.offsets[-1])][query_N]
    chosen = np.random.default_rng(0).permutation(len(label_Q))[:SAMPLE]
    return pl.DataFrame({"label": label_Q[chosen].astype(np.int8), "p": prediction_N[query_N][chosen]})


def _pooled(
    one: _Entry, query_N: np.ndarray, prediction_N: np.ndarray | None, lists: Lists | None
) -> pl.DataFrame | None:
    """The metrics over all users together: of the rows' predictions, and of the lists."""
    kind, values = one.data.schema.target.kind, {}
    if prediction_N is not None:
        target_Q = one.data.array("target")[int(one.tasks.offsets[0]) : int(one.tasks.offsets[-1])][query_N]
        wanted = [metric for metric in row_metrics(kind) if metric.pooled is not None]
        values = {metric.name: [metric.over_all_rows(target_Q, prediction_N[query_N])] for metric in wanted}
    if lists is not None and one.items is not None:
        values |= {metric.name: [metric.compute(lists, one.items)] for metric in exposure_metrics(kind)}
    return pl.DataFrame(values, schema=dict.fromkeys(values, pl.Float64)) if values else None


def _as_text(column: pl.Series) -> pl.Series:
    return column.list.join("|") if isinstance(column.dtype, pl.List) else column.cast(pl.String)
