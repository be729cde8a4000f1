"""The items that a choice is made from in a training batch: all items or, of a large catalogue, a random sample.

With a sample, item j is among a batch's items with the chance c_j, and exp(out_j) / c_j stands for all items like it in
the sum of the softmax: the log-Q correction, log c_j is subtracted from the outputs (Bengio and Senecal, "Adaptive
importance sampling to accelerate training of a neural probabilistic language model", 2008). The items of the batch's
own rows are always there, so c_j counts both ways of getting in.

Legend: I all items, N items of a batch, M draws.
"""

import zlib

import numpy as np
import torch
from torch import Tensor

from paml.data.dataset import Dataset

MAX_EXACT = 20_000
"""Largest catalogue whose items are all candidates in every training batch."""
POPULARITY = 0.5
"""Items are drawn in proportion to this power of their popularity: neither only the known ones nor only the tail."""


class Candidates:
    """Draws the items of training batches; the same rows always get the same sample, so that training can resume."""

    def __init__(self, data: Dataset, sampled: int) -> None:
        """`sampled` is the number of draws, which only catalogues of more than MAX_EXACT items need."""
        items = data.manifest.items
        self._items, self._draws = items, sampled if items > MAX_EXACT and sampled < items else 0
        if self._draws:
            rows_I = np.bincount(data.array("item")[: data.training_rows], minlength=items)
            weight_I = (rows_I + 1.0) ** POPULARITY
            self._cumulative_I = np.cumsum(weight_I / weight_I.sum())
            # how often an item is missing among the draws, and among the rows of a batch, by row
            self._log_undrawn_I = self._draws * np.log1p(-weight_I / weight_I.sum())
            self._log_unseen_I = np.log1p(-np.minimum(rows_I / max(rows_I.sum(), 1), 1 - 1e-9))

    def draw(self, item_BL: np.ndarray) -> tuple[np.ndarray, np.ndarray, Tensor | None]:
        """Items of a batch in order, where those of its rows are, and the log chance of each to be there."""
        if not self._draws:
            return np.arange(self._items), item_BL.astype(np.int64), None
        rng = np.random.default_rng(zlib.crc32(np.ascontiguousarray(item_BL).tobytes()))
        drawn_M = np.searchsorted(self._cumulative_I, rng.random(self._draws)).clip(max=self._items - 1)
        item_N = np.unique(np.concatenate([item_BL.ravel(), drawn_M]))
        log_missing_N = self._log_undrawn_I[item_N] + item_BL.size * self._log_unseen_I[item_N]
        return item_N, np.searchsorted(item_N, item_BL), torch.from_numpy(np.log(-np.expm1(log_missing_N)))
