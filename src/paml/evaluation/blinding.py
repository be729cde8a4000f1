"""Proof that nothing is learned from what is to be predicted: it is erased beforehand.

For fitting, all targets and items of test users are erased; for prediction, the targets of their query rows are; for
ranking, the items of these as well. An erased target is NaN, so that a method that used one would end with NaN weights
or predictions; an erased item is a number that no array has, so that using it is an IndexError. That training steps
read only rows of training users is checked row by row, where batches are loaded (`episodes.batches.Loader`).
"""

from typing import Literal

import numpy as np
import polars as pl

from paml.data.dataset import Dataset
from paml.episodes.tasks import Split, Tasks
from paml.errors import TrainingError

Erased = Literal["all", "targets", "query", "items"]
"""Of test users: all targets and items, all targets, the targets of query rows, targets and items of query rows."""
PREDICTED: tuple[Split, ...] = ("test", "known")
"""The splits that come last, whose query rows are to be predicted."""
_WHOLE_USERS, _WITH_ITEMS = ("all", "targets"), ("all", "items")


class BlindedDataset(Dataset):
    """A data set in which targets, and perhaps items, of test users are erased: all, or those of query rows."""

    def __init__(self, data: Dataset, erased: Erased) -> None:
        super().__init__(data.path, data.manifest)
        self._erased: Erased = erased

    def array(self, name: str) -> np.ndarray:
        """The array; what is erased is in a private copy of the test users' part, the rest stays on disk."""
        array = super().array(name)
        if not len(array) or not (name == "target" or (name == "item" and self._erased in _WITH_ITEMS)):
            return array
        copy = self._map(name, "c")
        nothing = np.nan if name == "target" else np.iinfo(copy.dtype).max
        for split in PREDICTED:
            tasks = Tasks.of(self, split)
            first, end = int(tasks.offsets[0]), int(tasks.offsets[-1])
            copy[first:end][slice(None) if self._erased in _WHOLE_USERS else tasks.query_mask()] = nothing
        return copy

    def interactions(self) -> pl.LazyFrame:
        """The table of interactions, with the same erased."""
        hidden = pl.col("user") >= self.manifest.splits["test"][0]
        if self._erased not in _WHOLE_USERS:
            hidden &= pl.col("query")
        names = ("target", "item") if self._erased in _WITH_ITEMS else ("target",)
        return super().interactions().with_columns(pl.when(~hidden).then(name).alias(name) for name in names)


def require_untouched(prediction_Q: np.ndarray, entry: str) -> None:
    """Check that predictions for query rows are finite: no erased target has entered them."""
    wrong = int(np.count_nonzero(~np.isfinite(prediction_Q)))
    if wrong:
        raise TrainingError(
            f"{wrong:,} predictions of '{entry}' are not finite: it diverged, or it read targets it must not know",
            remedy="lower its learning rates; if that does not help, report a bug",
        )
