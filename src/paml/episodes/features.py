"""Encoded fields of users, items or rows as tensors, and which fields a network takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import Tensor

from paml.data.dataset import Dataset, Side, Vocabulary
from paml.data.schema import Field, Kind, Schema
from paml.data.vocabulary import EncodedColumn, FieldEncoder
from paml.episodes import ragged
from paml.episodes.hashing import hashed_column


@dataclass(frozen=True)
class InputSpec:
    """A network's inputs: the fields of a schema, and the item fields whose values are also hashed."""

    schema: Schema
    hashed: tuple[str, ...] = ()
    """Names of item fields."""


@dataclass(frozen=True)
class Features:
    """Fields of `count` rows: codes, lists of codes (end to end, with offsets) and numbers, by field name.

    `hashed` holds hash buckets (hashing.py) instead of codes, for some fields.
    """

    count: int
    codes: Mapping[str, Tensor]
    lists: Mapping[str, tuple[Tensor, Tensor]]
    numbers: Mapping[str, Tensor]
    hashed: "Features | None" = None

    def as_list(self, name: str) -> tuple[Tensor, Tensor]:
        """A field's codes, and where those of each row begin; a single code is a list of one."""
        if name in self.lists:
            return self.lists[name]
        return self.codes[name], torch.arange(self.count, device=self.codes[name].device)

    def to(self, device: torch.device) -> "Features":
        """The same on another device."""
        return Features(
            self.count,
            {name: value.to(device) for name, value in self.codes.items()},
            {name: (codes.to(device), starts.to(device)) for name, (codes, starts) in self.lists.items()},
            {name: value.to(device) for name, value in self.numbers.items()},
            None if self.hashed is None else self.hashed.to(device),
        )

    def repeated(self, rows: int) -> "Features":
        """The fields of a single row, repeated for many rows."""
        assert self.count == 1

        def many(codes: Tensor) -> tuple[Tensor, Tensor]:
            return codes.repeat(rows), torch.arange(rows) * len(codes)

        return Features(
            rows,
            {name: code.expand(rows) for name, code in self.codes.items()},
            {name: many(codes) for name, (codes, _) in self.lists.items()},
            {name: number.expand(rows) for name, number in self.numbers.items()},
        )


class FeatureTable:
    """Encoded fields of all users, items or rows; `rows` looks some up without a Python loop over rows."""

    def __init__(
        self, fields: Sequence[Field], columns: Mapping[str, EncodedColumn], hashed: "FeatureTable | None" = None
    ) -> None:
        """`columns` are by field name; `hashed` holds buckets instead of codes."""
        self.fields, self._columns, self._hashed = tuple(fields), columns, hashed

    @classmethod
    def of(cls, data: Dataset, side: Side, inputs: InputSpec | None = None) -> "FeatureTable":
        """The fields of one side that a network takes; without `inputs`, all fields of the data set."""
        inputs = inputs or InputSpec(data.schema)
        fields = inputs.schema.features(side)
        hashed = cls.hashed(data.items(), inputs) if side == "item" else None
        return cls(fields, {field.name: data.column(side, field) for field in fields}, hashed)

    @classmethod
    def encoded(cls, items: pl.DataFrame, inputs: InputSpec, vocabulary: Vocabulary) -> "FeatureTable":
        """The item fields of a table of items, encoded as in training."""
        fields = inputs.schema.features("item")
        columns = {
            field.name: FieldEncoder(field, vocabulary.item[field.name]).column(items[field.name]) for field in fields
        }
        return cls(fields, columns, cls.hashed(items.lazy(), inputs))

    @classmethod
    def hashed(cls, items: pl.LazyFrame, inputs: InputSpec) -> "FeatureTable | None":
        """The buckets of all items' values in the hashed fields; None if no field is hashed."""
        fields = [field for field in inputs.schema.features("item") if field.name in inputs.hashed]
        if not fields:
            return None
        table = items.select(field.name for field in fields).collect()
        return cls(fields, {field.name: hashed_column(field, table[field.name]) for field in fields})

    def rows(self, rows: np.ndarray) -> Features:
        """The fields of the given rows, in their order."""
        codes, lists, numbers = {}, {}, {}
        for field in self.fields:
            column = self._columns[field.name]
            if column.offsets is not None:
                lists[field.name] = _lists(column.values, column.offsets, rows)
            elif field.kind is Kind.NUMERIC:
                numbers[field.name] = torch.from_numpy(column.values[rows])
            else:
                codes[field.name] = torch.from_numpy(column.values[rows])
        return Features(len(rows), codes, lists, numbers, None if self._hashed is None else self._hashed.rows(rows))


def unknown(fields: Sequence[Field]) -> Features:
    """One row of which nothing is known: code 0, an empty list, the mean of a number."""
    nothing = torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    names = {kind: [field.name for field in fields if field.kind is kind] for kind in Kind}
    return Features(
        1,
        {name: torch.zeros(1, dtype=torch.int64) for name in names[Kind.CATEGORICAL]},
        dict.fromkeys(names[Kind.MULTI], nothing),
        {name: torch.zeros(1) for name in names[Kind.NUMERIC]},
    )


def _lists(codes: np.ndarray, offsets: np.ndarray, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """The lists of some rows, end to end, and where each begins."""
    count = offsets[rows + 1] - offsets[rows]
    return torch.from_numpy(codes[ragged.positions(offsets[rows], count)]), torch.from_numpy(ragged.starts(count))
