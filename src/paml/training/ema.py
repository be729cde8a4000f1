"""A moving average of the weights over the outer steps: if asked for, this is what is validated and kept.

A large outer rate finds good regions quickly but jumps around in them; the average lies in the middle. Torch's own
`AveragedModel` is a copy of the module, in which AT-PAML's memory and its index would be out of date.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

WARMUP_STEPS = 10  # steps in which the average forgets its initial value


class WeightAverage:
    """average <- d average + (1 - d) weights after step t, with d = min(decay, (1 + t) / (WARMUP_STEPS + t))."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        """A decay of 0 keeps no average: the weights themselves are used."""
        learned = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self._parameters = learned if decay else {}
        self._decay, self._step = decay, 0
        self._average = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    def follow(self) -> None:
        """Move the average towards the weights, which have just taken a step."""
        if not self._parameters:
            return
        decay = min(self._decay, (1 + self._step) / (WARMUP_STEPS + self._step))
        move = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        move(list(self._average.values()), list(self._parameters.values()), self._step)
        self._step += 1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the module the averaged weights for as long as the block lasts."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def state(self) -> dict[str, Tensor]:
        """What is needed to continue; empty without an average."""
        return {**self._average, "step": torch.tensor(self._step)} if self._parameters else {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`."""
        if self._parameters:
            self._step = int(state["step"])
            for name, tensor in self._average.items():
                tensor.copy_(state[name])

    def of(self, module: nn.Module) -> list[Tensor]:
        """The averages of a part of the module, in the order of its parameters; empty without an average."""
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        return [self._average[names[id(one)]] for one in module.parameters() if id(one) in names]

    def restore_of(self, module: nn.Module, averages: Iterable[Tensor]) -> None:
        """Continue from what `of` gave elsewhere."""
        for own, other in zip(self.of(module), averages, strict=True):
            own.copy_(other)

    def _exchange(self) -> None:
        for name, parameter in self._parameters.items():
            parameter.data, self._average[name] = self._average[name], parameter.data
