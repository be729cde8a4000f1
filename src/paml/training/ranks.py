"""Several processes that train one run together, started by torchrun; alone, nothing is exchanged.

A rank is one of these processes. Everything that they say to each other is here; what they say is in parallel.py.
"""

import atexit
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from paml.errors import TrainingError

T = TypeVar("T")
BACKENDS = "cpu:gloo,cuda:nccl"
TIMEOUT = timedelta(hours=6)
"""For ranks that wait while the first one writes, or weighs what lists are ordered by; a dead rank shows at once."""


class Ranks:
    """One process: it has all users, and nobody to talk to."""

    rank, size = 0, 1

    @property
    def is_first(self) -> bool:
        """Whether this rank writes files and shows progress."""
        return self.rank == 0

    def sum(self, tensor: Tensor, meanwhile: Callable[[], None] | None = None) -> Tensor:
        """The sum over all ranks, in place; `meanwhile` is done while others are waited for."""
        return tensor

    def gather(self, part: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which may differ in length."""
        return [part]

    def gather_objects(self, value: T) -> list[T]:
        """The values of all ranks."""
        return [value]

    def first(self, work: Callable[[], T]) -> T:
        """What the first rank finds, told to all; the others wait for it."""
        return work()

    def wait(self) -> None:
        """Until all ranks are here."""


class Together(Ranks):
    """One of several processes, over torch.distributed."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum(self, tensor: Tensor, meanwhile: Callable[[], None] | None = None) -> Tensor:
        """The sum over all ranks, in place, the same bit by bit for all."""
        under_way = dist.all_reduce(tensor, async_op=True)
        if meanwhile is not None:
            meanwhile()
        under_way.wait()
        return tensor

    def gather(self, part: Tensor) -> list[Tensor]:
        """The tensors of all ranks; shorter ones are filled up on the way."""
        own = torch.tensor([len(part)], device=part.device)
        lengths = [torch.zeros_like(own) for _ in range(self.size)]
        dist.all_gather(lengths, own)
        longest = max(int(length) for length in lengths)
        padded = part.new_zeros(longest, *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        return [one[: int(length)] for one, length in zip(parts, lengths, strict=True)]

    def gather_objects(self, value: T) -> list[T]:
        """The values of all ranks, pickled."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def first(self, work: Callable[[], T]) -> T:
        """What the first rank finds; if it fails, all do."""
        told: list[Any] = [None, None]
        error: Exception | None = None
        if self.is_first:
            try:
                told = [work(), None]
            except Exception as found:  # noqa: BLE001 - raised below, when the others know
                error, told = found, [None, type(found).__name__]
        dist.broadcast_object_list(told, src=0)
        if error is not None:
            raise error
        if told[1] is not None:
            raise TrainingError(f"the first rank has stopped ({told[1]})", remedy="see its error")
        return told[0]  # type: ignore[no-any-return]

    def wait(self) -> None:
        """Until all ranks are here."""
        dist.barrier()


def joined() -> Ranks:
    """The ranks that torchrun has started, this one among them; by itself, a process is alone.

    They stay together until the process ends: torchrun's store does not let them meet twice.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "MASTER_ADDR" not in os.environ:
        return Ranks()
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = BACKENDS if torch.cuda.is_available() else "gloo"
        store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
        dist.init_process_group(backend, store=_fresh(store), rank=rank, world_size=size, timeout=TIMEOUT)
        atexit.register(dist.destroy_process_group)
    return Together()


def _fresh(store: Store) -> Store:
    """torchrun keeps its store when it restarts ranks, with the addresses of the dead, who must not be called.

    On one machine the number of restarts tells attempts apart. Machines count differently: there, torchrun has to be
    told to make a new store (docs/training.md).
    """
    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        return store
    return PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def is_first_process() -> bool:
    """Whether this process is the one of those started by torchrun that writes and shows results."""
    return int(os.environ.get("RANK", "0")) == 0


def in_turn(parts: Sequence[Tensor]) -> Tensor:
    """Shares of every n-th row as the whole, in its order."""
    whole = parts[0].new_empty(sum(len(part) for part in parts), *parts[0].shape[1:])
    for rank, part in enumerate(parts):
        whole[rank :: len(parts)] = part
    return whole
