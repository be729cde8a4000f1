"""What users are known to have rated or clicked, as weights of items: the input of whatever ranks by them.

A weight says how much a row counts as a sign of interest. For ratings it depends on the level, by one of a few named
WEIGHTS; they are given for five levels and interpolated over other scales. Of clicks, only clicked rows count; of
choices all do, and stronger ones more.

Legend: N rows, U users, I items.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from paml.data.dataset import Dataset
from paml.data.schema import Target, liked_level, reaching
from paml.episodes import ragged
from paml.episodes.tasks import Known, Tasks

WEIGHTS: dict[str, tuple[float, ...]] = {
    "all": (1.0, 1.0, 1.0, 1.0, 1.0),
    "graded": (0.2, 0.5, 1.0, 1.3, 1.6),
    "preferred": (0.3, 0.3, 0.3, 1.0, 1.0),
}
"""Weight of a row by its rating, from the lowest to the highest level; beside these, `liked` counts liked rows only."""


CHOSEN = (1.0, 1.15, 1.3, 1.45, 1.6)
"""The same for choices of strengths 1 to 5, if they are graded: all say that somebody wanted the item."""


def counts_alike(target: Target) -> bool:
    """Whether all rows that count have the same weight, by whatever name."""
    return target.kind == "click" or (target.kind == "choice" and target.high == target.lowest)


def level_weights(target: Target, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Levels, and the weight of each: one between two levels has a weight between theirs."""
    if target.kind == "choice":
        levels = np.arange(1.0, len(CHOSEN) + 1)
        return levels, np.array(CHOSEN) if name == "graded" else np.ones(len(levels))
    levels = np.linspace(target.low, target.high, len(WEIGHTS[name]))
    return levels, np.array(WEIGHTS[name]) if target.kind == "rating" else (levels >= 1).astype(np.float64)


def row_weights(target: Target, name: str, target_N: np.ndarray) -> np.ndarray:
    """The weight of each row, 0 where it does not count."""
    if target.kind == "click" or name == "liked":
        return np.asarray(target_N >= reaching(target, liked_level(target)), dtype=np.float32)
    weight_N: np.ndarray = np.interp(target_N, *level_weights(target, name)).astype(np.float32)
    return weight_N


@dataclass(frozen=True)
class Histories:
    """The rows of U users, end to end."""

    target: Target
    users: int
    items: int
    user_N: np.ndarray
    """Index of the row's user among these."""
    item_N: np.ndarray
    target_N: np.ndarray

    @classmethod
    def of_training(cls, data: Dataset) -> "Histories":
        """All rows of training users, and no others."""
        tasks, rows = Tasks.of(data, "train"), slice(0, data.training_rows)
        user_N = ragged.owners(np.diff(tasks.offsets))
        item_N, target_N = np.asarray(data.array("item")[rows], np.int64), np.asarray(data.array("target")[rows])
        return cls(data.schema.target, len(tasks), data.manifest.items, user_N, item_N, target_N)

    @classmethod
    def of_known(cls, data: Dataset, known: Known) -> "Histories":
        """The known support rows of some users."""
        user_N, place_N = np.nonzero(known.support.mask_BL)
        row_N = known.support.row_BL[user_N, place_N]
        item_N, target_N = np.asarray(data.array("item")[row_N], np.int64), np.asarray(data.array("target")[row_N])
        return cls(data.schema.target, len(known.user_B), data.manifest.items, user_N, item_N, target_N)

    def of_users(self, chosen_U: np.ndarray) -> "Histories":
        """The rows of some of these users, given by a mask."""
        rows_N, number_U = chosen_U[self.user_N], np.cumsum(chosen_U) - 1
        user_N, users = number_U[self.user_N[rows_N]], int(chosen_U.sum())
        return Histories(self.target, users, self.items, user_N, self.item_N[rows_N], self.target_N[rows_N])

    def matrix(self, weights: str) -> sp.csr_array:
        """The weights of all items for all users, (U, I); an item that a user has twice counts with the larger one."""
        weight_N = row_weights(self.target, weights, self.target_N)
        counts_N = weight_N > 0
        key_N, weight_N = (self.user_N * self.items + self.item_N)[counts_N], weight_N[counts_N]
        order_N = np.lexsort((weight_N, key_N))
        key_N, weight_N = key_N[order_N], weight_N[order_N]
        last_N = np.append(key_N[1:] != key_N[:-1], True) if len(key_N) else np.zeros(0, dtype=bool)
        place = np.divmod(key_N[last_N], self.items)
        return sp.csr_array((weight_N[last_N], place), shape=(self.users, self.items), dtype=np.float32)

    @cached_property
    def liked_I(self) -> np.ndarray:
        """Number of these users who liked each item."""
        return np.bincount(self.matrix("liked").indices, minlength=self.items)
