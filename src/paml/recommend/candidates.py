"""Candidates for a list from a large catalogue: an index finds the items that may be best, which are scored exactly.

A prediction is a mean of squashed outputs, and outputs are inner products: with the members side by side,

    sum_m out_m  =  row W,        row = [1, item vector, item bias, affinity] of all members, W the user's weights

Squashing moves single outputs, so this is not quite the order of the list; but whatever belongs to its top is near the
top of the sum. Rows are turned onto their principal directions. Each direction is kept in four bits, by which all items
are compared (FAISS's product quantisation, scanned in registers), and in a byte, by which the best of these are: 72
bytes per item in place of 4 M E. How many have to be compared by bytes is measured when a run is loaded, against exact
lists of generated users; where the index brings nothing, there is none.

Legend: M members, E entries of a row, W = M E, D directions, I items, R rows.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paml.engine.joint import JointTable

MIN_ITEMS = 100_000  # below, scoring everything takes hardly longer (docs/log.md)
MAX_LIST = 100  # longer lists are found by scoring everything
RECALL_AT = 10
MIN_RECALL = 0.98
AIM = 0.99  # on the sample, so that others are above the minimum, too
CANDIDATES = 500  # for a list of ten
FIRST_BREADTH, MAX_SHARE = 4, 16  # times as many are compared by bytes, to begin with; at most a 16th of all items
MIN_GAIN = 2.0  # times faster than scoring everything: otherwise the index is not worth its memory
DIRECTIONS = 48
SAMPLE = 1 << 16  # rows from which directions and levels are learned
ROWS_AT_ONCE = 1 << 15
ROUNDING = 1e-6  # scores of one item may differ by this, depending on which others are scored with it

log = logging.getLogger("paml")


@dataclass(frozen=True)
class Probe:
    """A user for whom the index is measured."""

    weights_W: Tensor
    exact: Callable[[], float]
    """Scores all items; the score of the tenth best."""
    score: Callable[[Tensor], Tensor]
    """Scores of some items."""


@dataclass(frozen=True)
class Measured:
    """How an index does: candidates per list, how many times as many are compared by bytes, what is found of the best.

    Items with equal scores, such as those squashed onto the end of the scale, are equally right.
    """

    candidates: int
    breadth: int
    recall: float
    """Share of the ten best that are found."""
    seconds: float
    exact_seconds: float

    @property
    def suffices(self) -> bool:
        """Whether lists are right, and come sooner."""
        return self.recall >= MIN_RECALL and self.exact_seconds >= MIN_GAIN * self.seconds

    def __str__(self) -> str:
        times = f"{1e3 * self.seconds:.1f} ms in place of {1e3 * self.exact_seconds:.1f}"
        found = f"{self.candidates} candidates of {self.breadth} times as many"
        return f"recall at {RECALL_AT} is {self.recall:.3f} with {found}, {times}"


class CandidateIndex:
    """All items, to be searched by a user's weights. Nothing changes after it was built: threads may share it."""

    def __init__(self, table: JointTable) -> None:
        """Raises ModuleNotFoundError without FAISS."""
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())
        items = len(table)
        rng = np.random.default_rng(0)
        sample_RW = _rows(table, rng.permutation(items)[:SAMPLE])
        self._mean_W = sample_RW.mean(axis=0)
        self._turn_WD = _directions(sample_RW - self._mean_W, rng)
        directions = self._turn_WD.shape[1]
        kind = f"PQ{directions}x4fs,Refine(SQ8)"
        self._index: Any = faiss.index_factory(directions, kind, faiss.METRIC_INNER_PRODUCT)
        self._parameters: Any = faiss.IndexRefineSearchParameters
        self._index.train((sample_RW - self._mean_W) @ self._turn_WD)
        for start in range(0, items, ROWS_AT_ONCE):
            rows_RW = _rows(table, np.arange(start, min(start + ROWS_AT_ONCE, items)))
            self._index.add((rows_RW - self._mean_W) @ self._turn_WD)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def nbytes(self) -> int:
        """Memory of the items' codes."""
        directions = int(self._turn_WD.shape[1])
        return len(self) * (directions // 2 + directions)

    def find(self, weights_W: Tensor, count: int, breadth: int) -> np.ndarray:
        """The rows of about the best items, in the catalogue's order: of `breadth` times as many, the best by bytes."""
        query_1D = weights_W.numpy()[None] @ self._turn_WD
        count = min(count, len(self))
        searched = self._parameters(k_factor=min(breadth, len(self) / count))
        found: np.ndarray = self._index.search(query_1D, count, params=searched)[1][0]
        return np.sort(found[found >= 0])

    def measure(self, probes: Sequence[Probe]) -> Measured:
        """Double what is compared by bytes until enough of the exact lists is found."""
        started = time.perf_counter()
        least = [probe.exact() for probe in probes]
        exact_seconds = (time.perf_counter() - started) / len(probes)
        breadth = FIRST_BREADTH
        while True:
            started = time.perf_counter()
            found = [self._best(probe, breadth) for probe in probes]
            seconds = (time.perf_counter() - started) / len(probes)
            shares = [recall(score_R, tenth) for score_R, tenth in zip(found, least, strict=True)]
            measured = Measured(CANDIDATES, breadth, float(np.mean(shares)), seconds, exact_seconds)
            if measured.recall >= AIM or 2 * breadth * CANDIDATES > len(self) / MAX_SHARE:
                return measured
            breadth *= 2

    def _best(self, probe: Probe, breadth: int) -> np.ndarray:
        """The best ten scores of candidates."""
        score_R = probe.score(torch.from_numpy(self.find(probe.weights_W, CANDIDATES, breadth)))
        best: np.ndarray = score_R.topk(min(RECALL_AT, len(score_R))).values.numpy()
        return best


def recall(best_R: np.ndarray, tenth: float) -> float:
    """The share of ten places that hold an item as good as those of the exact list, whose tenth has this score."""
    return float((best_R >= tenth - ROUNDING).sum()) / RECALL_AT


def index_of(table: JointTable, probes: Callable[[], Sequence[Probe]]) -> tuple[CandidateIndex, Measured] | None:
    """An index, if the catalogue is large, FAISS is installed, and it finds the right items sooner."""
    if len(table) < MIN_ITEMS:
        return None
    try:
        index = CandidateIndex(table)
    except ModuleNotFoundError:
        log.warning("%s items are all scored for each list; pip install 'paml[faiss]' for an index", f"{len(table):,}")
        return None
    measured = index.measure(probes())
    used = "used" if measured.suffices else "not used, all items are scored"
    log.info("index of %s items (%.0f MB): %s; %s", f"{len(index):,}", index.nbytes / 1e6, measured, used)
    return (index, measured) if measured.suffices else None


def _rows(table: JointTable, row_R: np.ndarray) -> np.ndarray:
    """Rows of all members side by side, (R, W)."""
    rows: np.ndarray = table.rows(torch.from_numpy(row_R)).flatten(1).numpy()
    return rows


def _directions(centred_RW: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Principal directions, mixed at random so that four bits are as good for each of them, (W, D).

    Quantisation is finest where all directions have about the same variance.
    """
    _, vectors_WW = np.linalg.eigh(centred_RW.T @ centred_RW)
    principal_WD = vectors_WW[:, ::-1][:, :DIRECTIONS]
    mixed_DD = np.linalg.qr(rng.standard_normal((principal_WD.shape[1],) * 2))[0]
    return np.ascontiguousarray(principal_WD @ mixed_DD, dtype=np.float32)
