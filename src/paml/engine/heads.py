"""Heads: what the last layer's outputs mean, their loss, its gradient in closed form, and the prediction.

Losses are means over a user's rows (paper, Sec. D.5); masked places do not count.
Legend: B users, R rows, K outputs.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import log_softmax, one_hot, softmax

from paml.data.schema import CLICK_WEIGHTS, Target, liked_level, reaching
from paml.engine.choice import ChoiceHead
from paml.errors import SettingsError, nearest
from paml.settings import Settings

FITTING = {"rating": ("value", "classes", "choice"), "click": ("click", "choice"), "choice": ("choice",)}
"""Kind of target -> the heads that fit it; the first is the usual one."""
EDGE = 0.01  # share of the rating scale, at both ends, into which predictions from beyond it are squashed


class HeadSettings(Settings):
    """What is predicted, and how."""

    head: Literal["auto", "value", "classes", "click", "choice"] = Field(
        "auto",
        description="value (squared error) or classes (softmax over levels) for ratings, click for clicks;"
        " choice (softmax over all items) ranks",
    )
    on_scale: bool = Field(False, description="squash predicted ratings between the lowest and the highest")
    liked: float = Field(
        0.0, ge=0, description="lowest rating that counts as liked (head=choice); 0: three quarters of the scale"
    )
    unliked_weight: float = Field(
        0.3, ge=0, le=1, description="weight of other rated items in the outer loss, where a liked one counts 1"
    )


class Head(Protocol):
    """The contract: K outputs per row, a loss per row with its gradient and curvature, and a prediction per row."""

    @property
    def outputs(self) -> int:
        """Width of the last layer."""

    @property
    def quadratic(self) -> bool:
        """Whether the loss is a squared error: its curvature is the same everywhere, and one Newton step is exact."""

    @property
    def has_closed_form(self) -> bool:
        """Whether Newton's method on the last output alone solves a user's problem."""

    @property
    def over_items(self) -> bool:
        """Whether a user's rows are all items, each with its weight among the user's choices as target."""

    @property
    def bounds(self) -> tuple[float, float] | None:
        """What all predictions lie between, if anything."""

    def chosen_weight(self, y_BQ: Tensor) -> Tensor:
        """What rows to be predicted count as in the outer loss, (B, Q)."""

    def row_loss(self, out_BRK: Tensor, y_BR: Tensor) -> Tensor:
        """Loss of each row, (B, R)."""

    def row_gradient(self, out_BRK: Tensor, y_BR: Tensor) -> Tensor:
        """Derivative of each row's loss with respect to its outputs, (B, R, K)."""

    def row_curvature(self, out_BRK: Tensor, y_BR: Tensor | None) -> Tensor:
        """Second derivative of each row's loss w.r.t. its last output, (B, R); without targets, at the prediction."""

    def predict(self, out_BRK: Tensor) -> Tensor:
        """Predicted rating, or what the loss asks for in place of a click's chance, (B, R); members are averaged."""

    def finish(self, predicted_BR: Tensor) -> Tensor:
        """What people see of the members' mean prediction: the rating, or the chance of a click, (B, R)."""

    def initial_bias(self, mean: float) -> Tensor:
        """Output biases that predict the training mean for every row, (K)."""


class RowHead:
    """Heads that predict one row at a time: each counts 1."""

    over_items = False

    def chosen_weight(self, y_BQ: Tensor) -> Tensor:
        """1"""
        return torch.ones_like(y_BQ)

    def finish(self, predicted_BR: Tensor) -> Tensor:
        """The prediction itself."""
        return predicted_BR


