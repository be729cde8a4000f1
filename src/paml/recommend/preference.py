"""What a list is ordered by: how likely a user chooses an item, what goes with what, and what the user would say of it.

    score_j  =  (1 - s) log p_j + s log q_j + f (h / (n + h))^a sum_i x_i F_ij + n / (n + h) (m sum_i x_i M_ij + c r_j)

for a user with n known rows: p_j is the chance of a choice (the choice part of a run), q_j the item's share of what
training users with such a profile liked, s = s_0 k / (k + n); F and M are weights between items (a linear autoencoder,
engine/autoencoder.py, with much dropout for few known rows and with little for many), x_i the weights of the user's
rows; r_j is the predicted rating, which says more about the item than about the user as long as little is known. The
numbers s_0, k, f, m and c are chosen on validation users (training/preference.py); a is 3.

Legend: B users, S support rows, I items, K items that the weights between items cover, V values of profile fields.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from paml.data.schema import Kind, Schema
from paml.engine.joint import on_large_pages
from paml.episodes.batches import RowBlock, SupportBatch
from paml.episodes.features import Features
from paml.errors import SettingsError
from paml.settings import Settings, added

By = Literal["preference", "choice", "rating"]
"""What a list may be ordered by."""
Outputs = Callable[[SupportBatch], tuple[Tensor, Tensor | None]]
"""From a batch over all items to the outputs of the choice part and the predicted ratings, (B, I) each."""
Count = TypeVar("Count", float, Tensor)
"""Known rows of one user, or of many, (B, 1)."""
HALF = 15  # known rows at which what is for many counts half


class Blend(Settings):
    """The numbers in the formula above."""

    profile: float = Field(0.0, ge=0, le=1, description="s_0, weight of popularity by profile without known rows")
    linger: float = added(1.0, "k, known rows with which popularity by profile counts half as much", gt=0)
    few: float = Field(0.0, ge=0, description="f, weight of what goes with what, for few known rows")
    many: float = Field(0.0, ge=0, description="m, the same for many")
    rating: float = Field(0.0, ge=0, description="c, weight of the predicted rating, for many known rows")
    fade: int = added(1, "a, how fast f fades with known rows; runs that do not say so were fitted with 1", ge=1)


@dataclass(frozen=True)
class Parts:
    """What a score is a sum of, (B, I) each; None where a run has no such part."""

    choice_BI: Tensor
    """log p"""
    profile_BI: Tensor | None
    """log q"""
    few_BI: Tensor | None
    many_BI: Tensor | None
    rating_BI: Tensor | None

    def score(self, blend: Blend, count_B1: Tensor) -> Tensor:
        """The formula above, (B, I)."""
        share_B1 = profile_share(blend, count_B1) if self.profile_BI is not None else torch.zeros(1, 1)
        score_BI = (1 - share_B1) * self.choice_BI
        if self.profile_BI is not None:
            score_BI = score_BI + share_B1 * self.profile_BI
        for part_BI, weight_B1 in zip((self.few_BI, self.many_BI), link_weights(blend, count_B1), strict=True):
            if part_BI is not None:
                score_BI = score_BI + weight_B1 * part_BI
        return score_BI if self.rating_BI is None else score_BI + rating_weight(blend, count_B1) * self.rating_BI


def profile_share(blend: Blend, count: Count) -> Count:
    """s_0 k / (k + n)"""
    return blend.profile * blend.linger / (blend.linger + count)


def link_weights(blend: Blend, count: Count) -> tuple[Count, Count]:
    """f (h / (n + h))^a and m n / (n + h)"""
    return blend.few * (HALF / (count + HALF)) ** blend.fade, blend.many * count / (count + HALF)


def rating_weight(blend: Blend, count: Count) -> Count:
    """c n / (n + h)"""
    return blend.rating * count / (count + HALF)


class Preference(nn.Module):
    """The parts of a score that are not learned by gradient, and the numbers that weight them."""

    item_K: Tensor
    few_KK: Tensor
    many_KK: Tensor
    level_L: Tensor
    weight_L: Tensor
    log_share_I: Tensor
    lift_VI: Tensor
    loss_V: Tensor
    place_I: Tensor
    """Where an item is among the covered ones; -1 if it is not."""
    link_QK: Tensor
    """The rows of F and of M in turn, of which `few_KK` and `many_KK` are views: whoever reads one reads both."""

    def __init__(self, schema: Schema, vocabulary: dict[str, int], tensors: dict[str, Tensor], blend: Blend) -> None:
        """`tensors` are those that `state_dict` returns."""
        super().__init__()
        self.blend = blend
        self._fields = profile_fields(schema)
        sizes = [vocabulary[f"user.{name}"] for name, _ in self._fields]
        self._starts = [sum(sizes[:k]) for k in range(len(sizes))]
        for name in STATE:
            tensor = tensors[name]
            self.register_buffer(name, tensor.float() if tensor.is_floating_point() else tensor)
        in_turn_QK = torch.stack([self.few_KK, self.many_KK], dim=1).flatten(0, 1)
        self.register_buffer("link_QK", on_large_pages(in_turn_QK), persistent=False)
        self.few_KK, self.many_KK = self.link_QK[0::2], self.link_QK[1::2]
        place_I = torch.full((len(self.log_share_I),), -1)
        place_I[self.item_K] = torch.arange(len(self.item_K))
        self.register_buffer("place_I", place_I, persistent=False)

    @property
    def fields(self) -> list[tuple[tuple[str, Kind], int]]:
        """The profile fields that popularity depends on, and where each one's rows of lifts begin."""
        return [*zip(self._fields, self._starts, strict=True)] if len(self.lift_VI) else []

    @property
    def links_items(self) -> bool:
        """Whether there are weights between items."""
        return bool(len(self.item_K))

    def parts(self, batch: SupportBatch, choice_BI: Tensor, rating_BI: Tensor | None) -> Parts:
        """The parts for a batch whose items are all items; `choice_BI` are outputs of the choice part."""
        few_BI = many_BI = None
        if self.links_items:
            few_BI, many_BI = (self._linked(batch.support, weight_KK) for weight_KK in (self.few_KK, self.many_KK))
        log_p_BI = torch.log_softmax(choice_BI, dim=1)
        return Parts(log_p_BI, self.log_shares(batch.users), few_BI, many_BI, rating_BI)

    def score(self, batch: SupportBatch, choice_BI: Tensor, rating_BI: Tensor | None) -> Tensor:
        """What lists are ordered by, (B, I)."""
        parts = self.parts(batch, choice_BI, rating_BI)
        return parts.score(self.blend, batch.support.mask_BR.sum(dim=1, keepdim=True))

    def row_weights(self, block: RowBlock) -> Tensor:
        """x of known rows: a weight for every level of the scale, interpolated, (B, S)."""
        level_L, weight_L = self.level_L, self.weight_L
        upper = torch.searchsorted(level_L, block.y_BR.contiguous()).clamp(1, len(level_L) - 1)
        low, high = level_L[upper - 1], level_L[upper]
        share_BS = ((block.y_BR - low) / (high - low)).clamp(0, 1)
        return torch.lerp(weight_L[upper - 1], weight_L[upper], share_BS) * block.mask_BR

    def histories(self, block: RowBlock) -> Tensor:
        """The weights of the covered items for all users, (B, K); of an item with several rows the largest."""
        x_BI = block.y_BR.new_zeros(len(block.y_BR), len(self.log_share_I))
        return x_BI.scatter_reduce_(1, block.index_BR, self.row_weights(block), "amax")[:, self.item_K]

    def links(self, block: RowBlock, index_R: Tensor) -> tuple[Tensor, Tensor]:
        """x_i F_ij and x_i M_ij for the rows i of a single user and some items j, (R, S) each."""
        place_S, place_R = self.place_I[block.index_BR[0]], self.place_I[index_R]
        known_RS = (place_R >= 0).unsqueeze(-1) & (place_S >= 0) & self.links_items
        if not self.links_items:
            zeros_RS = torch.zeros(known_RS.shape)
            return zeros_RS, zeros_RS
        x_S = self.row_weights(block)[0]
        few_RS, many_RS = (
            weight_KK[place_S, place_R.unsqueeze(-1)] * x_S * known_RS for weight_KK in (self.few_KK, self.many_KK)
        )
        return few_RS, many_RS

    def _linked(self, block: RowBlock, weight_KK: Tensor) -> Tensor:
        """sum_i x_i W_ij over the rows i of each user, for all items j, (B, I)."""
        if len(block.index_BR) > 1:
            return self._spread_out(self.histories(block) @ weight_KK)
        (x_K,) = self.histories(block)
        place_S = x_K.nonzero().squeeze(1)  # few rows of the matrix instead of all
        return self._spread_out((x_K[place_S] @ weight_KK[place_S]).unsqueeze(0))

    def log_shares(self, users: Features) -> Tensor:
        """log q: popularity among training users with the same values in their profiles, (B, I)."""
        log_q_BI = self.log_share_I.repeat(users.count, 1)
        for (name, kind), start in self.fields:
            if kind is Kind.MULTI:
                log_q_BI += _mean_of_lists(self.lift_VI - self.loss_V.unsqueeze(1), start, *users.lists[name])
            else:
                code_B = users.codes[name] + start
                log_q_BI += self.lift_VI[code_B] - self.loss_V[code_B].unsqueeze(1)
        return torch.log_softmax(log_q_BI, dim=1)

    def _spread_out(self, score_BK: Tensor) -> Tensor:
        """Scores of the covered items as scores of all, 0 for the others, (B, I)."""
        score_BI = score_BK.new_zeros(len(score_BK), len(self.log_share_I))
        score_BI[:, self.item_K] = score_BK
        return score_BI


