"""Where the inner rate alpha comes from: fixed, one per parameter, or one per user.

Legend: B users, H width of the user embedding.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from paml.engine.adapt import Rate, RatePerParameter, RatePerUser, Theta
from paml.engine.inputs import Weights
from paml.settings import Settings


class RateSettings(Settings):
    """Inner rates."""

    inner_rate: float = Field(1e-5, ge=0, description="inner rate of melu and transfer, and initial rate of meta_sgd")
    rate_scale: float = Field(
        1e-3, gt=0, description="largest alpha'(h): personal rate of the paml methods, prior variance of ridge"
    )


class MemoryStep(NamedTuple):
    """How an outer step uses the memory: what it read, and the nodes that it will store."""

    read: "MemoryRead | None"
    user_B: Tensor
    h_BH: Tensor
    alpha_B: Tensor


class MemoryRead(NamedTuple):
    """Nodes that a batch read: their slots, which of these hold a node, and copies that collect gradients."""

    slots_BK: Tensor
    known_BK: Tensor
    keys_BKH: Tensor
    values_BK: Tensor


class TrainingRate(NamedTuple):
    """The rates of a training batch, and the memory update that the outer step has to finish, if any."""

    rate: Rate
    memory: MemoryStep | None = None


class RateSource(nn.Module):
    """Gives every user of a batch a rate."""

    can_be_stacked = True
    """Whether one call over stacked weights can compute the rates of all members."""

    def forward(self, h_BH: Tensor) -> Rate:
        """The rates of users outside training."""
        raise NotImplementedError

    def in_training(self, h_BH: Tensor, user_B: np.ndarray) -> TrainingRate:
        """The rates of training users, who are identified by number."""
        return TrainingRate(self(h_BH))

    def begin_epoch(self, epoch: int) -> None:
        """Called before each training epoch."""

    def finish_step(self, step: MemoryStep, outer_rate: float) -> None:
        """Called after the outer step's gradients were computed, for what learns in its own way (the memory)."""
        raise NotImplementedError

    def facts(self, h_BH: Tensor) -> dict[str, Any]:
        """Facts to report about a trained source; `h_BH` are embeddings of validation users."""
        return {}


class FixedRate(RateSource):
    """The same rate for everyone: MeLU, and fine-tuning in transfer learning."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, h_BH: Tensor) -> Rate:
        """A constant, (B)."""
        return RatePerUser(h_BH.new_full((len(h_BH),), self.rate))


class ParameterRate(RateSource):
    """One learned rate per parameter of theta, the same for every user (Meta-SGD)."""

    def __init__(self, theta: Theta, initial: float) -> None:
        super().__init__()
        self.rows = nn.ParameterList(torch.full_like(weights.rows_DK, initial) for weights in theta)
        self.shared = nn.ParameterList(torch.full_like(weights.shared_CK, initial) for weights in theta)

    def forward(self, h_BH: Tensor) -> Rate:
        """The parameters themselves."""
        return RatePerParameter([Weights(*pair) for pair in zip(self.rows, self.shared, strict=True)])


class PersonalRate(RateSource):
    """alpha'(h) = scale * sigmoid(layers(h)), the paper's 64-32-1 (listing in Sec. D.2: ReLU after the first layer)."""

    def __init__(self, user_width: int, scale: float, rng: torch.Generator) -> None:
        super().__init__()
        self.scale = scale
        sizes = (user_width, 64, 32, 1)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            both = (torch.rand(inputs + 1, outputs, generator=rng) * 2 - 1) * max(inputs, 1) ** -0.5
            self.weights.append(nn.Parameter(both[:-1].clone()))
            self.biases.append(nn.Parameter(both[-1].clone()))

    def forward(self, h_BH: Tensor) -> Rate:
        """(B), between 0 and `scale`."""
        return RatePerUser(self.alpha(h_BH))

    def alpha(self, h_BH: Tensor) -> Tensor:
        """alpha'(h), (B)."""
        z = torch.addmm(self.biases[0], h_BH, self.weights[0]).relu()
        z = torch.addmm(self.biases[1], z, self.weights[1])
        return self.scale * torch.addmm(self.biases[2], z, self.weights[2]).sigmoid().squeeze(-1)
