"""An ensemble's members as one: their weights stacked, and every operation started once for all of them.

A new user's arithmetic is tiny, and the time goes into starting some hundred operations per member. `torch.func.vmap`
runs the learners' own code over stacked weights: nothing is written twice; twelve members cost little more than five.
That is for one user; with many at once, arithmetic counts, and stacked products are slower than single ones.

Legend: M members, B users, I all items, R rows, K outputs.
"""

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from paml.engine.adapt import Adaptation
from paml.engine.layers import AttendingLayer, ItemTable, Layer, PersonalLayer, SharedLayer
from paml.episodes.batches import TensorBatch
from paml.episodes.features import Features
from paml.methods.learner import Adapted, Learner
from paml.methods.memory import MemoryRate
from paml.methods.rates import rate_per_user
from paml.network.affinity import AffinityTable
from paml.network.items import ItemVectors
from paml.network.network import Embedded

Tensors = dict[str, Tensor]
MIN_MEMBERS, MAX_USERS = 4, 2  # where stacking is faster than one by one: measured on two cores
MAX_NUMBERS = 1 << 24  # in all members' item vectors, which are kept twice; with more, arithmetic counts anyway


@dataclass(frozen=True)
class Member:
    """A learner, and all items as it sees them."""

    learner: Learner
    items: ItemVectors
    table: ItemTable

    @classmethod
    @torch.no_grad()
    def of(cls, learner: Learner, features: Features, item_I: Tensor) -> "Member":
        """Every item's vector, and its products with theta."""
        items, table = learner.network.embed_catalogue(features, item_I)
        table.products(learner.network.decision.theta()[0].rows_DK)
        return cls(learner, items, table)

    def adapt(self, batch: TensorBatch) -> Adapted:
        """The learner adapted to a batch whose rows point at all items."""
        return self.learner.adapt(self.learner.network.embed(batch, (self.items, self.table)))


class Stack:
    """Members of the same shape. Threads may share it: what a call changes is a thread's own."""

    @staticmethod
    def suits(members: Sequence[Member]) -> bool:
        """Whether it helps, and can be done: a memory is searched, and ties are looked up, by other means."""
        numbers = len(members) * members[0].items.vectors_ND.numel()
        has_memory = isinstance(members[0].learner.rates, MemoryRate)
        has_ties = isinstance(members[0].table, AffinityTable)
        return len(members) >= MIN_MEMBERS and numbers <= MAX_NUMBERS and not has_memory and not has_ties

    @torch.no_grad()
    def __init__(self, members: Sequence[Member]) -> None:
        """Items are stacked, too; `ensemble_size` then are views into them."""
        states = [dict(member.learner.named_parameters()) for member in members]
        used = [name for name in states[0] if not name.startswith("network.items.")]
        self._weights_M = {f"learner.{name}": _stacked([state[name] for state in states]) for name in used}
        tables = [_tensors(member) for member in members]
        self._items_M = {name: _stacked([table[name] for table in tables]) for name in tables[0]}
        self._whole_M = self._items_M | {"vectors_ND": self._items_M["vectors_ND"].contiguous()}  # to be multiplied
        self._skeletons, self._first = threading.local(), members[0].learner
        self.members = tuple(
            Member(member.learner, *_items(member.learner, {name: part_M[m] for name, part_M in self._items_M.items()}))
            for m, member in enumerate(members)
        )

    @torch.inference_mode()
    def adapt(self, batch: TensorBatch) -> list[Adapted]:
        """Each member adapted to a batch whose rows point at all items."""

        def parts(learner: Learner, items: ItemVectors, table: ItemTable, _: Tensors) -> Tensors:
            return _parts(learner.adapt(learner.network.embed(batch, (items, table))))

        part_M = self._for_each(parts, self._items_M, {})
        return [
            _adapted(member, batch, {name: part[m] for name, part in part_M.items()})
            for m, member in enumerate(self.members)
        ]

    @torch.inference_mode()
    def outputs_of_all(self, adapted: Sequence[Adapted], rows: slice, context: Features | None) -> Tensor:
        """Outputs for a chunk of the items, in one context, (M, B, R, K)."""
        batch = adapted[0].embedded.batch

        def outputs(learner: Learner, items: ItemVectors, table: ItemTable, parts: Tensors) -> Tensors:
            one = _adapted(Member(learner, items, table), batch, parts)
            return {"out_BRK": learner.outputs_of_all(one, rows, context)}

        parts = [_parts(one) for one in adapted]
        parts_M = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
        return self._for_each(outputs, self._whole_M, parts_M)["out_BRK"]

    def _for_each(
        self, call: Callable[[Learner, ItemVectors, ItemTable, Tensors], Tensors], items_M: Tensors, parts_M: Tensors
    ) -> Tensors:
        """Run a call for all members at once; what it returns is stacked."""

        def one(weights: Tensors, items: Tensors, parts: Tensors) -> Tensors:
            found: Tensors = functional_call(self._skeleton(), weights, (call, items, parts), tie_weights=False)
            return found

        stacked: Tensors = vmap(one)(self._weights_M, items_M, parts_M)
        return stacked

    def _skeleton(self) -> "_Skeleton":
        """A learner without weights, into which a call puts a member's: each thread has its own."""
        if not hasattr(self._skeletons, "own"):
            memo: dict[int, object] = {id(buffer): buffer for buffer in self._first.buffers()}
            for weights in self._first.parameters():
                memo[id(weights)] = nn.Parameter(torch.empty_like(weights, device="meta"), requires_grad=False)
            self._skeletons.own = _Skeleton(copy.deepcopy(self._first, memo))
        skeleton: _Skeleton = self._skeletons.own
        return skeleton


