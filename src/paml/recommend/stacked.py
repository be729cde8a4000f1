"""An ensemble's members as one: their weights are stacked, and every operation runs once for all of them.

One new user's arithmetic is tiny, and most time goes into starting a hundred or so operations per member.
`torch.func.vmap` runs the learners' own code over stacked weights: no code is repeated, and twelve members cost little
more than five. With many users at once, arithmetic dominates, and stacked products are slower than single ones.

Legend: M members, B users, I all items, R rows, K outputs.
"""

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from paml.engine.adapt import Adaptation, RatePerUser
from paml.engine.inputs import ItemTable
from paml.engine.layers import Layer
from paml.episodes.batches import SupportBatch
from paml.episodes.features import Features
from paml.methods.learner import Adapted, Learner
from paml.network.items import ItemVectors
from paml.network.network import Embedded

Tensors = dict[str, Tensor]
Parts = dict[str, Any]
"""Tensors in lists and dictionaries: what `vmap` takes and returns."""

Call = Callable[[Learner, ItemVectors, ItemTable, Parts], Parts]
MIN_MEMBERS, MAX_USERS = 4, 2  # where stacking is faster than one by one: measured on two cores
MAX_NUMBERS = 1 << 24  # in all members' item vectors, which are kept twice; with more, arithmetic dominates anyway


@dataclass(frozen=True)
class Member:
    """A learner, and its vectors of all items."""

    learner: Learner
    items: ItemVectors
    table: ItemTable

    @classmethod
    @torch.no_grad()
    def of(cls, learner: Learner, features: Features, item_I: Tensor) -> "Member":
        """Every item's vector, and its products with theta."""
        items, table = learner.embed_all(features, item_I)
        table.products(learner.network.decision.theta()[0].rows_DK)
        return cls(learner, items, table)

    def adapt(self, batch: SupportBatch) -> Adapted:
        """The learner adapted to a batch whose rows refer to all items."""
        return self.learner.adapt(self.learner.embed(batch, (self.items, self.table)))


class Stack:
    """Stacked members of the same shape. Threads may share it: a call changes only what is local to its thread."""

    @staticmethod
    def suits(members: Sequence[Member]) -> bool:
        """Whether stacking helps and is possible: a searched memory and looked-up affinities cannot be stacked."""
        numbers = len(members) * members[0].items.vectors_ND.numel()
        can_be_done = members[0].learner.rates.can_be_stacked and members[0].table.is_materialised
        return len(members) >= MIN_MEMBERS and numbers <= MAX_NUMBERS and can_be_done

    @torch.no_grad()
    def __init__(self, members: Sequence[Member]) -> None:
        """Items are stacked, too; the stack's own `members` are views into them."""
        weights = [_weights(member.learner) for member in members]
        self._weights_M = {name: _stacked([one[name] for one in weights]) for name in weights[0]}
        tables = [_tensors(member) for member in members]
        self._items_M = {name: _stacked([table[name] for table in tables]) for name in tables[0]}
        self._whole_M = self._items_M | {"vectors_ND": self._items_M["vectors_ND"].contiguous()}  # to be multiplied
        self._skeletons, self._first = threading.local(), members[0].learner
        self.members = tuple(
            Member(member.learner, *_items(member.learner, {name: part_M[m] for name, part_M in self._items_M.items()}))
            for m, member in enumerate(members)
        )

    @torch.inference_mode()
    def adapt(self, batch: SupportBatch) -> list[Adapted]:
        """Each member adapted to a batch whose rows refer to all items."""
        kinds: tuple[type[Layer], ...] = ()

        def parts(learner: Learner, items: ItemVectors, table: ItemTable, _: Parts) -> Parts:
            nonlocal kinds
            adapted = learner.adapt(learner.embed(batch, (items, table)))
            kinds = tuple(type(layer) for layer in adapted.adaptation.layers)
            return _parts(adapted)

        part_M = self._for_each(parts, self._items_M, {})
        return [
            _adapted(member, batch, kinds, tree_map(itemgetter(m), part_M)) for m, member in enumerate(self.members)
        ]

    @torch.inference_mode()
    def outputs_of_all(self, adapted: Sequence[Adapted], rows: slice, context: Features | None) -> Tensor:
        """Outputs for a chunk of the items, in one context, (M, B, R, K)."""
        batch = adapted[0].embedded.batch
        kinds = tuple(type(layer) for layer in adapted[0].adaptation.layers)

        def outputs(learner: Learner, items: ItemVectors, table: ItemTable, parts: Parts) -> Parts:
            one = _adapted(Member(learner, items, table), batch, kinds, parts)
            return {"out_BRK": learner.outputs_of_all(one, rows, context)}

        parts_M = tree_map(lambda *parts: torch.stack(parts), *(_parts(one) for one in adapted))
        out_MBRK: Tensor = self._for_each(outputs, self._whole_M, parts_M)["out_BRK"]
        return out_MBRK

    def _for_each(self, call: Call, items_M: Tensors, parts_M: Parts) -> Parts:
        """Run a call for all members at once; its results are stacked."""

        def one(weights: Tensors, items: Tensors, parts: Parts) -> Parts:
            found: Parts = functional_call(self._skeleton(), weights, (call, items, parts), tie_weights=False)
            return found

        stacked: Parts = vmap(one)(self._weights_M, items_M, parts_M)
        return stacked

    def _skeleton(self) -> "_Skeleton":
        """A learner without weights, which a call fills with a member's; each thread has its own."""
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

    def forward(self, call: Call, items: Tensors, parts: Parts) -> Parts:
        return call(self.learner, *_items(self.learner, items), parts)


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """(M, ...), the members side by side within each row: looking up rows for all of them then copies nothing else."""
    return torch.stack([*parts], dim=min(1, parts[0].ndim)).movedim(min(1, parts[0].ndim), 0)


