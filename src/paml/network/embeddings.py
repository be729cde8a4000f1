"""Embeddings of users, items or contexts, generated from the fields of the schema.

Legend: n rows, E size of one field's embedding.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, embedding_bag, pad

from paml.data.schema import Field, Kind
from paml.episodes.features import Features

Pooling = Literal["mean", "root"]


class Rows(Protocol):
    """Told which rows of a table are about to be read, where tables are updated row by row (training/rowwise.py)."""

    def before_reading(self, table: nn.Parameter, row_R: Tensor) -> bool:
        """Whether the table's gradient should be sparse: the rows that were read, and their gradients."""


def _key(field: Field) -> str:
    """A field's name among parameters; the plain name might be an attribute of a module."""
    return f"field_{field.name}"


class FieldEmbedder(nn.Module):
    """One vector of size E per field, side by side or summed: embeddings (pooled for lists), projected numbers.

    A list is the mean of its embeddings, or their sum divided by the root of their number: long lists stay strong.
    """

    nothing: Tensor

    def __init__(
        self,
        fields: Sequence[Field],
        sizes: dict[str, int],
        width: int,
        scale: float,
        rng: torch.Generator,
        *,
        summed: bool = False,
        multi_pooling: Pooling = "mean",
    ) -> None:
        super().__init__()
        self.fields, self.width = tuple(fields), width if summed else width * len(fields)
        self._summed, self._pooling = summed, multi_pooling
        self.rows: Rows | None = None
        tables, numbers = {}, {}
        for field in fields:
            key = _key(field)
            if field.kind is Kind.NUMERIC:
                # as nn.Linear(1, E): weight and bias uniform in [-1, 1]
                numbers[key] = nn.Parameter(torch.rand(2, width, generator=rng) * 2 - 1)
            else:
                tables[key] = nn.Parameter(scale * torch.randn(sizes[field.name], width, generator=rng))
        for table in tables.values():
            table.data[0] = 0.0  # "unknown" is not trained, so it should have no effect
        for number in numbers.values() if summed else ():
            number.data *= scale  # no stronger than other fields
        self.tables, self.numbers = nn.ParameterDict(tables), nn.ParameterDict(numbers)
        self.register_buffer("nothing", torch.zeros(0), persistent=False)

    def forward(self, features: Features) -> Tensor:
        """(n, width); a list without values is the zero vector."""
        if not self.fields:
            return self.nothing.new_zeros(features.count, self.width)
        parts = [self._one(field, features) for field in self.fields]
        return sum(parts[1:], parts[0]) if self._summed else torch.cat(parts, dim=-1)

    def _one(self, field: Field, features: Features) -> Tensor:
        if field.kind is Kind.MULTI:
            codes, offsets = features.lists[field.name]
            return self._pooled(self.table(field), codes, offsets, sparse=self._is_sparse(field, codes))
        if field.kind is Kind.NUMERIC:
            weight, bias = self.numbers[_key(field)]
            return torch.addmm(bias, features.numbers[field.name].to(weight.dtype).unsqueeze(-1), weight.unsqueeze(0))
        code_n = features.codes[field.name]
        return embedding(code_n, self.table(field), sparse=self._is_sparse(field, code_n))

    def _is_sparse(self, field: Field, codes: Tensor) -> bool:
        return self.rows is not None and self.rows.before_reading(self.table(field), codes)

    def own_tables(self) -> list[nn.Parameter]:
        """The tables of all fields that have one."""
        return [self.table(field) for field in self.fields if field.kind is not Kind.NUMERIC]

    def table(self, field: Field) -> nn.Parameter:
        """The embeddings of a field's codes."""
        table = self.tables[_key(field)]
        assert isinstance(table, nn.Parameter)
        return table

    def of(self, field: Field) -> Tensor:
        """What is learned about a field: the embeddings of its codes or, of a number, weight and bias."""
        return self.numbers[_key(field)] if field.kind is Kind.NUMERIC else self.table(field)

    def as_rows(self) -> Tensor:
        """The embedder as a table: an output is the weighted sum of the rows of its values, field after field.

        A code is a row, of weight 1; in a list of n, of weight n^`list_power`. A number has two rows: the first is
        weighted by the number, the second by 1.
        """
        parts = []
        for k, field in enumerate(self.fields):
            table = self.of(field)
            before = 0 if self._summed else k * table.shape[1]
            parts.append(pad(table, (before, self.width - before - table.shape[1])))
        return torch.cat(parts) if parts else self.nothing.new_zeros(0, self.width)

    @property
    def list_power(self) -> float:
        """p if each value of a list of n has the weight n^p."""
        return -1.0 if self._pooling == "mean" else -0.5

    def share(self, count_n: Tensor, dtype: torch.dtype) -> Tensor:
        """The weight of each value in lists of this length."""
        count_n = count_n.clamp(min=1).to(dtype)
        return 1 / count_n if self._pooling == "mean" else count_n.rsqrt()

    def _pooled(self, table: Tensor, codes: Tensor, offsets: Tensor, *, sparse: bool) -> Tensor:
        offsets = offsets.to(codes.dtype)
        if self._pooling == "mean":
            return embedding_bag(codes, table, offsets, mode="mean", sparse=sparse)
        count_n = torch.diff(offsets, append=offsets.new_tensor([len(codes)]))
        share = self.share(count_n, table.dtype).repeat_interleave(count_n, output_size=len(codes))
        return embedding_bag(codes, table, offsets, mode="sum", sparse=sparse, per_sample_weights=share)