class _Skeleton(nn.Module):
    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.learner = learner

    def forward(
        self, call: Callable[[Learner, ItemVectors, ItemTable, Tensors], Tensors], items: Tensors, parts: Tensors
    ) -> Tensors:
        return call(self.learner, *_items(self.learner, items), parts)


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """(M, ...), the members side by side within each row: looking rows up for all of them then copies nothing else."""
    return torch.stack([*parts], dim=min(1, parts[0].ndim)).movedim(min(1, parts[0].ndim), 0)


def _tensors(member: Member) -> Tensors:
    """What is known of all items."""
    products_IK = member.table.products(member.learner.network.decision.theta()[0].rows_DK)
    known = {field.name: getattr(member.items, field.name) for field in fields(ItemVectors)}
    return {"products_IK": products_IK} | {name: part for name, part in known.items() if part is not None}


def _items(learner: Learner, tensors: Tensors) -> tuple[ItemVectors, ItemTable]:
    """The reverse."""
    known = dict(tensors)
    products_IK = known.pop("products_IK")
    items = ItemVectors(**known)
    return items, ItemTable(items.vectors_ND, (learner.network.decision.theta()[0].rows_DK, products_IK))


def _parts(adapted: Adapted) -> Tensors:
    """What is a user's own, as far as outputs and the rate need it."""
    embedded = adapted.embedded
    parts = {"h_BH": embedded.h_BH, "rate_B": rate_per_user(adapted.rate, len(embedded.h_BH))}
    if embedded.prior_BDK is not None:
        parts["prior_BDK"] = embedded.prior_BDK
    for k, layer in enumerate(adapted.adaptation.layers):
        parts |= {f"{k}.{field.name}": getattr(layer, field.name) for field in fields(layer) if field.name != "weights"}
    return parts


def _adapted(member: Member, batch: TensorBatch, parts: Tensors) -> Adapted:
    """The reverse."""
    theta = member.learner.network.decision.theta()
    layers: list[Layer] = []
    for k, weights in enumerate(theta):
        own = {name.partition(".")[2]: part for name, part in parts.items() if name.startswith(f"{k}.")}
        if "rows_BDK" in own:
            layers.append(PersonalLayer(**own))
        else:
            layers.append(AttendingLayer(weights, **own) if own else SharedLayer(weights))
    embedded = Embedded(batch, parts["h_BH"], member.items, member.table, parts.get("prior_BDK"))
    return Adapted(embedded, parts["rate_B"], Adaptation(tuple(layers)))
