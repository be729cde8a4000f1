"""Fields of profiles and contexts as rows of one table, which all members of an ensemble share.

An embedder's output is a weighted sum of rows (network/embeddings.py), so that a whole profile is one operation.

Legend: B profiles or contexts, V rows: the values of all fields, T of them, end to end; M members, W numbers each.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from paml.data.schema import Kind
from paml.network.embeddings import FieldEmbedder
from paml.recommend.requests import Values


class FieldTable:
    """Looks values up, and sums their rows."""

    def __init__(self, embedder: FieldEmbedder, rows_VMW: Tensor) -> None:
        """`embedder` says which fields there are, and how; the rows may hold anything that is linear in its output."""
        self._rows_VMW, self._list_power = rows_VMW.contiguous(), embedder.list_power
        self._rows = self._rows_VMW.numpy(force=True)
        self._fields: list[tuple[str, Kind, int]] = []
        start = 0
        for field in embedder.fields:
            self._fields.append((field.name, field.kind, start))
            start += 2 if field.kind is Kind.NUMERIC else len(embedder.table(field))
        self._weighted = any(kind is not Kind.CATEGORICAL for _, kind, _ in self._fields)

    def __call__(self, looked_up: Sequence[Values]) -> Tensor:
        """The sums for encoded profiles or contexts, (B, M, W)."""
        places: list[int] = []
        weights: list[float] = []
        starts: list[int] = []
        for values in looked_up:
            starts.append(len(places))
            self._add(values, places, weights)
        V, M, W = self._rows_VMW.shape
        if not places:
            return self._rows_VMW.new_zeros(len(starts), M, W)
        weight_T = torch.tensor(weights, dtype=self._rows_VMW.dtype) if self._weighted else None
        sum_BW = embedding_bag(
            torch.tensor(places),
            self._rows_VMW.view(V, -1),
            torch.tensor(starts),
            mode="sum",
            per_sample_weights=weight_T,
        )
        return sum_BW.view(-1, M, W)

    def solo(self, looked_up: Values) -> np.ndarray:
        """The sums for one encoded profile, (M, W)."""
        places: list[int] = []
        weights: list[float] = []
        self._add(looked_up, places, weights)
        rows_TMW = self._rows.take(places, axis=0)
        if self._weighted:
            rows_TMW *= np.array(weights, dtype=rows_TMW.dtype)[:, None, None]
        sum_MW: np.ndarray = np.add.reduce(rows_TMW, axis=0)
        return sum_MW

    def _add(self, values: Values, places: list[int], weights: list[float]) -> None:
        """Rows and weights of the values of all fields."""
        for name, kind, start in self._fields:
            value = values[name]
            if kind is Kind.MULTI:
                places += [start + code for code in value]
                weights += [len(value) ** self._list_power for _ in value]
            elif kind is Kind.NUMERIC:
                places += [start, start + 1]
                weights += [value, 1.0]
            else:
                places.append(start + value)
                weights.append(1.0)
