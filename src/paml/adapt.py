"""The inner loop, the only one: theta_i = theta - alpha_i * dL_i/dtheta (paper, Eq. 1), any number of steps.

One gradient step is attention over the support set. For a linear layer with support inputs X and output gradients D the
gradient is X^T D, so the adapted layer needs no weights per user:

    x (W - alpha X^T D)  =  x W  -  alpha (x X^T) D

Products with W are shared by all users of a batch; only the small products x X^T are per user. D comes from written-out
backpropagation, so ordinary autograd through it gives exact second-order meta-gradients. Where weights per user are
cheaper (narrow layers, many steps) or needed (a rate per parameter), they are kept instead.

A layer's input has a part that differs by row and a part that all rows of a user share (the user's embedding, and the
constant one whose weight is the bias).

Legend: B users, R rows (S of the support set), D inputs per row, C shared inputs, K outputs, N distinct items.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from paml.heads import Head


class Weights(NamedTuple):
    """One layer: weights of the inputs that differ by row and of those that a user's rows share, bias included."""

    rows_DK: Tensor
    shared_CK: Tensor


Theta = Sequence[Weights]
Rate = Tensor | Sequence[Weights]
"""alpha_B, one rate per user; or one per parameter, shaped like theta."""


class _TimesTransposed(torch.autograd.Function):
    """a b^T, b one matrix or one per user.

    Plain autograd returns the gradient of a transposed factor as a transposed view, and elementwise operations on such
    a view cost many times as much. In this and the next function all gradients are contiguous.
    """

    @staticmethod
    def forward(ctx: Any, a_BRK: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a_BRK, b)
        return a_BRK @ b.mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a_BRK, b = ctx.saved_tensors
        needs_a, needs_b = ctx.needs_input_grad
        left, right = (grad, a_BRK) if b.dim() == 3 else (grad.flatten(0, 1), a_BRK.flatten(0, 1))
        return grad @ b if needs_a else None, left.mT @ right if needs_b else None


class _TransposedTimes(torch.autograd.Function):
    """a^T b per user."""

    @staticmethod
    def forward(ctx: Any, a_BRD: Tensor, b_BRK: Tensor) -> Tensor:
        ctx.save_for_backward(a_BRD, b_BRK)
        return a_BRD.mT @ b_BRK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a_BRD, b_BRK = ctx.saved_tensors
        needs_a, needs_b = ctx.needs_input_grad
        return b_BRK @ grad.mT if needs_a else None, a_BRD @ grad if needs_b else None


