"""Batch making: rows per second and padding for one epoch, on lengths distributed as in MovieLens-1M.

The ratio compares with the least that any batch making must do: gathering each row's target once.
"""

import time

import numpy as np

from paml.episodes.tasks import Tasks

COPIES = 20  # MovieLens-1M's 4,832 cold users, twenty times


def movielens_lengths(rng: np.random.Generator) -> np.ndarray:
    """Ratings per user of the coldest 80 %: a shifted log-normal fitted to MovieLens-1M (20 to 253, mean 89 there)."""
    lengths = 17 + np.exp(rng.normal(4.24, 1.35, size=6040 * COPIES)).clip(3, 2300)
    return rng.permutation(np.sort(lengths.astype(np.int64))[: int(0.8 * 6040 * COPIES)])


def main() -> None:
    """Print one line per way of drawing the support set."""
    rng = np.random.default_rng(0)
    lengths = movielens_lengths(rng)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tasks = Tasks(0, offsets, lengths // 2)
    target = rng.random(offsets[-1], dtype=np.float32)
    order = rng.permutation(offsets[-1])
    started = time.perf_counter()
    target[order].sum()
    gather = time.perf_counter() - started
    for title, random_support in (("fixed 80:20", False), ("random number of support rows", True)):
        started = time.perf_counter()
        rows = cells = 0
        for batch in tasks.episodes(32, rng, random_support=random_support):
            rows += batch.support.rows + batch.query.rows
            cells += batch.support.cells + batch.query.cells
        seconds = time.perf_counter() - started
        print(
            f"{title}: {len(lengths):,} users, {rows / seconds / 1e6:.1f} million rows/s, "
            f"padding {1 - rows / cells:.1%}, {seconds / gather:.0f} times one random gather of all rows"
        )


if __name__ == "__main__":
    main()
