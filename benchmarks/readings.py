"""Book-Crossing by the readings of the paper's rules that its text allows: which one fits the paper's numbers?

    python -m benchmarks.readings BX-CSV-Dump.zip [--top 10] [--beside ML]

The paper (Tab. 2 and 7, Sec. 5) has 7,827 users, 185,973 items, 72 % major users, an nDCG@3 of 0.852 to 0.868 and an
nDCG@5 of 0.914 to 0.930. Readings differ in what is a rating, what ranks users, which users are the 80 %, whether
ties and users without ratings count, which profiles are valid, how many ratings a user needs, and in the order of the
rules. Whoever fits the number of users within 2 % is then judged by all numbers, under several definitions of nDCG.
`--beside` adds the nDCG of a random order on another prepared data set. Legend: U users, N rows.
"""

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

import paml
from paml.data.protocol import TOLERANCE, Protocol, common_values, is_major, split_users, support_counts
from paml.data.schema import Field, Kind
from paml.data.sources import LoadRequest
from paml.data.sources.bookcrossing import WORDS, BookCrossingSettings, read_tables
from paml.evaluation.metrics import ndcg, ndcg_by_chance, squared_error

PAPER = {"users": 7827, "items": 185_973, "major": 0.72, "ndcg3": 0.863, "ndcg5": 0.920}
"""nDCG: mean of the five methods of Tab. 2."""
TOLERATED = {"users": 0.01 * 7827, "items": 0.01 * 185_973, "major": 0.02, "ndcg3": 0.02, "ndcg5": 0.02}
WORST = 10.0
"""A number that is far off counts no more than this."""
ROWS = {
    "explicit": "explicit ratings",
    "described": "explicit ratings of described books",
    "all": "all ratings, implicit ones as 0",
}
VALID = {
    "anything": "any profile",
    "age": "age",
    "country": "age, country not blank",
    "filled": "age, state and country not blank",
    "letters": "age, state and country in letters",
    "ascii": "age, location in ASCII, may be blank",
    "stated": "age, state and country in letters and not n/a",
}
MINIMA = (2, 3, 4, 5, 6, 10)
PICKS = {
    "least": "80 % with the least",
    "ties": "80 % with the least, ties kept",
    "most": "80 % with the most",
    "top": "20 % with the most",
}
PLACES = {"first": "", "profiles": "after profiles", "ratings": "after numbers of ratings", "last": "last"}
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
            f"{PICKS[self.pick]} {ROWS[self.log]}",
            *([PLACES[self.place]] if PLACES[self.place] else []),
            f"valid: {VALID[self.valid]}",
            f"at least {self.minimum}",
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


NAMED = (
    ("`log`, the default", Reading()),
    ("`log`, all rows ranked", Reading(ranked="every")),
    ("`log`, all log data ranked", Reading(ranked="logged", gain="linear")),
    ("", Reading(rows="all", ranked="every", gain="linear")),
    ("", Reading(valid="filled")),
    ("", Reading(reverse=True)),
    ("", Reading(pick="ties")),
    ("", Reading(log="explicit")),
    ("", Reading(rows="described", ranked="every", place="profiles")),
    ("", Reading(place="last")),
    ("", Reading(log="explicit", minimum=5, place="last")),
    ("`paper`", Reading(log="explicit", minimum=5, place="last", ranked="down")),
    ("", Reading(log="explicit", minimum=5, place="last", ranked="down", valid="ascii")),
    ("", Reading(log="explicit", minimum=5, place="ratings", pick="most", ranked="down")),
    ("", Reading(rows="described", log="described", pick="top", place="profiles", valid="ascii")),
)


class Rows:
    """One kind of ratings, in random order within a user, and what nDCG is by chance for each user."""

    def __init__(self, ratings: pl.DataFrame, users: int, seed: int = 0) -> None:
        order = np.random.default_rng(seed).random(len(ratings))
        rows = ratings.with_columns(_order=order).sort("row", "_order")
        self.user_N, self.target_N = rows["row"].to_numpy(), rows["target"].to_numpy()
        self.item_N = rows["item"].rank("dense").to_numpy().astype(np.int64) - 1
        self.items = int(self.item_N.max()) + 1
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


