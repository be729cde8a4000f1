"""The kept users' interactions in order of users, some users at a time: a log of any size is sorted in bounded memory.

The log is joined to users and items as a stream. Where it is large, its rows are dealt out to files, each for a range
of users, and then every file is sorted by itself: the users' order is that of the files.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from paml.data.protocol import Protocol
from paml.data.schema import DTYPES, without_invalid_values
from paml.data.sources import RawData
from paml.errors import SettingsError

PART_ROWS = 1 << 23
"""Rows that are sorted at once: what is held of them at the peak is some 100 bytes each."""
DEALT_ROWS = 1 << 21
"""Rows that are dealt out at once."""


@dataclass(frozen=True)
class Part:
    """The rows of the users from `first` up to `end`, in order."""

    first: int
    end: int
    rows: pl.DataFrame


def ordered_parts(
    raw: RawData, users: pl.DataFrame, items: pl.DataFrame, protocol: Protocol, work: Path, *, once: bool
) -> Iterator[Part]:
    """The kept users' interactions, keys replaced by row numbers, ordered by user with the support rows first.

    Each source row draws a random key; sorting by (user, key) is a total order, so the result does not depend on the
    order in which a parallel join returns rows. With `once`, only the last row of each (user, item) pair is kept.
    `work` is an empty folder for temporary files.
    """
    has_time = "time" in raw.interactions.collect_schema().names()
    if protocol.support_by == "time" and not has_time:
        raise SettingsError("support_by is 'time', but the interactions have no time", remedy="use support_by=random")
    total = raw.interactions.select(pl.len()).collect().item()
    keys = pl.Series("_key", np.random.default_rng([protocol.seed, 2]).random(total, dtype=np.float32))
    joined = _joined(raw, users, items, has_time=has_time)
    ends = part_ends(users["_rows"].to_numpy())
    parts = [joined.collect(engine="streaming")] if len(ends) == 1 else _dealt(joined, ends, work)
    first = 0
    for end, rows in zip(ends.tolist(), parts, strict=True):
        if once:
            rows = _last_of_pairs(rows, has_time=has_time)
        rows = rows.with_columns(keys.gather(rows["_source_row"]))
        by = ["user", "time", "_key"] if protocol.support_by == "time" else ["user", "_key"]
        yield Part(first, end, rows.sort([*by, "_source_row"]).drop("_source_row", "_key"))
        first = end


def part_ends(count_U: np.ndarray) -> np.ndarray:
    """Where the users of each part end: about `PART_ROWS` rows each, and no user in two of them."""
    last_U = np.cumsum(count_U) - 1  # each user's last row
    part_U = np.maximum(last_U, 0) // PART_ROWS
    ends: np.ndarray = np.append(np.flatnonzero(np.diff(part_U)) + 1, len(count_U))
    return ends


def _joined(raw: RawData, users: pl.DataFrame, items: pl.DataFrame, *, has_time: bool) -> pl.LazyFrame:
    """The rows of kept users in any order, with the numbers of user, item and source row."""
    context = [pl.col(field.name).cast(DTYPES[field.kind]) for field in raw.schema.context]
    user_rows = users.select("user").with_row_index("_user_row").lazy()
    item_rows = items.select("item").with_row_index("_item_row").lazy()
    return (
        raw.interactions.with_row_index("_source_row")
        .join(user_rows, on="user", how="inner")
        .join(item_rows, on="item", how="inner")
        .select(
            "_source_row",
            pl.col("_user_row").alias("user"),
            pl.col("_item_row").alias("item"),
            pl.col("target").cast(pl.Float32),
            *(["time"] if has_time else []),
            *(["_best"] if raw.best is not None else []),
            *context,
        )
        .with_columns(without_invalid_values(raw.schema.context))
    )


def _dealt(joined: pl.LazyFrame, ends: np.ndarray, work: Path) -> Iterator[pl.DataFrame]:
    """The rows of each range of users, in any order: dealt out to files first, which are removed when they are read."""
    whole = work / "joined.parquet"
    joined.sink_parquet(whole, compression="lz4", row_group_size=DEALT_ROWS)
    scanned = pl.scan_parquet(whole, glob=False)
    schema = scanned.collect_schema()
    for number, start in enumerate(range(0, scanned.select(pl.len()).collect().item(), DEALT_ROWS)):
        rows = scanned.slice(start, DEALT_ROWS).collect()
        part_N = np.searchsorted(ends, rows["user"].to_numpy(), side="right")
        marked = rows.with_columns(_part=pl.Series(part_N))
        for (part,), some in marked.partition_by("_part", as_dict=True, include_key=False).items():
            some.write_ipc(work / f"{part}-{number}.arrow", compression="lz4")
    whole.unlink()
    for part in range(len(ends)):
        files = sorted(work.glob(f"{part}-*.arrow"))
        yield pl.concat([_read(file) for file in files]) if files else schema.to_frame()
        for file in files:
            file.unlink()


def _read(file: Path) -> pl.DataFrame:
    """Of an open file, since a path may hold characters that Polars takes for a pattern."""
    with file.open("rb") as opened:
        return pl.read_ipc(opened)


def _last_of_pairs(rows: pl.DataFrame, *, has_time: bool) -> pl.DataFrame:
    """The last row of each (user, item) pair."""
    rows = rows.sort(["user", "item", *(["time"] if has_time else []), "_source_row"])
    new_user, new_item = (pl.col(name) != pl.col(name).shift(-1) for name in ("user", "item"))
    return rows.filter((new_user | new_item).fill_null(True))  # null in the last row
