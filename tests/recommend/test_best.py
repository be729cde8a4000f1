"""The highest of many scores, against sorting all of them."""

import numpy as np
import pytest

from paml.recommend.best import BLOCK, best, nth_highest


@pytest.mark.parametrize("count", [1, 5, BLOCK, 4 * BLOCK, 4 * BLOCK + 30])
@pytest.mark.parametrize("levels", [3, 1000])
def test_the_nth_highest_is_that_of_all(count: int, levels: int) -> None:
    score_R = np.random.default_rng(count).integers(0, levels, count).astype(np.float32)
    score_R[-1] = levels + 1  # the highest may be after the last whole block
    for n in range(1, count + 1):
        assert nth_highest(score_R, n) == np.sort(score_R)[-n]


def test_of_equal_scores_the_first_come_first_and_none_is_excluded() -> None:
    score_R = np.zeros(20 * BLOCK, dtype=np.float32)
    score_R[[7, 200, 311]] = 2.0, 1.0, 2.0
    place_n, found_n = best(score_R, 5, np.array([7, 0]))
    assert place_n.tolist() == [311, 200, 1, 2, 3]
    assert found_n.tolist() == [2.0, 1.0, 0.0, 0.0, 0.0]
    assert len(best(score_R[:4], 10, np.array([1]))[0]) == 3