@dataclass(frozen=True)
class ValueHead(RowHead):
    """One real number and squared error: loss (y - out)^2; predictions are squashed onto a scale, if there is one."""

    scale: tuple[float, float] | None = None
    outputs: int = 1
    quadratic: bool = True
    has_closed_form: bool = True

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The scale."""
        return self.scale

    def row_loss(self, out_BRK: Tensor, y_BR: Tensor) -> Tensor:
        """(out - y)^2"""
        return (out_BRK.squeeze(-1) - y_BR) ** 2

    def row_gradient(self, out_BRK: Tensor, y_BR: Tensor) -> Tensor:
        """2 (out - y)"""
        return 2.0 * (out_BRK - y_BR.unsqueeze(-1))

    def row_curvature(self, out_BRK: Tensor, y_BR: Tensor | None) -> Tensor:
        """2"""
        return torch.full_like(out_BRK[..., 0], 2.0)

    def predict(self, out_BRK: Tensor) -> Tensor:
        """The output itself, or squashed onto the scale."""
        out_BR = out_BRK.squeeze(-1)
        return out_BR if self.scale is None else on_scale(out_BR, *self.scale)

    def initial_bias(self, mean: float) -> Tensor:
        """The mean."""
        return torch.tensor([mean])


@dataclass(frozen=True)
class ClassesHead(RowHead):
    """A softmax over the rating levels; the prediction is the expected level."""

    levels: tuple[float, ...]
    quadratic: bool = False
    has_closed_form: bool = False

    @property
    def outputs(self) -> int:
        """One per level: the d = 5 or 10 of the paper's table of layers."""
        return len(self.levels)

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest level."""
        return self.levels[0], self.levels[-1]

    def _label(self, y_BR: Tensor) -> Tensor:
        step = self.levels[1] - self.levels[0]
        return ((y_BR - self.levels[0]) / step).round().long().clamp(0, self.outputs - 1)

    def row_loss(self, out_BRK: Tensor, y_BR: Tensor) -> Tensor:
        """-log p(level)"""
        return -log_softmax(out_BRK, dim=-1).gather(-1, self._label(y_BR).unsqueeze(-1)).squeeze(-1)

    def row_gradient(self, out_BRK: Tensor, y_BR: Tensor) -> Tensor:
        """p - onehot(level)"""
        return softmax(out_BRK, dim=-1) - one_hot(self._label(y_BR), self.outputs).to(out_BRK.dtype)

    def row_curvature(self, out_BRK: Tensor, y_BR: Tensor | None) -> Tensor:
        """1 - sum p^2: the trace of the softmax's Hessian, whatever the target."""
        return 1 - (softmax(out_BRK, dim=-1) ** 2).sum(dim=-1)

    def predict(self, out_BRK: Tensor) -> Tensor:
        """The expected level."""
        return softmax(out_BRK, dim=-1) @ torch.tensor(self.levels, dtype=out_BRK.dtype, device=out_BRK.device)

    def initial_bias(self, mean: float) -> Tensor:
        """Equal logits: the loss, not the expected level, decides where training starts."""
        return torch.zeros(self.outputs)


@dataclass(frozen=True)
class ClickHead(RowHead):
    """A two-way softmax with weighted entropy: loss -w log p(label), w = 0.9 clicked and 0.1 not clicked."""

    outputs: int = 2
    quadratic: bool = False
    has_closed_form: bool = True
    bounds: tuple[float, float] = (0.0, 1.0)

    def row_loss(self, out_BRK: Tensor, y_BR: Tensor) -> Tensor:
        """-w log p(label)"""
        label_BR = y_BR.round().long()
        entropy_BR = -log_softmax(out_BRK, dim=-1).gather(-1, label_BR.unsqueeze(-1)).squeeze(-1)
        return click_weight(y_BR) * entropy_BR

    def row_gradient(self, out_BRK: Tensor, y_BR: Tensor) -> Tensor:
        """w (p - onehot(label))"""
        label_BRK = one_hot(y_BR.round().long(), self.outputs).to(out_BRK.dtype)
        return click_weight(y_BR).unsqueeze(-1) * (softmax(out_BRK, dim=-1) - label_BRK)

    def row_curvature(self, out_BRK: Tensor, y_BR: Tensor | None) -> Tensor:
        """w p (1 - p)"""
        p_BR = self.predict(out_BRK)
        return click_weight(p_BR if y_BR is None else y_BR) * p_BR * (1 - p_BR)

    def predict(self, out_BRK: Tensor) -> Tensor:
        """Probability of a click as the weighted loss has it: q = w1 p / (w1 p + w0 (1 - p)), if p is its chance."""
        return softmax(out_BRK, dim=-1)[..., 1]

    def finish(self, predicted_BR: Tensor) -> Tensor:
        """The chance of a click, p = w0 q / (w0 q + w1 (1 - q)): the weights belong in the loss alone."""
        w0, w1 = CLICK_WEIGHTS
        return w0 * predicted_BR / (w0 * predicted_BR + w1 * (1 - predicted_BR))

    def initial_bias(self, mean: float) -> Tensor:
        """Log-odds of the weighted click rate."""
        w0, w1 = CLICK_WEIGHTS
        rate = min(max(mean, 1e-3), 1 - 1e-3)
        return torch.tensor([w0 * (1 - rate), w1 * rate]).log()


