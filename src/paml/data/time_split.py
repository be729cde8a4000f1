"""Users split by time, as a service meets them: who first appears after a date is new, and is predicted from the past.

Training users are those who appeared before `validation_from`, with what they did before it; validation users appeared
from then on until `test_from`, with what they did before that; test users appeared later. Nothing that happened later
than that enters vocabularies, popularity, target encodings or weights.
"""

import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import polars as pl

from paml.data.protocol import SPLITS, Kept, Protocol
from paml.data.sources import RawData
from paml.errors import DataError, SettingsError

DAY = 86_400.0  # seconds
EARLIEST, LATEST = 0.0, 1e11  # numbers between these are written as dates; others are whatever the source counts


class TimeSplit(NamedTuple):
    """The log as it was known on the dates, and who is new on which."""

    raw: RawData
    users: pl.DataFrame
    """`user`, and the number of its split, `_split`."""
    protocol: Protocol
    """With the dates."""


def split_by_time(raw: RawData, protocol: Protocol) -> TimeSplit:
    """Cut the log at the dates of the protocol; those that are not given follow from `user_ratio`.

    Choices are made anew of the events that are left.
    """
    users, protocol = _new_users(raw, protocol)
    assert protocol.validation_from is not None and protocol.test_from is not None, "found by now"  # noqa: PT018
    validation_from, test_from = seconds(protocol.validation_from), seconds(protocol.test_from)
    time, ends = pl.col("time").cast(pl.Float64), pl.Series([validation_from, test_from, math.inf])
    wanted = time < pl.lit(ends).gather(pl.col("_split"))
    if protocol.new_items == "time":  # what training users did with new items is asked about later
        wanted |= (pl.col("_split") == 0) & (time.min().over("item") >= validation_from)
    # rows keep their order, to which seeds refer
    log = raw.interactions if raw.events is None else raw.events.rows
    cut = log.join(users.lazy(), on="user", how="inner", maintain_order="left").filter(wanted)
    known, schema, notes = cut.drop("_split"), raw.schema, raw.notes
    if raw.events is not None:
        training = cut.filter((pl.col("_split") == 0) & (time < validation_from)).drop("_split")
        choices = raw.events.choices_of(known, training)
        known, schema = choices.frame, schema.model_copy(update={"target": choices.target})
        notes = (*notes, f"up to these dates, {choices.note}")
    note = (
        f"split by time: validation users appear from {protocol.validation_from}, test users from {protocol.test_from}"
    )
    return TimeSplit(replace(raw, schema=schema, interactions=known, notes=(*notes, note)), users, protocol)


def dated(raw: RawData, protocol: Protocol) -> Protocol:
    """The protocol with its dates."""
    return _new_users(raw, protocol)[1]


def _new_users(raw: RawData, protocol: Protocol) -> tuple[pl.DataFrame, Protocol]:
    """`user` and `_split` of all users, and the protocol with the dates."""
    if "time" not in raw.interactions.collect_schema().names():
        remedy = "name the column of time in the schema, or use split=random"
        raise SettingsError("split is 'time', but the interactions have no time", remedy=remedy)
    log = raw.interactions if raw.events is None else raw.events.counting
    first = log.group_by("user").agg(_first=pl.col("time").cast(pl.Float64).min())
    users = first.sort("user").collect(engine="streaming")
    validation_from, test_from = _dates(users["_first"].to_numpy(), protocol)
    if not validation_from <= test_from:
        remedy = "validation users appear before test users"
        raise SettingsError(f"test_from, {shown(test_from)}, is before {shown(validation_from)}", remedy=remedy)
    code = (pl.col("_first") >= validation_from).cast(pl.Int8) + (pl.col("_first") >= test_from).cast(pl.Int8)
    users = users.select("user", _split=code)
    counts = np.bincount(users["_split"].to_numpy(), minlength=len(SPLITS))
    if not counts[0]:
        raise DataError(f"nobody appeared before {shown(validation_from)}", remedy="choose a later validation_from")
    return users, protocol.model_copy(update={"validation_from": shown(validation_from), "test_from": shown(test_from)})


def without_active_new_users(users: pl.DataFrame) -> Kept:
    """Drop validation and test users whose log data are those of active users: they cannot train, they come later."""
    kept = users.filter(~pl.col("_training_only") | (pl.col("_split") == 0))
    return Kept(kept, len(users) - len(kept))


def _dates(first_U: np.ndarray, protocol: Protocol) -> tuple[float, float]:
    """The two dates in seconds, or in whatever unit the source counts time."""
    share = np.cumsum(protocol.user_ratio) / np.sum(protocol.user_ratio)
    given = protocol.validation_from, protocol.test_from
    found = [
        seconds(date) if date is not None else _quantile(first_U, one) for date, one in zip(given, share, strict=False)
    ]
    return found[0], found[1]


def _quantile(first_U: np.ndarray, share: float) -> float:
    """When this share of the users has appeared; whoever appears at that very moment is new."""
    in_order = np.sort(first_U)
    return (
        float(in_order[min(round(share * len(in_order)), len(in_order) - 1)])
        if share < 1
        else math.floor(in_order[-1]) + 1.0
    )


def seconds(date: str) -> float:
    """A date in ISO form, or a number as the source has it."""
    try:
        return float(date)
    except ValueError:
        found = datetime.fromisoformat(date)  # the protocol has checked it
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def shown(seconds: float) -> str:
    """A time for people, which can be given again: a date to the second, or the number itself."""
    if EARLIEST < seconds < LATEST and seconds == int(seconds):
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S+00:00")
    return repr(seconds)


def support_in_days(time_N: np.ndarray, offset_U: np.ndarray, days: float) -> np.ndarray:
    """Rows of each user within so many days of the first one; rows are in order of time."""
    count_U = np.diff(offset_U)
    first_N = np.repeat(time_N[offset_U[:-1]], count_U)
    inside_N = time_N < first_N + days * DAY
    support_U: np.ndarray = np.add.reduceat(inside_N.astype(np.int64), offset_U[:-1])
    return support_U
