"""What boosting and logistic regression know about a row: statistics of its item, its user and what they share.

No statistic uses the row's own target. The user's statistics come from the support rows, the item's from the training
rows of other users. This holds for training rows and for rows of new users alike, so that what is learnt in training
is valid for users who were never seen.

Legend: N rows, P picked rows, U users, I items, V values of a field, E (row, value) pairs.
"""

from dataclasses import dataclass

import numpy as np

from paml.baselines.rows import SplitRows
from paml.data.dataset import Dataset, Side
from paml.data.protocol import support_counts
from paml.data.schema import Field, Kind
from paml.episodes import ragged

ITEM_SHRINKAGE, USER_SHRINKAGE, VALUE_SHRINKAGE = 5.0, 5.0, 3.0
EPISODES, MAX_ROWS = 2, 1_000_000  # how often training users are split; query rows of all episodes together


def episode(rows: SplitRows, share: float, rng: np.random.Generator) -> SplitRows:
    """The rows with a new random support set for each user; all other rows are query rows.

    Half of the users get the protocol's share of their rows; the others a size from 0 to all but one, drawn uniformly
    on a log scale, so that small support sets occur in training as well.
    """
    count_U = np.bincount(rows.user_N, minlength=rows.users)
    few_U = np.floor(count_U ** rng.random(rows.users)).astype(np.int64) - 1
    support_U = np.where(rng.random(rows.users) < 0.5, support_counts(count_U, share), few_U)
    order_N = np.argsort(rows.user_N + rng.random(len(rows.user_N)))  # users stay in place, their rows are shuffled
    place_N = np.empty(len(order_N), dtype=np.int64)
    place_N[order_N] = ragged.places(count_U)
    query_N = place_N >= support_U[rows.user_N]
    return SplitRows(rows.item_N, rows.target_N, rows.user_N, query_N, rows.first_user, rows.first_row)


@dataclass(frozen=True)
class Episode:
    """Rows with their own support sets, the query rows picked to learn from, and their weights."""

    rows: SplitRows
    pick_P: np.ndarray
    weight_P: np.ndarray
    """Every user has the same total weight, as in the metrics."""