class _Lookup(torch.autograd.Function):
    """Rows of a table plus one row per user: table[index] + shared, in one pass over memory each way."""

    @staticmethod
    def forward(ctx: Any, table_NK: Tensor, index_BR: Tensor, shared_BK: Tensor) -> Tensor:
        ctx.save_for_backward(index_BR)
        ctx.items = len(table_NK)
        row_NK = table_NK.index_select(0, index_BR.flatten())
        z_BRK: Tensor = torch.ops.aten._unsafe_view(row_NK, [*index_BR.shape, row_NK.shape[1]])
        return z_BRK.add_(shared_BK.unsqueeze(1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BRK: Tensor) -> tuple[Tensor, None, Tensor]:
        (index_BR,) = ctx.saved_tensors
        grad_NK = grad_BRK.new_zeros(ctx.items, grad_BRK.shape[2])
        grad_NK.index_add_(0, index_BR.flatten(), grad_BRK.flatten(0, 1))
        return grad_NK, None, grad_BRK.sum(dim=1)


class _Backpropagate(torch.autograd.Function):
    """(g W^T) where the activation is above 0: the gradient one layer further down, masked in place."""

    @staticmethod
    def forward(ctx: Any, grad_BRK: Tensor, weights_DK: Tensor, active_BRD: Tensor) -> Tensor:
        ctx.save_for_backward(grad_BRK, weights_DK, active_BRD)
        below_BRD = grad_BRK @ weights_DK.T
        torch.ops.aten.threshold_backward.grad_input(below_BRD, active_BRD, 0, grad_input=below_BRD)
        return below_BRD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BRD: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_BRK, weights_DK, active_BRD = ctx.saved_tensors
        masked_ND = torch.ops.aten.threshold_backward(grad_BRD, active_BRD, 0).flatten(0, 1)
        above_BRK = (masked_ND @ weights_DK).view_as(grad_BRK)
        return above_BRK, masked_ND.T @ grad_BRK.flatten(0, 1), None


def times_transposed(a_BRK: Tensor, b: Tensor) -> Tensor:
    """a b^T, (B, R, S)."""
    product: Tensor = _TimesTransposed.apply(a_BRK, b)  # type: ignore[no-untyped-call]
    return product


def transposed_times(a_BRD: Tensor, b_BRK: Tensor) -> Tensor:
    """a^T b, (B, D, K)."""
    product: Tensor = _TransposedTimes.apply(a_BRD, b_BRK)  # type: ignore[no-untyped-call]
    return product


@dataclass(frozen=True)
class LayerInput:
    """Input of a further layer for all rows of B users: activations, and the constant one."""

    x_BRD: Tensor
    shared_BC: Tensor

    def project(self, weights: Weights) -> Tensor:
        """x W + bias, (B, R, K)."""
        z_NK = torch.addmm(weights.shared_CK[0], self.x_BRD.flatten(0, 1), weights.rows_DK)
        return torch.ops.aten._unsafe_view(z_NK, [*self.x_BRD.shape[:2], z_NK.shape[1]])  # type: ignore[no-any-return]


class ItemTable:
    """Vectors of a batch's distinct items, and their products with the first layer's weights, computed once.

    Support rows, query rows and all inner steps look rows up in the same products.
    """

    def __init__(self, vectors_ND: Tensor) -> None:
        self.vectors_ND = vectors_ND
        self._weights_DK: Tensor | None = None
        self._products_NK = vectors_ND

    def products(self, weights_DK: Tensor) -> Tensor:
        """Item vectors times the weights that belong to them, (N, K)."""
        if self._weights_DK is not weights_DK:
            self._weights_DK = weights_DK
            self._products_NK = self.vectors_ND @ weights_DK[: self.vectors_ND.shape[1]]
        return self._products_NK


@dataclass(frozen=True)
class ItemInput:
    """Input of the first layer: rows point into a table of distinct items, and may have a context of their own."""

    table: ItemTable
    index_BR: Tensor
    shared_BC: Tensor
    context_BRD: Tensor | None = None

    @cached_property
    def x_BRD(self) -> Tensor:
        """The rows written out; one tensor however often it is asked for."""
        x_BRD = self._gather(self.table.vectors_ND)
        return x_BRD if self.context_BRD is None else torch.cat([x_BRD, self.context_BRD], dim=-1)

    @cached_property
    def gram_BRR(self) -> Tensor:
        """Products of all pairs of a user's rows, shared inputs included: x X^T for the support rows themselves."""
        return times_transposed(self.x_BRD, self.x_BRD) + (self.shared_BC**2).sum(dim=1).view(-1, 1, 1)

    def detached(self) -> "ItemInput":
        """The same as constants."""
        context_BRD = None if self.context_BRD is None else self.context_BRD.detach()
        return ItemInput(ItemTable(self.table.vectors_ND.detach()), self.index_BR, self.shared_BC.detach(), context_BRD)

    def project(self, weights: Weights) -> Tensor:
        """x W + shared W', each distinct item and each user multiplied once, (B, R, K)."""
        shared_BK = self.shared_BC @ weights.shared_CK
        z_BRK: Tensor = _Lookup.apply(self.table.products(weights.rows_DK), self.index_BR, shared_BK)  # type: ignore[no-untyped-call]
        if self.context_BRD is None:
            return z_BRK
        return z_BRK + self.context_BRD @ weights.rows_DK[self.table.vectors_ND.shape[1] :]

    def _gather(self, table: Tensor) -> Tensor:
        return table.index_select(0, self.index_BR.flatten()).view(*self.index_BR.shape, -1)


AnyInput = LayerInput | ItemInput


@dataclass(frozen=True)
class SharedLayer:
    """theta itself: the same weights for every user."""

    weights: Weights

    def forward(self, x: AnyInput) -> Tensor:
        """x W + shared W', (B, R, K)."""
        return x.project(self.weights)

    def backward(self, grad_BRK: Tensor, active_BRD: Tensor) -> Tensor:
        """Gradient by the rows' inputs before their ReLU: g W^T where the input is above 0, (B, R, D)."""
        below: Tensor = _Backpropagate.apply(grad_BRK, self.weights.rows_DK, active_BRD)  # type: ignore[no-untyped-call]
        return below


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
        if isinstance(x, ItemInput) and x.x_BRD is self.keys_BSD:
            products_BRS = x.gram_BRR
        else:
            shared_B11 = (x.shared_BC * self.shared_key_BC).sum(dim=1).view(-1, 1, 1)
            products_BRS = times_transposed(x.x_BRD, self.keys_BSD) + shared_B11
        return torch.baddbmm(x.project(self.weights), self.alpha_B11 * products_BRS, self.values_BSK, alpha=-1)

    def backward(self, grad_BRK: Tensor, active_BRD: Tensor) -> Tensor:
        """Gradient by the rows' inputs before their ReLU: g W^T - alpha (g D^T) X where the input is above 0."""
        attention_BRS = self.alpha_B11 * times_transposed(grad_BRK, self.values_BSK)
        base_BRD = times_transposed(grad_BRK, self.weights.rows_DK)
        return _where_active(torch.baddbmm(base_BRD, attention_BRS, self.keys_BSD, alpha=-1), active_BRD)


@dataclass(frozen=True)
class PersonalLayer:
    """Weights of each user's own."""

    rows_BDK: Tensor
    shared_BCK: Tensor

    def forward(self, x: AnyInput) -> Tensor:
        """x W_i + shared W'_i."""
        shared_B1K = x.shared_BC.unsqueeze(1) @ self.shared_BCK
        return torch.baddbmm(shared_B1K, x.x_BRD, self.rows_BDK)

    def backward(self, grad_BRK: Tensor, active_BRD: Tensor) -> Tensor:
        """Gradient by the rows' inputs before their ReLU: g W_i^T where the input is above 0."""
        return _where_active(times_transposed(grad_BRK, self.rows_BDK), active_BRD)


Layer = SharedLayer | AttendingLayer | PersonalLayer


@dataclass(frozen=True)
class Adaptation:
    """Adapted layers, and what the meta-losses need to know of the first step."""

    layers: tuple[Layer, ...]
    inputs: tuple[AnyInput, ...] = ()
    gradients: tuple[Tensor, ...] = ()

    def gradient_norm(self) -> Tensor:
        """||dL_i/dtheta||^2 at theta, per user, from the first step (the regulariser of REG-PAML, Sec. 4.3)."""
        assert self.gradients, "without inner steps no gradient was computed"
        norms = [_squared_norm(x, grad_BSK) for x, grad_BSK in zip(self.inputs, self.gradients, strict=True)]
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
) -> Adaptation:
    """Take `steps` gradient steps on the support set with each user's rate.

    `first_order` treats the gradients as constants; the rate is differentiated in any case. `offset_BSK` is added to
    the outputs and not adapted (item biases). Where autograd is off, as in serving, no graph is built.
    """
    layers: tuple[Layer, ...] = tuple(SharedLayer(weights) for weights in theta)
    first = Adaptation(layers)
    x = x.detached() if first_order else x
    weight_BS = mask_BS / mask_BS.sum(dim=1, keepdim=True).clamp(min=1)
    for step in range(steps):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not first_order):
            inputs, gradients = _backpropagate(layers, x, y_BS, weight_BS, head, offset_BSK)
        if step == 0:
            first = Adaptation(layers, tuple(inputs), tuple(gradients))
        layers = tuple(
            _moved(layer, inputs[k], gradients[k], rate if isinstance(rate, Tensor) else rate[k], steps)
            for k, layer in enumerate(layers)
        )
    return replace(first, layers=layers)


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


def _where_active(grad_BRD: Tensor, active_BRD: Tensor) -> Tensor:
    """The derivative of ReLU as one kernel: passes the gradient where the activation is above 0."""
    masked: Tensor = torch.ops.aten.threshold_backward(grad_BRD, active_BRD, 0)
    return masked


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
        written_out = D * K * (0.25 + further + steps)
    else:
        attention = (
            S * (D + K) * (0.25 * steps + further * steps)
        )  # steps blocks for the query, steps / 2 on average before
        written_out = D * K * (0.25 + 2 * further + steps)
    return attention < written_out


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
