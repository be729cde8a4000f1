"""The paper's evaluation protocol (Sec. 5 "Experimental Setup" and Sec. D.1), one function per rule.

The rules on users take a table with one row per user (columns `user`, `_log`, `_rows`, `_positives`,
`_without_profile`, `_training_only` and the profile) and return the users they keep and how many they drop. Randomness
is an argument.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Self

import numpy as np
import polars as pl
from pydantic import BeforeValidator, Field as Described, PlainSerializer, model_validator

from paml.data.schema import Field, Kind
from paml.settings import Settings, added

SPLITS = ("train", "validation", "test")
KNOWN = "known"
"""A further split, if there are new items: training users, who are asked about these."""
TOLERANCE = 1e-9  # so that ceil(0.3 * 10) is 3 and floor(0.8 * 5) is 4 despite rounding of the product


def _parse_ratio(value: Any) -> Any:
    """`"7:1:2"` -> three weights."""
    parts = value.split(":") if isinstance(value, str) else value
    try:
        weights = tuple(float(part) for part in parts)
    except (TypeError, ValueError):
        weights = ()
    if len(weights) != 3 or min(weights) < 0 or weights[0] <= 0 or not all(map(math.isfinite, weights)):
        raise ValueError("three weights train:validation:test such as 7:1:2, the first above 0")
    return weights


Ratio = Annotated[
    tuple[float, float, float],
    BeforeValidator(_parse_ratio),
    PlainSerializer(lambda weights: ":".join(f"{weight:g}" for weight in weights)),
]


def _check_date(value: Any) -> Any:
    """An ISO date with or without a time, or a number as the source counts time."""
    if value is None or value == "":
        return None
    text = str(value)
    try:
        return text if math.isfinite(float(text)) else _no_date()
    except ValueError:
        pass
    try:
        datetime.fromisoformat(text)
    except ValueError:
        _no_date()
    return text


def _no_date() -> NoReturn:
    raise ValueError("a date such as 2026-11-17, or a number as the source counts time")


def _check_new_items(value: Any) -> Any:
    """`time`, or a share of the items."""
    try:
        share = 0.0 if value == "time" else float(value)
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share < 1:
        raise ValueError("a share of the items, from 0 to below 1, or 'time'")
    return value if value == "time" else f"{share:g}"


NewItems = Annotated[str, BeforeValidator(_check_new_items)]
Date = Annotated[str | None, BeforeValidator(_check_date)]


class Protocol(Settings):
    """How users are chosen and split; the defaults are the paper's, except for what `min_counts` is on clicks.

    With `min_counts=rows` the choice of users does not depend on any target. The paper's rule for clicks
    (`min_counts=clicks`, Sec. D.1 step 3) counts the clicks of query rows, too: a user with fewer than
    `min_interactions` clicks among the support rows is then certain to have one among the query rows.
    """

    seed: int = Described(0, ge=0, description="seed of the user split and of the support/query split")
    cold_share: float = Described(0.8, gt=0, le=1, description="share of users to keep, those with the least log data")
    cold_rule: Literal["first", "last"] = added(
        "first", "choose those users before the other rules on users (first), or among the users these keep (last)"
    )
    active_users: Literal["drop", "train"] = added(
        "drop",
        "the other users, those with the most log data: drop them, or let them train (neither validate nor test)",
    )
    drop_invalid_profiles: bool = Described(True, description="drop users with a blank or invalid profile value")
    min_interactions: int = Described(2, ge=2, description="drop users with fewer rows, or clicks (see min_counts)")
    min_counts: Literal["rows", "clicks"] = added(
        "rows", "what min_interactions counts: rows, or clicks (the paper's rule, which reads query labels)"
    )
    user_ratio: Ratio = Described((7.0, 1.0, 2.0), description="users in train:validation:test")
    split: Literal["random", "time"] = added(
        "random", "random users validate and test, or those who first appear after a date (time)"
    )
    validation_from: Date = added(
        None, "split=time: whoever first appears from then on is no training user; by default as user_ratio says"
    )
    test_from: Date = added(None, "split=time: whoever first appears from then on is a test user")
    support_share: float = Described(0.8, gt=0, lt=1, description="share of a user's rows in the support set")
    support_rounding: Literal["nearest", "down"] = added(
        "nearest", "round the number of support rows to the nearest whole number, or down"
    )
    support_by: Literal["random", "time"] = Described(
        "random", description="random rows as support set, or the user's earliest rows (time)"
    )
    support_first: int | None = added(
        None, "a user's first rows in time, this many, are the support set, instead of support_share", ge=1
    )
    support_days: float | None = added(
        None, "a user's rows of this many days, from the first one on, are the support set", gt=0
    )
    new_items: NewItems = added(
        "0", "share of items that are held out of training, or 'time': those that first appear from validation_from on"
    )
    common_share: float = Described(
        0.3, gt=0, le=1, description="share of a field's values, the most frequent ones, that count as common"
    )
    major_above: int = Described(2, ge=0, description="a user with more common values than this is a major user")

    @property
    def can_be_split_again(self) -> bool:
        """Whether a prepared data set holds what another split needs."""
        return self.split == "random" and self.new_items == "0"

    @model_validator(mode="before")
    @classmethod
    def _later_rows_are_queries(cls, values: Any) -> Any:
        """What is about time takes the support set by time."""
        timely = isinstance(values, Mapping) and (
            values.get("split") == "time"
            or any(values.get(key) is not None for key in ("support_first", "support_days"))
        )
        return {"support_by": "time", **values} if timely else values

    @model_validator(mode="after")
    def _time_fits(self) -> Self:
        if self.split != "time" and (self.validation_from or self.test_from):
            raise ValueError("validation_from and test_from with split=time only")
        if self.new_items == "time" and self.split != "time":
            raise ValueError("new_items=time with split=time only")
        if self.support_first is not None and self.support_days is not None:
            raise ValueError("support_first or support_days, not both")
        timely = self.split == "time" or self.support_first is not None or self.support_days is not None
        if timely and self.support_by != "time":
            raise ValueError("support_by=time with split=time, support_first or support_days")
        return self


class Kept(NamedTuple):
    """The users a rule kept, and how many it dropped."""

    users: pl.DataFrame
    dropped: int


def with_interactions(users: pl.DataFrame) -> Kept:
    """Drop users without any interaction: they have no log data to be ranked by."""
    kept = users.filter(pl.col("_log") > 0)
    return Kept(kept, len(users) - len(kept))


def cold_users(users: pl.DataFrame, share: float) -> Kept:
    """Keep the `share` of users with the least log data; ties are broken by the table's order (step 1)."""
    cold = _is_cold(users, share)
    return Kept(users.filter(pl.Series(cold)), int(np.count_nonzero(~cold)))


