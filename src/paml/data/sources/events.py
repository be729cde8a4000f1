"""Events as choices: every row says that somebody viewed, played or bought something, and no row says the opposite.

Each event has a weight: that of its type, a number in a column, both multiplied, or 1. The weights of all events of a
user with an item are added up, and the total becomes the strength of one choice:

    strength  =  1 + floor(log2(total / base)),  between 1 and 5

`base` is the smallest weight of an event type, or a low weight of the column (its lowest decile, so that a few tiny
numbers do not make all other choices equally strong). Methods learn what each strength counts, so only the order of
totals and their orders of magnitude matter. Ratings can be taken as choices, too: those of a threshold and above.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import polars as pl
from pydantic import Field as Described

from paml.data.readers.delimited import Column
from paml.data.schema import Target
from paml.errors import DataError
from paml.settings import Settings

MAX_STRENGTH = 5
LOW_WEIGHT = 0.1
"""The quantile of a column of weights that is the base of strengths."""
EVENT, WEIGHT = "_event", "_weight"


class EventsEntry(Settings):
    """Which column says what happened, in `[interactions]` of a schema file."""

    target: str | None = Described(None, description="column with the rating or the click; not needed for choices")
    threshold: float | None = Described(None, description="choices: ratings of at least this much are taken as choices")
    event: str | None = Described(None, description="choices: column with the type of the event")
    weights: dict[str, Annotated[float, Described(ge=0)]] = Described(
        {}, description="choices: what an event of each type counts; 0 leaves the type out"
    )
    weight: str | None = Described(None, description="choices: column with a number that the event counts")
    minimum: float | None = Described(None, gt=0, description="choices: pairs with a smaller total are left out")


@dataclass(frozen=True)
class Choices:
    """One row per user and item: `target` is the strength of the choice, `time` that of the first event."""

    frame: pl.LazyFrame
    target: Target
    note: str


@dataclass(frozen=True)
class Events:
    """A log of events: choices are made of all its rows or, where it is cut at dates, of those that were known."""

    rows: pl.LazyFrame
    entry: EventsEntry
    workdir: Path
    file: str
    """What errors call the log."""

    @property
    def counting(self) -> pl.LazyFrame:
        """The events that count as choices."""
        return _weighted(self.rows, self.entry)

    def choices(self) -> Choices:
        """Choices of all events."""
        return self._added_up(self.rows, self.rows, "choices.parquet")

    def choices_of(self, rows: pl.LazyFrame, training: pl.LazyFrame) -> Choices:
        """Choices of some events; what a strength of 1 is follows from those of training users."""
        return self._added_up(rows, training, "choices-cut.parquet")

    def _added_up(self, rows: pl.LazyFrame, training: pl.LazyFrame, name: str) -> Choices:
        """Add up the events of each user and item, into a file in the folder for temporary files."""
        entry, place = self.entry, _place(rows)
        total = rows.select(pl.len()).collect(engine="streaming").item()
        if entry.event is not None:
            _require_weights(rows, entry.weights, self.file)
        base = _base(_weighted(_last(training, entry), entry), entry)
        if base is None:
            raise DataError("has no choices", where=self.file, remedy="lower the threshold, or check the weights")
        target = self.workdir / name
        pairs = _pairs(_weighted(_last(rows, entry), entry), place)
        if entry.minimum is not None:
            pairs = pairs.filter(pl.col(WEIGHT) >= entry.minimum * (1 - 1e-9))
        strength = ((pl.col(WEIGHT) / base).log(2) + 1e-9).floor() + 1
        pairs = pairs.with_columns(target=strength.clip(1, MAX_STRENGTH)).drop(WEIGHT)
        # in a fixed order, whatever the order in which groups are found: seeds refer to it
        pairs.sort(place).collect(engine="streaming").write_parquet(target, compression="lz4")
        frame = pl.scan_parquet(target, glob=False)
        count, high = frame.select(pl.len(), pl.col("target").max()).collect().row(0)
        if not count:
            raise DataError("has no choices", where=self.file, remedy="lower the minimum")
        note = f"{total:,} rows became {count:,} choices, one for each user and item, of strengths 1 to {high:g}"
        return Choices(frame, Target(kind="choice", high=high), note)


def check_events(log: EventsEntry, target: Target, where: str) -> None:
    """Raise DataError unless the keys of `[interactions]` fit the target."""
    if target.kind != "choice":
        if log.target is None:
            raise DataError("setting 'interactions.target' is missing", where=where, remedy="add it")
        for name in ("threshold", "event", "weights", "weight", "minimum"):
            if getattr(log, name) not in (None, {}):
                remedy = 'remove it, or write kind = "choice" in [target]'
                raise DataError(
                    f"'interactions.{name}' does not fit a {target.kind} target", where=where, remedy=remedy
                )
        return
    if {"low", "high", "step"} & target.model_fields_set:
        raise DataError("a choice target has no scale", where=where, remedy="remove low, high and step from [target]")
    pairs = (("target", "threshold", "ratings from which on"), ("event", "weights", "a weight for each type of event"))
    for one, other, meaning in pairs:
        if (getattr(log, one) is None) != (getattr(log, other) in (None, {})):
            remedy = f"give both '{one}' and '{other}' ({meaning}), or neither"
            raise DataError(f"'interactions.{one}' and '{other}' belong together", where=where, remedy=remedy)
    if log.target is not None and (log.event is not None or log.weight is not None):
        remedy = "remove 'target' and 'threshold', or 'event' and 'weight'"
        raise DataError("ratings and events are both given", where=where, remedy=remedy)
    if log.weights and not any(log.weights.values()):
        raise DataError("all event types have the weight 0", where=where, remedy="give one of them a larger one")


def event_columns(log: EventsEntry) -> dict[str, Column]:
    """The columns of a log of choices beside user, item and time."""
    columns = {}
    if log.target is not None:
        columns["target"] = Column(log.target, pl.Float64(), required=True)
    if log.event is not None:
        columns[EVENT] = Column(log.event, pl.String(), required=True)
    if log.weight is not None:
        columns[WEIGHT] = Column(log.weight, pl.Float64(), required=True, low=0.0)
    return columns


def _place(rows: pl.LazyFrame) -> str:
    """The column that says where a row stands in the log."""
    names = rows.collect_schema().names()
    return next(name for name in ("_line", "_row") if name in names)


def _last(rows: pl.LazyFrame, entry: EventsEntry) -> pl.LazyFrame:
    """Of several ratings of an item by a user the last one counts, as for ratings; of events, all do."""
    if entry.threshold is None:
        return rows
    last = ["time"] if "time" in rows.collect_schema().names() else []
    return rows.sort([*last, _place(rows)]).unique(["user", "item"], keep="last")


def _weighted(rows: pl.LazyFrame, entry: EventsEntry) -> pl.LazyFrame:
    """The rows that count, with what each counts."""
    if entry.threshold is not None:
        rows = rows.filter(pl.col("target") >= entry.threshold).drop("target")
    return rows.with_columns(_weights(entry).alias(WEIGHT)).filter(pl.col(WEIGHT) > 0)


def _require_weights(rows: pl.LazyFrame, weights: Mapping[str, float], file: str) -> None:
    """Raise DataError if there are events of a type without a weight."""
    unknown = rows.filter(~pl.col(EVENT).is_in(list(weights))).group_by(EVENT).len()
    counts = unknown.sort("len", EVENT, descending=[True, False]).collect()
    if len(counts):
        name, number = counts.row(0)
        others = f" (and {len(counts) - 1} more types)" if len(counts) > 1 else ""
        remedy = f"add it to 'weights', with 0 to leave such rows out; there are {', '.join(weights)}"
        raise DataError(f"event '{name}', {number:,} rows, has no weight{others}", where=file, remedy=remedy)


def _weights(log: EventsEntry) -> pl.Expr:
    """What each row counts."""
    weight = pl.lit(1.0)
    if log.event is not None:
        weight = pl.col(EVENT).replace_strict(dict(log.weights), return_dtype=pl.Float64)
    return weight if log.weight is None else weight * pl.col(WEIGHT)


def _base(rows: pl.LazyFrame, log: EventsEntry) -> float | None:
    """The weight of a choice of strength 1; None without rows."""
    weight = pl.col(WEIGHT)
    low = weight.min() if log.weight is None else weight.quantile(LOW_WEIGHT, "lower")
    found: float | None = rows.select(low).collect(engine="streaming").item()
    return found


def _pairs(rows: pl.LazyFrame, place: str) -> pl.LazyFrame:
    """One row for each user and item: the sum of weights, and everything else of the first event."""
    names = [name for name in rows.collect_schema().names() if name not in ("user", "item", WEIGHT, EVENT)]
    first = "time" if "time" in names else place
    context = [name for name in names if name not in ("time", place)]
    return rows.group_by("user", "item").agg(
        pl.col(WEIGHT).sum(),
        pl.col(list({first, place})).min(),
        *(pl.col(name).sort_by(first, place).first() for name in context),
    )
