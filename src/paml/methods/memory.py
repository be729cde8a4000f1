"""AT-PAML: a bounded memory of users' embeddings and rates (paper, Sec. 4.2, Algs. 1 and 2).

    alpha(h) = alpha'(h) + sum_k s_k / (sum_j s_j + sigma) * alpha_k,    s_k = exp(-delta |h - h_k|^2)

over the K nearest nodes. There is one node per user, and users never read their own; the least recently used nodes are
replaced; nodes learn by plain gradient descent. In evaluation and serving the memory is only read.

Legend: B users, M nodes, H width of the user embedding, K neighbours.
"""

from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from paml.engine.adapt import Rate, RatePerUser
from paml.methods.neighbours import make_index, recall
from paml.methods.rates import MemoryRead, MemoryStep, PersonalRate, RateSource, TrainingRate
from paml.settings import Settings

EMPTY = -1
NEVER = -1


class MemorySettings(Settings):
    """AT-PAML's memory."""

    memory_size: int = Field(10_000, gt=0, description="nodes of AT-PAML's memory")
    neighbours: int = Field(20, gt=0, description="similar users looked up in training")
    neighbours_inference: int = Field(5, gt=0, description="similar users looked up in evaluation and serving")
    kernel_delta: float = Field(2.0, gt=0, description="delta of the Gaussian kernel exp(-delta |h - h'|^2)")
    kernel_sigma: float = Field(1e-5, gt=0, description="sigma in the kernel weights' denominator")
    warmup_epochs: int = Field(1, ge=0, description="epochs in which AT-PAML uses a fixed rate and fills the memory")
    warmup_rate: float = Field(5e-4, ge=0, description="the fixed rate of the warm-up")
    memory_stores: Literal["alpha", "own"] = Field(
        "own",
        description="what a node keeps: the user's own rate alpha'(h), or alpha (own rate plus neighbours')",
    )
    memory_index: Literal["exact", "kdtree", "hnsw"] = Field("exact", description="how neighbours are searched")
    index_every: int = Field(50, gt=0, description="batches between rebuilds of a kdtree or hnsw index")


class UserMemory(nn.Module):
    """Nodes in fixed slots: key h, value alpha, the user, and when it was last used."""

    keys_MH: Tensor
    values_M: Tensor
    user_M: Tensor
    used_M: Tensor
    clock: Tensor
    """Number of training steps so far."""
    count: Tensor
    """Number of slots in use, the first ones."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("keys_MH", torch.zeros(size, width))
        self.register_buffer("values_M", torch.zeros(size))
        self.register_buffer("user_M", torch.full((size,), EMPTY))
        self.register_buffer("used_M", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("clock", torch.zeros((), dtype=torch.int64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def slots_of(self, user_B: Tensor) -> Tensor:
        """Each user's slot, or -1: a binary search among the sorted owners."""
        count = int(self.count)
        if count == 0:
            return torch.full_like(user_B, EMPTY)
        owner, slot = self.user_M[:count].sort()
        place = torch.searchsorted(owner, user_B).clamp(max=count - 1)
        return torch.where(owner[place] == user_B, slot[place], EMPTY)

    def touch(self, slots: Tensor) -> None:
        """Mark slots as used now."""
        self.used_M[slots] = self.clock

    def store(self, user_B: Tensor, h_BH: Tensor, alpha_B: Tensor) -> Tensor:
        """Write one node per user: into the user's slot, a free one, or the least recently used; returns the slots.

        If a batch is larger than the memory, its last users are stored.
        """
        size = len(self.user_M)
        user_B, h_BH, alpha_B = user_B[-size:], h_BH[-size:], alpha_B[-size:]
        slot_B = self.slots_of(user_B)
        new = (slot_B == EMPTY).nonzero().squeeze(1)
        count = int(self.count)
        free = min(len(new), size - count)
        slot_B[new[:free]] = torch.arange(count, count + free, device=slot_B.device)
        self.count += free
        if len(new) > free:
            slot_B[new[free:]] = self._least_recently_used(slot_B[slot_B != EMPTY], len(new) - free)
        self.keys_MH[slot_B], self.values_M[slot_B], self.user_M[slot_B] = h_BH, alpha_B, user_B
        self.touch(slot_B)
        return slot_B

    def _least_recently_used(self, taken: Tensor, wanted: int) -> Tensor:
        """The least recently used slots (of equals the lower), except those taken by this batch."""
        used_M = self.used_M.clone()
        used_M[taken] = torch.iinfo(torch.int64).max
        return used_M.argsort(stable=True)[:wanted]


def _forget_index(rate: "MemoryRate", _: object) -> None:
    """An index built from other keys must not outlive the loading of a state."""
    rate._built_at = rate._begun_at = NEVER


