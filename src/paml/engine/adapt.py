"""The inner loop, the only one: theta_i = theta - alpha_i * dL_i/dtheta (paper, Eq. 1), any number of steps.

One gradient step is attention over the support set. For a linear layer with support inputs X and output gradients D the
gradient is X^T D, so the adapted layer needs no weights per user:

    x (W - alpha X^T D)  =  x W  -  alpha (x X^T) D

Products with W are shared by all users of a batch; only the small products x X^T are per user. D comes from written-out
backpropagation, so ordinary autograd through it gives exact second-order meta-gradients. Where weights per user are
cheaper (narrow layers, many steps) or needed (a rate per parameter), they are kept instead.

Legend: B users, R rows (S of the support set), D inputs per row, C shared inputs, K outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from paml.engine.heads import Head
from paml.engine.layers import (
    AnyInput,
    AttendingLayer,
    ItemInput,
    Layer,
    LayerInput,
    PersonalLayer,
    SharedLayer,
    Weights,
)
from paml.engine.ops import times_transposed, transposed_times

Theta = Sequence[Weights]
Rate = Tensor | Sequence[Weights]
"""alpha_B, one rate per user; or one per parameter, shaped like theta."""


class Step(NamedTuple):
    """One gradient step: each layer's inputs, and the gradients by its outputs, for the support rows."""

    inputs: tuple[AnyInput, ...]
    gradients: tuple[Tensor, ...]


class Solution(NamedTuple):
    """The last Newton step: d = H^-1 sum_j f_j r_j, a sum over the support rows."""

    features_BSF: Tensor
    curvature_BS: Tensor
    residual_BS: Tensor
    """r_j = curvature_j f_j d_before - slope_j"""
    level: Tensor
    """The constant among the features."""


@dataclass(frozen=True)
class Adaptation:
    """Adapted layers, and how they came to be: what the regulariser and explanations look at."""

    layers: tuple[Layer, ...]
    steps: tuple[Step, ...] = ()
    solution: Solution | None = None

    def gradient_norm(self) -> Tensor:
        """||dL_i/dtheta||^2 at theta, per user, from the first step (the regulariser of REG-PAML, Sec. 4.3)."""
        assert self.steps, "without inner steps no gradient was computed"
        norms = [_squared_norm(x, grad_BSK) for x, grad_BSK in zip(*self.steps[0], strict=True)]
        return torch.stack(norms).sum(dim=0)


def forward(layers: Sequence[Layer], x: AnyInput) -> tuple[Tensor, list[AnyInput]]:
    """Outputs (B, R, K) and the input of every layer; ReLU between layers."""
    inputs = [x]
    z = layers[0].forward(x)
    ones_B1 = x.shared_BC.new_ones(len(x.shared_BC), 1)
    for layer in layers[1:]:
        inputs.append(LayerInput(z.relu_(), ones_B1))  # in place: nobody needs z, and none of the forms returns a view
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

    `first_order` treats the gradients as constants; the rate is differentiated in any case. `offset_BSK` is added to
    the outputs and not adapted (item biases). The loss is the mean over the n support rows or, with a
    `pseudo_count` c, their sum divided by n + c. Where autograd is off, as in serving, no graph is built.
    """
    layers: tuple[Layer, ...] = tuple(SharedLayer(weights) for weights in theta)
    taken: list[Step] = []
    x = x.detached() if first_order and torch.is_grad_enabled() else x
    count_B1 = mask_BS.sum(dim=1, keepdim=True)
    weight_BS = mask_BS / (count_B1.clamp(min=1) if pseudo_count is None else count_B1 + pseudo_count)
    for _ in range(steps):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not first_order):
            inputs, gradients = _backpropagate(layers, x, y_BS, weight_BS, head, offset_BSK)
        taken.append(Step(tuple(inputs), tuple(gradients)))
        layers = tuple(
            _moved(layer, inputs[k], gradients[k], rate if isinstance(rate, Tensor) else rate[k], steps)
            for k, layer in enumerate(layers)
        )
    return Adaptation(layers, tuple(taken))


def _backpropagate(
    layers: Sequence[Layer], x: AnyInput, y_BS: Tensor, weight_BS: Tensor, head: Head, offset_BSK: Tensor | None
) -> tuple[list[AnyInput], list[Tensor]]:
    """Each layer's input and the gradient of the user's mean loss by its output."""
    out_BSK, inputs = forward(layers, x)
    if offset_BSK is not None:
        out_BSK = out_BSK + offset_BSK
    gradient = head.row_gradient(out_BSK, y_BS) * weight_BS.unsqueeze(-1)
    gradients = [gradient]
    for layer, layer_input in zip(reversed(layers[1:]), reversed(inputs[1:]), strict=True):
        gradient = layer.backward(gradient, layer_input.x_BRD)
        gradients.append(gradient)
    return inputs, gradients[::-1]


def _moved(layer: Layer, x: AnyInput, grad_BSK: Tensor, rate: Tensor | Weights, steps: int) -> Layer:
    """The layer after one step, in the form that costs less arithmetic."""
    if isinstance(rate, Tensor):
        alpha_B11 = rate.view(-1, 1, 1)
        if isinstance(layer, AttendingLayer):
            return _attend_further(layer, x, grad_BSK)
        if isinstance(layer, SharedLayer) and _attention_is_cheaper(x, grad_BSK, steps):
            return AttendingLayer(layer.weights, alpha_B11, x.x_BRD, x.shared_BC, grad_BSK)
        return _with_own_weights(layer, x, alpha_B11 * grad_BSK)
    assert not isinstance(layer, AttendingLayer), "a rate per parameter does not factor"
    return _with_own_weights(layer, x, grad_BSK, rate)


def _attend_further(layer: AttendingLayer, x: AnyInput, grad_BSK: Tensor) -> AttendingLayer:
    """A further block of keys and values; the first layer's keys never change, so there values add up."""
    if isinstance(x, ItemInput):
        return replace(layer, values_BSK=layer.values_BSK + grad_BSK)
    return replace(
        layer,
        keys_BSD=torch.cat([layer.keys_BSD, x.x_BRD], dim=1),
        values_BSK=torch.cat([layer.values_BSK, grad_BSK], dim=1),
    )


