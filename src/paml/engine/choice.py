"""The head for choice: which of all items a user chooses, a softmax over the catalogue.

    p_j  =  exp(out_j) / sum_i exp(out_i),      loss  =  - sum_j k_j log p_j  /  sum_j k_j

Items that a user did not choose have the weight k_j = 0, so only the others are given (`Choices`); the head's own
losses and gradients are those of all items at once. Ratings are choices, too: people rate what they chose, and choose
more like what they rated high. So the weight of a known rating is learned for every level of the scale; in the outer
loss a liked item counts 1 and another one less.

Legend: B users, S support rows, Q query rows, R rows: all items, or a sample of them, K = 1 output,
M members of an ensemble; N items, D entries of an item's vector, E of its row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, pad

from paml.engine.softmax import NO_CANDIDATE, Excluded, expected_row, log_chances


@dataclass(frozen=True)
class Choices:
    """What B users are known to have chosen among N items, and what they would choose at theta.

    Everything that an output depends on is in an item's row, [vector, bias, ...], so that an output is row w, but for a
    constant of the user, which has no effect on chances. The weights of the vector adapt.
    """

    rows_NE: Tensor
    weights_BE: Tensor
    index_BS: Tensor
    """Known items."""
    weight_BS: Tensor
    """k_j of each; 0 for padding."""
    spread_DD: Tensor | None
    """Covariance of the item vectors, each weighted by how often it is chosen, where it is needed."""

    def count(self) -> Tensor:
        """n = sum_j k_j, (B, 1)."""
        return self.weight_BS.sum(dim=1, keepdim=True)

    def chosen(self, width: int) -> Tensor:
        """sum_j k_j z_j of the known items' vectors, (B, D)."""
        sum_BE = embedding_bag(self.index_BS, self.rows_NE, per_sample_weights=self.weight_BS, mode="sum")
        return sum_BE[:, :width]

    def expected(self, moved_BD: Tensor) -> Tensor:
        """E z: the mean vector of what users would choose if their weights were moved so far, (B, D)."""
        D, E = moved_BD.shape[1], self.weights_BE.shape[1]
        return expected_row(self.rows_NE, self.weights_BE + pad(moved_BD, (0, E - D)))[:, :D]


def loss_and_count(
    rows_NE: Tensor, weights_BE: Tensor, index_BQ: Tensor, weight_BQ: Tensor, excluded: Excluded | None = None
) -> tuple[Tensor, Tensor]:
    """- sum_j k_j log p_j and sum_j k_j of each user's choices, (B) each; who chose an excluded item did not choose."""
    log_p_BQ = log_chances(rows_NE, weights_BE, index_BQ, excluded)
    weight_BQ = weight_BQ.masked_fill(log_p_BQ < NO_CANDIDATE / 2, 0.0)
    return -(weight_BQ * log_p_BQ).sum(dim=1), weight_BQ.sum(dim=1)


class LevelWeights(nn.Module):
    """The weights k of known ratings: one for every level of the scale, learned."""

    def __init__(self, levels: Sequence[float]) -> None:
        """They start between a half, for the lowest level, and 1."""
        super().__init__()
        self._low, self._step = levels[0], levels[1] - levels[0]
        self.log_weight_L = nn.Parameter(torch.linspace(0.5, 1.0, len(levels)).log())

    def forward(self, y_BS: Tensor) -> Tensor:
        """The level's weight; between two levels, in between theirs, (B, S)."""
        weight_L = self.log_weight_L.exp()
        place_BS = ((y_BS - self._low) / self._step).clamp(0, len(weight_L) - 1)
        below_BS = place_BS.floor()
        upper = (below_BS + 1).clamp(max=len(weight_L) - 1).long()
        return torch.lerp(weight_L[below_BS.long()], weight_L[upper], place_BS - below_BS)

    def merge(self, weights: Sequence["LevelWeights"]) -> None:
        """Become the mean of many."""
        self.log_weight_L.copy_(torch.stack([one.log_weight_L.exp() for one in weights]).mean(dim=0).log())

    @staticmethod
    def joint(weights: Sequence["LevelWeights"]) -> Callable[[np.ndarray], np.ndarray]:
        """The weights of all members: from values (B, S) to (M, B, S)."""
        weight_ML = torch.stack([one.log_weight_L.exp() for one in weights]).numpy(force=True)
        rise_ML = np.diff(weight_ML)
        first, highest = weights[0], weight_ML.shape[1] - 1

        def looked_up(y_BS: np.ndarray) -> np.ndarray:
            place_BS = np.minimum(np.maximum((y_BS - first._low) / first._step, 0), highest)  # as np.clip, but faster
            below_BS = np.minimum(place_BS.astype(np.int64), highest - 1)
            weight_MBS: np.ndarray = rise_ML.take(below_BS, axis=1)
            weight_MBS *= (place_BS - below_BS).astype(np.float32)
            weight_MBS += weight_ML.take(below_BS, axis=1)
            return weight_MBS

        return looked_up


@dataclass(frozen=True)
class ChoiceHead:
    """A softmax over the items; a row's target is the weight of its item among the user's choices."""

    liked: float
    """From here on a rating counts 1 in the outer loss."""
    unliked_weight: float
    """What a lower one counts."""
    outputs: int = 1
    quadratic: bool = False
    has_closed_form: bool = True
    over_items: bool = True
    bounds: None = None

    def chosen_weight(self, y_BQ: Tensor) -> Tensor:
        """k of the ratings to be predicted: 1 if liked, else less, (B, Q)."""
        return torch.full_like(y_BQ, self.unliked_weight).masked_fill(y_BQ >= self.liked, 1.0)

    def row_loss(self, out_BRK: Tensor, y_BR: Tensor) -> Tensor:
        """-k_j log p_j"""
        out_BR = out_BRK.squeeze(-1)
        return y_BR * (torch.logsumexp(out_BR, dim=1, keepdim=True) - out_BR)

    def row_gradient(self, out_BRK: Tensor, y_BR: Tensor) -> Tensor:
        """(sum_i k_i) p_j - k_j: of the user's whole loss, because all rows share the denominator."""
        p_BR = torch.softmax(out_BRK.squeeze(-1), dim=1)
        return (y_BR.sum(dim=1, keepdim=True) * p_BR - y_BR).unsqueeze(-1)

    def row_curvature(self, out_BRK: Tensor, y_BR: Tensor | None) -> Tensor:
        """p_j (1 - p_j) of a single choice: the diagonal of the Hessian."""
        p_BR = torch.softmax(out_BRK.squeeze(-1), dim=1)
        return p_BR * (1 - p_BR)

    def predict(self, out_BRK: Tensor) -> Tensor:
        """The output itself: the log chance of being chosen, but for a constant of the user."""
        return out_BRK.squeeze(-1)

    def finish(self, predicted_BR: Tensor) -> Tensor:
        """The same."""
        return predicted_BR

    def initial_bias(self, mean: float) -> Tensor:
        """0: a constant for all items has no effect."""
        return torch.zeros(1)