def grid() -> Iterator[Reading]:
    """All combinations; ties and users without ratings matter only where the 80 % come first."""
    for rows, log, valid, minimum, pick, place in itertools.product(ROWS, ROWS, VALID, MINIMA, PICKS, PLACES):
        reading = Reading(rows, log, valid, minimum, pick, place)
        yield reading
        if place == "first" and pick in {"least", "most"}:
            yield replace(reading, reverse=True)
            yield replace(reading, silent=True)


def measure(books: Books, reading: Reading, kept: np.ndarray) -> dict[str, float]:
    """The numbers that the paper also has; nDCG is that of a random order."""
    kind, ranked = reading.ranks
    rows = books.rows[kind]
    count_U = rows.ranked_counts(ranked)[kept]
    return {
        "users": int(kept.sum()),
        "items": books.rows[reading.rows].items,
        "major": float(books.major[kept].mean()),
        "mean": float(count_U.mean()),
        "median": float(np.median(count_U)),
        "three": float((count_U >= 3).mean()),
        "five": float((count_U >= 5).mean()),
        **{f"ndcg{k}": float(np.nanmean(rows.chance(ranked, reading.gain, k)[kept])) for k in (3, 5)},
    }


def misfit(found: dict[str, float]) -> float:
    """Mean distance from the paper's numbers in units of what is tolerated: 1 %, 1 %, 2 points, 0.02, 0.02."""
    return float(np.mean([min(abs(found[key] - PAPER[key]) / TOLERATED[key], WORST) for key in PAPER]))


def predicted(books: Books, reading: Reading, kept: np.ndarray, seed: int = 0) -> dict[str, float]:
    """nDCG of the item's mean, and MSE of mean and of item + user bias: fitted on training users, for test users."""
    kind, ranked = reading.ranks
    rows = books.rows[kind]
    split_U = np.full(len(kept), -1)
    split_U[kept] = split_users(int(kept.sum()), Protocol().user_ratio, seed)
    split_N = split_U[rows.user_N]
    train, support = split_N == 0, (split_N == 2) & ~rows.is_ranked("down" if ranked == "down" else "nearest")
    mean = float(rows.target_N[train].mean())
    item_I = _shrunk(rows.item_N[train], rows.target_N[train] - mean, rows.items)
    user_U = _shrunk(rows.user_N[support], (rows.target_N - mean - item_I[rows.item_N])[support], len(kept))
    test = (split_N == 2) & rows.is_ranked(ranked)
    target_N, item_N, user_N = rows.target_N[test], rows.item_N[test], rows.user_N[test]
    count_U = np.bincount(user_N, minlength=len(kept))
    count_U = count_U[count_U > 0]
    gained_N = with_gain(target_N, reading.gain)
    return {
        **{f"item{k}": float(np.nanmean(ndcg(gained_N, item_I[item_N], count_U, k))) for k in (3, 5)},
        "constant": float(squared_error(target_N, np.full(len(target_N), mean), count_U).mean()),
        "bias": float(squared_error(target_N, mean + item_I[item_N] + user_U[user_N], count_U).mean()),
    }


def _shrunk(place: np.ndarray, value: np.ndarray, size: int, strength: float = 5.0) -> np.ndarray:
    total: np.ndarray = np.bincount(place, value, minlength=size)
    return total / (np.bincount(place, minlength=size) + strength)


def search(books: Books, top: int) -> list[tuple[str, Reading]]:
    """The readings with the smallest misfit, of those whose number of users is within 2 % of the paper's."""
    tried, found = 0, []
    for reading in grid():
        tried += 1
        if abs(int(books.keep(reading).sum()) / PAPER["users"] - 1) <= 0.02:
            kept = books.select(reading)
            for ranked, gain in itertools.product(RANKED, GAINS):
                defined = replace(reading, ranked=ranked, gain=gain)
                found.append((misfit(measure(books, defined, kept)), defined))
    readings = len({replace(reading, ranked="nearest", gain="exponential") for _, reading in found})
    print(f"{tried:,} readings, {readings:,} of them within 2 % of the paper's number of users.\n")
    return [("", reading) for _, reading in sorted(found, key=lambda pair: pair[0])[:top]]