def on_scale(out: Tensor, low: float, high: float) -> Tensor:
    """Squash outputs between low and high and keep their order, which clipping would lose (nDCG depends on it).

    From a hundredth of the scale before either end, outputs approach that end exponentially.
    """
    edge = EDGE * (high - low)
    if not torch.is_grad_enabled():  # in use few lie beyond, and exponentials of all would cost more than the rest
        inside = out.clamp(low + edge, high - edge)
        beyond = np.flatnonzero(inside.numpy(force=True) != out.numpy(force=True))  # NumPy finds them faster
        if len(beyond):
            place = torch.from_numpy(beyond).to(out.device)
            inside.put_(place, _squashed(out.take(place), low, high, edge))
        return inside
    return _squashed(out, low, high, edge)


def on_scale_in_use(out: np.ndarray, low: float, high: float) -> np.ndarray:
    """The same in NumPy (solo.py)."""
    edge = EDGE * (high - low)
    inside: np.ndarray = out.clip(low + edge, high - edge)
    given_R, inside_R = out.ravel(order="K"), inside.ravel(order="K")  # as they lie in memory: nothing is copied
    beyond = np.flatnonzero(inside_R != given_R)
    if len(beyond):
        inside_T = inside_R.take(beyond)
        over_T = given_R.take(beyond) - inside_T
        squashed_T = inside_T + np.copysign(edge - edge * np.exp(np.abs(over_T) / -edge), over_T)
        inside_R.put(beyond, squashed_T.clip(low, high))
    return inside


def _squashed(out: Tensor, low: float, high: float, edge: float) -> Tensor:
    """The same for outputs anywhere."""
    over, under = (out - (high - edge)).clamp(min=0), (low + edge - out).clamp(min=0)
    inside = out.clamp(low + edge, high - edge)
    squashed = inside - edge * torch.expm1(-over / edge) + edge * torch.expm1(-under / edge)
    return squashed.clamp(low, high)  # guards against rounding in the last bit


def click_weight(y: Tensor) -> Tensor:
    """0.9 where clicked, 0.1 where not."""
    w0, w1 = CLICK_WEIGHTS
    return w0 + (w1 - w0) * y


def head_for(settings: HeadSettings, target: Target) -> Head:
    """The head that the settings name; `auto` is `value` for ratings, `click` for clicks and `choice` for choices."""
    name: str = settings.head
    if name == "auto":
        name = FITTING[target.kind][0]
    fitting = FITTING[target.kind]
    if name not in fitting:
        raise SettingsError(f"head '{name}' does not fit a {target.kind} target", remedy=nearest(name, fitting))
    if settings.liked and not target.low < settings.liked <= target.high:
        scale = f"above {target.low:g} and at most {target.high:g}"
        raise SettingsError(f"liked is {settings.liked:g}", remedy=f"expected a value of the scale, {scale}")
    if name == "choice":
        return ChoiceHead(reaching(target, settings.liked or liked_level(target)), settings.unliked_weight)
    heads: dict[str, Head] = {
        "value": ValueHead((target.low, target.high) if settings.on_scale else None),
        "classes": ClassesHead(tuple(target.levels)),
        "click": ClickHead(),
    }
    return heads[name]


def user_loss(row_loss_BR: Tensor, mask_BR: Tensor) -> Tensor:
    """Mean over each user's rows, (B); a user without rows has loss 0."""
    count_B = mask_BR.sum(dim=1).clamp(min=1)
    return (row_loss_BR * mask_BR).sum(dim=1) / count_B
