"""Proof that nothing is learnt from what is to be predicted: the targets in question are erased before anyone looks.

Fitting gets a data set in which the targets of test users are NaN; prediction one in which those of their query rows
are. Whoever used one of them would end with weights or predictions that are NaN, and be found out. That training steps
read rows of training users alone is asserted row by row, where batches are loaded (`data.batches.Loader`).
"""

from typing import Literal

import numpy as np
import polars as pl

from paml.data.dataset import Dataset
from paml.episodes.tasks import Tasks
from paml.errors import TrainingError

Erased = Literal["all", "query"]


class BlindedDataset(Dataset):
    """A data set whose test users' targets are erased: all of them, or those of query rows."""

    def __init__(self, data: Dataset, erased: Erased) -> None:
        super().__init__(data.path, data.manifest)
        self._erased: Erased = erased

    def array(self, name: str) -> np.ndarray:
        """The array; of the targets a private copy of the test users' part is written on, the rest stays on disk."""
        array = super().array(name)
        if name != "target" or not len(array):
            return array
        tasks = Tasks.of(self, "test")
        first, end = int(tasks.offsets[0]), int(tasks.offsets[-1])
        targets: np.ndarray = np.load(self.path / "arrays" / "target.npy", mmap_mode="c", allow_pickle=False)
        targets[first:end][tasks.query_mask() if self._erased == "query" else slice(None)] = np.nan
        return targets

    def interactions(self) -> pl.LazyFrame:
        """The table of interactions, the same targets erased."""
        hidden = pl.col("user") >= self.manifest.splits["test"][0]
        if self._erased == "query":
            hidden &= pl.col("query")
        return super().interactions().with_columns(target=pl.when(~hidden).then("target"))


def require_untouched(prediction_Q: np.ndarray, entry: str) -> None:
    """Predictions for query rows are finite: no erased target has entered them."""
    wrong = int(np.count_nonzero(~np.isfinite(prediction_Q)))
    if wrong:
        raise TrainingError(
            f"{wrong:,} predictions of '{entry}' are not finite: it diverged, or it read targets it must not know",
            remedy="lower its learning rates; if that does not help, report a defect",
        )
