"""Settings that depend on the size of the data, by rule: what a recipe gives as "auto" becomes a number here.

The rules were chosen on validation users (docs/log.md) of data sets between 5,000 and 300,000 training ratings. They
read training users only. A run records the numbers, so it can be repeated whatever the rules become.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paml.data.dataset import Dataset
from paml.data.schema import Kind

AUTO = "auto"
VECTOR_SIZES = (4, 8, 16, 32, 48)
BATCH_SIZES = (32, 64, 128)
BATCHES = 32  # outer steps per epoch that batches aim at
SPARSE_ITEMS = 10  # below this many ratings per item, weights decay faster
VERY_SPARSE_ITEMS = 5  # below this many, items are connected by the values of their fields
SHORT_HISTORIES = 5  # below this many ratings per user, what they chose to rate says little
MAX_DECAY = 0.05
TELLING = 20  # a field connects items if at most this many of them share a value, on average
DISCOUNT = 0.8
EPOCHS = 12
FEW_EPOCHS = 8
LONG_EPOCHS = 100_000  # training rows above which an epoch is worth more, and fewer are needed
ENSEMBLE = 24
UNMERGED_ENSEMBLE = 16  # where as many networks as were trained have to answer
SMALL_ENSEMBLE = 5
MERGED = 5  # vectors of the merged network, in lengths of a member's
MANY_ROWS = 1_000_000  # training rows above which the smaller ensemble is enough
CHOICE_EPOCHS = 12
CHOICE_ENSEMBLE = 4
SMALL_CHOICE_ENSEMBLE = 2
CHOICE_VISITS = 150_000  # training users that a network for choice sees, some of them often


@dataclass(frozen=True)
class DataSize:
    """What the rules look at: training users, their ratings, the items they rated, and the values of item fields."""

    users: int
    rows: int
    items: int
    values: Mapping[str, int] = field(default_factory=dict)
    """Number of values of each item field that has one value per item."""

    @classmethod
    def of(cls, data: Dataset) -> "DataSize":
        """The size of a prepared data set; reads training users only."""
        names = [one.name for one in data.schema.features("item") if one.kind is Kind.CATEGORICAL]
        sizes = data.manifest.vocabulary
        return cls(
            users=data.manifest.splits["train"][1],
            rows=data.training_rows,
            items=int(data.interacted_in_training().sum()),
            values={name: sizes[f"item.{name}"] for name in names},
        )

    @property
    def rows_per_user(self) -> float:
        """Mean number of ratings of a training user."""
        return self.rows / max(self.users, 1)

    @property
    def rows_per_item(self) -> float:
        """Mean number of ratings of an item that training users rated."""
        return self.rows / max(self.items, 1)

    def without(self, exclude_fields: Iterable[str]) -> "DataSize":
        """Without fields that are not inputs, each named with its side."""
        excluded = set(exclude_fields)
        return replace(self, values={name: n for name, n in self.values.items() if f"item.{name}" not in excluded})


EMBEDDED = DataSize(users=1103, rows=27_516, items=500, values={"director": 107})
"""The embedded data set, for recipes that are loaded without data."""


def batch_size(size: DataSize) -> int:
    """About 32 outer steps per epoch, so that the number of epochs need not depend on the number of users."""
    return _nearest(size.users / BATCHES, BATCH_SIZES)


def weight_decay(size: DataSize) -> float:
    """rows^(-2/3), times 10 / (ratings per item) where items have fewer than ten, and 5 / (ratings per user) likewise.

    The more ratings, the less has to be shrunk. The powers are what validation users preferred, from 7,000 ratings (an
    embedded world) to 300,000 (MovieLens-1M) and from 1.2 per item (Book-Crossing) to 86.
    """
    items = max(1.0, SPARSE_ITEMS / max(size.rows_per_item, 1.0))
    users = max(1.0, SHORT_HISTORIES / max(size.rows_per_user, 1.0))
    return min(_rounded(max(size.rows, 1) ** (-2 / 3) * items * users), MAX_DECAY)


def item_embedding(size: DataSize) -> int:
    """About half as many dimensions as users have ratings; fewer where items have less than a fifth of a user's."""
    return _nearest(min(size.rows_per_user, 5 * size.rows_per_item) / 2, VECTOR_SIZES)


def prior_from_items(size: DataSize) -> int:
    """As long as the items' vectors; 0 where users have rated too little for the choice to say anything."""
    return 0 if size.rows_per_user < SHORT_HISTORIES else item_embedding(size)


def user_bias_discount(size: DataSize) -> float:
    """0.8; 0 where users have one or two query rows, and the mean of their errors is all there is to learn from."""
    return 0.0 if size.rows_per_user < SHORT_HISTORIES else DISCOUNT


def affinity_fields(size: DataSize) -> tuple[str, ...]:
    """Where items have fewer than five ratings: fields with one value per item and at most 20 items per value."""
    if size.rows_per_item >= VERY_SPARSE_ITEMS:
        return ()
    return tuple(name for name, count in size.values.items() if size.items <= TELLING * count)


def ensemble_size(size: DataSize) -> int:
    """24, which are merged into one; 16 with affinities, which are not merged (methods/merge.py).

    Five above a million ratings, where each member overfits less and costs more.
    """
    if size.rows > MANY_ROWS:
        return SMALL_ENSEMBLE
    return UNMERGED_ENSEMBLE if affinity_fields(size) else ENSEMBLE


def merged_size(size: DataSize) -> int:
    """Five times as long as the items' vectors: what that leaves out costs less than 0.1 % of the error."""
    return MERGED * item_embedding(size)


def epochs(size: DataSize) -> int:
    """Twelve; eight above 100,000 ratings."""
    return FEW_EPOCHS if size.rows > LONG_EPOCHS else EPOCHS


def choice_epochs(size: DataSize) -> int:
    """Twelve, or as many as let a network see 150,000 users, at least one.

    A softmax over 20,000 items takes a core some 7 ms a user: twelve epochs of two networks on a log of ten million
    rows would take a quarter of a day.
    """
    return max(1, min(CHOICE_EPOCHS, round(CHOICE_VISITS / max(size.users, 1))))


def choice_ensemble_size(size: DataSize) -> int:
    """Four; two where items have fewer than five ratings and little can be learned, and one above a million rows."""
    if size.rows > MANY_ROWS:
        return 1
    return SMALL_CHOICE_ENSEMBLE if size.rows_per_item < VERY_SPARSE_ITEMS else CHOICE_ENSEMBLE


RULES: dict[str, Callable[[DataSize], Any]] = {
    "batch_size": batch_size,
    "weight_decay": weight_decay,
    "item_embedding": item_embedding,
    "prior_from_items": prior_from_items,
    "user_bias_discount": user_bias_discount,
    "affinity_fields": affinity_fields,
    "ensemble_size": ensemble_size,
    "merged_size": merged_size,
    "epochs": epochs,
}
CHOICE_RULES = {**RULES, "ensemble_size": choice_ensemble_size, "epochs": choice_epochs}
"""The same for the head `choice`."""


def is_ruled(name: str, value: Any) -> bool:
    """Whether a setting is left to its rule."""
    return name in RULES and value == AUTO


def _nearest(value: float, choices: Sequence[int]) -> int:
    """The choice that is nearest by ratio."""
    return min(choices, key=lambda choice: abs(math.log(choice / max(value, 1e-9))))


def _rounded(value: float) -> float:
    """Two digits: numbers that people read, and that hardly differ between splits."""
    return float(f"{value:.1e}")
