"""Chances and expectations over a table of items: against plain torch and finite differences."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from paml.engine.choice import Choices, loss_and_count
from paml.engine.softmax import NO_CANDIDATE, expected_row, log_chances

ITEMS, WIDTH, USERS = 9, 4, 3
INDEX_BQ = torch.tensor([[0, 3, 3], [8, 1, 2], [4, 4, 4]])  # an item may be asked for twice
INDEX_BS = torch.tensor([[5, 6, 5], [1, 0, 0], [7, 7, 7]])
MASK_BS = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]], dtype=torch.float64)  # padding repeats a row


def problem() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    rows_NE, weights_BE = (torch.randn(n, WIDTH, generator=rng, dtype=torch.float64) for n in (ITEMS, USERS))
    return rows_NE.requires_grad_(), weights_BE.requires_grad_()


def plain_log_chances(rows_NE: Tensor, weights_BE: Tensor) -> Tensor:
    """All items that are not excluded: one user and one item at a time."""
    found = torch.full((USERS, ITEMS), float(NO_CANDIDATE), dtype=torch.float64)
    for b, weights_E in enumerate(weights_BE):
        left_out = {int(j) for j, mask in zip(INDEX_BS[b], MASK_BS[b], strict=True) if mask}
        candidates = [j for j in range(ITEMS) if j not in left_out]
        log_p = torch.log_softmax(torch.stack([rows_NE[j] @ weights_E for j in candidates]), dim=0)
        for j, value in zip(candidates, log_p, strict=True):
            found[b, j] = value
    return found


def test_the_expected_row_is_the_mean_under_the_chances() -> None:
    rows_NE, weights_BE = problem()
    expected = torch.softmax(weights_BE @ rows_NE.T, dim=1) @ rows_NE
    torch.testing.assert_close(expected_row(rows_NE, weights_BE), expected)
    with torch.no_grad():
        torch.testing.assert_close(expected_row(rows_NE, weights_BE), expected)
    assert gradcheck(expected_row, (rows_NE, weights_BE))


def test_log_chances_leave_out_what_is_excluded_and_heed_padding() -> None:
    rows_NE, weights_BE = problem()
    expected = plain_log_chances(rows_NE, weights_BE)
    assert (expected.exp().sum(dim=1) - 1).abs().max() < 1e-12
    found = log_chances(rows_NE, weights_BE, INDEX_BQ, (INDEX_BS, MASK_BS))
    torch.testing.assert_close(found[1, 1], torch.tensor(NO_CANDIDATE, dtype=torch.float64), rtol=1e-6, atol=0)
    possible = torch.ones_like(found, dtype=torch.bool)
    possible[1, 1] = False  # excluded, and asked for
    torch.testing.assert_close(found[possible], expected.gather(1, INDEX_BQ)[possible])
    with torch.no_grad():
        torch.testing.assert_close(log_chances(rows_NE, weights_BE, INDEX_BQ, (INDEX_BS, MASK_BS)), found)
    assert gradcheck(lambda *given: log_chances(*given, INDEX_BQ, (INDEX_BS, MASK_BS))[possible], (rows_NE, weights_BE))
    assert gradcheck(lambda *given: log_chances(*given, INDEX_BQ), (rows_NE, weights_BE))


def test_who_chose_what_was_excluded_did_not_choose() -> None:
    rows_NE, weights_BE = problem()
    k_BQ = torch.tensor([[1.0, 0.5, 2.0], [0.25, 4.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    loss_B, count_B = loss_and_count(rows_NE, weights_BE, INDEX_BQ, k_BQ, (INDEX_BS, MASK_BS))
    assert count_B.tolist() == [3.5, 0.25, 0.0]
    log_p_BN = plain_log_chances(rows_NE, weights_BE)
    expected = [-(log_p_BN[0, 0] + 2.5 * log_p_BN[0, 3]), -0.25 * log_p_BN[1, 8], torch.zeros(())]
    torch.testing.assert_close(loss_B, torch.stack([part.double() for part in expected]))


@pytest.mark.parametrize("moved", [0.0, 0.5])
def test_what_users_chose_and_would_choose(moved: float) -> None:
    """Of the first two entries of rows, the vectors, whose weights move; the others are biases."""
    rows_NE, weights_BE = problem()
    k_BS = torch.tensor([[1.0, 0.5, 2.0], [0.25, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    choices = Choices(rows_NE, weights_BE, INDEX_BS, k_BS, None)
    assert choices.count().tolist() == [[3.5], [0.25], [0.0]]
    chosen = torch.stack([3 * rows_NE[5] + 0.5 * rows_NE[6], 0.25 * rows_NE[1], 0 * rows_NE[0]])
    torch.testing.assert_close(choices.chosen(2), chosen[:, :2])
    moved_BD = torch.full((USERS, 2), moved, dtype=torch.float64)
    out_BN = weights_BE @ rows_NE.T + moved_BD @ rows_NE[:, :2].T
    torch.testing.assert_close(choices.expected(moved_BD), torch.softmax(out_BN, dim=1) @ rows_NE[:, :2])
