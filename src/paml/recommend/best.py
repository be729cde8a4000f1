"""The highest of many scores.

Legend: R scores, B blocks, T scores that are kept.
"""

import numpy as np

BLOCK = 16  # scores of which the highest is found first


def best(score_R: np.ndarray, n: int, excluded: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the n highest scores, highest first, of equals the first; and the scores."""
    if excluded is not None and len(excluded):
        score_R = score_R.copy()
        score_R[excluded] = -np.inf
        n = min(n, len(score_R) - len(excluded))
    kept = _reaching(score_R, n) if 0 < n < len(score_R) else np.arange(len(score_R))
    best_n = kept[np.argsort(-score_R[kept], kind="stable")[:n]]
    return best_n, score_R[best_n]


def nth_highest(score_R: np.ndarray, n: int) -> float:
    """The n-th highest score."""
    score_T = score_R[_reaching(score_R, n)]
    score_T.sort()
    return float(score_T[-n])


def _reaching(score_R: np.ndarray, n: int) -> np.ndarray:
    """Positions of few scores with the n highest among them: of those that reach the n-th highest of blocks' maxima."""
    blocks = len(score_R) // BLOCK
    if n > blocks:
        return np.flatnonzero(score_R >= np.partition(score_R, -n)[-n])
    highest_B = np.maximum.reduce(score_R[: blocks * BLOCK].reshape(BLOCK, blocks), axis=0)  # a block: every B-th score
    highest_B.sort()
    return np.flatnonzero(score_R >= highest_B[-n])