def active_users_train(users: pl.DataFrame, share: float) -> Kept:
    """Keep all users; those whom `cold_users` would drop are marked as `_training_only`."""
    return Kept(users.with_columns(_training_only=pl.Series(~_is_cold(users, share))), 0)


def _is_cold(users: pl.DataFrame, share: float) -> np.ndarray:
    """Whether a user is among the `share` with the least log data, (U)."""
    cold_U = np.zeros(len(users), dtype=bool)
    cold_U[np.argsort(users["_log"].to_numpy(), kind="stable")[: math.floor(share * len(users) + TOLERANCE)]] = True
    return cold_U


def valid_profiles(users: pl.DataFrame, fields: Sequence[Field]) -> Kept:
    """Drop users with a blank or invalid value in any profile field (step 3): age 5 or 300, a garbled location.

    Users without any profile (`_without_profile`) are kept: all their fields are "unknown".
    """
    if not fields:
        return Kept(users, 0)
    kept = users.filter(pl.all_horizontal(field.is_valid() for field in fields) | pl.col("_without_profile"))
    return Kept(kept, len(users) - len(kept))


def enough_interactions(users: pl.DataFrame, minimum: int, counts: Literal["rows", "clicks"]) -> Kept:
    """Drop users with fewer than `minimum` rows, or clicked items; everyone keeps at least two rows (step 3).

    Two rows are the minimum for one support row and one query row.
    """
    enough = pl.col("_positives" if counts == "clicks" else "_rows") >= minimum
    kept = users.filter(enough & (pl.col("_rows") >= 2))
    return Kept(kept, len(users) - len(kept))


def split_users(count: int, ratio: Sequence[float], seed: int) -> np.ndarray:
    """Random split code (0 train, 1 validation, 2 test) per user; each share is exact to within one user (step 2)."""
    bounds = np.rint(np.cumsum(ratio) / np.sum(ratio) * count).astype(np.int64)
    codes = np.searchsorted(bounds, np.arange(count), side="right").astype(np.int8)
    return np.random.default_rng([seed, 1]).permutation(codes)


def split_cold_users(training_only_U: np.ndarray, ratio: Sequence[float], seed: int) -> np.ndarray:
    """`split_users` of the cold users; the active ones, if they were kept, are in training."""
    codes_U = np.zeros(len(training_only_U), dtype=np.int8)
    codes_U[~training_only_U] = split_users(int(np.count_nonzero(~training_only_U)), ratio, seed)
    return codes_U


def support_counts(rows: np.ndarray, share: float, rounding: Literal["nearest", "down"] = "nearest") -> np.ndarray:
    """Support rows per user: `share` of the rows, rounded, at least one support and one query row (step 4)."""
    half = 0.5 if rounding == "nearest" else 0.0
    return np.clip(np.floor(share * rows + half + TOLERANCE), 1, rows - 1).astype(np.int64)


class Groups(NamedTuple):
    """The paper's Tab. 1: per profile field, which values are common and the share of users who have one."""

    common: dict[str, list[str]]
    shares: dict[str, float]


def common_values(users: pl.DataFrame, fields: Sequence[Field], share: float) -> Groups:
    """The most common `share` of each field's valid values, rounded up (half of them if there are only two).

    Counted over all users of the source: this reproduces the paper's Tab. 1 on MovieLens-1M, and comes close to its
    share of major users on Book-Crossing (if invalid ages were counted, nearly every age would be common).
    """
    common, shares = {}, {}
    for field in fields:
        if field.kind is Kind.MULTI:
            continue
        column = users.filter(field.is_valid())[field.name].cast(pl.String).alias("value")
        counts = column.drop_nulls().value_counts(name="n").sort(["n", "value"], descending=[True, False])
        top = 1 if len(counts) == 2 else math.ceil(share * len(counts) - TOLERANCE)
        common[field.name] = counts["value"].head(top).to_list()
        shares[field.name] = float(counts["n"].head(top).sum()) / max(len(users), 1)
    return Groups(common, shares)


def is_major(users: pl.DataFrame, common: Mapping[str, Sequence[str]], above: int) -> np.ndarray:
    """Major users have more than `above` common values (Sec. 5, "Major and minor users separating")."""
    hits = np.zeros(len(users), dtype=np.int64)
    for name, values in common.items():
        known = pl.Series(list(values), dtype=pl.String)
        hits += users[name].cast(pl.String).is_in(known.implode()).fill_null(False).to_numpy()
    return hits > above
