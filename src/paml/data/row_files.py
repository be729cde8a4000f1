"""The interactions of a data set on disk, written some users at a time: the table, and the arrays of all rows.

Legend: U users, N rows of a part.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from paml.data.protocol import Protocol, support_counts
from paml.data.row_order import Part
from paml.data.time_split import support_in_days

GROUP_ROWS = 1 << 20
"""Rows of a Parquet file that are read together."""


@dataclass(frozen=True)
class Wanted:
    """What decides how rows are written."""

    protocol: Protocol
    offsets: np.ndarray
    """First row of each user, and the end."""
    known_support_U: np.ndarray
    """Support rows of known users, who are the last; those of others follow from the protocol."""
    test: tuple[int, int] | None
    """The test users, if rows have a lowest reachable loss, `_best`, whose mean over them is wanted."""


@dataclass
class WrittenRows:
    """What was found while rows were written."""

    support_U: np.ndarray
    best_U: list[np.ndarray] = field(default_factory=list)
    """Of test users: the mean over query rows of the lowest reachable loss."""

    def best(self) -> float | None:
        """The mean over test users of the lowest reachable loss."""
        return float(np.mean(np.concatenate(self.best_U))) if self.best_U else None


def write_rows(parts: Iterable[Part], wanted: Wanted, folder: Path, work: Path) -> WrittenRows:
    """Write `interactions.parquet`, and the arrays `item` and `target`; `work` is a folder for temporary files."""
    count, users = int(wanted.offsets[-1]), len(wanted.offsets) - 1
    written = WrittenRows(np.zeros(users, dtype=np.int64))
    files: list[Path] = []
    arrays = folder / "arrays"
    arrays.mkdir()
    with (arrays / "item.npy").open("wb") as item, (arrays / "target.npy").open("wb") as target:
        _write_header(item, np.dtype(np.int32), count)
        _write_header(target, np.dtype(np.float32), count)
        for part in parts:
            rows = _finished(part, wanted, written)
            item.write(np.ascontiguousarray(rows["item"].cast(pl.Int32).to_numpy()).data)
            target.write(np.ascontiguousarray(rows["target"].to_numpy()).data)
            if part.end - part.first == users:
                rows.write_parquet(folder / "interactions.parquet", row_group_size=GROUP_ROWS)
            else:
                files.append(work / f"rows-{len(files):05}.parquet")
                rows.write_parquet(files[-1], compression="lz4")
    if files:
        pl.scan_parquet(files, glob=False).sink_parquet(folder / "interactions.parquet", row_group_size=GROUP_ROWS)
        for file in files:
            file.unlink()
    return written


def _write_header(file: BinaryIO, dtype: np.dtype, count: int) -> None:
    """What NumPy writes before the numbers of an array."""
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, described)


def _finished(part: Part, wanted: Wanted, written: WrittenRows) -> pl.DataFrame:
    """A part's rows as they are written, with `query`."""
    offsets = wanted.offsets[part.first : part.end + 1] - wanted.offsets[part.first]
    assert len(part.rows) == offsets[-1]
    support_U = _support(part.rows, offsets, wanted.protocol)
    known = len(written.support_U) - len(wanted.known_support_U)
    if part.end > known:
        support_U[max(known - part.first, 0) :] = wanted.known_support_U[max(part.first - known, 0) :]
    written.support_U[part.first : part.end] = support_U
    count_U = np.diff(offsets)
    place_N = np.arange(offsets[-1]) - np.repeat(offsets[:-1], count_U)
    rows = part.rows.with_columns(query=pl.Series(place_N >= np.repeat(support_U, count_U)))
    if "_best" not in rows.columns:
        return rows
    if wanted.test is not None and part.end > wanted.test[0] and part.first < wanted.test[1]:
        written.best_U.append(_best_of_users(rows, *wanted.test))
    return rows.drop("_best")


def _support(rows: pl.DataFrame, offsets: np.ndarray, protocol: Protocol) -> np.ndarray:
    """Support rows of each user: a share, the first ones, or those of the first days; at least one, and not all."""
    count_U = np.diff(offsets)
    if protocol.support_first is not None:
        support_U = np.full(len(count_U), protocol.support_first)
    elif protocol.support_days is not None:
        support_U = support_in_days(rows["time"].cast(pl.Float64).to_numpy(), offsets, protocol.support_days)
    else:
        return support_counts(count_U, protocol.support_share, protocol.support_rounding)
    limited_U: np.ndarray = np.clip(support_U, 1, count_U - 1).astype(np.int64)
    return limited_U


def _best_of_users(rows: pl.DataFrame, first: int, end: int) -> np.ndarray:
    """The lowest reachable loss on the query rows of some users: each user's mean."""
    query = rows.lazy().filter(pl.col("user").is_between(first, end - 1) & pl.col("query"))
    best = query.group_by("user").agg(pl.col("_best").cast(pl.Float64).mean()).sort("user").select("_best").collect()
    return best["_best"].to_numpy()


class TrainingRows:
    """The rows of training users, which come first, in the files that `write_rows` wrote."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count = folder, count

    def array(self, name: str) -> np.ndarray:
        """Their part of `item` or `target`, mapped into memory."""
        values: np.ndarray = np.load(self._folder / "arrays" / f"{name}.npy", mmap_mode="r")[: self._count]
        return values

    def interacted(self, items: int) -> np.ndarray:
        """Which items they interacted with, by item row."""
        interacted_I, item_N = np.zeros(items, dtype=bool), self.array("item")
        for start in range(0, self._count, GROUP_ROWS):
            interacted_I[item_N[start : start + GROUP_ROWS]] = True
        return interacted_I

    def context(self, name: str) -> tuple[pl.Series, pl.Series]:
        """A field of all interactions, and its part in training."""
        column = pl.scan_parquet(self._folder / "interactions.parquet", glob=False).select(name).collect()[name]
        return column, column[: self._count]
