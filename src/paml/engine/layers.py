"""Linear layers in three forms: shared by all users, attending to the support set, or with each user's own weights.

Legend: B users, R rows (S of the support set), D inputs per row, C shared inputs, K outputs.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paml.engine.inputs import AnyInput, RowInput, Weights
from paml.engine.ops import attend, backpropagate, times_transposed, where_active


@dataclass(frozen=True)
class SharedLayer:
    """theta itself: the same weights for every user."""

    weights: Weights

    def forward(self, x: AnyInput) -> Tensor:
        """x W + shared W', (B, R, K)."""
        return x.project(self.weights)

    def backward(self, grad_BRK: Tensor, active_BRD: Tensor) -> Tensor:
        """Gradient w.r.t. the rows' inputs before their ReLU: g W^T where the input is above 0, (B, R, D)."""
        return backpropagate(grad_BRK, self.weights.rows_DK, active_BRD)

    def moved(self, x: RowInput, grad_BSK: Tensor, alpha_B11: Tensor, steps: int) -> "AttendingLayer | PersonalLayer":
        """W - alpha X^T D, the first of `steps` steps, in the form that costs less arithmetic."""
        if attention_is_cheaper(x, grad_BSK, steps):
            return AttendingLayer(self.weights, alpha_B11, x.x_BRD, x.shared_BC, grad_BSK)
        return self.moved_by(x, alpha_B11 * grad_BSK)

    def moved_by(self, x: RowInput, values_BSK: Tensor, rate: Weights | None = None) -> "PersonalLayer":
        """W - X^T V with the gradient materialised, scaled per parameter if `rate` is given."""
        rows_BDK, shared_BCK = weight_gradient(x, values_BSK, rate)
        return PersonalLayer(self.weights.rows_DK - rows_BDK, self.weights.shared_CK - shared_BCK)

    def of(self, users: slice) -> "SharedLayer":
        """The layer for some of the users: the same for all."""
        return self

    def own(self) -> dict[str, Tensor]:
        """Each user's own tensors: none."""
        return {}


@dataclass(frozen=True)
class AttendingLayer:
    """theta moved along rank-S gradients: support inputs are keys, output gradients are values.

    The rate scales the products of inputs and keys, the smallest of the matrices.
    """

    weights: Weights
    alpha_B11: Tensor
    keys_BSD: Tensor
    shared_key_BC: Tensor
    values_BSK: Tensor

    def forward(self, x: AnyInput) -> Tensor:
        """x W - alpha (x X^T) D; the shared inputs add one number per user to the products."""
        products_BRS = x.attend(self.keys_BSD, self.shared_key_BC)
        return attend(x.project(self.weights), self.alpha_B11, products_BRS, self.values_BSK)

    def backward(self, grad_BRK: Tensor, active_BRD: Tensor) -> Tensor:
        """Gradient w.r.t. the rows' inputs before their ReLU: g W^T - alpha (g D^T) X where the input is above 0."""
        attention_BRS = self.alpha_B11 * times_transposed(grad_BRK, self.values_BSK)
        base_BRD = times_transposed(grad_BRK, self.weights.rows_DK)
        return where_active(torch.baddbmm(base_BRD, attention_BRS, self.keys_BSD, alpha=-1), active_BRD)

    def moved(self, x: RowInput, grad_BSK: Tensor, alpha_B11: Tensor, steps: int) -> "AttendingLayer":
        """One more block of keys and values; the first layer's keys never change, so its values add up."""
        if x.is_first:
            return replace(self, values_BSK=self.values_BSK + grad_BSK)
        return replace(
            self,
            keys_BSD=torch.cat([self.keys_BSD, x.x_BRD], dim=1),
            values_BSK=torch.cat([self.values_BSK, grad_BSK], dim=1),
        )

    def moved_by(self, x: RowInput, values_BSK: Tensor, rate: Weights | None = None) -> "PersonalLayer":
        """Never called: a rate per parameter does not factor, and is not used with attention."""
        raise NotImplementedError

    def of(self, users: slice) -> "AttendingLayer":
        """The layer for some of the users."""
        return AttendingLayer(self.weights, **{name: tensor[users] for name, tensor in self.own().items()})

    def own(self) -> dict[str, Tensor]:
        """Each user's own tensors."""
        return {
            "alpha_B11": self.alpha_B11,
            "keys_BSD": self.keys_BSD,
            "shared_key_BC": self.shared_key_BC,
            "values_BSK": self.values_BSK,
        }


