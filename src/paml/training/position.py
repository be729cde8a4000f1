"""Where a training is, without its tensors: what a checkpoint says in words and numbers."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Position:
    """An epoch and a batch of it, the generators that draw it again, and how earlier epochs went."""

    epoch: int = 0
    batch: int = 0
    generators: list[dict[str, Any]] = field(default_factory=list)
    """States of the members' generators at the start of the epoch."""
    loss_sum: float = 0.0
    users_done: int = 0
    seconds: float = 0.0
    best_value: float | None = None
    best_epoch: int = -1
    history: list[dict[str, Any]] = field(default_factory=list)

    def has_stalled(self, patience: int) -> bool:
        """Whether validation has not improved for `patience` epochs; 0 is never."""
        return bool(patience) and self.epoch - 1 - self.best_epoch >= patience

    def best_note(self) -> str:
        """For the bar."""
        return "" if self.best_value is None else f" · best validation {self.best_value:.4f}"