def training_episodes(data: Dataset, rng: np.random.Generator) -> list[Episode]:
    """A few episodes of all training users, at most MAX_ROWS query rows in total: large data must fit in memory."""
    train, episodes = SplitRows.of(data, "train"), []
    for _ in range(EPISODES):
        rows = episode(train, data.manifest.protocol.support_share, rng)
        pick_P = np.flatnonzero(rows.query_N)
        if len(pick_P) > MAX_ROWS // EPISODES:
            pick_P = np.sort(rng.choice(pick_P, MAX_ROWS // EPISODES, replace=False))
        episodes.append(Episode(rows, pick_P, 1.0 / rows.query_count()[rows.user_N[pick_P]]))
    return episodes


class Totals:
    """Sum and count of values per (user, key) pair, with vectorised look-up."""

    def __init__(self, user_N: np.ndarray, key_N: np.ndarray, value_N: np.ndarray, keys: int) -> None:
        self._keys = keys
        self._pairs, place_N = np.unique(self._pair(user_N, key_N), return_inverse=True)
        self._total = np.bincount(place_N, weights=value_N, minlength=len(self._pairs))
        self._count = np.bincount(place_N, minlength=len(self._pairs))

    def _pair(self, user_N: np.ndarray, key_N: np.ndarray) -> np.ndarray:
        pair_N: np.ndarray = user_N.astype(np.int64) * self._keys + key_N
        return pair_N

    def of(self, user_P: np.ndarray, key_P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sum and count for each of the given pairs, 0 where there is none."""
        if not len(self._pairs):
            return np.zeros(len(user_P)), np.zeros(len(user_P))
        pair_P = self._pair(user_P, key_P)
        place_P = np.minimum(np.searchsorted(self._pairs, pair_P), len(self._pairs) - 1)
        found_P = self._pairs[place_P] == pair_P
        return np.where(found_P, self._total[place_P], 0.0), np.where(found_P, self._count[place_P], 0)


@dataclass(frozen=True)
class Values:
    """A categorical or multi-valued field: row i of its table has the codes from `offsets[i]` to `offsets[i + 1]`."""

    name: str
    size: int
    codes: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, data: Dataset, side: Side, field: Field) -> "Values":
        """The field's arrays; a categorical field has lists of one value."""
        name = f"{side}.{field.name}"
        codes = data.array(name)
        offsets = data.array(f"{name}.offsets") if field.kind is Kind.MULTI else np.arange(len(codes) + 1)
        return cls(name, data.manifest.vocabulary[name], codes, offsets)

    def pairs(self, place_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(row, value) pairs of the users, items or interactions at the given places: row number and code."""
        count_N = self.offsets[place_N + 1] - self.offsets[place_N]
        return ragged.owners(count_N), self.codes[ragged.positions(self.offsets[place_N], count_N)]


def places(rows: SplitRows, pick_P: np.ndarray) -> dict[Side, np.ndarray]:
    """Where the data set's arrays hold the encoded fields of the picked rows' users, items and context."""
    return {
        "user": rows.first_user + rows.user_N[pick_P],
        "item": rows.item_N[pick_P],
        "context": rows.first_row + pick_P,
    }


class Statistics:
    """Statistics of rows, given the training rows; `training` says that the rows are themselves training rows.

    Totals over the training rows are computed once, so that the cost of new users does not grow with the training set.
    """

    def __init__(self, data: Dataset) -> None:
        self.train = train = SplitRows.of(data, "train")
        self.mean = float(train.target_N.mean(dtype=np.float64))
        self._residual_N = train.target_N - self.mean
        fields = [field for field in data.schema.features("item") if field.kind is not Kind.NUMERIC]
        self._values = [Values.of(data, "item", field) for field in fields]
        self._items = data.manifest.items
        self._total_I = np.bincount(train.item_N, weights=self._residual_N, minlength=self._items)
        self._count_I = np.bincount(train.item_N, minlength=self._items)
        self._user_item = Totals(train.user_N, train.item_N, self._residual_N, self._items)
        profile = [field.name for field in data.schema.features("user") if field.kind is Kind.CATEGORICAL]
        self._profile = {name: data.array(f"user.{name}") for name in profile}
        self._shared = {
            name: Totals(code_U[train.user_N], train.item_N, self._residual_N, self._items)
            for name, code_U in self._profile.items()
        }
        self._liked = {values.name: self._of_training(values) for values in self._values}

    def _of_training(self, values: Values) -> tuple[np.ndarray, np.ndarray]:
        """For each value, sum and count of the training rows whose items have it."""
        train_E, code_E = values.pairs(self.train.item_N)
        total_V = np.bincount(code_E, weights=self._residual_N[train_E], minlength=values.size)
        return total_V, np.bincount(code_E, minlength=values.size)

    def item_bias(self, rows: SplitRows, *, training: bool) -> tuple[np.ndarray, np.ndarray]:
        """Shrunk bias and number of training rows of each row's item, without the rows of the row's own user."""
        total_N, count_N = self._total_I[rows.item_N], self._count_I[rows.item_N]
        if training:
            total, count = self._user_item.of(rows.user_N, rows.item_N)
            total_N, count_N = total_N - total, count_N - count
        return total_N / (count_N + ITEM_SHRINKAGE), count_N

    def columns(self, rows: SplitRows, pick_P: np.ndarray, *, training: bool) -> dict[str, np.ndarray]:
        """Named statistics of the picked rows; `bias` is the prediction mu + b_i + b_u."""
        item_bias_N, item_count_N = self.item_bias(rows, training=training)
        residual_N = rows.target_N - self.mean - item_bias_N
        ones_N = np.ones(len(residual_N))
        count_U, total_U = rows.user_sum(ones_N), rows.user_sum(residual_N)
        at_least_one_U = np.maximum(count_U, 1)
        offset_U = rows.user_sum(rows.target_N - self.mean) / at_least_one_U
        spread_U = np.sqrt(
            np.maximum(rows.user_sum((rows.target_N - self.mean) ** 2) / at_least_one_U - offset_U**2, 0)
        )
        user_bias_U = total_U / (count_U + USER_SHRINKAGE)
        user_P = rows.user_N[pick_P]
        columns = {
            "bias": self.mean + item_bias_N[pick_P] + user_bias_U[user_P],
            "item_bias": item_bias_N[pick_P],
            "item_rows": np.log1p(item_count_N[pick_P]),
            "user_rows": np.log1p(count_U[user_P]),
            "user_mean": offset_U[user_P],
            "user_spread": spread_U[user_P],
            "user_residual": (total_U / at_least_one_U)[user_P],
            "user_bias": user_bias_U[user_P],
            "user_offset": (offset_U * count_U / (count_U + USER_SHRINKAGE))[user_P],
        }
        columns |= self._of_profile(rows, pick_P, item_bias_N, training=training)
        residual_N = residual_N - user_bias_U[rows.user_N]
        for values in self._values:
            columns |= self._of_values(values, rows, residual_N, pick_P, training=training)
        return columns

    def _of_profile(
        self, rows: SplitRows, pick_P: np.ndarray, item_bias_N: np.ndarray, *, training: bool
    ) -> dict[str, np.ndarray]:
        """How much more users who share a value of the user's profile like the item than others do."""
        user_P, item_P = rows.user_N[pick_P], rows.item_N[pick_P]
        columns = {}
        for name, code_U in self._profile.items():
            total_P, count_P = self._shared[name].of(code_U[rows.first_user + user_P], item_P)
            if training:
                own_total_P, own_count_P = self._user_item.of(user_P, item_P)
                total_P, count_P = total_P - own_total_P, count_P - own_count_P
            columns[f"shared.{name}"] = (total_P - count_P * item_bias_N[pick_P]) / (count_P + ITEM_SHRINKAGE)
        return columns

    def _of_values(
        self, values: Values, rows: SplitRows, residual_N: np.ndarray, pick_P: np.ndarray, *, training: bool
    ) -> dict[str, np.ndarray]:
        """How other users liked items with the item's values, and how much more this user liked them."""
        user_P = rows.user_N[pick_P]
        row_E, value_E = values.pairs(rows.item_N[pick_P])

        def shrunk(total_E: np.ndarray, count_E: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            total_P = np.bincount(row_E, weights=total_E, minlength=len(pick_P))
            count_P = np.bincount(row_E, weights=count_E, minlength=len(pick_P))
            return total_P / (count_P + VALUE_SHRINKAGE), count_P

        total_V, count_V = self._liked[values.name]
        total_E, count_E = total_V[value_E], count_V[value_E]
        if training:
            train_E, code_E = values.pairs(self.train.item_N)
            totals = Totals(self.train.user_N[train_E], code_E, self._residual_N[train_E], values.size)
            own_total_E, own_count_E = totals.of(user_P[row_E], value_E)
            total_E, count_E = total_E - own_total_E, count_E - own_count_E
        known = np.flatnonzero(rows.support_N)
        known_E, known_value_E = values.pairs(rows.item_N[known])
        support = Totals(rows.user_N[known][known_E], known_value_E, residual_N[known][known_E], values.size)
        affinity_P, interacted_P = shrunk(*support.of(user_P[row_E], value_E))
        return {
            f"liked.{values.name}": shrunk(total_E, count_E)[0],
            f"affinity.{values.name}": affinity_P,
            f"interacted.{values.name}": np.log1p(interacted_P),
        }
