"""Keys of values: numbers from what the values say, without a vocabulary, so that unmet values can be told apart, too.

A vocabulary has the values of training users' items alone, since nothing can be learned about others. Whether two items
share a value needs no learning: whoever liked one book of an unknown author may like the next one.
"""

import zlib
from collections.abc import Sequence

import numpy as np
import polars as pl

from paml.data.features import FeatureTable
from paml.data.schema import Field, Kind
from paml.data.vocabulary import laid_out

KEYS = 4096  # two values of a user's items are taken for one by chance once in as many pairs
NO_SIGN = r"[^\p{L}\p{N}\p{S}#]"


def plain(text: pl.Expr) -> pl.Expr:
    """Lower case without accents."""
    return text.str.normalize("NFKD").str.replace_all(r"\p{M}", "").str.to_lowercase()


def keys_of(column: pl.Series) -> np.ndarray:
    """A key from 1 to `KEYS` for each value, 0 for a blank one.

    Letters, digits and signs count, whatever case and accents: "J. K. Rowling" is "J.K. ROWLING", "C" is not "C++".
    """
    said = pl.select(plain(pl.lit(column)).str.replace_all(NO_SIGN, "").fill_null("").alias("value"))["value"]
    distinct = said.unique()
    keys = [1 + zlib.crc32(value.encode()) % KEYS if value else 0 for value in distinct]
    return said.replace_strict(distinct, pl.Series(keys, dtype=pl.Int32), return_dtype=pl.Int32).to_numpy()


def key_table(items: pl.DataFrame, fields: Sequence[Field]) -> FeatureTable:
    """The keys of some fields of all items, each by the same name as the field."""
    arrays, offsets = {}, {}
    for field in fields:
        column = items[field.name]
        if field.kind is Kind.MULTI:
            offsets[field.name], column = laid_out(column)
        arrays[field.name] = keys_of(column if field.prefix is None else column.str.head(field.prefix))
    return FeatureTable(fields, arrays, offsets)
