"""The paper's evaluation protocol (Sec. 5 "Experimental Setup" and Sec. D.1), one function per rule.

The rules on users take a table with one row per user (columns `user`, `_log`, `_rows`, `_positives`,
`_without_profile`, `_training_only` and the profile) and return the users they keep and how many they drop. Randomness
is an argument.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import polars as pl
from pydantic import BeforeValidator, Field as Described, PlainSerializer

from paml.data.schema import Field, Kind
from paml.settings import Settings, added

SPLITS = ("train", "validation", "test")
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
    support_share: float = Described(0.8, gt=0, lt=1, description="share of a user's rows in the support set")
    support_rounding: Literal["nearest", "down"] = added(
        "nearest", "round the number of support rows to the nearest whole number, or down"
    )
    support_by: Literal["random", "time"] = Described(
        "random", description="random rows as support set, or the user's earliest rows (time)"
    )
    common_share: float = Described(
        0.3, gt=0, le=1, description="share of a field's values, the most frequent ones, that count as common"
    )
    major_above: int = Described(2, ge=0, description="a user with more common values than this is a major user")


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
