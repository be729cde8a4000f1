"""The only inner loop: theta_i = theta - alpha_i * dL_i/dtheta (paper, Eq. 1), any number of steps.

One gradient step is attention over the support set. For a linear layer with support inputs X and output gradients D the
gradient is X^T D, so the adapted layer needs no weights per user:

    x (W - alpha X^T D)  =  x W  -  alpha (x X^T) D

Products with W are shared by all users of a batch; only the small products x X^T are per user. D comes from explicit
backpropagation, so ordinary autograd through it gives exact second-order meta-gradients. Where weights per user are
cheaper (narrow layers, many steps) or needed (a rate per parameter), they are kept instead.

Legend: B users, R rows (S of the support set), D inputs per row, C shared inputs, K outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from paml.engine.heads import Head
from paml.engine.inputs import AnyInput, ItemInput, LayerInput, RowInput, Weights
from paml.engine.layers import Layer, SharedLayer
from paml.engine.ops import times_transposed

MIN_VARIANCE = 1e-6
Theta = Sequence[Weights]
X = TypeVar("X", bound=AnyInput)


class Rate(Protocol):
    """The rates of B users, and what they do to a layer: one for each user, or one for each parameter."""

    def per_user(self, users: int) -> Tensor:
        """One number per user, for tables and figures, (B); for rates per parameter, their mean."""

    def moved(self, k: int, layer: Layer, x: RowInput, grad_BSK: Tensor, steps: int) -> Layer:
        """Layer k after one of `steps` gradient steps."""

    def attention(self, k: int, x: RowInput, key: RowInput) -> Tensor:
        """alpha (x X^T) of layer k for a single user, (R, S, 1) or (R, S, K): how much each gradient counts."""

    def applied(self, gradient_BD: Tensor) -> Tensor:
        """Rates times gradients of the last output's weights, (B, D), or several gradients of a single user."""

    def of_features(self, shared_BC: Tensor, width: int) -> Tensor:
        """Rates of the weights of a row's inputs, and how far a gradient of 1 in all rows moves an output, (B, F)."""

    def prior_variance(self) -> Tensor:
        """alpha_i as the variance of a prior, kept above 0, (B)."""

    def prior_sd(self, steps_B: Tensor, shared_BC: Tensor) -> tuple[Tensor, Tensor]:
        """The prior that these steps on the last layer amount to, to first order: its variance is steps times rate.

        Standard deviations of the weights of the rows' inputs, (B, 1, D) or (B, 1, 1), and of a user's level, (B).
        """


@dataclass(frozen=True)
class RatePerUser:
    """alpha_B, one rate per user."""

    alpha_B: Tensor

    def per_user(self, users: int) -> Tensor:
        """alpha_B"""
        return self.alpha_B

    def moved(self, k: int, layer: Layer, x: RowInput, grad_BSK: Tensor, steps: int) -> Layer:
        """W - alpha X^T D"""
        return layer.moved(x, grad_BSK, self.alpha_B.view(-1, 1, 1), steps)

    def attention(self, k: int, x: RowInput, key: RowInput) -> Tensor:
        """alpha (x X^T), (R, S, 1)."""
        product_RS = x.x_BRD[0] @ key.x_BRD[0].T + x.shared_BC[0] @ key.shared_BC[0]
        return self.alpha_B * product_RS.unsqueeze(-1)

    def applied(self, gradient_BD: Tensor) -> Tensor:
        """alpha g"""
        return self.alpha_B.unsqueeze(-1) * gradient_BD

    def of_features(self, shared_BC: Tensor, width: int) -> Tensor:
        """alpha, and alpha times the squares of the shared inputs."""
        alpha_B1 = self.alpha_B.unsqueeze(-1)
        return torch.cat([alpha_B1.expand(-1, width), alpha_B1 * (shared_BC**2).sum(dim=1, keepdim=True)], dim=1)

    def prior_variance(self) -> Tensor:
        """alpha_B, kept above 0."""
        return self.alpha_B.clamp(min=MIN_VARIANCE)

    def prior_sd(self, steps_B: Tensor, shared_BC: Tensor) -> tuple[Tensor, Tensor]:
        """sqrt(steps alpha), the same for all weights."""
        sd_B = (steps_B * self.alpha_B.clamp(min=0)).sqrt()
        return sd_B.view(-1, 1, 1), sd_B * shared_BC.norm(dim=1)