def table(books: Books, readings: list[tuple[str, Reading]]) -> None:
    """A Markdown table of readings, the paper's numbers first."""
    print("| reading | nDCG of | users | items | major | rows ranked: mean, median | 3 or more | 5 or more ", end="")
    print("| random order: nDCG@3, @5 | item's mean: nDCG@3, @5 | MSE: mean, bias | misfit |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    print("| **the paper** | query rows; gain 2^r - 1 | 7,827 | 185,973 | 72.0 % | | | | | ", end="")
    print("0.852 to 0.868, 0.914 to 0.930 | 3.93 to 5.20 | |")
    for name, reading in readings:
        kept = books.select(reading)
        found = {**measure(books, reading, kept), **predicted(books, reading, kept)}
        words = f"{name}: {reading}" if name else str(reading)
        print(
            f"| {words} | {reading.metric} | {found['users']:,} | {found['items']:,} | {100 * found['major']:.1f} % "
            f"| {found['mean']:.2f}, {found['median']:.0f} | {100 * found['three']:.0f} % "
            f"| {100 * found['five']:.0f} % | {found['ndcg3']:.3f}, {found['ndcg5']:.3f} "
            f"| {found['item3']:.3f}, {found['item5']:.3f} | {found['constant']:.2f}, {found['bias']:.2f} "
            f"| {misfit(found):.1f} |"
        )
    print()


def by_length(books: Books) -> None:
    """nDCG of a random order by the number of rows that are ranked, over all users with an explicit rating."""
    rows = books.rows["explicit"]
    print("| rows ranked | users | gain 2^r - 1: nDCG@3, @5 | difference | gain r: nDCG@3, @5 | difference |")
    print("|---:|---:|---:|---:|---:|---:|")
    for count in (1, 2, 3, 4, 5, 6, 7, 8, 10, 15):
        chosen = rows.count_U == count
        cells = []
        for gain in GAINS:
            three, five = (float(rows.chance("every", gain, k)[chosen].mean()) for k in (3, 5))
            cells.append(f"{three:.3f}, {five:.3f} | {five - three:.3f}")
        print(f"| {count} | {int(chosen.sum()):,} | {' | '.join(cells)} |")
    print()


def beside(folder: Path) -> None:
    """nDCG of a random order on the query rows of another data set's test users, by both gains."""
    data = paml.open_data(folder)
    first, end = data.manifest.splits["test"]
    offsets, support_U = data.array("offsets"), data.array("support")
    count_U = np.diff(offsets)
    place_N = np.arange(offsets[-1]) - np.repeat(offsets[:-1], count_U)
    user_N = np.repeat(np.arange(len(count_U)), count_U)
    query_N = (place_N >= support_U[user_N]) & (user_N >= first) & (user_N < end)
    target_N = np.asarray(data.array("target"), dtype=np.float64)[query_N]
    for gain, words in GAINS.items():
        values = [ndcg_by_chance(with_gain(target_N, gain), (count_U - support_U)[first:end], k).mean() for k in (3, 5)]
        print(f"{folder.name}, random order, gain {words}: nDCG@3 {values[0]:.3f}, nDCG@5 {values[1]:.3f}")


def main() -> None:
    """Parse, search, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("archive", type=Path, help="BX-CSV-Dump.zip, or a folder with its files")
    parser.add_argument("--top", type=int, default=10, help="how many of the best readings of the search to print")
    parser.add_argument("--beside", type=Path, help="another prepared data set")
    given = parser.parse_args()
    books = Books(given.archive)
    table(books, list(NAMED))
    if given.top:
        table(books, search(books, given.top))
    by_length(books)
    if given.beside:
        beside(given.beside)


if __name__ == "__main__":
    main()
