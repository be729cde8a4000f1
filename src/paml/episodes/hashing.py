"""Keys of values: numbers from what the values say, without a vocabulary, so that unmet values can be told apart, too.

A vocabulary has the values of training users' items alone, since nothing can be learned about others. Whether two items
share a value needs no learning: whoever liked one book of an unknown author may like the next one.
"""

import re
import unicodedata
import zlib
from collections.abc import Sequence

import numpy as np
import polars as pl

from paml.data.dataset import Dataset
from paml.data.schema import Field, Kind
from paml.data.vocabulary import laid_out
from paml.episodes.features import FeatureTable

KEYS = 4096  # two values of a user's items are taken for one by chance once in as many pairs
SIGNS = "LNSM"  # general categories that count: letters, numbers, symbols, and marks that are no accents
ACCENTS = re.compile("[\u0300-\u036f]")


def keys_of(column: pl.Series) -> np.ndarray:
    """A key from 1 to `KEYS` for each value, 0 for a blank one; each distinct value is looked at once.

    Letters, digits and signs count, whatever case and accents: "J. K. Rowling" is "J.K. ROWLING", "C" is not "C++", and
    "1.5" is not "15": what stands between digits counts, too.
    """
    if not len(column):
        return np.zeros(0, dtype=np.int32)
    places = column.fill_null("").to_frame("value").with_row_index("row").group_by("value").agg("row")
    keys = [_key(value) for value in places["value"]]
    key_N = np.zeros(len(column), dtype=np.int32)
    key_N[places["row"].explode().to_numpy()] = np.repeat(keys, places["row"].list.len().to_numpy())
    return key_N


def _key(value: str) -> int:
    text = ACCENTS.sub("", unicodedata.normalize("NFKD", value)).lower()
    said = text if text.isalnum() else "".join(text[k] for k in range(len(text)) if _counts(text, k))
    return 1 + zlib.crc32(said.encode()) % KEYS if said else 0


def _counts(text: str, k: int) -> bool:
    """Whether a character says something: as a sign of its own, or between digits, or as the minus before one."""
    if text[k] == "#" or unicodedata.category(text[k])[0] in SIGNS:
        return True
    before, after = text[k - 1] if k else "", text[k + 1 : k + 2]
    return after.isdigit() and (before.isdigit() or (text[k] == "-" and not before))


def key_table(items: pl.LazyFrame, fields: Sequence[Field], affinity_fields: Sequence[str]) -> FeatureTable | None:
    """The keys of all items' values in the affinity fields, each by its field's name; None if there are none."""
    if not affinity_fields:
        return None
    table, tied = items.select(affinity_fields).collect(), [field for field in fields if field.name in affinity_fields]
    arrays, offsets = {}, {}
    for field in tied:
        column = table[field.name]
        if field.kind is Kind.MULTI:
            offsets[field.name], column = laid_out(column)
        arrays[field.name] = keys_of(column if field.prefix is None else column.str.head(field.prefix))
    return FeatureTable(tied, arrays, offsets)


def item_keys(data: Dataset, affinity_fields: Sequence[str]) -> FeatureTable | None:
    """The same of a data set."""
    return key_table(data.items(), data.schema.features("item"), affinity_fields)
