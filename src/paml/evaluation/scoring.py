"""An ensemble and a split -> one row per user: id, group, rate, metrics, number of support and query rows.

Legend: B users, I items, U users of a split, N rows, Q query rows.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from paml.data.dataset import Dataset
from paml.data.schema import Target
from paml.episodes.batches import Loader, SupportBatch
from paml.episodes.tasks import Block, Known, Split, Tasks
from paml.evaluation import metrics
from paml.evaluation.item_facts import ItemFacts
from paml.evaluation.ranking import Lists, Rank
from paml.methods.learner import Ensemble

BATCH_USERS = 64
USERS_AT_ONCE = 4096
CHOICE_CELLS = 3 << 20  # outputs of users' choices that are held at once: more leave the cache, and take longer
CELLS_AT_ONCE = 1 << 22  # numbers of a layer's output that are held at once when all items are scored


def evaluate_ensemble(
    ensemble: Ensemble, data: Dataset, split: Split = "test", loader: Loader | None = None
) -> pl.DataFrame:
    """Adapt every user of a split on the stored support set and score the query set; the ensemble is not changed.

    Users are taken a few thousand at a time, so that memory does not grow with their number. To evaluate
    repeatedly, pass a `loader` of the same data.
    """
    if loader is None:
        loader = Loader(data, ensemble.inputs, next(ensemble.parameters()).device)
    return evaluate_tasks(ensemble, data, Tasks.of(data, split), loader)


def evaluate_tasks(ensemble: Ensemble, data: Dataset, tasks: Tasks, loader: Loader) -> pl.DataFrame:
    """The same for some users."""
    starts = range(0, max(len(tasks), 1), USERS_AT_ONCE)
    return pl.concat([_evaluate_some(ensemble, loader, data, tasks.part(start, USERS_AT_ONCE)) for start in starts])


def _evaluate_some(ensemble: Ensemble, loader: Loader, data: Dataset, tasks: Tasks) -> pl.DataFrame:
    return score_rows(data, tasks, *predict_rows(ensemble, loader, tasks))


@torch.no_grad()
def predict_rows(
    ensemble: Ensemble, loader: Loader, tasks: Tasks, shots: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Predictions for the users' rows, laid end to end (only query rows; 0 elsewhere), and each user's rate.

    Users are adapted on the stored support set, or on its first `shots` rows.
    """
    base = int(tasks.offsets[0])
    prediction_N = np.zeros(int(tasks.offsets[-1]) - base)
    rate_U = np.zeros(len(tasks))
    for task_batch in tasks.stored(BATCH_USERS, shots):
        batch = loader.load(task_batch)
        predicted_BQ, rate_B = ensemble.predict(batch)
        block = task_batch.query
        prediction_N[block.row_BL[block.mask_BL] - base] = predicted_BQ.numpy(force=True)[block.mask_BL]
        rate_U[batch.user_B - tasks.first] = rate_B.numpy(force=True)
    return prediction_N, rate_U


