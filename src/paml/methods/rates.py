"""Where the inner rate alpha comes from: fixed, one per parameter, or one per user.

Legend: B users, H width of the user embedding.
"""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from paml.engine.adapt import Rate, Theta
from paml.engine.layers import Weights


class RateSource(nn.Module):
    """Gives every user of a batch a rate. In training `user_B` says who they are; otherwise it is None."""

    def forward(self, h_BH: Tensor, user_B: np.ndarray | None = None) -> Rate:
        """alpha_B, or rates shaped like theta."""
        raise NotImplementedError

    def begin_epoch(self, epoch: int) -> None:
        """Called before each training epoch."""

    def finish_step(self) -> None:
        """Called after the outer step's gradients were computed, for what learns in its own way (the memory)."""


class FixedRate(RateSource):
    """The same rate for everyone: MeLU, and fine-tuning in transfer learning."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, h_BH: Tensor, user_B: np.ndarray | None = None) -> Rate:
        """A constant, (B)."""
        return h_BH.new_full((len(h_BH),), self.rate)


class ParameterRate(RateSource):
    """One learned rate per parameter of theta, the same for every user (Meta-SGD)."""

    def __init__(self, theta: Theta, start: float) -> None:
        super().__init__()
        self.rows = nn.ParameterList(torch.full_like(weights.rows_DK, start) for weights in theta)
        self.shared = nn.ParameterList(torch.full_like(weights.shared_CK, start) for weights in theta)

    def forward(self, h_BH: Tensor, user_B: np.ndarray | None = None) -> Rate:
        """The parameters themselves."""
        return [Weights(rows, shared) for rows, shared in zip(self.rows, self.shared, strict=True)]


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

    def forward(self, h_BH: Tensor, user_B: np.ndarray | None = None) -> Rate:
        """(B), between 0 and `scale`."""
        return self.own(h_BH)

    def own(self, h_BH: Tensor) -> Tensor:
        """alpha'(h), a tensor in any case."""
        z = torch.addmm(self.biases[0], h_BH, self.weights[0]).relu()
        z = torch.addmm(self.biases[1], z, self.weights[1])
        return self.scale * torch.addmm(self.biases[2], z, self.weights[2]).sigmoid().squeeze(-1)


def rate_per_user(rate: Rate, users: int) -> Tensor:
    """One number per user for tables and figures; of rates per parameter, their mean."""
    if isinstance(rate, Tensor):
        return rate
    total = sum(part.sum() for weights in rate for part in weights)
    count = sum(part.numel() for weights in rate for part in weights)
    mean = torch.as_tensor(total) / count
    return mean.expand(users)