@dataclass(frozen=True)
class RatePerParameter:
    """One rate per parameter, shaped like theta, the same for all users."""

    theta: Theta

    def per_user(self, users: int) -> Tensor:
        """The mean over all parameters, (B)."""
        total = sum(part.sum() for weights in self.theta for part in weights)
        count = sum(part.numel() for weights in self.theta for part in weights)
        mean = torch.as_tensor(total) / count
        return mean.expand(users)

    def moved(self, k: int, layer: Layer, x: RowInput, grad_BSK: Tensor, steps: int) -> Layer:
        """W - A * X^T D, with the gradient materialised, since it does not factor."""
        return layer.moved_by(x, grad_BSK, self.theta[k])

    def attention(self, k: int, x: RowInput, key: RowInput) -> Tensor:
        """sum_d x_d A_dk X_d, (R, S, K)."""
        product_RSK = torch.einsum("rd,sd,dk->rsk", x.x_BRD[0], key.x_BRD[0], self.theta[k].rows_DK)
        return product_RSK + (x.shared_BC[0] * key.shared_BC[0]) @ self.theta[k].shared_CK

    def applied(self, gradient_BD: Tensor) -> Tensor:
        """A g, weight by weight."""
        return self.theta[-1].rows_DK[:, -1] * gradient_BD

    def of_features(self, shared_BC: Tensor, width: int) -> Tensor:
        """A, and those of the shared inputs times their squares; of the last output."""
        rows_D, shared_C = (part[:, -1] for part in self.theta[-1])
        return torch.cat([rows_D.expand(len(shared_BC), -1), (shared_BC**2 @ shared_C).unsqueeze(-1)], dim=1)

    def prior_variance(self) -> Tensor:
        """Never called: a prior has one variance per user."""
        raise NotImplementedError

    def prior_sd(self, steps_B: Tensor, shared_BC: Tensor) -> tuple[Tensor, Tensor]:
        """sqrt(steps A), weight by weight, of the last output."""
        rows_D, shared_C = (part[:, -1].clamp(min=0) for part in self.theta[-1])
        level_B = (steps_B * (shared_BC**2 @ shared_C)).sqrt()
        return (steps_B.view(-1, 1, 1) * rows_D).sqrt(), level_B


class Step(NamedTuple):
    """One gradient step: each layer's inputs, and the gradients with respect to its outputs, for the support rows."""

    inputs: tuple[RowInput, ...]
    gradients: tuple[Tensor, ...]


class Solution(NamedTuple):
    """The last Newton step: d = H^-1 sum_j f_j r_j, a sum over the support rows."""

    features_BSF: Tensor
    curvature_BS: Tensor
    residual_BS: Tensor
    """r_j = curvature_j f_j d_before - slope_j"""
    variance_B1F: Tensor
    """The prior's, of every feature."""


class ChoiceSteps(NamedTuple):
    """The gradient steps of a choice: d_t = d_(t-1) - alpha (n mean_t - sum_j k_j z_j) (1 + n)^p / (n + c)."""

    means: tuple[Tensor, ...]
    """The expected item vector under the user's chances before each step, (B, D)."""


class ChoiceSolution(NamedTuple):
    """The Newton steps of a choice: d_t = d_(t-1) + H^-1 (sum_j k_j (z_j - mean_t) - d_(t-1) / alpha)."""

    factor_BDD: Tensor
    """Cholesky factor of H."""
    variance_B1: Tensor
    """alpha, for the user's number of choices."""
    means: tuple[Tensor, ...]
    """The expected item vector under the user's chances before each step, (B, D)."""


@dataclass(frozen=True)
class Adaptation:
    """Adapted layers, and how they were computed, for the regulariser and for explanations."""

    layers: tuple[Layer, ...]
    steps: tuple[Step, ...] = ()
    solution: Solution | None = None
    choice: ChoiceSteps | ChoiceSolution | None = None
    squared_gradient_B: Tensor | None = None
    """||dL_i/dtheta||^2 at theta, where it does not follow from `steps`."""

    def gradient_norm(self) -> Tensor:
        """||dL_i/dtheta||^2 at theta, per user, from the first step (the regulariser of REG-PAML, Sec. 4.3)."""
        if self.squared_gradient_B is not None:
            return self.squared_gradient_B
        assert self.steps, "without inner steps no gradient was computed"
        norms = [_squared_norm(x, grad_BSK) for x, grad_BSK in zip(*self.steps[0], strict=True)]
        return torch.stack(norms).sum(dim=0)


