"""Values as hash buckets, without a vocabulary: values that training never saw can still be told apart.

A vocabulary has the values of training users' items alone, since nothing can be learned about others. Whether two items
share a value needs no learning: whoever liked one book by an unknown author may like the next one.
"""

import re
import unicodedata
import zlib

import numpy as np
import polars as pl

from paml.data.schema import Field, Kind
from paml.data.vocabulary import EncodedColumn, laid_out

BUCKETS = 4096  # two values of a user's items are taken for one by chance once in as many pairs
SIGNS = "LNSM"  # general categories that count: letters, numbers, symbols, and marks that are no accents
ACCENTS = re.compile("[\u0300-\u036f]")


def buckets_of(column: pl.Series) -> np.ndarray:
    """A bucket from 1 to `BUCKETS` for each value, 0 for a blank one; each distinct value is hashed once.

    Letters, digits and signs count, whatever case and accents: "J. K. Rowling" is "J.K. ROWLING", "C" is not "C++", and
    "1.5" is not "15": what stands between digits counts, too.
    """
    if not len(column):
        return np.zeros(0, dtype=np.int32)
    places = column.fill_null("").to_frame("value").with_row_index("row").group_by("value").agg("row")
    buckets = [_bucket(value) for value in places["value"]]
    bucket_N = np.zeros(len(column), dtype=np.int32)
    bucket_N[places["row"].explode().to_numpy()] = np.repeat(buckets, places["row"].list.len().to_numpy())
    return bucket_N


def _bucket(value: str) -> int:
    text = ACCENTS.sub("", unicodedata.normalize("NFKD", value)).lower()
    said = text if text.isalnum() else "".join(text[k] for k in range(len(text)) if _counts(text, k))
    return 1 + zlib.crc32(said.encode()) % BUCKETS if said else 0


def _counts(text: str, k: int) -> bool:
    """Whether a character says something: as a sign of its own, or between digits, or as the minus before one."""
    if text[k] == "#" or unicodedata.category(text[k])[0] in SIGNS:
        return True
    before, after = text[k - 1] if k else "", text[k + 1 : k + 2]
    return after.isdigit() and (before.isdigit() or (text[k] == "-" and not before))


def hashed_column(field: Field, column: pl.Series) -> EncodedColumn:
    """The buckets of a field's values, or lists of values."""
    offsets = None
    if field.kind is Kind.MULTI:
        offsets, column = laid_out(column)
    return EncodedColumn(buckets_of(column if field.prefix is None else column.str.head(field.prefix)), offsets)
