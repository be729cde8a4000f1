"""Users as tasks: ragged support and query sets to rectangular batches, by index arithmetic on flat arrays.

Batches are bucketed by length to keep padding small, and drawn anew every epoch. No Python loop runs over users.

Legend: B users of a batch, L places (the longest user's rows), W users of a window, R rows of a window.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from paml.data.dataset import Dataset
from paml.data.protocol import support_counts
from paml.episodes import ragged

Split = Literal["train", "validation", "test", "known"]
"""`known` are training users again, who are asked about new items; most data sets have none."""
BATCHES_PER_WINDOW = 64  # users are shuffled, then sorted by length within windows of this many batches


@dataclass(frozen=True)
class Block:
    """Rows of B users side by side: `row_BL` indexes the flat arrays, `mask_BL` tells rows from padding."""

    row_BL: np.ndarray
    mask_BL: np.ndarray

    @classmethod
    def of(cls, start_B: np.ndarray, count_B: np.ndarray, shuffled: np.ndarray | None = None) -> "Block":
        """The `count` rows from `start` on, per user, looked up in `shuffled` if given; padding repeats the first."""
        place_L = np.arange(count_B.max(initial=1))
        mask_BL = place_L < count_B[:, None]
        row_BL = start_B[:, None] + np.where(mask_BL, place_L, 0)
        return cls(row_BL if shuffled is None else shuffled[row_BL], mask_BL)

    @property
    def cells(self) -> int:
        """Number of places, padding included."""
        return self.mask_BL.size

    @property
    def rows(self) -> int:
        """Number of places that hold a row."""
        return int(np.count_nonzero(self.mask_BL))


@dataclass(frozen=True)
class Known:
    """What is known about B users: who they are, and their support rows."""

    user_B: np.ndarray
    support: Block


@dataclass(frozen=True)
class TaskBatch(Known):
    """B tasks: what is known about each user (support) and what is to be predicted (query)."""

    query: Block

    def of(self, users: slice) -> "TaskBatch":
        """Some of the users."""
        support, query = (Block(block.row_BL[users], block.mask_BL[users]) for block in (self.support, self.query))
        return TaskBatch(self.user_B[users], support, query)


@dataclass(frozen=True)
class Tasks:
    """The tasks of users `first`, `first + 1`, ...: where their rows are in the flat arrays, and support counts."""

    first: int
    offsets: np.ndarray
    support: np.ndarray

    @classmethod
    def of(cls, data: Dataset, split: Split) -> "Tasks":
        """The tasks of one split; nothing outside its slice is read."""
        first, end = data.manifest.splits.get(split, (data.manifest.users, data.manifest.users))
        return cls(first, data.array("offsets")[first : end + 1], data.array("support")[first:end])

    def query_mask(self) -> np.ndarray:
        """Which of these users' rows, end to end, are query rows of the stored split."""
        count_U = np.diff(self.offsets)
        mask_N: np.ndarray = ragged.places(count_U) >= np.repeat(self.support, count_U)
        return mask_N

    def part(self, start: int, count: int) -> "Tasks":
        """At most `count` of the users, from `start` on."""
        end = min(start + count, len(self))
        return Tasks(self.first + start, self.offsets[start : end + 1], self.support[start:end])

    def __len__(self) -> int:
        return len(self.support)

    def stored(self, batch_size: int, shots: int | None = None, *, shortened: bool = False) -> Iterator[TaskBatch]:
        """All users once, in order of length, with the split that was drawn and stored when the data was prepared.

        With `shots`, at most that many support rows of each user are used; the query rows stay the same. `shortened`
        leaves out the users whose support sets that does not change.
        """
        start = np.asarray(self.offsets[:-1], dtype=np.int64)
        order = np.argsort(np.diff(self.offsets), kind="stable")
        if shortened:
            order = order[:0] if shots is None else order[np.asarray(self.support[order]) > shots]
        for user_B in _cut(order, batch_size):
            batch = self._batch(user_B, start[user_B], np.asarray(self.support[user_B], dtype=np.int64))
            if shots is not None:
                known_B = np.minimum(self.support[user_B], shots).astype(np.int64)
                batch = replace(batch, support=Block.of(start[user_B], known_B))
            yield batch

    def episodes(
        self,
        batch_size: int,
        rng: np.random.Generator,
        *,
        support_share: float = 0.8,
        random_support: bool = False,
        few_shot_share: float = 0.0,
        in_order: bool = False,
    ) -> Iterator[TaskBatch]:
        """One epoch of training tasks: all users once, in new batches, each with a new random support set (Alg. 1).

        The support set has `support_share` of the rows or, with `random_support`, a random share: one draw for all
        users of a batch, so that users of similar length also have similar support sets and padding stays small.
        In `few_shot_share` of the batches the number of support rows is log-uniform instead (`few_shot_counts`). With
        `in_order` they are a user's first rows as stored: the earliest, if the data set is split by time.
        """

        def support_of(rows_B: np.ndarray) -> np.ndarray:
            if few_shot_share and rng.random() < few_shot_share:
                return few_shot_counts(rows_B, rng.random())
            return support_counts(rows_B, rng.random() if random_support else support_share)

        for window in _cut(rng.permutation(len(self)), batch_size * BATCHES_PER_WINDOW):
            rows_W = np.asarray(self.offsets[window + 1] - self.offsets[window], dtype=np.int64)
            order = np.argsort(rows_W, kind="stable")
            user_W, rows_W = window[order], rows_W[order]
            first_W = np.asarray(self.offsets[user_W], dtype=np.int64)
            shuffled_R = ragged.positions(first_W, rows_W) if in_order else ragged.shuffled(first_W, rows_W, rng)
            start_W = ragged.starts(rows_W)
            batches = list(_cut(np.arange(len(user_W)), batch_size))
            for number in rng.permutation(len(batches)):
                pick = batches[number]
                yield self._batch(user_W[pick], start_W[pick], support_of(rows_W[pick]), shuffled_R)

    def _batch(
        self, user_B: np.ndarray, start_B: np.ndarray, support_B: np.ndarray, shuffled: np.ndarray | None = None
    ) -> TaskBatch:
        count_B = np.asarray(self.offsets[user_B + 1] - self.offsets[user_B], dtype=np.int64)
        support = Block.of(start_B, support_B, shuffled)
        query = Block.of(start_B + support_B, count_B - support_B, shuffled)
        return TaskBatch(user_B + self.first, support, query)


def few_shot_counts(rows_B: np.ndarray, u: float) -> np.ndarray:
    """Support rows with a log-uniform number: exp(u log(1 + n)) - 1 of n rows, rounded; from none to all but one.

    With u uniform in [0, 1), 0 to 1, 1 to 3 and 3 to 7 rows are about equally likely, which a uniform share of 100 rows
    leaves to one episode in fifteen: these are the users of a cold start.
    """
    count_B: np.ndarray = np.clip(np.rint(np.expm1(u * np.log1p(rows_B))), 0, rows_B - 1)
    return count_B.astype(np.int64)


def _cut(indices: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(indices), size):
        yield indices[start : start + size]
