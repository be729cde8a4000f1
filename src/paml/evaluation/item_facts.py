"""What is known about items beside the ratings to be predicted: how popular they are, and what they contain.

Legend: I items, T values of all items end to end.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paml.data.dataset import Dataset
from paml.data.schema import Kind
from paml.episodes import ragged

USERS_AT_ONCE = 4096


@dataclass(frozen=True)
class ItemFacts:
    """Facts about all items of a data set, none of them from validation or test users."""

    interacted_I: np.ndarray
    """How many training users interacted with each item."""
    users: int
    """Training users."""
    code_T: np.ndarray
    """The items' values, end to end: a number for each value of a categorical or multi-valued field."""
    count_I: np.ndarray
    """How many values each item has."""

    @classmethod
    def of(cls, data: Dataset) -> "ItemFacts":
        """The facts of a data set's items."""
        first, end = data.manifest.splits["train"]
        return cls(_interacted(data), end - first, *_contents(data))

    def __len__(self) -> int:
        return len(self.count_I)

    @cached_property
    def popularity_I(self) -> np.ndarray:
        """The share of training users who interacted with each item."""
        return self.interacted_I / max(self.users, 1)

    @cached_property
    def novelty_I(self) -> np.ndarray:
        """-log2 of that share, smoothed by one more user who interacted with everything: 0 if all others did, too."""
        return -np.log2((self.interacted_I + 1) / (self.users + 1))


def _interacted(data: Dataset) -> np.ndarray:
    """Training users per item; a user who interacted with an item several times counts once."""
    items, offsets, item_N = data.manifest.items, data.array("offsets"), data.array("item")
    first, end = data.manifest.splits["train"]
    count_I = np.zeros(items, dtype=np.int64)
    for start in range(first, end, USERS_AT_ONCE):
        offset_U = np.asarray(offsets[start : min(start + USERS_AT_ONCE, end) + 1], dtype=np.int64)
        item_R = item_N[int(offset_U[0]) : int(offset_U[-1])].astype(np.int64)
        pairs = np.unique(ragged.owners(np.diff(offset_U)) * items + item_R)
        count_I += np.bincount(pairs % items, minlength=items)
    return count_I


def _contents(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The values of all categorical and multi-valued item fields, item by item; code 0 is "unknown" and left out."""
    items, base = data.manifest.items, 0
    owners, codes = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for field in data.schema.features("item"):
        if field.kind is Kind.NUMERIC:
            continue
        column = data.column("item", field)
        count_I = np.ones(items, dtype=np.int64) if column.offsets is None else np.diff(column.offsets)
        code_V = np.asarray(column.values, dtype=np.int64)
        known_V = code_V > 0
        owners.append(ragged.owners(count_I)[known_V])
        codes.append(base + code_V[known_V])
        base += int(code_V.max(initial=0)) + 1
    owner_T = np.concatenate(owners)
    order = np.argsort(owner_T, kind="stable")
    return np.concatenate(codes)[order], np.bincount(owner_T, minlength=items)
