"""Proof that nothing is learned from the targets to be predicted: they are erased beforehand.

For fitting, all targets of test users are NaN; for prediction, those of their query rows are. A method that used one of
them would end with NaN weights or predictions, and be caught. That training steps read only rows of training users is
asserted row by row, where batches are loaded (`episodes.batches.Loader`).
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
        """The array; targets are erased in a private copy of the test users' part, the rest stays on disk."""
        array = super().array(name)
        if name != "target" or not len(array):
            return array
        tasks = Tasks.of(self, "test")
        first, end = int(tasks.offsets[0]), int(tasks.offsets[-1])
        targets: np.ndarray = np.load(self.path / "arrays" / "target.npy", mmap_mode="c", allow_pickle=False)
        targets[first:end][tasks.query_mask() if self._erased == "query" else slice(None)] = np.nan
        return targets

    def interactions(self) -> pl.LazyFrame:
        """The table of interactions, with the same targets erased."""
        hidden = pl.col("user") >= self.manifest.splits["test"][0]
        if self._erased == "query":
            hidden &= pl.col("query")
        return super().interactions().with_columns(target=pl.when(~hidden).then("target"))


def require_untouched(prediction_Q: np.ndarray, entry: str) -> None:
    """Check that predictions for query rows are finite: no erased target has entered them."""
    wrong = int(np.count_nonzero(~np.isfinite(prediction_Q)))
    if wrong:
        raise TrainingError(
            f"{wrong:,} predictions of '{entry}' are not finite: it diverged, or it read targets it must not know",
            remedy="lower its learning rates; if that does not help, report a bug",
        )