@torch.no_grad()
def choice_loss(ensemble: Ensemble, loader: Loader, tasks: Tasks) -> float | None:
    """The mean loss of users' choices among all items, over members, given the stored support sets; None without users.

    Items of the support set are no candidates.
    """
    items, total = loader.all_items(), 0.0
    tables = [(member, member.embed_all(*items)) for member in ensemble.members]
    users = max(1, min(BATCH_USERS, CHOICE_CELLS // max(len(items[1]), 1)))
    for batch in tasks.stored(users):
        known, query = loader.load_known(Known(batch.user_B, batch.support), items), loader.load_query(batch)
        losses = [member.loss(member.adapt(member.embed(known, table)), query) for member, table in tables]
        total += float(torch.stack(losses).mean(dim=0).sum())
    return total / len(tasks) if len(tasks) else None


class CatalogueScorer:
    """An ensemble's predictions for all items, in an unknown context; items are embedded once."""

    @torch.no_grad()
    def __init__(self, ensemble: Ensemble, loader: Loader) -> None:
        self.loader, self._members = loader, ensemble.members
        items, self._context = loader.all_items(), loader.unknown_context()
        self._items = len(items[1])
        self._tables = [member.embed_all(*items) for member in self._members]

    @torch.no_grad()
    def __call__(self, batch: SupportBatch) -> Tensor:
        """The mean of the members' predictions for a batch over all items, (B, I)."""
        total_BI = torch.zeros(1)
        for member, table in zip(self._members, self._tables, strict=True):
            adapted = member.adapt(member.embed(batch, table))
            width = max(table[1].width, batch.support.index_BR.shape[1], 1)
            step = max(CELLS_AT_ONCE // (batch.users.count * width), table[1].smallest_chunk, 1)
            chunks = [slice(start, start + step) for start in range(0, self._items, step)]
            outputs = (member.outputs_of_all(adapted, chunk, self._context) for chunk in chunks)
            total_BI = total_BI + torch.cat([member.head.predict(out_BRK).cpu() for out_BRK in outputs], dim=1)
        return self._members[0].head.finish(total_BI / len(self._tables))

    def rank(self, score: Callable[[SupportBatch], Tensor] | None = None) -> Rank:
        """Ranks users by these predictions or, given what is known about them, by another `score`."""
        by = self if score is None else score
        scores = scores_of_all(self.loader, lambda batch: {"": by(batch)})
        return lambda known: scores(known)[""]


def scores_of_all(
    loader: Loader, scores: Callable[[SupportBatch], Mapping[str, Tensor]]
) -> Callable[[Known], dict[str, Tensor]]:
    """From what is known about users to scores of all items, by name: a few users at a time."""

    @torch.no_grad()
    def of(known: Known) -> dict[str, Tensor]:
        items = loader.all_items()
        parts = [scores(loader.load_known(part, items)) for part in _parts(known)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    return of


def rank_with(ensemble: Ensemble, loader: Loader) -> Rank:
    """Ranks all items by an ensemble's predictions."""
    return CatalogueScorer(ensemble, loader).rank()


def _parts(known: Known) -> list[Known]:
    """A few users at a time, as in prediction."""
    user_B, row_BL, mask_BL = known.user_B, known.support.row_BL, known.support.mask_BL
    cuts = [slice(start, start + BATCH_USERS) for start in range(0, len(user_B), BATCH_USERS)]
    return [Known(user_B[cut], Block(row_BL[cut], mask_BL[cut])) for cut in cuts]


def user_rows(data: Dataset, tasks: Tasks) -> pl.DataFrame:
    """One row per user: id, group, number of support and query rows."""
    support_U = np.asarray(tasks.support, dtype=np.int64)
    users = data.users().slice(tasks.first, len(tasks)).select("user", "group").collect()
    return users.with_columns(
        pl.Series("support_rows", support_U), pl.Series("query_rows", np.diff(tasks.offsets) - support_U)
    )


def score_rows(data: Dataset, tasks: Tasks, prediction_N: np.ndarray, rate_U: np.ndarray) -> pl.DataFrame:
    """One row per user from predictions for all rows of some users (only those of query rows count)."""
    query_N, users = tasks.query_mask(), user_rows(data, tasks)
    target_Q = data.array("target")[int(tasks.offsets[0]) : int(tasks.offsets[-1])][query_N]
    count_U = users["query_rows"].to_numpy()
    columns = per_user_metrics(data.schema.target, target_Q, prediction_N[query_N], count_U)
    return users.select("user", "group", pl.Series("rate", rate_U), "support_rows", "query_rows").with_columns(
        pl.Series(name, values) for name, values in columns.items()
    )


def list_columns(kind: str, lists: Lists, items: ItemFacts, *, judged: bool = False) -> list[pl.Series]:
    """Every metric of lists, one value per user; `judged` leaves out those that only describe lists."""
    wanted = [metric for metric in metrics.list_metrics(kind) if not judged or metric.about != "contents"]
    return [pl.Series(metric.name, metric.compute(lists, items)) for metric in wanted]


def per_user_metrics(
    target: Target, target_Q: np.ndarray, prediction_Q: np.ndarray, count_U: np.ndarray
) -> dict[str, np.ndarray]:
    """Every metric of query rows for this target, each followed by its chance level where it has one."""
    columns: dict[str, np.ndarray] = {}
    for metric in metrics.row_metrics(target.kind):
        grade_Q = metrics.grades(target, target_Q) if metric.graded else target_Q
        columns[metric.name] = metric.compute(grade_Q, prediction_Q, count_U) if len(count_U) else np.zeros(0)
        if metric.chance is not None:
            columns[_chance(metric.name)] = metric.chance(grade_Q, count_U) if len(count_U) else np.zeros(0)
    return columns


def summarise(rows: pl.DataFrame) -> dict[str, Any]:
    """Means over users of `rows`, one row per user as `Run.evaluate` returns them.

    Metrics, learning rate and numbers of users for all, major and minor users; the p-value of the paper's t-test
    between the groups; and, for each metric, the number of users for whom it is undefined.

    >>> paml.summarise(run.evaluate())["mse"]["minor"]
    """
    known = [column for name in metrics.METRIC_REGISTRY.all() for column in (name, _chance(name))]
    names = [name for name in known if name in rows.columns and rows[name].null_count() < max(len(rows), 1)]
    groups = {"all": rows, **{group: rows.filter(pl.col("group") == group) for group in ("major", "minor")}}
    return {
        "users": {group: len(part) for group, part in groups.items()},
        **{name: {group: _mean(part[name]) for group, part in groups.items()} for name in names},
        "undefined": {name: int(rows[name].is_nan().sum()) for name in names},
        "p_value": _p_value(groups["major"][names[0]], groups["minor"][names[0]]) if names else None,
        "rate": {group: _mean(part["rate"]) for group, part in groups.items()},
    }


def _chance(name: str) -> str:
    """The column of a metric's chance level."""
    return f"{name}_chance"


def _mean(values: pl.Series) -> float | None:
    """Mean over the users for whom the metric is defined, None if there are none."""
    defined = values.drop_nulls().drop_nans()
    return float(defined.mean()) if len(defined) else None  # type: ignore[arg-type]


def _p_value(major: pl.Series, minor: pl.Series) -> float | None:
    """Two-tailed Student's t-test, as in the paper; None where a group has fewer than two users, or neither varies."""
    from scipy.stats import ttest_ind  # slow to import, and nothing else here needs it

    left, right = (part.drop_nans().to_numpy() for part in (major, minor))
    if min(len(left), len(right)) < 2 or (np.ptp(left) == 0 and np.ptp(right) == 0):
        return None
    return float(ttest_ind(left, right).pvalue)
