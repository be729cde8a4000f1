"""A reading of the paper's rules on Book-Crossing, and the users whom it keeps; `readings.py` compares readings.

Legend: U users, N rows.
"""

import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from paml.data.protocol import TOLERANCE, Protocol, common_values, is_major, support_counts
from paml.data.schema import Field, Kind
from paml.data.sources import LoadRequest
from paml.data.sources.bookcrossing import WORDS, BookCrossingSettings, read_tables
from paml.evaluation.metrics import ndcg_by_chance

ROWS = {
    "explicit": "explicit ratings",
    "described": "explicit ratings of described books",
    "all": "all ratings, implicit ones as 0",
}
LOGS = {
    "explicit": "explicit ratings",
    "described": "explicit ratings of described books",
    "all": "ratings of any kind",
}
VALID = {
    "anything": "any profile",
    "age": "valid age",
    "country": "valid age, country not blank",
    "filled": "valid age, state and country not blank",
    "letters": "valid age, state and country in letters",
    "ascii": "valid age, state and country in ASCII or blank",
    "stated": "valid age, state and country in letters and not n/a",
}
PICKS = {
    "least": "80 % with the fewest",
    "ties": "80 % (and ties) with the fewest",
    "most": "80 % with the most",
    "top": "20 % with the most",
}
PLACES = {
    "first": "first",
    "profiles": "of those with a valid profile",
    "ratings": "of those with enough ratings",
    "last": "last",
}
RANKED = {
    "nearest": "query rows",
    "down": "query rows, support rounded down",
    "every": "support and query rows",
    "logged": "all rows of the user, implicit ones as 0",
}
GAINS = {"exponential": "2^r - 1", "linear": "r"}


@dataclass(frozen=True)
class Reading:
    """One reading of the rules, and of what nDCG ranks; the defaults are the reading `log` of the source."""

    rows: str = "explicit"
    log: str = "all"
    valid: str = "letters"
    minimum: int = 2
    pick: str = "least"
    place: str = "first"
    reverse: bool = False
    """Ties are broken from the end of the users table."""
    silent: bool = False
    """Users without any rating are among those who are ranked."""
    ranked: str = "nearest"
    gain: str = "exponential"

    def __str__(self) -> str:
        rules = [
            ROWS[self.rows],
            f"{self.minimum} or more",
            VALID[self.valid],
            f"{PICKS[self.pick]} {LOGS[self.log]}, {PLACES[self.place]}",
            *(["ties from the end"] if self.reverse else []),
            *(["users without ratings count"] if self.silent else []),
        ]
        return "; ".join(rules)

    @property
    def ranks(self) -> tuple[str, str]:
        """Which kind of ratings nDCG ranks, and which rows of that kind."""
        return ("all", "every") if self.ranked == "logged" else (self.rows, self.ranked)

    @property
    def metric(self) -> str:
        """The definition of nDCG, in words."""
        return f"{RANKED[self.ranked]}; gain {GAINS[self.gain]}"


class Rows:
    """One kind of ratings, in random order within a user, and what nDCG is by chance for each user."""

    def __init__(self, ratings: pl.DataFrame, users: int, seed: int = 0) -> None:
        order = np.random.default_rng(seed).random(len(ratings))
        rows = ratings.with_columns(_order=order).sort("row", "_order")
        self.user_N, self.target_N = rows["row"].to_numpy(), rows["target"].to_numpy()
        self.item_N = rows["item"].rank("dense").to_numpy().astype(np.int64) - 1
        self.items = rows["item"].n_unique()
        self.count_U = np.bincount(self.user_N, minlength=users)
        self._place_N = np.arange(len(rows)) - np.repeat(np.cumsum(self.count_U) - self.count_U, self.count_U)
        self._chance: dict[tuple[str, str, int], np.ndarray] = {}

    def is_ranked(self, ranked: str) -> np.ndarray:
        """Which rows nDCG is computed on."""
        if ranked == "every":
            return np.ones(len(self.user_N), dtype=bool)
        share = Protocol().support_share
        support_U = support_counts(self.count_U, share, "down" if ranked == "down" else "nearest")
        return self._place_N >= support_U[self.user_N]

    def ranked_counts(self, ranked: str) -> np.ndarray:
        """How many rows of each user that are."""
        return np.bincount(self.user_N[self.is_ranked(ranked)], minlength=len(self.count_U))

    def chance(self, ranked: str, gain: str, k: int) -> np.ndarray:
        """Each user's expected nDCG@k of a random order; NaN without rows, or if all gains are 0."""
        key = (ranked, gain, k)
        if key not in self._chance:
            kept_N, count_U = self.is_ranked(ranked), self.ranked_counts(ranked)
            value_U = np.full(len(count_U), np.nan)
            value_U[count_U > 0] = ndcg_by_chance(with_gain(self.target_N[kept_N], gain), count_U[count_U > 0], k)
            self._chance[key] = value_U
        return self._chance[key]


