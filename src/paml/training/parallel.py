"""What ranks exchange: by users, the gradients of every step; by members, whole members after every epoch.

By users, each rank takes every n-th user of every batch. A member's loss is a mean over the batch, so each rank weights
the mean over its share by how much it counts (users, or rows for a pooled loss), and sums are divided by the sum of the
weights. Whatever is random follows from the whole batch. AT-PAML's memory is the same everywhere: what each rank read
and will store is gathered, in the batch's order, and every rank finishes the step with all of it.

By members, each rank trains every n-th member by itself, and tells the others before weights are validated or stored.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from paml.episodes.batches import Share, TensorBatch
from paml.methods.learner import Learner
from paml.methods.objectives import MetaLoss
from paml.methods.rates import MemoryRead, MemoryStep
from paml.training.ema import WeightAverage
from paml.training.optim import OuterOptimizer
from paml.training.ranks import Ranks, in_turn


def share_of(ranks: Ranks, users: int) -> Share | None:
    """Every n-th user of a batch; the first one, with weight 0, where there are fewer users than ranks."""
    if ranks.size == 1:
        return None
    counts = ranks.rank < users
    return Share(slice(ranks.rank, None, ranks.size) if counts else slice(0, 1), counts=counts)


def shared_gradients(
    ranks: Ranks,
    members: Sequence[Learner],
    found: Sequence[MetaLoss],
    batches: Sequence[TensorBatch],
    meanwhile: Callable[[], None],
) -> tuple[np.ndarray, list[MetaLoss]]:
    """The members' losses of whole batches and, in place of their own gradients, those; and all memory updates.

    Gradients are those of this rank's losses times their weights. `meanwhile` is done while they are on their way.
    """
    weight_M = torch.stack([weight_of(loss, batch) for loss, batch in zip(found, batches, strict=True)])
    loss_M = torch.stack([loss.value for loss in found]) * weight_M
    own = zip(members, torch.stack([loss_M, weight_M], dim=1), strict=True)
    sums = [_sum_gradients(ranks, member, loss_and_weight, meanwhile) for member, loss_and_weight in own]
    steps = [
        loss if loss.memory is None else loss._replace(memory=_gathered(ranks, loss.memory, _counts(batch), total))
        for loss, batch, (_, total) in zip(found, batches, sums, strict=True)
    ]
    return np.array([value / total for value, total in sums]), steps


def weight_of(loss: MetaLoss, batch: TensorBatch) -> Tensor:
    """How much the mean over this rank's users counts."""
    if not _counts(batch):
        return torch.zeros_like(loss.value)
    return loss.value.new_tensor(float(len(batch.user_B))) if loss.weight is None else loss.weight.detach()


def _counts(batch: TensorBatch) -> bool:
    return batch.whole is None or batch.whole.share.counts


def _sum_gradients(
    ranks: Ranks, member: Learner, loss_and_weight: Tensor, meanwhile: Callable[[], None]
) -> tuple[float, float]:
    """Sum a member's gradients over ranks, and what its loss is divided by; returns the sums of loss and weight.

    All of it is one message, as messages take longer than what is in them; of sparse gradients only the rows that were
    read are sent, in others.
    """
    learned = [parameter for parameter in member.parameters() if parameter.grad is not None]
    whole = [one for one in learned if one.grad is not None and not one.grad.is_sparse]
    parts = [one.grad.flatten() for one in whole if one.grad is not None]
    flat = ranks.sum(torch.cat([*parts, loss_and_weight]), meanwhile)
    value, weight = flat[-2:].tolist()
    total = weight if weight > 0 else 1.0
    mean = flat[:-2].div_(total)
    for one, gradient in zip(whole, torch.split(mean, [one.numel() for one in whole]), strict=True):
        one.grad = gradient.view_as(one)
    for one in learned:
        if one.grad is not None and one.grad.is_sparse:
            part = one.grad.coalesce()
            row_R, gradient_RW = (torch.cat(ranks.gather(each)) for each in (part.indices()[0], part.values()))
            one.grad = torch.sparse_coo_tensor(row_R.unsqueeze(0), gradient_RW / total, one.shape)
    return value, total


def _gathered(ranks: Ranks, step: MemoryStep, counts: bool, total: float) -> MemoryStep:
    """The memory update of the whole batch; every rank applies it."""

    def whole(part: Tensor) -> Tensor:
        return in_turn(ranks.gather(part if counts else part[:0]))

    read = step.read
    if read is not None:
        keys, values = torch.zeros_like(whole(read.keys_BKH.detach())), torch.zeros_like(whole(read.values_BK.detach()))
        if read.keys_BKH.grad is not None and read.values_BK.grad is not None:
            keys.grad, values.grad = whole(read.keys_BKH.grad) / total, whole(read.values_BK.grad) / total
        read = MemoryRead(whole(read.slots_BK), whole(read.known_BK), keys, values)
    return MemoryStep(read, whole(step.user_B), whole(step.h_BH), whole(step.alpha_B))


def own_members(ranks: Ranks, members: int) -> list[int]:
    """The numbers of this rank's members."""
    return list(range(members))[ranks.rank :: ranks.size]


def exchange_members(
    ranks: Ranks, members: Sequence[Learner], optimizer: OuterOptimizer, average: WeightAverage
) -> None:
    """Give every rank all members as their own ranks have them: weights, averages, moments, memory."""
    own = {
        k: (
            {name: tensor.cpu() for name, tensor in members[k].state_dict().items()},
            [tensor.cpu() for tensor in average.of(members[k])],
            [{name: tensor.cpu() for name, tensor in one.items()} for one in optimizer.state_of(members[k])],
        )
        for k in own_members(ranks, len(members))
    }
    for part in ranks.gather_objects(own):
        for k, (weights, averages, moments) in part.items():
            if k not in own:
                members[k].load_state_dict(weights)
                average.restore_of(members[k], averages)
                optimizer.restore_of(members[k], moments)
