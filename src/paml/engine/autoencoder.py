"""Linear autoencoders: which items go together, in closed form.

A score is a sum over the user's history, s_uj = sum_i x_ui B_ij. EASE (Steck, "Embarrassingly shallow autoencoders for
sparse data", WWW 2019) has ridge regression find B with a diagonal of zeros; EDLAE (Steck, "Autoencoders that don't
overfit towards the identity", NeurIPS 2020) has it learn from inputs of which a share p is dropped. Weighted inputs X
and targets Y may differ here: a user who rates an item low still tells something about others.

Memory and time are those of dense item-item matrices: 4 I^2 bytes each in float32, and about 4 I^3 operations.

Legend: U users, C users of a chunk, I items.
"""

import torch
from torch import Tensor

USERS_AT_ONCE = 4096  # rows of a sparse matrix that are written out at once


def sparse_matrix(row_N: Tensor, column_N: Tensor, value_N: Tensor, shape: tuple[int, int]) -> Tensor:
    """A sparse matrix with its entries in order; those for the same place are added up."""
    index_2N = torch.stack([row_N, column_N])
    return torch.sparse_coo_tensor(index_2N, value_N, shape, check_invariants=True).coalesce()


def co_occurrences(x_UI: Tensor, y_UI: Tensor) -> Tensor:
    """X^T Y, dense, of two sparse or dense matrices of users and items."""
    if not x_UI.is_sparse:
        return x_UI.T @ (y_UI.to_dense() if y_UI.is_sparse else y_UI)
    product_II = x_UI.new_zeros(x_UI.shape[1], y_UI.shape[1]).to_dense()
    for start in range(0, x_UI.shape[0], USERS_AT_ONCE):
        y_CI = _rows(y_UI, start).to_dense() if y_UI.is_sparse else y_UI[start : start + USERS_AT_ONCE]
        product_II += torch.sparse.mm(_rows(x_UI, start).t(), y_CI)
    return product_II


def item_item(gram_II: Tensor, cross_II: Tensor, dropout: float, ridge: float) -> Tensor:
    """The weights B, with a diagonal of zeros, that best predict Y from X of which a share `dropout` is dropped.

    With G = X^T X + p / (1 - p) diag(X^T X) + ridge I and P = G^-1:
    B = P X^T Y - P diag(diag(P X^T Y) / diag(P)). `gram_II` is X^T X, `cross_II` is X^T Y. With p = 0 and X = Y this is
    EASE, B = I - P diag(1 / diag(P)). If both are the same tensor, P X^T X = I - P (G - X^T X) takes no product.
    """
    assert 0 <= dropout < 1, "a share of the inputs"
    assert ridge > 0, "without a ridge there may be no inverse"
    penalised_II = gram_II.clone()
    penalised_II.diagonal().mul_(1 + dropout / (1 - dropout)).add_(ridge)
    inverse_II = torch.cholesky_inverse(torch.linalg.cholesky(penalised_II))
    if cross_II is gram_II:
        weight_II = inverse_II * (gram_II.diagonal() - penalised_II.diagonal())
        weight_II.diagonal().add_(1.0)
    else:
        weight_II = inverse_II @ cross_II
    weight_II -= inverse_II * (weight_II.diagonal() / inverse_II.diagonal())
    weight_II.fill_diagonal_(0.0)  # zero but for rounding
    return weight_II


def _rows(matrix_UI: Tensor, start: int) -> Tensor:
    """The USERS_AT_ONCE rows from `start` on of a sparse matrix whose entries are in order."""
    end = min(start + USERS_AT_ONCE, matrix_UI.shape[0])
    index_2N = matrix_UI.indices()
    first, last = torch.searchsorted(index_2N[0], torch.tensor([start, end], device=index_2N.device)).tolist()
    row_N, column_N = index_2N[0, first:last] - start, index_2N[1, first:last]
    return sparse_matrix(row_N, column_N, matrix_UI.values()[first:last], (end - start, matrix_UI.shape[1]))
