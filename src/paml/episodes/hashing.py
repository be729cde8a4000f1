"""Values as hash buckets, without a vocabulary: values never seen in training can still be told apart.

A vocabulary holds only the values of training users' items, since nothing can be learned about others. Whether two
items share a value needs no learning: someone who liked one book by an unknown author may like the next one.
"""

import re
import unicodedata
import zlib

import numpy as np
import polars as pl

from paml.data.schema import Field, Kind
from paml.data.vocabulary import EncodedColumn, laid_out

BUCKETS = 4096  # two different values collide by chance in one of this many pairs
SIGNS = "LNSM"  # Unicode categories that count: letters, numbers, symbols, and marks other than accents
ACCENTS = re.compile("[\u0300-\u036f]")


def buckets_of(column: pl.Series) -> np.ndarray:
    """A bucket from 1 to `BUCKETS` for each value, 0 for a blank one; each distinct value is hashed once.

    Letters, digits and symbols count; case and accents do not: "J. K. Rowling" equals "J.K. ROWLING", "C" is not "C++".
    Any character between digits counts, too: "1.5" is not "15".
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
    kept = text if text.isalnum() else "".join(text[k] for k in range(len(text)) if _counts(text, k))
    return 1 + zlib.crc32(kept.encode()) % BUCKETS if kept else 0


def _counts(text: str, k: int) -> bool:
    """Whether a character counts: as a letter, number or symbol, between digits, or as the minus before one."""
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
