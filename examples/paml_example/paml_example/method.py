"""A method: PAML whose personal rates are at least a tenth of the largest, so that nobody stays where they are."""

import torch
from torch import Tensor

from paml.engine.adapt import RatePerUser
from paml.methods.objectives import query_loss
from paml.methods.rates import PersonalRate
from paml.methods.registry import LearnerSettings, Method
from paml.methods.spaces import COMMON, Range
from paml.network.network import Network

LEAST = 0.1
"""The smallest rate, as a share of `rate_scale`."""


class BoundedRate(PersonalRate):
    """alpha(h) = scale (0.1 + 0.9 sigmoid(layers(h)))"""

    def forward(self, h_BH: Tensor) -> RatePerUser:
        """(B), between a tenth of `scale` and `scale`."""
        return RatePerUser(LEAST * self.scale + (1 - LEAST) * self.alpha(h_BH))


def bounded_rate(network: Network, settings: LearnerSettings, rng: torch.Generator) -> BoundedRate:
    """The rate function `bounded`."""
    return BoundedRate(network.user.width, settings.rate_scale, rng)


BOUNDED_PAML = Method(
    label="bounded PAML",
    summary="a rate per user, bounded below",
    rate="bounded",
    objective=lambda settings: query_loss,
    largest_rate=lambda settings: settings.rate_scale,
    space=COMMON | {"inner_steps": Range(1, 5), "rate_scale": Range(1e-2, 1.0, log=True)},
)
