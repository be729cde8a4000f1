"""Whether a prepared data set is what was written: every file by its digest, every array by its shape and range.

Digests show changes by accident. Somebody who forges the manifest as well can make any data set, but none that reads
beyond its arrays: lengths are compared with the files before anything is allocated, and codes with what they point to.
"""

import os
import tokenize
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from paml.data.protocol import KNOWN, SPLITS
from paml.data.schema import SIDES, Kind, Schema
from paml.errors import FormatError
from paml.files import check_all_listed, open_regular

if TYPE_CHECKING:
    from paml.data.dataset import Dataset

PREPARE_AGAIN = "prepare the data set again"
TABLES = ("users", "items", "interactions")
BASIC: Mapping[str, type[np.generic]] = {
    "offsets": np.int64,
    "support": np.int32,
    "major": np.bool_,
    "item": np.int32,
    "target": np.float32,
}
"""The arrays of every data set, and their types."""
_UNREADABLE = (ValueError, EOFError, SyntaxError, TypeError, tokenize.TokenError, OverflowError, RecursionError)


def array_types(schema: Schema) -> dict[str, np.dtype]:
    """The names and types of all arrays of a data set with this schema."""
    types = {name: np.dtype(kind) for name, kind in BASIC.items()}
    for side in SIDES:
        for field in schema.features(side):  # type: ignore[arg-type]
            name = f"{side}.{field.name}"
            types[name] = np.dtype(np.float32 if field.kind is Kind.NUMERIC else np.int32)
            if field.kind is Kind.MULTI:
                types[f"{name}.offsets"] = np.dtype(np.int64)
    return types


def file_names(schema: Schema) -> set[str]:
    """The files of a data set with this schema, beside the manifest."""
    arrays = {f"arrays/{name}.npy" for name in array_types(schema)}
    return {*arrays, *(f"{table}.parquet" for table in TABLES), "vocabulary.json"}


def map_array(path: Path, dtype: np.dtype, mode: Literal["r", "c"] = "r") -> np.ndarray:
    """Map a flat array into memory; its header must state this type, and exactly as many numbers as are there."""
    with open_regular(path, PREPARE_AGAIN) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            np.lib.format.read_magic(file)
            shape, fortran, found = np.lib.format.read_array_header_1_0(file)
        except _UNREADABLE as error:
            what = f"is damaged ({str(error).partition(chr(10))[0][:100]})"
            raise FormatError(what, where=path, remedy=PREPARE_AGAIN) from None
        start = file.tell()
        if found != dtype or fortran or len(shape) != 1 or start + shape[0] * dtype.itemsize != size:
            what = f"is damaged (it is not a list of {dtype.name} numbers that fills the file)"
            raise FormatError(what, where=path, remedy=PREPARE_AGAIN)
        if not shape[0]:
            return np.zeros(0, dtype=dtype)  # nothing to map
        return np.memmap(file, dtype=dtype, mode=mode, offset=start, shape=shape)


def verify(data: "Dataset") -> None:
    """Read every file, and compare it with its digest; then check that all arrays fit each other."""
    manifest = data.manifest
    check_all_listed(data.path, manifest.files, PREPARE_AGAIN)
    users, items, rows = manifest.users, manifest.items, manifest.interactions
    counts = dict(zip(TABLES, (users, items, rows), strict=True))
    for table, count in counts.items():
        frame: pl.LazyFrame = getattr(data, table)()
        _require(frame.select(pl.len()).collect().item() == count, data.path / f"{table}.parquet", "its number of rows")
    ends = [0, *(end for _, end in manifest.splits.values())]
    starts = [first for first, _ in manifest.splits.values()]
    named = list(manifest.splits) in ([*SPLITS], [*SPLITS, KNOWN])
    in_order = named and starts == ends[:-1] and ends == sorted(ends)
    _require(in_order and ends[-1] == users, data.path / "manifest.json", "its splits")
    _require_offsets(data, "offsets", users, rows)
    count_U = np.diff(data.array("offsets"))
    support_U = data.array("support")
    _require(
        len(support_U) == users and bool(((support_U >= 0) & (support_U <= count_U)).all()),
        data.path / "arrays" / "support.npy",
        "its counts",
    )
    _require(len(data.array("major")) == users, data.path / "arrays" / "major.npy", "its length")
    _require_codes(data, "item", rows, items)
    target_N = data.array("target")
    finite = len(target_N) == rows and bool(np.isfinite(target_N).all())
    _require(finite, data.path / "arrays" / "target.npy", "its numbers")
    _verify_fields(data, {"user": users, "item": items, "context": rows})


def _verify_fields(data: "Dataset", rows: Mapping[str, int]) -> None:
    """The encoded fields of all sides."""
    for side, count in rows.items():
        known = getattr(data.vocabulary, side)
        for field in data.schema.features(side):  # type: ignore[arg-type]
            name, length = f"{side}.{field.name}", count
            _require(field.name in known, data.path / "vocabulary.json", f"it lacks '{name}'")
            if field.kind is Kind.MULTI:
                length = len(data.array(name))
                _require_offsets(data, f"{name}.offsets", count, length)
            if field.kind is Kind.NUMERIC:
                _require(len(data.array(name)) == length, data.path / "arrays" / f"{name}.npy", "its length")
            else:
                size = data.manifest.vocabulary.get(name)
                _require(size == getattr(known[field.name], "size", None), data.path / "vocabulary.json", f"'{name}'")
                _require_codes(data, name, length, size or 0)


def _require_offsets(data: "Dataset", name: str, count: int, end: int) -> None:
    """Places that begin at 0, never fall, and end with the last row."""
    offsets = data.array(name)
    fits = len(offsets) == count + 1 and offsets[0] == 0 and offsets[-1] == end and bool((np.diff(offsets) >= 0).all())
    _require(fits, data.path / "arrays" / f"{name}.npy", "its places")


def _require_codes(data: "Dataset", name: str, count: int, size: int) -> None:
    codes = data.array(name)
    fits = len(codes) == count and (not count or (codes.min() >= 0 and codes.max() < size))
    _require(bool(fits), data.path / "arrays" / f"{name}.npy", "its codes")


def _require(fits: bool, where: Path, what: str) -> None:
    if not fits:
        raise FormatError(f"does not fit the manifest ({what})", where=where, remedy=PREPARE_AGAIN)