class MemoryRate(RateSource):
    """alpha'(h) plus the kernel-weighted mean of the nearest nodes' rates."""

    def __init__(self, own: PersonalRate, width: int, settings: MemorySettings) -> None:
        super().__init__()
        self.own = own
        self.memory = UserMemory(settings.memory_size, width)
        self._settings = settings
        own_rates = settings.memory_stores == "own"
        self._largest = max(own.scale, settings.warmup_rate) if own_rates else float("inf")
        self._index = make_index(settings.memory_index)
        self._built_at = self._begun_at = NEVER
        self._warming_up = False
        self.register_load_state_dict_post_hook(_forget_index)  # type: ignore[no-untyped-call]

    def begin_epoch(self, epoch: int) -> None:
        """The first epochs run with a fixed rate and fill the memory; each begins with a fresh index."""
        self._warming_up = epoch < self._settings.warmup_epochs
        self._built_at = self._begun_at = NEVER

    def forward(self, h_BH: Tensor) -> Rate:
        """alpha_B; the memory is only read."""
        return self._in_use(h_BH, None)

    def of_training_users(self, h_BH: Tensor, user_B: np.ndarray) -> Rate:
        """The same, the users' own nodes unread: new users have none."""
        return self._in_use(h_BH, torch.from_numpy(np.asarray(user_B, dtype=np.int64)).to(h_BH.device))

    def _in_use(self, h_BH: Tensor, users: Tensor | None) -> Rate:
        self._refresh(stale_after=1)
        neighbours_B, _ = self._neighbours(h_BH, users, self._settings.neighbours_inference)
        return RatePerUser(self.own.alpha(h_BH) + neighbours_B)

    def in_training(self, h_BH: Tensor, user_B: np.ndarray) -> TrainingRate:
        """alpha_B, the users' own nodes unread; the step holds what was read, for its gradients, and what to store."""
        users = torch.from_numpy(np.asarray(user_B, dtype=np.int64)).to(h_BH.device)
        settings, read = self._settings, None
        if self._warming_up:
            alpha_B = own_B = h_BH.new_full((len(h_BH),), settings.warmup_rate)
        else:
            self._refresh(stale_after=settings.index_every if settings.memory_index != "exact" else 1)
            own_B = self.own.alpha(h_BH)
            neighbours_B, read = self._neighbours(h_BH, users, settings.neighbours)
            alpha_B = own_B + neighbours_B
        stored_B = alpha_B if settings.memory_stores == "alpha" else own_B
        return TrainingRate(RatePerUser(alpha_B), MemoryStep(read, users, h_BH.detach(), stored_B.detach()))

    @torch.no_grad()
    def finish_step(self, step: MemoryStep, outer_rate: float) -> None:
        """node_j -= beta * dL/dnode_j for the nodes read; then store the batch's own nodes."""
        self.memory.clock += 1
        if step.read is not None:
            slots, known, keys, values = step.read
            if keys.grad is not None and values.grad is not None:
                self.memory.keys_MH.index_add_(0, slots.flatten(), keys.grad.flatten(0, 1), alpha=-outer_rate)
                self.memory.values_M.index_add_(0, slots.flatten(), values.grad.flatten(), alpha=-outer_rate)
                self.memory.values_M.clamp_(0.0, self._largest)  # the loss is steep in a rate, and a step may overshoot
            self.memory.touch(slots[known])
        self.memory.store(step.user_B, step.h_BH, step.alpha_B)

    def facts(self, h_BH: Tensor) -> dict[str, Any]:
        """The number of nodes, and the share of the true nearest ones that the index finds."""
        nodes = int(self.memory.count)
        return {"memory_nodes": nodes, "memory_recall": self.recall(h_BH) if nodes and len(h_BH) else None}

    def recall(self, h_BH: Tensor) -> float:
        """Share of the true nearest nodes that the index finds, for as many neighbours as in inference."""
        self._refresh(stale_after=1)
        keys_MH = self.memory.keys_MH[: int(self.memory.count)]
        return recall(self._index, keys_MH, h_BH, self._settings.neighbours_inference)

    def _refresh(self, stale_after: int) -> None:
        """Rebuild the index after this many stores; distances are computed from the current keys anyway.

        Stores are counted from the first step, also while nothing is stored: where a training is resumed follows from
        the number of steps alone.
        """
        clock = int(self.memory.clock)
        first = self._begun_at = clock if self._begun_at == NEVER else self._begun_at
        if int(self.memory.count) == 0:
            return
        if self._built_at == NEVER or (clock - first) // stale_after > (self._built_at - first) // stale_after:
            self._index.build(self.memory.keys_MH[: int(self.memory.count)])
            self._built_at = clock

    def _neighbours(self, h_BH: Tensor, users: Tensor | None, k: int) -> tuple[Tensor, MemoryRead | None]:
        """sum_k s_k / (sum_j s_j + sigma) * alpha_k over the nearest nodes except the user's own, (B); nodes read."""
        if int(self.memory.count) == 0:
            return h_BH.new_zeros(len(h_BH)), None
        slot_BK = self._search(h_BH.detach(), users, min(k, int(self.memory.count)))
        known_BK = slot_BK != EMPTY
        slot_BK = slot_BK.clamp(min=0)
        keys_BKH, values_BK = self.memory.keys_MH[slot_BK], self.memory.values_M[slot_BK]
        read = None
        if users is not None and torch.is_grad_enabled():
            keys_BKH.requires_grad_()
            values_BK.requires_grad_()
            read = MemoryRead(slot_BK, known_BK, keys_BKH, values_BK)
        distance_BK = ((h_BH.unsqueeze(1) - keys_BKH) ** 2).sum(dim=2)
        s_BK = (-self._settings.kernel_delta * distance_BK).exp() * known_BK
        return (s_BK * values_BK).sum(dim=1) / (s_BK.sum(dim=1) + self._settings.kernel_sigma), read

    def _search(self, h_BH: Tensor, users: Tensor | None, k: int) -> Tensor:
        """Slots of the k nearest nodes, (B, k), -1 where there are fewer; one more is found, to skip the user's own."""
        if users is None:
            return self._index.search(h_BH, k)
        slot_BK1 = self._index.search(h_BH, k + 1)
        own_B1 = self.memory.slots_of(users).unsqueeze(1)
        # a stable sort moves a user's own slot, and missing ones, behind the others
        unusable = (slot_BK1 == own_B1) | (slot_BK1 == EMPTY)
        order = unusable.to(torch.int8).argsort(dim=1, stable=True)
        return slot_BK1.masked_fill(unusable, EMPTY).gather(1, order)[:, :k]
