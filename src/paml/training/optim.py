"""The outer optimiser: weight decay, the schedule of its rate, and large tables row by row (rowwise.py)."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paml.methods.learner import Ensemble, Learner
from paml.training.recipe import OuterSettings
from paml.training.rowwise import RowwiseAdam, goes_by_rows

LAST_SHARE = 0.05  # of the outer rate, at the end of a cosine
KINDS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


class OuterOptimizer:
    """Adam or AdamW over all members; rates, biases and whatever is not a matrix do not decay."""

    def __init__(self, ensemble: Ensemble, settings: OuterSettings) -> None:
        self._settings = settings
        free = {id(parameter) for member in ensemble.members for parameter in member.without_decay()}
        learned = [parameter for parameter in ensemble.parameters() if parameter.requires_grad]
        tables = [table for member in ensemble.members for table in member.network.tables()]
        by_row = [table for table in tables if goes_by_rows(table, settings)]
        self._by_row = RowwiseAdam(by_row, settings.outer_rate)
        for member in ensemble.members:
            member.network.tell_rows(self._by_row)
        large = {id(table) for table in by_row}
        whole = [parameter for parameter in learned if id(parameter) not in large]
        decays = [parameter for parameter in whole if parameter.ndim > 1 and id(parameter) not in free]
        others = [parameter for parameter in whole if parameter.ndim < 2 or id(parameter) in free]
        groups = [{"params": decays, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._whole: torch.optim.Optimizer = KINDS[settings.optimizer](groups, lr=settings.outer_rate, fused=True)
        self._learned = learned

    def begin_epoch(self, epoch: int) -> None:
        """Set the outer rate of an epoch: constant, or falling along a cosine to a twentieth."""
        settings = self._settings
        falling = max(0.5 * (1 + math.cos(math.pi * epoch / settings.epochs)), LAST_SHARE)
        self._by_row.rate = settings.outer_rate * (1.0 if settings.schedule == "constant" else falling)
        for group in self._whole.param_groups:
            group["lr"] = self._by_row.rate

    @property
    def rate(self) -> float:
        """The outer rate of this epoch."""
        return self._by_row.rate

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self._learned:
            parameter.grad = None

    def step(self) -> None:
        """Move all weights, those of large tables only as far as they were read."""
        self._whole.step()
        self._by_row.step()

    def settle(self) -> None:
        """Move what was not read, too: before weights are validated or stored."""
        self._by_row.settle()

    def state_of(self, member: Learner) -> list[dict[str, Tensor]]:
        """The moments of a member's parameters, in their order; empty for those that never had a gradient."""
        return [self._by_row.moments(one) or dict(self._whole.state.get(one, {})) for one in member.parameters()]

    def restore_of(self, member: Learner, moments: Sequence[Mapping[str, Tensor]]) -> None:
        """Continue from what `state_of` gave elsewhere."""
        for parameter, found in zip(member.parameters(), moments, strict=True):
            own = self._by_row.moments(parameter)
            for name, tensor in own.items():
                tensor.copy_(found[name])
            if found and not own:
                self._whole.state[parameter] = {name: tensor.to(parameter.device) for name, tensor in found.items()}

    def state(self) -> dict[str, Tensor]:
        """What is needed to continue."""
        state = {f"rows.{name}": tensor for name, tensor in self._by_row.state().items()}
        for number, values in self._whole.state_dict()["state"].items():
            state |= {f"{number}.{name}": torch.as_tensor(value) for name, value in values.items()}
        return state

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from `state`."""
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            part, _, key = name.partition(".")
            parts.setdefault(part, {})[key] = tensor
        self._by_row.restore(parts.pop("rows", {}))
        state = {int(number): values for number, values in parts.items()}
        self._whole.load_state_dict({**self._whole.state_dict(), "state": state})
