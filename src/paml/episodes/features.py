"""Encoded fields of some users, items or rows as tensors, looked up in a prepared data set's arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paml.data.dataset import Dataset, Side
from paml.data.schema import Field, Kind, Schema


@dataclass(frozen=True)
class Features:
    """Fields of `count` rows: codes, bags of codes (laid end to end, with offsets) and numbers, by field name.

    Items that are tied have the keys of their values (keys.py) besides, as further features.
    """

    count: int
    codes: Mapping[str, Tensor]
    bags: Mapping[str, tuple[Tensor, Tensor]]
    numbers: Mapping[str, Tensor]
    keys: "Features | None" = None

    def bag(self, name: str) -> tuple[Tensor, Tensor]:
        """The codes of a field and where each row's begin; a single code is a bag of one."""
        if name in self.bags:
            return self.bags[name]
        return self.codes[name], torch.arange(self.count, device=self.codes[name].device)

    def to(self, device: torch.device) -> "Features":
        """The same on another device."""
        return Features(
            self.count,
            {name: value.to(device) for name, value in self.codes.items()},
            {name: (codes.to(device), offsets.to(device)) for name, (codes, offsets) in self.bags.items()},
            {name: value.to(device) for name, value in self.numbers.items()},
            None if self.keys is None else self.keys.to(device),
        )


class FeatureTable:
    """Encoded fields of all users, items or rows; `rows` looks some up, with no work per row in Python."""

    def __init__(
        self, fields: Sequence[Field], arrays: Mapping[str, np.ndarray], offsets: Mapping[str, np.ndarray]
    ) -> None:
        """Arrays by field name; those of multi-valued fields are laid end to end, and have offsets."""
        self.fields, self._arrays, self._offsets = tuple(fields), arrays, offsets

    @classmethod
    def of(cls, data: Dataset, side: Side, schema: Schema | None = None) -> "FeatureTable":
        """The fields of one side that a schema has."""
        fields = (schema or data.schema).features(side)
        arrays = {field.name: data.array(f"{side}.{field.name}") for field in fields}
        multi = [field.name for field in fields if field.kind is Kind.MULTI]
        return cls(fields, arrays, {name: data.array(f"{side}.{name}.offsets") for name in multi})

    def rows(self, rows: np.ndarray) -> Features:
        """The fields of the given rows, in their order."""
        codes, bags, numbers = {}, {}, {}
        for field in self.fields:
            array = self._arrays[field.name]
            if field.kind is Kind.MULTI:
                bags[field.name] = _bag(array, self._offsets[field.name], rows)
            elif field.kind is Kind.NUMERIC:
                numbers[field.name] = torch.from_numpy(array[rows])
            else:
                codes[field.name] = torch.from_numpy(array[rows])
        return Features(len(rows), codes, bags, numbers)


def _bag(codes: np.ndarray, offsets: np.ndarray, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """The lists of some rows laid end to end, and where each begins."""
    count = offsets[rows + 1] - offsets[rows]
    start = np.cumsum(count) - count
    source = np.arange(count.sum()) + np.repeat(offsets[rows] - start, count)
    return torch.from_numpy(codes[source]), torch.from_numpy(start)