@dataclass(frozen=True)
class PersonalLayer:
    """Each user's own weights."""

    rows_BDK: Tensor
    shared_BCK: Tensor

    def forward(self, x: AnyInput) -> Tensor:
        """x W_i + shared W'_i."""
        shared_B1K = x.shared_BC.unsqueeze(1) @ self.shared_BCK
        return x.times(self.rows_BDK, shared_B1K)

    def backward(self, grad_BRK: Tensor, active_BRD: Tensor) -> Tensor:
        """Gradient w.r.t. the rows' inputs before their ReLU: g W_i^T where the input is above 0."""
        return where_active(times_transposed(grad_BRK, self.rows_BDK), active_BRD)

    def moved(self, x: RowInput, grad_BSK: Tensor, alpha_B11: Tensor, steps: int) -> "PersonalLayer":
        """W_i - alpha X^T D."""
        return self.moved_by(x, alpha_B11 * grad_BSK)

    def moved_by(self, x: RowInput, values_BSK: Tensor, rate: Weights | None = None) -> "PersonalLayer":
        """W_i - X^T V with the gradient materialised, scaled per parameter if `rate` is given."""
        rows_BDK, shared_BCK = weight_gradient(x, values_BSK, rate)
        return PersonalLayer(self.rows_BDK - rows_BDK, self.shared_BCK - shared_BCK)

    def of(self, users: slice) -> "PersonalLayer":
        """The layer for some of the users."""
        return PersonalLayer(self.rows_BDK[users], self.shared_BCK[users])

    def own(self) -> dict[str, Tensor]:
        """Each user's own tensors."""
        return {"rows_BDK": self.rows_BDK, "shared_BCK": self.shared_BCK}


Layer = SharedLayer | AttendingLayer | PersonalLayer


def weight_gradient(x: RowInput, values_BSK: Tensor, rate: Weights | None) -> tuple[Tensor, Tensor]:
    """X^T V of the rows' and of the shared inputs, scaled per parameter if `rate` is given."""
    rows_BDK = x.transposed_times(values_BSK)
    shared_BCK = x.shared_BC.unsqueeze(-1) * values_BSK.sum(dim=1, keepdim=True)
    return (rows_BDK, shared_BCK) if rate is None else (rate.rows_DK * rows_BDK, rate.shared_CK * shared_BCK)


def attention_is_cheaper(x: RowInput, grad_BSK: Tensor, steps: int) -> bool:
    """Whether attention needs fewer multiplications per support row than weights materialised per user.

    Materialising a gradient costs D K per step, and every pass over rows D K. Attention costs S (D + K) per pass and
    block of keys; the first layer has one block, whose products with itself are computed once. There is one
    pass over the query rows (a quarter of the support rows), and in each further step one forward and, except in the
    first layer, one backward pass over the support rows.
    """
    S, K = grad_BSK.shape[1:]
    D = x.x_BRD.shape[2]
    further = steps - 1
    if x.is_first:
        attention = S * (0.25 * (D + K) + (D if further else 0) + further * K)
        materialised = D * K * (0.25 + further + steps)
    else:  # `steps` blocks for the query rows, half as many on average before
        attention = S * (D + K) * (0.25 * steps + further * steps)
        materialised = D * K * (0.25 + 2 * further + steps)
    return attention < materialised