def _tensors(member: Member) -> Tensors:
    """What is known about all items."""
    products_IK = member.table.products(member.learner.network.decision.theta()[0].rows_DK)
    known = {field.name: getattr(member.items, field.name) for field in fields(ItemVectors)}
    return {"products_IK": products_IK} | {name: part for name, part in known.items() if part is not None}


def _items(learner: Learner, tensors: Tensors) -> tuple[ItemVectors, ItemTable]:
    """The reverse of `_tensors`."""
    known = dict(tensors)
    products_IK = known.pop("products_IK")
    items = ItemVectors(**known)
    return items, ItemTable(items.vectors_ND, (learner.network.decision.theta()[0].rows_DK, products_IK))


def _weights(learner: Learner) -> Tensors:
    """The parameters that adapting needs, as a skeleton names them; item vectors are already computed."""
    of_items = {id(parameter) for parameter in learner.network.items.parameters()}
    named = _Skeleton(learner).named_parameters()
    return {name: parameter for name, parameter in named if id(parameter) not in of_items}


def _parts(adapted: Adapted) -> Parts:
    """The users' own tensors that outputs and the rate need."""
    embedded = adapted.embedded
    own = {"prior_BDK": embedded.prior_BDK, "bias_scale_B11": embedded.bias_scale_B11}
    prior = {name: tensor for name, tensor in own.items() if tensor is not None}
    return {
        "h_BH": embedded.h_BH,
        "rate_B": adapted.rate.per_user(len(embedded.h_BH)),
        "layers": [layer.own() for layer in adapted.adaptation.layers],
        **prior,
    }


def _adapted(member: Member, batch: SupportBatch, kinds: Sequence[type[Layer]], parts: Parts) -> Adapted:
    """The reverse of `_parts`, for layers of these kinds."""
    theta = member.learner.network.decision.theta()
    restored = zip(kinds, theta, parts["layers"], strict=True)
    layers = tuple(kind.restored(weights, own) for kind, weights, own in restored)
    own = (parts.get("prior_BDK"), parts.get("bias_scale_B11"))
    embedded = Embedded(batch, parts["h_BH"], member.items, member.table, *own)
    return Adapted(embedded, RatePerUser(parts["rate_B"]), Adaptation(layers))
