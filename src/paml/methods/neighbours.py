"""Neighbour search among the memory's keys: exact, kd-tree, or HNSW graph. Batched, no Python per user.

Legend: B queries, M nodes, H width, K neighbours.
"""

from typing import Protocol

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from paml.errors import SettingsError, nearest


class NeighbourIndex(Protocol):
    """Finds the K nearest keys of each query."""

    def build(self, keys_MH: Tensor) -> None:
        """Take the keys as they are now."""

    def search(self, queries_BH: Tensor, k: int) -> Tensor:
        """Positions of the k nearest keys, nearest first, (B, k); -1 where there are fewer."""


class ExactIndex:
    """One matrix product: |q - k|^2 = |q|^2 - 2 q k + |k|^2, of which |q|^2 does not change the order."""

    def build(self, keys_MH: Tensor) -> None:
        """Keep a view of the keys, so that they are never stale, and their norms."""
        self._keys_MH = keys_MH
        self._norm_M = (keys_MH**2).sum(dim=1)

    def search(self, queries_BH: Tensor, k: int) -> Tensor:
        """All distances, then the k smallest."""
        distance_BM = torch.addmm(self._norm_M, queries_BH, self._keys_MH.T, alpha=-2)
        return _pad(distance_BM.topk(min(k, distance_BM.shape[1]), dim=1, largest=False).indices, k)


class TreeIndex:
    """SciPy's kd-tree; `eps` > 0 allows neighbours up to (1 + eps) times as far as the true ones."""

    def __init__(self, eps: float = 0.5) -> None:
        self._eps = eps

    def build(self, keys_MH: Tensor) -> None:
        """Build the tree from a copy of the keys."""
        self._count = len(keys_MH)
        self._tree = cKDTree(keys_MH.numpy(force=True), balanced_tree=False, compact_nodes=False)

    def search(self, queries_BH: Tensor, k: int) -> Tensor:
        """Approximate search on all cores."""
        found = min(k, self._count)
        _, index = self._tree.query(
            np.nan_to_num(queries_BH.numpy(force=True)), k=[*range(1, found + 1)], eps=self._eps, workers=-1
        )
        return _pad(torch.from_numpy(np.asarray(index, dtype=np.int64)).to(queries_BH.device), k)


class GraphIndex:
    """FAISS's HNSW graph, for large memories; needs the extra `paml[faiss]`."""

    def __init__(self, links: int = 16, breadth: int = 64) -> None:
        try:
            import faiss
        except ImportError:
            raise SettingsError("memory_index 'hnsw' needs FAISS", remedy="pip install 'paml[faiss]'") from None
        self._faiss, self._links, self._breadth = faiss, links, breadth

    def build(self, keys_MH: Tensor) -> None:
        """Build the graph from a copy of the keys."""
        self._graph = self._faiss.IndexHNSWFlat(keys_MH.shape[1], self._links)
        self._graph.hnsw.efConstruction = self._breadth
        self._graph.hnsw.efSearch = self._breadth
        self._graph.add(keys_MH.numpy(force=True).astype(np.float32))

    def search(self, queries_BH: Tensor, k: int) -> Tensor:
        """Walk the graph; places without a neighbour are -1."""
        _, index = self._graph.search(queries_BH.numpy(force=True).astype(np.float32), k)
        return torch.from_numpy(index).to(queries_BH.device)


INDEXES = {"exact": ExactIndex, "kdtree": TreeIndex, "hnsw": GraphIndex}


def make_index(name: str) -> NeighbourIndex:
    """The back end called `name`."""
    if name not in INDEXES:
        raise SettingsError(f"unknown memory_index '{name}'", remedy=nearest(name, INDEXES))
    index: NeighbourIndex = INDEXES[name]()
    return index


def recall(index: NeighbourIndex, keys_MH: Tensor, queries_BH: Tensor, k: int) -> float:
    """Share of the true k nearest keys that an index, built from the keys, finds."""
    exact = ExactIndex()
    exact.build(keys_MH)
    true_BK, found_BK = exact.search(queries_BH, k), index.search(queries_BH, k)
    hit_BKK = (true_BK.unsqueeze(2) == found_BK.unsqueeze(1)) & (true_BK >= 0).unsqueeze(2)
    return float(hit_BKK.any(dim=2).sum() / (true_BK >= 0).sum().clamp(min=1))


def _pad(index_BK: Tensor, k: int) -> Tensor:
    missing = k - index_BK.shape[1]
    return index_BK if missing <= 0 else torch.nn.functional.pad(index_BK, (0, missing), value=-1)
