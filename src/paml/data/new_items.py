"""Items that are new: held out of training, so that predictions for them rest on their contents alone.

Rows of training and validation users on new items are taken out. Those of some training users come back as the query
rows of a further split, `known`: the same users, with the rows that training saw as support set. So there are results
for new users (test) and known ones, on items that training users interacted with and on new ones.

Legend: U users, I items, N rows.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from paml.data.protocol import Protocol
from paml.data.sources import RawData
from paml.data.time_split import seconds
from paml.errors import DataError


@dataclass(frozen=True)
class Split:
    """Users in order of their splits, their rows in the same order, support rows first, and where each split ends."""

    users: pl.DataFrame
    rows: pl.DataFrame
    ends: np.ndarray
    known_support_U: np.ndarray
    """Support rows of the known users, who are the last."""


def new_items(raw: RawData, items: pl.DataFrame, protocol: Protocol) -> np.ndarray:
    """Which items are new, (I): a random share of those with interactions, or those that first appear later."""
    first = pl.col("time").cast(pl.Float64).min() if protocol.new_items == "time" else pl.lit(0.0)
    found = raw.interactions.group_by("item").agg(_first=first).collect(engine="streaming")
    first_I = items.select("item").join(found, on="item", how="left", maintain_order="left")["_first"]
    used_I = first_I.is_not_null().to_numpy()
    if protocol.new_items == "time":
        assert protocol.validation_from is not None  # the split by time has set it
        return used_I & (first_I.fill_null(0).to_numpy() >= seconds(protocol.validation_from))
    is_new_I = np.zeros(len(items), dtype=bool)
    used = np.flatnonzero(used_I)
    count = round(float(protocol.new_items) * len(used))
    is_new_I[np.random.default_rng([protocol.seed, 3]).choice(used, count, replace=False)] = True
    return is_new_I


def hold_out(users: pl.DataFrame, rows: pl.DataFrame, ends: np.ndarray, is_new_I: np.ndarray, seed: int) -> Split:
    """Take new items out of training and validation, and add as many known users as there are test users, at most."""
    user_N, count = rows["user"].to_numpy(), len(users)
    held_N = is_new_I[rows["item"].to_numpy()] & (user_N < ends[1])
    kept_U = np.bincount(user_N[~held_N], minlength=count)
    stays_U = kept_U >= 2
    if not stays_U[: ends[0]].any():
        raise DataError("no training users are left without the new items", remedy="choose a smaller new_items")
    asked_U = np.bincount(user_N[held_N], minlength=count)[: ends[0]] > 0
    candidates = np.flatnonzero(asked_U & stays_U[: ends[0]])
    tested = int(np.count_nonzero(stays_U[ends[1] :]))
    known = np.sort(np.random.default_rng([seed, 4]).permutation(candidates)[:tested])
    order = np.concatenate([np.flatnonzero(stays_U), known])
    ends = np.array([*(np.count_nonzero(stays_U[:end]) for end in ends), len(order)])
    place_U = np.full(count, -1)
    place_U[order[: ends[2]]] = np.arange(ends[2])
    known_U = np.full(count, -1)
    known_U[known] = ends[2] + np.arange(len(known))
    marked = rows.with_columns(_held=pl.Series(held_N))
    kept = _of_users(marked, place_U).filter(~pl.col("_held"))
    again = _of_users(marked, known_U).sort("user", "_held", maintain_order=True)
    split_rows = pl.concat([kept, again]).drop("_held")
    sizes = np.bincount(split_rows["user"].to_numpy(), minlength=len(order))
    split_users = users[order].with_columns(_rows=pl.Series(sizes).cast(users["_rows"].dtype))
    return Split(split_users, split_rows, ends, kept_U[known])


def _of_users(rows: pl.DataFrame, place_U: np.ndarray) -> pl.DataFrame:
    """The rows of users with a new place (not -1), which replaces the old one."""
    place_N = place_U[rows["user"].to_numpy()]
    there = np.flatnonzero(place_N >= 0)
    return rows[there].with_columns(user=pl.Series(place_N[there]).cast(rows["user"].dtype))
