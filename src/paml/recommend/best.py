"""The highest of many scores.

Legend: R scores, B blocks, T scores that are kept.
"""

import numpy as np

BLOCK = 64  # scores of which the highest is found first


def best(score_R: np.ndarray, n: int, excluded: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the n highest scores, highest first, of equals the first; and the scores."""
    if excluded is not None and len(excluded):
        score_R = score_R.copy()
        score_R[excluded] = -np.inf
        n = min(n, len(score_R) - len(excluded))
    least = nth_highest(score_R, n) if 0 < n < len(score_R) else -np.inf
    kept = np.flatnonzero(score_R >= least)
    best_n = kept[np.argsort(-score_R[kept], kind="stable")[:n]]
    return best_n, score_R[best_n]


def nth_highest(score_R: np.ndarray, n: int) -> float:
    """The n-th highest score: one of the few that reach the n-th highest maximum of a block of scores."""
    blocks = len(score_R) // BLOCK
    if n > blocks:
        return float(np.partition(score_R, -n)[-n])
    highest_B = np.maximum.reduce(score_R[: blocks * BLOCK].reshape(blocks, BLOCK), axis=1)
    highest_B.sort()
    reached_T = score_R[score_R >= highest_B[-n]]
    reached_T.sort()
    return float(reached_T[-n])