def _with_own_weights(
    layer: SharedLayer | PersonalLayer, x: AnyInput, values_BSK: Tensor, rate: Weights | None = None
) -> PersonalLayer:
    """W_i - X^T V with the gradient written out, scaled per parameter if `rate` is given."""
    rows_BDK = transposed_times(x.x_BRD, values_BSK)
    shared_BCK = x.shared_BC.unsqueeze(-1) * values_BSK.sum(dim=1, keepdim=True)
    if rate is not None:
        rows_BDK, shared_BCK = rate.rows_DK * rows_BDK, rate.shared_CK * shared_BCK
    if isinstance(layer, SharedLayer):
        return PersonalLayer(layer.weights.rows_DK - rows_BDK, layer.weights.shared_CK - shared_BCK)
    return PersonalLayer(layer.rows_BDK - rows_BDK, layer.shared_BCK - shared_BCK)


def _attention_is_cheaper(x: AnyInput, grad_BSK: Tensor, steps: int) -> bool:
    """Whether attention needs fewer multiplications per support row than weights written out per user.

    Writing a gradient out costs D K per step, and every pass over rows D K. Attention costs S (D + K) per pass and
    block of keys; the first layer has one block, whose products with itself are computed once. Passes are: one over the
    query rows (a quarter of the support rows), and in each further step one forward and, but in the first layer, one
    backward over the support rows.
    """
    S, K = grad_BSK.shape[1:]
    D = x.x_BRD.shape[2]
    further = steps - 1
    if isinstance(x, ItemInput):
        attention = S * (0.25 * (D + K) + (D if further else 0) + further * K)
        materialised = D * K * (0.25 + further + steps)
    else:
        attention = (
            S * (D + K) * (0.25 * steps + further * steps)
        )  # steps blocks for the query, steps / 2 on average before
        materialised = D * K * (0.25 + 2 * further + steps)
    return attention < materialised


def _squared_norm(x: AnyInput, grad_BSK: Tensor) -> Tensor:
    """||X^T D||^2 = sum((X X^T) * (D D^T)) per user; the shared inputs' part is |shared|^2 |sum D|^2."""
    shared_B = (x.shared_BC**2).sum(dim=1) * (grad_BSK.sum(dim=1) ** 2).sum(dim=1)
    S, K = grad_BSK.shape[1:]
    D = x.x_BRD.shape[2]
    if isinstance(x, ItemInput) or S * (D + K) < 2 * D * K:
        products = times_transposed(x.x_BRD, x.x_BRD) * times_transposed(grad_BSK, grad_BSK)
        rows_B = products.sum(dim=(1, 2))
    else:
        rows_B = (transposed_times(x.x_BRD, grad_BSK) ** 2).sum(dim=(1, 2))
    return rows_B + shared_B