STATE = ("item_K", "few_KK", "many_KK", "level_L", "weight_L", "log_share_I", "lift_VI", "loss_V")
"""The tensors of a preference."""


def profile_fields(schema: Schema) -> Sequence[tuple[str, Kind]]:
    """The profile fields whose values popularity may depend on: names and lists of names, not numbers."""
    return [(field.name, field.kind) for field in schema.features("user") if field.kind is not Kind.NUMERIC]


def _mean_of_lists(value_VI: Tensor, start: int, code_T: Tensor, first_B: Tensor) -> Tensor:
    """The mean of the values' numbers over each user's list, 0 for an empty one, (B, I)."""
    return nn.functional.embedding_bag(code_T + start, value_VI, first_B.to(code_T.dtype), mode="mean")


def preference_file(run: Path) -> Path:
    """Where a run keeps it."""
    return run / "preference.safetensors"


def orders(*, rates: bool, chooses: bool) -> tuple[By, ...]:
    """What the lists of a run may be ordered by, the best first."""
    return (*(("preference", "choice") if chooses else ()), *(("rating",) if rates else ()))


def check_order(by: str | None, known: tuple[By, ...]) -> By:
    """What lists are ordered by: what is asked for, or the best that a run knows."""
    if by is None:
        return known[0]
    for order in known:
        if by == order:
            return order
    raise SettingsError(f"lists cannot be ordered by '{by}'", remedy=f"this run knows {', '.join(known)}")
