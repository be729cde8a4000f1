"""The algebra of linear autoencoders: by identities, and by solving for every item separately."""

import pytest
import torch

from paml.engine import autoencoder
from paml.engine.autoencoder import co_occurrences, item_item, sparse_matrix


@pytest.fixture
def x_UI() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.rand(60, 12, generator=generator, dtype=torch.float64)
    return torch.where(drawn < 0.3, 0.2 + drawn, 0.0)


def as_sparse(matrix: torch.Tensor) -> torch.Tensor:
    row, column = matrix.nonzero(as_tuple=True)
    return sparse_matrix(row, column, matrix[row, column], (matrix.shape[0], matrix.shape[1]))


def test_without_dropout_it_is_ease(x_UI: torch.Tensor) -> None:
    gram = x_UI.T @ x_UI
    inverse = torch.linalg.inv(gram + 3.0 * torch.eye(12, dtype=torch.float64))
    ease = torch.eye(12, dtype=torch.float64) - inverse / inverse.diagonal()
    assert torch.allclose(item_item(gram, gram, 0.0, 3.0), ease.fill_diagonal_(0), atol=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.4, 0.9])
def test_every_item_is_a_ridge_regression_on_the_other_items(x_UI: torch.Tensor, dropout: float) -> None:
    y_UI = (x_UI > 0.3).to(x_UI.dtype)
    gram, cross = x_UI.T @ x_UI, x_UI.T @ y_UI
    weights = item_item(gram, cross, dropout, 2.0)
    penalty = dropout / (1 - dropout) * torch.diag(gram.diagonal()) + 2.0 * torch.eye(12, dtype=x_UI.dtype)
    for item in range(12):
        others = [other for other in range(12) if other != item]
        expected = torch.linalg.solve((gram + penalty)[others][:, others], cross[others, item])
        assert torch.allclose(weights[others, item], expected, atol=1e-10)
    assert not weights.diagonal().any()


def test_dropout_is_the_mean_over_dropped_inputs(x_UI: torch.Tensor) -> None:
    """The expected Gram matrix of inputs that are dropped with p and scaled by 1 / (1 - p)."""
    p, generator = 0.5, torch.Generator().manual_seed(0)
    total = torch.zeros(12, 12, dtype=x_UI.dtype)
    for _ in range(4000):
        kept = x_UI * (torch.rand(x_UI.shape, generator=generator) >= p) / (1 - p)
        total += kept.T @ kept / 4000
    gram = x_UI.T @ x_UI
    assert torch.allclose(total, gram + p / (1 - p) * torch.diag(gram.diagonal()), atol=0.15)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_targets_that_are_the_inputs_take_no_product(x_UI: torch.Tensor, dropout: float) -> None:
    gram = x_UI.T @ x_UI
    product = item_item(gram, gram.clone(), dropout, 2.0)  # another tensor, so that the general way is taken
    assert torch.allclose(item_item(gram, gram, dropout, 2.0), product, atol=1e-12)


def test_inputs_are_left_as_they_are(x_UI: torch.Tensor) -> None:
    gram = x_UI.T @ x_UI
    before = gram.clone()
    item_item(gram, gram, 0.5, 1.0)
    assert torch.equal(gram, before)


def test_co_occurrences_of_sparse_and_dense_matrices(x_UI: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    y_UI = (x_UI > 0.3).to(x_UI.dtype)
    monkeypatch.setattr(autoencoder, "USERS_AT_ONCE", 7)  # 60 users in chunks, the last one shorter
    for x in (x_UI, as_sparse(x_UI)):
        for y in (y_UI, as_sparse(y_UI)):
            assert torch.allclose(co_occurrences(x, y), x_UI.T @ y_UI, atol=1e-12)


def test_entries_for_the_same_place_are_added() -> None:
    matrix = sparse_matrix(torch.tensor([1, 0, 1]), torch.tensor([2, 0, 2]), torch.tensor([1.0, 5.0, 2.0]), (2, 3))
    assert matrix.to_dense().tolist() == [[5, 0, 0], [0, 0, 3]]