def with_gain(target_N: np.ndarray, gain: str) -> np.ndarray:
    """Targets whose exponential gain 2^t - 1 is the wanted one."""
    return np.log2(1 + target_N) if gain == "linear" else target_N


class Sorted(NamedTuple):
    """Users in the order of their log data."""

    order: np.ndarray
    counts: dict[str, np.ndarray]
    valid: dict[str, np.ndarray]


class Books:
    """Book-Crossing's users with everything that readings select by."""

    def __init__(self, archive: Path) -> None:
        with tempfile.TemporaryDirectory() as work:
            _, *tables = read_tables(LoadRequest(archive, BookCrossingSettings(), Path(work)))
            ratings, self.users, books = (table.collect() for table in tables)
        ratings = ratings.join(self.users.with_row_index("row").select("user", "row"), on="user")
        explicit = ratings.filter(pl.col("target") > 0)
        kinds = {
            "explicit": explicit,
            "described": explicit.join(books.select("item"), on="item", how="semi"),
            "all": ratings,
        }
        self.rows = {name: Rows(table, len(self.users)) for name, table in kinds.items()}
        self.valid = {name: self.users.select(rule).to_series().to_numpy() for name, rule in self._rules().items()}
        self._sorted: dict[tuple[str, bool], Sorted] = {}

    def _rules(self) -> dict[str, pl.Expr]:
        places = ("state", "country")
        age = pl.col("age").cast(pl.Float64).is_between(10, 100).fill_null(False)
        filled = {name: pl.col(name).is_not_null() for name in places}
        letters = pl.all_horizontal(pl.col(name).str.contains(f"^(?:{WORDS})$").fill_null(False) for name in places)
        ascii_only = pl.all_horizontal(pl.col(name).fill_null("").str.contains(r"^[\x20-\x7e]*$") for name in places)
        named = pl.all_horizontal((pl.col(name) != "n/a").fill_null(False) for name in places)
        return {
            "anything": pl.col("user").is_not_null(),
            "age": age,
            "country": age & filled["country"],
            "filled": age & filled["state"] & filled["country"],
            "letters": age & letters,
            "ascii": age & ascii_only,
            "stated": age & letters & named,
        }

    @cached_property
    def major(self) -> np.ndarray:
        """Major users by the rule of the product: common values are counted over all users of the table."""
        fields = [Field(name=name, kind=Kind.CATEGORICAL, pattern=WORDS) for name in ("state", "country")]
        fields.append(Field(name="age", kind=Kind.CATEGORICAL, minimum=10, maximum=100))
        groups = common_values(self.users, fields, Protocol().common_share)
        return is_major(self.users, groups.common, Protocol().major_above)

    def sort(self, log: str, *, reverse: bool) -> "Sorted":
        """Users by the amount of log data, the least first."""
        if (log, reverse) not in self._sorted:
            table = np.arange(len(self.users))
            order = np.lexsort((-table if reverse else table, self.rows[log].count_U))
            counts = {name: rows.count_U[order] for name, rows in self.rows.items()}
            self._sorted[log, reverse] = Sorted(order, counts, {name: rule[order] for name, rule in self.valid.items()})
        return self._sorted[log, reverse]

    def keep(self, reading: Reading) -> np.ndarray:
        """Whether each user is kept, in the order of log data."""
        users = self.sort(reading.log, reverse=reading.reverse)
        log_U, valid = users.counts[reading.log], users.valid[reading.valid]
        enough = users.counts[reading.rows] >= reading.minimum
        before = (log_U > 0) | reading.silent
        if reading.place in {"profiles", "last"}:
            before &= valid
        if reading.place in {"ratings", "last"}:
            before &= enough
        start, end = self._range(before, log_U, reading.pick)
        kept: np.ndarray = before & valid & enough
        kept[:start] = False
        kept[end:] = False
        return kept

    def select(self, reading: Reading) -> np.ndarray:
        """Whether each user is kept, in the order of the table."""
        chosen = np.zeros(len(self.users), dtype=bool)
        chosen[self.sort(reading.log, reverse=reading.reverse).order] = self.keep(reading)
        return chosen

    @staticmethod
    def _range(ranked: np.ndarray, log: np.ndarray, pick: str) -> tuple[int, int]:
        """First and end of the sorted users who are picked."""
        number = np.cumsum(ranked)
        count = int(number[-1])
        if not count:
            return 0, 0
        share = 0.2 if pick == "top" else 0.8
        keep = int(np.floor(share * count + TOLERANCE))
        if pick in {"most", "top"}:
            return int(np.searchsorted(number, count - keep + 1)), len(ranked)
        end = int(np.searchsorted(number, max(keep, 1)))
        return 0, (int(np.searchsorted(log, log[end], side="right")) if pick == "ties" else end + 1)
