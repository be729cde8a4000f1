"""Weighted sums of a table's rows: those of an embedding bag, and their gradients by finite differences."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import embedding_bag

from paml.engine.rows import sum_of_rows

INDEX_BS = torch.tensor([[0, 3, 3], [5, 1, 0]])  # a row may be there twice


def problem() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    table_NW, weight_BS = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((6, 4), (2, 3)))
    weight_BS[1, 2] = 0.0  # padding
    return table_NW.requires_grad_(), weight_BS.requires_grad_()


def test_sums_are_those_of_an_embedding_bag() -> None:
    table_NW, weight_BS = problem()
    expected = embedding_bag(INDEX_BS, table_NW, per_sample_weights=weight_BS, mode="sum")
    torch.testing.assert_close(sum_of_rows(table_NW, INDEX_BS, weight_BS), expected)
    with torch.no_grad():
        torch.testing.assert_close(sum_of_rows(table_NW, INDEX_BS, weight_BS), expected)


@pytest.mark.parametrize("weights_are_learned", [True, False])
def test_gradients_agree_with_finite_differences(*, weights_are_learned: bool) -> None:
    table_NW, weight_BS = problem()
    weight_BS = weight_BS.detach().requires_grad_(weights_are_learned)
    assert gradcheck(lambda table, weight: sum_of_rows(table, INDEX_BS, weight), (table_NW, weight_BS))
