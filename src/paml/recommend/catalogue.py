"""All items of a run, stored in RUN/catalogue.parquet: names, content, how well known; found by id or title.

Legend: I all items, in the order of the data set's item rows.
"""

import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from paml.data.dataset import Dataset, Vocabulary
from paml.data.schema import Kind, Schema
from paml.episodes.features import Features, FeatureTable, InputSpec
from paml.errors import SettingsError, UnknownItem
from paml.files import Listed, read_table, write_table
from paml.recommend.familiarity import Familiarity, fit_familiarity

COUNT, SHARE, VECTOR = "_ratings", "_share", "_vector"  # no field can have these names
MAX_QUERY_LENGTH, MAX_WORDS = 200, 12  # further characters and words of a search are ignored


@dataclass(frozen=True)
class CatalogueItem:
    """An item as people see it: id, title, and how many ratings of training users it has."""

    item: str
    title: str
    ratings: int


class Catalogue:
    """All items of a run; never changed after loading."""

    def __init__(self, table: pl.DataFrame, schema: Schema) -> None:
        self._table = table
        self.ids: list[str] = table["item"].to_list()
        names = [field.name for field in schema.item if field.kind is Kind.IDENTIFIER and field.name in table.columns]
        title = "title" if "title" in names else names[0] if names else "item"
        self.titles: list[str] = table[title].fill_null(table["item"]).to_list()
        self.ratings_I: np.ndarray = table[COUNT].to_numpy()
        vectors_IR = torch.from_numpy(table[VECTOR].to_numpy().reshape(len(table), -1).copy())
        self.familiarity = Familiarity(torch.from_numpy(table[SHARE].to_numpy().copy()), vectors_IR)
        self._row = {item: row for row, item in enumerate(self.ids)}
        self._sorted = sorted(self.ids)
        text = pl.concat_str(pl.Series(self.titles), pl.lit(" "), table["item"])
        known_first = (
            pl.select(_plain(text).alias("text"), pl.Series("ratings", self.ratings_I))
            .with_row_index("row")
            .sort("ratings", descending=True, maintain_order=True)
        )
        # plain Python from here on: Polars has threads, which a process that is forked later does not have
        self._known_first: list[tuple[int, str]] = known_first.select("row", "text").rows()

    @classmethod
    def load(cls, path: Path, expected: Listed, schema: Schema) -> "Catalogue":
        """Read what `write_catalogue` wrote, as it was recorded then."""
        columns = ("item", COUNT, SHARE, VECTOR, *(field.name for field in schema.item))
        return cls(read_table(path, expected, columns, "train again"), schema)

    def __repr__(self) -> str:
        return f"Catalogue({len(self):,} items)"

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, item: object) -> bool:
        return item in self._row

    def __getitem__(self, row: int) -> CatalogueItem:
        """The item of a row."""
        return CatalogueItem(self.ids[row], self.titles[row], int(self.ratings_I[row]))

    def row(self, item: object) -> int:
        """The row of an item; an unknown one is an error that names it and the nearest."""
        key = str(item) if isinstance(item, int | np.integer) and not isinstance(item, bool) else item
        row = self._row.get(key) if isinstance(key, str) else None
        if row is None:
            raise UnknownItem(item, self._remedy(key))
        return row

    def title(self, item: str) -> str:
        """The title of an item."""
        return self.titles[self.row(item)]

    def rows(self, items: Sequence[object]) -> np.ndarray:
        """The rows of several items."""
        return np.array(self.places(items), dtype=np.int64)

    def places(self, items: Sequence[object]) -> list[int]:
        """The same as plain numbers."""
        try:
            return [*map(self._row.__getitem__, items)]  # type: ignore[arg-type]
        except (KeyError, TypeError):  # an unknown item, or a number
            return [self.row(item) for item in items]

    def search(self, text: str, limit: int = 20) -> list[CatalogueItem]:
        """Items whose title or id contains all words of `text`, ignoring case and accents; best-known first.

        The item with exactly this id comes before all others; an empty text finds all items. Of a long text only the
        first words count.
        """
        if limit < 1:
            raise SettingsError(f"search limit {limit}", remedy="expected 1 or more")
        words = sorted(dict.fromkeys(_plain_text(text[:MAX_QUERY_LENGTH]).split()[:MAX_WORDS]), key=len, reverse=True)
        found = (row for row, known in self._known_first if all(word in known for word in words))
        rows = [*islice(found, limit)]
        exact = self._row.get(text.strip())
        if exact is not None:
            rows = [exact, *(row for row in rows if row != exact)][:limit]
        return [self[row] for row in rows]

    def features(self, inputs: InputSpec, vocabulary: Vocabulary) -> tuple[Features, Tensor]:
        """The content of all items, encoded as in training, and their rows."""
        table = FeatureTable.encoded(self._table, inputs, vocabulary)
        return table.rows(np.arange(len(self))), torch.arange(len(self))

    def _remedy(self, item: object) -> str:
        """The item whose title has the same words, or whose id begins the same way; cheap, however long the text."""
        if isinstance(item, str) and item.strip():
            found = self.search(item, limit=1)
            place = bisect_left(self._sorted, item)
            if found:
                return f"an id such as '{found[0].item}' ({found[0].title})"
            for known in self._sorted[max(place - 1, 0) : place + 1]:
                if known[:1] == item[:1]:
                    return f"an id such as '{known}'"
        return f"one of {len(self):,} ids such as '{self._known_first_id()}'"

    def _known_first_id(self) -> str:
        return self.search("", limit=1)[0].item


def write_catalogue(data: Dataset, path: Path, seed: int) -> None:
    """Store all columns of the data set's items, how many rows of training users each has, and its familiarity."""
    count_I = np.bincount(data.array("item")[: data.training_rows], minlength=data.manifest.items)
    known = fit_familiarity(data, np.random.default_rng([seed, 5]))
    columns = (
        pl.Series(COUNT, count_I),
        pl.Series(SHARE, known.share_I.numpy()),
        pl.Series(VECTOR, known.vectors_IR.numpy()),
    )
    write_table(path, data.items().collect().with_columns(columns))


def _plain_text(text: str) -> str:
    """Lower case without accents."""
    apart = unicodedata.normalize("NFKD", text)
    return "".join(sign for sign in apart if not unicodedata.category(sign).startswith("M")).lower()


def _plain(text: pl.Expr) -> pl.Expr:
    """The same for a column."""
    return text.str.normalize("NFKD").str.replace_all(r"\p{M}", "").str.to_lowercase()
