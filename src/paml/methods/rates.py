"""Where the inner rate alpha comes from: fixed, one per parameter, or one per user.

Legend: B users, H width of the user embedding, M members of an ensemble.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from paml.engine.adapt import Rate, RatePerParameter, RatePerUser, Theta
from paml.engine.inputs import Weights
from paml.engine.joint import JointRate
from paml.engine.solo import SoloRate
from paml.settings import Settings

JointRates = Callable[[Tensor], JointRate]
"""From the users' embeddings, (M, B, H), to their rates for all members."""


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

    can_merge = False
    """Whether one member's rates can stand for all, once networks are merged (merge.py)."""

    def forward(self, h_BH: Tensor) -> Rate:
        """The rates of users outside training."""
        raise NotImplementedError

    def in_training(self, h_BH: Tensor, user_B: np.ndarray) -> TrainingRate:
        """The rates of training users, who are identified by number."""
        return TrainingRate(self(h_BH))

    def of_training_users(self, h_BH: Tensor, user_B: np.ndarray) -> Rate:
        """The rates that training users would have if they were new."""
        rate: Rate = self(h_BH)
        return rate

    def begin_epoch(self, epoch: int) -> None:
        """Called before each training epoch."""

    def finish_step(self, step: MemoryStep, outer_rate: float) -> None:
        """Called after the outer step's gradients were computed, for what learns in its own way (the memory)."""
        raise NotImplementedError

    def facts(self, h_BH: Tensor) -> dict[str, Any]:
        """Facts to report about a trained source; `h_BH` are embeddings of validation users."""
        return {}

    @classmethod
    def joint(cls, sources: Sequence[Any]) -> JointRates:
        """The sources of all members as one; here, one after the other."""

        @torch.no_grad()
        def rates(h_MBH: Tensor) -> JointRate:
            alphas = [source(h_BH).per_user(len(h_BH)) for source, h_BH in zip(sources, h_MBH, strict=True)]
            return JointRate(torch.stack(alphas), h_MBH)

        return rates


class FixedRate(RateSource):
    """The same rate for everyone: MeLU, and fine-tuning in transfer learning."""

    can_merge = True

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, h_BH: Tensor) -> Rate:
        """A constant, (B)."""
        return RatePerUser(h_BH.new_full((len(h_BH),), self.rate))

    @classmethod
    def joint(cls, sources: Sequence["FixedRate"]) -> JointRates:
        """A constant for each member."""
        return JointFixedRate(sources)


class JointFixedRate:
    """The rates of all members."""

    def __init__(self, sources: Sequence[FixedRate]) -> None:
        self._rate_M1 = torch.tensor([[source.rate] for source in sources])
        self._solo_rate_M = self._rate_M1[:, 0].numpy()

    def __call__(self, h_MBH: Tensor) -> JointRate:
        """The same for B users."""
        return JointRate(self._rate_M1.to(h_MBH).expand(h_MBH.shape[:2]), h_MBH)

    def solo(self, h_MH: np.ndarray) -> SoloRate:
        """The same for one user."""
        return SoloRate(self._solo_rate_M, h_MH)


class ParameterRate(RateSource):
    """One learned rate per parameter of theta, the same for every user (Meta-SGD)."""

    def __init__(self, theta: Theta, initial: float) -> None:
        super().__init__()
        self.rows = nn.ParameterList(torch.full_like(weights.rows_DK, initial) for weights in theta)
        self.shared = nn.ParameterList(torch.full_like(weights.shared_CK, initial) for weights in theta)

    def forward(self, h_BH: Tensor) -> Rate:
        """The parameters themselves."""
        return RatePerParameter([Weights(*pair) for pair in zip(self.rows, self.shared, strict=True)])

    @classmethod
    def joint(cls, sources: Sequence["ParameterRate"]) -> JointRates:
        """The parameters of all members, of a network of one layer."""
        mean_M1 = torch.stack([source(torch.empty(1, 0)).per_user(1) for source in sources])
        rows_MDK, shared_MCK = (
            torch.stack(parts) for parts in zip(*((one.rows[0], one.shared[0]) for one in sources), strict=True)
        )
        return lambda h_MBH: JointRate(mean_M1.expand(h_MBH.shape[:2]), h_MBH, (rows_MDK, shared_MCK))


class PersonalRate(RateSource):
    """alpha'(h) = scale * sigmoid(layers(h)), the paper's 64-32-1 (listing in Sec. D.2: ReLU after the first layer)."""

    can_merge = True

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

    @classmethod
    def joint(cls, sources: Sequence["PersonalRate"]) -> JointRates:
        """The same layers, all members in one product each."""
        return JointPersonalRate(sources)


class JointPersonalRate:
    """alpha'(h) of all members."""

    def __init__(self, sources: Sequence[PersonalRate]) -> None:
        self._scale = sources[0].scale
        self._layers = [
            (torch.stack(biases).unsqueeze(1), torch.stack(weights))
            for biases, weights in zip(
                zip(*(source.biases for source in sources), strict=True),
                zip(*(source.weights for source in sources), strict=True),
                strict=True,
            )
        ]
        self._solo_layers = [tuple(part.numpy(force=True) for part in layer) for layer in self._layers]

    def __call__(self, h_MBH: Tensor) -> JointRate:
        """The rates of B users."""
        first, second, last = self._layers
        z = torch.baddbmm(first[0], h_MBH, first[1]).relu_()
        z = torch.baddbmm(second[0], z, second[1])
        alpha_MB = self._scale * torch.baddbmm(last[0], z, last[1]).sigmoid_().squeeze(-1)
        return JointRate(alpha_MB, h_MBH)

    def solo(self, h_MH: np.ndarray) -> SoloRate:
        """The rates of one user."""
        first, second, last = self._solo_layers
        z = np.maximum(h_MH[:, None] @ first[1] + first[0], 0.0)
        z = (z @ second[1] + second[0]) @ last[1] + last[0]
        return SoloRate(self._scale / (1 + np.exp(-z[:, 0, 0])), h_MH)