def forward(layers: Sequence[Layer], x: X) -> tuple[Tensor, list[X | LayerInput]]:
    """Outputs (B, R, K) and the input of every layer; ReLU between layers."""
    inputs: list[X | LayerInput] = [x]
    z = layers[0].forward(x)
    ones_B1 = x.shared_BC.new_ones(len(x.shared_BC), 1)
    for layer in layers[1:]:
        inputs.append(LayerInput(z.relu_(), ones_B1))  # in place: z is not needed again, and no layer returns a view
        z = layer.forward(inputs[-1])
    return z, inputs


def adapt(
    theta: Theta,
    x: ItemInput,
    y_BS: Tensor,
    mask_BS: Tensor,
    head: Head,
    rate: Rate,
    *,
    steps: int = 1,
    first_order: bool = False,
    offset_BSK: Tensor | None = None,
    pseudo_count: Tensor | None = None,
) -> Adaptation:
    """Take `steps` gradient steps on the support set with each user's rate.

    `first_order` treats the gradients as constants; the rate is always differentiated. `offset_BSK` is added to
    the outputs and not adapted (item biases). The loss is the mean over the n support rows or, with a
    `pseudo_count` c, their sum divided by n + c. Where autograd is off, as in serving, no graph is built.
    """
    layers: tuple[Layer, ...] = tuple(SharedLayer(weights) for weights in theta)
    taken: list[Step] = []
    x = x.detached() if first_order and torch.is_grad_enabled() else x
    weight_BS = mask_BS / divisor(mask_BS.sum(dim=1, keepdim=True), pseudo_count)
    for _ in range(steps):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not first_order):
            inputs, gradients = _backpropagate(layers, x, y_BS, weight_BS, head, offset_BSK)
        taken.append(Step(tuple(inputs), tuple(gradients)))
        layers = tuple(rate.moved(k, layer, inputs[k], gradients[k], steps) for k, layer in enumerate(layers))
    return Adaptation(layers, tuple(taken))


def _backpropagate(
    layers: Sequence[Layer], x: ItemInput, y_BS: Tensor, weight_BS: Tensor, head: Head, offset_BSK: Tensor | None
) -> tuple[list[ItemInput | LayerInput], list[Tensor]]:
    """Each layer's input and the gradient of the user's loss with respect to its output."""
    out_BSK, inputs = forward(layers, x)
    if offset_BSK is not None:
        out_BSK = out_BSK + offset_BSK
    gradient = head.row_gradient(out_BSK, y_BS) * weight_BS.unsqueeze(-1)
    gradients = [gradient]
    for layer, layer_input in zip(reversed(layers[1:]), reversed(inputs[1:]), strict=True):
        gradient = layer.backward(gradient, layer_input.x_BRD)
        gradients.append(gradient)
    return inputs, gradients[::-1]


def divisor(count_B1: Tensor, pseudo_count: Tensor | None) -> Tensor:
    """What a sum over n rows is divided by: n + c or, without a c, n, and 1 where there is none."""
    return torch.where(count_B1 > 0, count_B1, 1.0) if pseudo_count is None else count_B1 + pseudo_count


def _squared_norm(x: RowInput, grad_BSK: Tensor) -> Tensor:
    """||X^T D||^2 = sum((X X^T) * (D D^T)) per user; the shared inputs' part is |shared|^2 |sum D|^2."""
    shared_B = (x.shared_BC**2).sum(dim=1) * (grad_BSK.sum(dim=1) ** 2).sum(dim=1)
    S, K = grad_BSK.shape[1:]
    D = x.x_BRD.shape[2]
    if x.is_first or S * (D + K) < 2 * D * K:
        products = times_transposed(x.x_BRD, x.x_BRD) * times_transposed(grad_BSK, grad_BSK)
        rows_B = products.sum(dim=(1, 2))
    else:
        rows_B = (x.transposed_times(grad_BSK) ** 2).sum(dim=(1, 2))
    return rows_B + shared_B
