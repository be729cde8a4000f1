"""Who knows what: how likely a user is to know an item, given which other items they know.

    x_j  =  share_j + v_j u + e_j       u ~ N(0, 1),  e_j ~ N(0, psi_j)

x_j is 1 if the user knows item j: share_j of the training users do, v_j are the principal directions of their
matrix, and u is the user. Questions so far, answered or not, determine u, as ratings determine the weights of `ridge`.

Legend: B users, A items asked about, I all items, R directions, U training users.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paml.data.dataset import Dataset
from paml.episodes import ragged

MAX_USERS = 10_000  # a sample is enough, and memory does not grow with the data
DIRECTIONS = 16
SPARE_DIRECTIONS = 8  # computed and dropped, which makes the kept ones more accurate
ROUNDS = 5
MIN_NOISE = 0.2  # least psi_j, as a share of x_j's variance: no user is known better than that
MIN_CHANCE = 1e-4


@dataclass(frozen=True)
class Familiarity:
    """Shares and directions of all items."""

    share_I: Tensor
    vectors_IR: Tensor

    @property
    def noise_I(self) -> Tensor:
        """psi_j: the variance that the directions leave."""
        variance_I = self.share_I * (1 - self.share_I) + MIN_CHANCE
        return torch.maximum(variance_I - (self.vectors_IR**2).sum(dim=1), MIN_NOISE * variance_I)

    def chances(self, index_BA: Tensor, known_BA: Tensor, mask_BA: Tensor) -> Tensor:
        """How likely each user knows each item, (B, I), given answers about some: 1 for known, 0 for unknown."""
        v_BAR = self.vectors_IR[index_BA] * mask_BA.unsqueeze(-1)
        scaled_BAR = v_BAR / self.noise_I[index_BA].unsqueeze(-1)
        precision_BRR = torch.eye(v_BAR.shape[-1], dtype=v_BAR.dtype) + scaled_BAR.mT @ v_BAR
        surprise_BA1 = (known_BA - self.share_I[index_BA]).unsqueeze(-1)
        u_BR: Tensor = torch.linalg.solve(precision_BRR, scaled_BAR.mT @ surprise_BA1).squeeze(-1)
        return (self.share_I + u_BR @ self.vectors_IR.T).clamp(MIN_CHANCE, 1.0)


def fit_familiarity(data: Dataset, rng: np.random.Generator) -> Familiarity:
    """Principal directions of a sample of training users, by subspace iteration on the sparse matrix."""
    from scipy.sparse import csr_array  # slow to import, and only the end of a training needs it

    first, end = data.manifest.splits["train"]
    user_U = first + np.sort(rng.permutation(end - first)[:MAX_USERS])
    offsets = data.array("offsets")
    count_U = np.asarray(offsets[user_U + 1] - offsets[user_U], dtype=np.int64)
    row_N = ragged.positions(offsets[user_U], count_U)
    pairs = ragged.owners(count_U), data.array("item")[row_N]
    x_UI = csr_array((np.ones(len(row_N)), pairs), shape=(len(user_U), data.manifest.items))
    x_UI.data[:] = 1.0  # several interactions with an item count as one
    share_I = x_UI.mean(axis=0)
    rank = min(DIRECTIONS, *x_UI.shape)
    basis_IK = rng.standard_normal((x_UI.shape[1], min(rank + SPARE_DIRECTIONS, *x_UI.shape)))
    for _ in range(ROUNDS):
        q_UK = np.linalg.qr(x_UI @ basis_IK - share_I @ basis_IK)[0]
        basis_IK = x_UI.T @ q_UK - np.outer(share_I, q_UK.sum(axis=0))
    left_IK, size_K, _ = np.linalg.svd(basis_IK, full_matrices=False)
    vectors_IR = left_IK[:, :rank] * (size_K[:rank] / max(len(user_U), 1) ** 0.5)
    return Familiarity(torch.from_numpy(share_I.astype(np.float32)), torch.from_numpy(vectors_IR.astype(np.float32)))
