"""A trained run on a split: errors on query rows, and the lists that users would be shown."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from paml.data.dataset import Dataset
from paml.episodes.tasks import Split, Tasks
from paml.errors import SettingsError
from paml.evaluation.blinding import BlindedDataset
from paml.evaluation.item_facts import ItemFacts
from paml.evaluation.metrics import exposure_metrics
from paml.evaluation.ranking import Lists, rank_by_all, relevant_level
from paml.evaluation.scoring import list_columns, summarise
from paml.experiments.orders import orders_of
from paml.files import write_table
from paml.training.run import Run


def evaluate(
    run: str | Path | Run,
    data: Dataset | str | Path | None = None,
    split: Split = "test",
    *,
    liked: float | None = None,
) -> dict[str, Any]:
    """Adapt to every user of a split, score their query rows, rank all items; means over users (`paml.summarise`).

    `run` is a run or its folder, which gets `rows.parquet` with one row per user. `data` is the data set that it was
    trained on, needed only if that was moved; `split` is `test`, `validation` or `known` (training users who are
    asked about new items); `liked` is the lowest target of an item that belongs on a user's list (by default three
    quarters of the scale: 4 of 5).

    In the result, `ordered_by` is what lists are ordered by; for a run that knows about ratings and choice, `by` has
    the metrics of lists ordered by each.

    >>> paml.evaluate(run)["mse"]["all"], paml.evaluate(run)["ndcg10"]["all"]
    """
    run = run if isinstance(run, Run) else Run.load(run)
    opened = run.data(None if data is None else Dataset.of(data).path)
    level = relevant_level(opened.schema.target, liked)
    _check_split(opened, split)
    items = ItemFacts.of(opened)
    rows, lists = scored_rows(run, opened, split, items, level)
    usual = next(iter(lists))
    write_table(run.path / "rows.parquet", rows)
    settings = run.settings
    return {
        "run": str(run.path),
        "method": settings.method,
        "recipe": settings.recipe_name,
        "seed": settings.seed,
        "split": split,
        "fingerprint": settings.fingerprint,
        "liked": level,
        **summarise(rows),
        **_exposure(opened.schema.target.kind, rows["group"], lists[usual], items),
        "ordered_by": usual,
        "by": _by(opened.schema.target.kind, rows.select("user", "group", "rate"), lists, items),
    }


def _check_split(data: Dataset, split: str) -> None:
    """Raise a SettingsError if a split has no users: all means would be undefined."""
    filled = [name for name, (first, end) in data.manifest.splits.items() if end > first]
    if split not in filled:
        others = [name for name in filled if name != "train"]
        remedy = f"it has {', '.join(others)}" if others else "prepare it with another user_ratio"
        raise SettingsError(f"the data set has no '{split}' users", where=data.path, remedy=remedy, argument="split")


def scored_rows(
    run: Run, data: Dataset, split: Split, items: ItemFacts, liked: float | None = None
) -> tuple[pl.DataFrame, dict[str, Lists]]:
    """One row per user with all metrics, and the users' lists by all that they may be ordered by, the usual first.

    The ranker does not see the items of query rows.
    """
    rows = run.evaluate(data, split)
    lists = rank_by_all(data, Tasks.of(data, split), orders_of(run, BlindedDataset(data, "items")), None, liked)
    usual = next(iter(lists.values()))
    return rows.with_columns(list_columns(data.schema.target.kind, usual, items)), lists


def _by(kind: str, users: pl.DataFrame, lists: dict[str, Lists], items: ItemFacts) -> dict[str, dict[str, Any]]:
    """The metrics that judge lists, by what these are ordered by; empty where that is only one thing."""
    if len(lists) < 2:
        return {}
    columns = {name: list_columns(kind, found, items, judged=True) for name, found in lists.items()}
    means = {name: summarise(users.with_columns(found)) for name, found in columns.items()}
    return {name: {one.name: means[name][one.name] for one in found} for name, found in columns.items()}


def _exposure(kind: str, group: pl.Series, lists: Lists, items: ItemFacts) -> dict[str, dict[str, float | None]]:
    """What the lists of all, major and minor users hold together."""
    parts = {"all": lists, **{name: lists.of((group == name).to_numpy()) for name in ("major", "minor")}}
    found = {m.name: {who: m.compute(part, items) for who, part in parts.items()} for m in exposure_metrics(kind)}
    return {
        name: {who: value if np.isfinite(value) and len(parts[who]) else None for who, value in line.items()}
        for name, line in found.items()
    }
