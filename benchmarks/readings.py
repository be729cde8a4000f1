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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import paml
from benchmarks.reading import GAINS, PICKS, PLACES, RANKED, ROWS, VALID, Books, Reading, with_gain
from paml.data.protocol import Protocol, split_users
from paml.evaluation.metrics import ndcg, ndcg_by_chance, squared_error

PAPER = {"users": 7827, "items": 185_973, "major": 0.72, "ndcg3": 0.863, "ndcg5": 0.920}
"""nDCG: mean of the five methods of Tab. 2."""
TOLERATED = {"users": 0.01 * 7827, "items": 0.01 * 185_973, "major": 0.02, "ndcg3": 0.02, "ndcg5": 0.02}
WORST = 10.0
"""A number that is far off counts no more than this."""
MINIMA = (2, 3, 4, 5, 6, 10)
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
    print("| reading | nDCG of | users | items | major | rows ranked: mean, median | users with 3, 5 of them ", end="")
    print("| random order: nDCG@3, @5 | item's mean: nDCG@3, @5 | MSE: mean, bias | misfit |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    print("| **the paper** | query rows; gain 2^r - 1 | 7,827 | 185,973 | 72.0 % | | | | ", end="")
    print("0.852 to 0.868, 0.914 to 0.930 | 3.93 to 5.20 | |")
    for name, reading in readings:
        kept = books.select(reading)
        found = {**measure(books, reading, kept), **predicted(books, reading, kept)}
        words = f"{name}: {reading}" if name else str(reading)
        print(
            f"| {words} | {reading.metric} | {found['users']:,} | {found['items']:,} | {100 * found['major']:.1f} % "
            f"| {found['mean']:.2f}, {found['median']:.0f} | {100 * found['three']:.0f} %, {100 * found['five']:.0f} % "
            f"| {found['ndcg3']:.3f}, {found['ndcg5']:.3f} "
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
        if not chosen.any():
            continue
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
