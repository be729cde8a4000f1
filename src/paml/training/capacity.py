"""What this machine cannot hold is one line with a remedy: before a training, and in the middle of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from paml.errors import TooLarge
from paml.methods.registry import tensors_of_a_member
from paml.training.run import RunSettings

MEMBER_BYTES = 10_000
"""What a member of an ensemble takes at least, however few numbers it has."""
NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
"""How PyTorch's errors say so, which are RuntimeErrors otherwise like all others."""


def require_memory(wanted: RunSettings) -> None:
    """Refuse what this machine cannot hold: weights, their gradients, the optimiser's two moments, the best weights."""
    one = tensors_of_a_member(wanted.method, wanted.shape(), wanted.recipe)
    bytes_of_one = MEMBER_BYTES + sum(tensor.numel() * tensor.element_size() for tensor in one.values())
    needed = 5 * wanted.recipe.ensemble_size * bytes_of_one
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        raise MemoryError(f"it needs {needed / 1e9:,.0f} GB, and this machine has {present / 1e9:,.0f} GB")


@contextmanager
def enough_memory(folder: Path) -> Iterator[None]:
    """A part of a training; if memory does not suffice for it, other settings may need less."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_of_memory(error):
            raise
        reason = (str(error).splitlines() or ["MemoryError"])[0]
        remedy = "train in another folder with a smaller batch_size, hidden or sampled_items"
        raise TooLarge(f"there is not enough memory to train ({reason})", where=folder, remedy=remedy) from None


def _is_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(words in str(error) for words in NO_MEMORY)
