"""The columns of a Parquet file, or of a folder of them, as fields that `delimited` checks like those of text files."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from paml.data.readers.inputs import parquet_files
from paml.errors import DataError


def scan(path: Path) -> pl.LazyFrame:
    """A Parquet file, or a folder of them, whose partitions (`year=2026/month=11`) are columns, too."""
    files = parquet_files(path)
    if not files:
        return pl.scan_parquet(path, glob=False)
    below = {part for file in files for part in _partitions(file.relative_to(path))}
    above = _partitions(path) - below  # a folder above may have such a name, too, and is no column
    text = dict.fromkeys(below | above, pl.String())  # as it is written: 007 is not 7
    return pl.scan_parquet(files, hive_partitioning=True, hive_schema=text, glob=False).drop(above, strict=False)


def _partitions(path: Path) -> set[str]:
    """The names before `=` in a path."""
    return {part.partition("=")[0] for part in path.parts if "=" in part}


def unreadable(path: Path, name: str, error: Exception) -> DataError:
    """The error for what Polars could not read."""
    first = str(error).partition("\n")[0]
    if path.is_dir():
        remedy = "write them with the same columns, or name the files one by one"
        return DataError(f"its Parquet files cannot be read as one table ({first})", where=name, remedy=remedy)
    return DataError(f"is a damaged Parquet file ({first})", where=name, remedy="write it again")


def parquet_fields(frame: pl.LazyFrame, asked: Sequence[tuple[str, pl.DataType]], name: str) -> pl.LazyFrame:
    """`_row` and the requested columns, named by position: `0`, `1`, ...; `asked` has names and expected types.

    Refuses columns that do not hold single values, or lists of them where a list is expected.
    """
    schema = frame.collect_schema()
    for column, wanted in asked:
        _require_values(column, schema[column], wanted, name)
    taken = {column for column, _ in asked}
    native = [
        _native(pl.col(column), schema[column]).alias(str(k)) for k, column in enumerate(schema) if column in taken
    ]
    return frame.select(native).with_row_index("_row", offset=1)


def _require_values(column: str, dtype: pl.DataType, wanted: pl.DataType, name: str) -> None:
    """Refuse a column that holds neither single values nor, where lists are expected, lists of them."""
    single = "a column of single values is expected"
    if isinstance(dtype, pl.List | pl.Array):
        if not isinstance(wanted, pl.List):
            raise DataError(f"column '{column}' holds lists", where=name, remedy=single)
        dtype, single = dtype.inner, "a column of lists of single values is expected"  # type: ignore[assignment]
    nested = {pl.List: "lists", pl.Array: "lists", pl.Struct: "structs", pl.Binary: "bytes", pl.Object: "objects"}
    nested |= {pl.Time: "times of day", pl.Duration: "durations"}
    for kind, what in nested.items():
        if isinstance(dtype, kind):
            raise DataError(f"column '{column}' holds {what}", where=name, remedy=single)


def _native(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Numbers, Booleans, text and lists of text unchanged; times in seconds; everything else (categories) as text."""
    if isinstance(dtype, pl.Array):
        column, dtype = column.arr.to_list(), pl.List(dtype.inner)
    if isinstance(dtype, pl.List):
        return column.list.eval(_native(pl.element(), dtype.inner).cast(pl.String))  # type: ignore[arg-type]
    if isinstance(dtype, pl.Datetime | pl.Date):
        return column.cast(pl.Datetime("us")).dt.epoch("us") / 1e6
    if isinstance(dtype, pl.Decimal):  # exact: keys of 64 bits and more are often decimals
        if not dtype.scale:
            return column.cast(pl.Int128)
        return column.cast(pl.String).str.replace(r"\.?0+$", "")
    if dtype.is_float():
        return column.fill_nan(None)
    if dtype.is_integer() or isinstance(dtype, pl.Boolean):
        return column
    return column.cast(pl.String)
