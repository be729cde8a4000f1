"""Proof that nothing is learned from what is to be predicted: it is erased beforehand.

For fitting, all targets and items of test users are erased; for prediction, the targets of their query rows are; for
ranking, the items of these as well. An erased target is NaN, so that a method that used one would end with NaN weights
or predictions; an erased item is a number that no array has, so that using it is an IndexError. That training steps
read only rows of training users is asserted row by row, where batches are loaded (`episodes.batches.Loader`).
"""

from typing import Any, Literal

import numpy as np
import polars as pl

from paml.data.dataset import Dataset
from paml.episodes.tasks import Tasks
from paml.errors import TrainingError

Erased = Literal["all", "targets", "query", "items"]
"""Of test users: all targets and items, all targets, the targets of query rows, targets and items of query rows."""
_WHOLE_USERS, _WITH_ITEMS = ("all", "targets"), ("all", "items")


class BlindedDataset(Dataset):
    """A data set in which targets, and perhaps items, of test users are erased: all, or those of query rows."""

    def __init__(self, data: Dataset, erased: Erased) -> None:
        super().__init__(data.path, data.manifest)
        self._erased: Erased = erased
        self._copies: dict[str, np.ndarray] = {}

    def array(self, name: str) -> np.ndarray:
        """The array; what is erased is in a private copy of the test users' part, the rest stays on disk."""
        if name not in ("target", "item"):
            return super().array(name)
        if name not in self._copies:
            array = super().array(name)
            file = self.path / "arrays" / f"{name}.npy"
            self._copies[name] = np.load(file, mmap_mode="c", allow_pickle=False) if len(array) else array
            self._erase(name)
        return self._copies[name]

    def reveal(self, erased: Erased) -> None:
        """Erase less from now on, also in arrays that were handed out: who was fitted meets the users to rank for."""
        self._erased = erased
        for name, array in self._copies.items():
            first, end = self._test_rows()
            array[first:end] = super().array(name)[first:end]
            self._erase(name)

    def interactions(self) -> pl.LazyFrame:
        """The table of interactions, with the same erased."""
        hidden = pl.col("user") >= self.manifest.splits["test"][0]
        if self._erased not in _WHOLE_USERS:
            hidden &= pl.col("query")
        names = ("target", "item") if self._erased in _WITH_ITEMS else ("target",)
        return super().interactions().with_columns(pl.when(~hidden).then(name).alias(name) for name in names)

    def _erase(self, name: str) -> None:
        array = self._copies[name]
        if not len(array) or (name == "item" and self._erased not in _WITH_ITEMS):
            return
        nothing: Any = np.nan if name == "target" else np.iinfo(array.dtype).max
        first, end = self._test_rows()
        hidden = slice(None) if self._erased in _WHOLE_USERS else Tasks.of(self, "test").query_mask()
        array[first:end][hidden] = nothing

    def _test_rows(self) -> tuple[int, int]:
        offsets = Tasks.of(self, "test").offsets
        return int(offsets[0]), int(offsets[-1])


def require_untouched(prediction_Q: np.ndarray, entry: str) -> None:
    """Check that predictions for query rows are finite: no erased target has entered them."""
    wrong = int(np.count_nonzero(~np.isfinite(prediction_Q)))
    if wrong:
        raise TrainingError(
            f"{wrong:,} predictions of '{entry}' are not finite: it diverged, or it read targets it must not know",
            remedy="lower its learning rates; if that does not help, report a bug",
        )
