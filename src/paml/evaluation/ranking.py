"""What a user would be shown: all items ranked, judged by what the user liked among the query rows.

Candidates are all items but the user's stored support set, whatever number of its rows is known, so that columns for
few and for many known ratings can be compared; never a sample. Relevant are query rows at or above a level of the
rating scale (4 of 5), or clicked ones. Users are scored in blocks, so that memory is bounded for any catalogue.

Legend: U users, B users of a block, I items, L places of a list, Q query rows.
"""

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paml.data.dataset import Dataset
from paml.data.schema import Target, liked_level, near_level, reaching
from paml.episodes import ragged
from paml.episodes.tasks import Block, Known, Tasks
from paml.errors import SettingsError

CELLS_AT_ONCE = 1 << 24  # scores that are held at once: users of a block times items
LENGTH = 20
"""Places of a list that are kept: the longest that a metric looks at."""
JUDGED_SHOTS: tuple[int | None, ...] = (0, 1, 3, 5, 10, None)
"""Numbers of known ratings over which settings of rankers are judged; None for all."""

Rank = Callable[[Known], Tensor]
"""From what is known about B users to a score of every item, (B, I), on any scale: higher is better."""


@dataclass(frozen=True)
class Orders:
    """What lists may be ordered by; the scores of all of it come from one pass, which adapts to a user once."""

    names: tuple[str, ...]
    """Those that are used unless another is asked for come first."""
    scores: Callable[[Known], Mapping[str, Tensor]]
    """By name, as `Rank`."""

    @classmethod
    def single(cls, rank: Rank, name: str = "score") -> "Orders":
        """Of an entry that knows only one."""
        return cls((name,), lambda known: {name: rank(known)})


@dataclass(frozen=True)
class Lists:
    """The lists of U users, and what is known about the items in them."""

    item_UL: np.ndarray
    """Item rows, best first; -1 where fewer items than places are left."""
    rated_UL: np.ndarray
    """Whether the item is among the user's query rows."""
    relevant_UL: np.ndarray
    """Whether the item is among the relevant ones of these."""
    relevant_U: np.ndarray
    """Number of relevant query rows."""
    first_U: np.ndarray
    """Rank of the first relevant item among all candidates, from 1; 0 where none is relevant."""

    def __len__(self) -> int:
        return len(self.item_UL)

    def of(self, users: np.ndarray) -> "Lists":
        """The lists of some users."""
        return Lists(
            self.item_UL[users],
            self.rated_UL[users],
            self.relevant_UL[users],
            self.relevant_U[users],
            self.first_U[users],
        )


def relevant_level(target: Target, liked: float | None = None) -> float:
    """The lowest relevant target: the one that is given, or `liked_level`.

    A SettingsError unless it lies on the scale, above its lowest value.
    """
    if liked is None:
        return liked_level(target)
    level = near_level(target, liked)
    if not target.low < level <= target.high:
        scale = f"above {target.low:g} and at most {target.high:g}"
        raise SettingsError(f"liked is {liked:g}", remedy=f"expected a value of the scale, {scale}")
    return level


def users_at_once(items: int) -> int:
    """Users of a block, so that their scores take a bounded amount of memory."""
    return max(1, min(512, CELLS_AT_ONCE // max(items, 1)))


def rank_users(data: Dataset, tasks: Tasks, rank: Rank, shots: int | None = None, liked: float | None = None) -> Lists:
    """The lists of all users of `tasks`, given their stored support sets or the first `shots` rows of these.

    `rank` never gets to see the query rows. `liked` is the lowest relevant target; without it, `liked_level`.
    """
    (found,) = rank_by_all(data, tasks, Orders.single(rank), shots, liked).values()
    return found


@torch.no_grad()
def rank_by_all(
    data: Dataset,
    tasks: Tasks,
    orders: Orders,
    shots: int | None = None,
    liked: float | None = None,
    whole: Mapping[str, Lists] | None = None,
) -> dict[str, Lists]:
    """The same by everything that lists may be ordered by.

    `whole` are the lists of the same users given their whole support sets: those of users with no more than `shots`
    support rows are taken from there.
    """
    items, target = data.manifest.items, data.schema.target
    least = reaching(target, relevant_level(target, liked))
    item_N, target_N = data.array("item"), data.array("target")
    found = {name: _no_lists(len(tasks)) if whole is None else deepcopy(whole[name]) for name in orders.names}
    for batch in tasks.stored(users_at_once(items), shots, shortened=whole is not None):
        user_B = batch.user_B - tasks.first
        start_B = np.asarray(tasks.offsets[user_B], dtype=np.int64)
        stored = Block.of(start_B, np.asarray(tasks.support[user_B], dtype=np.int64))
        stored_BS = torch.from_numpy(_items(item_N, stored))
        owner_Q, place_Q = np.nonzero(batch.query.mask_BL)
        row_Q = batch.query.row_BL[owner_Q, place_Q]
        query = _distinct(owner_Q, item_N[row_Q].astype(np.int64), target_N[row_Q] >= least, items)
        scores = orders.scores(Known(batch.user_B, batch.support))
        for name, lists in found.items():
            score_BI = scores[name].to(torch.float32)
            assert score_BI.shape == (len(user_B), items), "a score for every item"
            # what has no score comes last; a support item in a query row, too, is no candidate: the list leaves it out
            score_BI = score_BI.clamp(min=torch.finfo(torch.float32).min).scatter(1, stored_BS, -math.inf)
            _fill(lists, user_B, score_BI, *query)
    return found


def _no_lists(users: int) -> Lists:
    """Empty lists, to be filled."""
    return Lists(
        np.full((users, LENGTH), -1, dtype=np.int64),
        *(np.zeros((users, LENGTH), dtype=bool) for _ in range(2)),
        *(np.zeros(users, dtype=np.int64) for _ in range(2)),
    )


def _distinct(
    owner_Q: np.ndarray, item_Q: np.ndarray, liked_Q: np.ndarray, items: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each user's query items once: of several rows (impressions of clicks), one that is liked is enough."""
    pair_P, place_Q = np.unique(owner_Q * items + item_Q, return_inverse=True)
    liked_P = np.zeros(len(pair_P), dtype=bool)
    np.logical_or.at(liked_P, place_Q, liked_Q)
    return pair_P // items, pair_P % items, liked_P


def _fill(
    lists: Lists, user_B: np.ndarray, score_BI: Tensor, owner_Q: np.ndarray, rated_Q: np.ndarray, liked_Q: np.ndarray
) -> None:
    """The lists of a block's users, given the owners and items of their query rows, and which of these are liked."""
    length = min(LENGTH, score_BI.shape[1])
    top = score_BI.topk(length, dim=1)
    open_Q = torch.isfinite(score_BI[torch.from_numpy(owner_Q), torch.from_numpy(rated_Q)]).numpy()
    owner_Q, rated_Q, liked_Q = owner_Q[open_Q], rated_Q[open_Q], liked_Q[open_Q]
    kind_BI = torch.zeros(score_BI.shape, dtype=torch.int8)
    kind_BI[torch.from_numpy(owner_Q), torch.from_numpy(rated_Q)] = torch.from_numpy(1 + liked_Q.astype(np.int8))
    kind_BL = kind_BI.gather(1, top.indices).numpy()
    lists.item_UL[user_B, :length] = np.where(np.isfinite(top.values.numpy()), top.indices.numpy(), -1)
    lists.rated_UL[user_B, :length], lists.relevant_UL[user_B, :length] = kind_BL > 0, kind_BL == 2
    lists.relevant_U[user_B] = np.bincount(owner_Q[liked_Q], minlength=len(user_B))
    lists.first_U[user_B] = _first(score_BI, owner_Q[liked_Q], rated_Q[liked_Q])


def quality(data: Dataset, tasks: Tasks, rank: Rank, liked: float | None = None) -> float:
    """What settings of rankers are chosen by: `worth`, a mean over users, then over numbers of known ratings."""
    orders = Orders.single(rank)
    whole = rank_by_all(data, tasks, orders, None, liked)
    lists = [
        lists for shots in JUDGED_SHOTS for lists in rank_by_all(data, tasks, orders, shots, liked, whole).values()
    ]
    found = [worth(one) for one in lists]
    means = [float(np.nanmean(value_U)) for value_U in found if np.isfinite(value_U).any()]
    return float(np.mean(means)) if means else float("nan")


def _items(item_N: np.ndarray, block: Block) -> np.ndarray:
    """Items of a block's rows; padding repeats the first."""
    items_BL: np.ndarray = item_N[block.row_BL].astype(np.int64)
    return items_BL


def _first(score_BI: Tensor, owner_Q: np.ndarray, item_Q: np.ndarray) -> np.ndarray:
    """Rank of each user's best relevant item; items with the same score count half."""
    owner, item = torch.from_numpy(owner_Q), torch.from_numpy(item_Q)
    best_B = score_BI.new_full((len(score_BI),), -math.inf).scatter_reduce(0, owner, score_BI[owner, item], "amax")
    # NumPy counts ten times as fast as torch sums
    found_BI, best_B1 = score_BI.numpy(), best_B.unsqueeze(1).numpy()
    above_B = np.count_nonzero(found_BI > best_B1, axis=1)
    alike_B = np.count_nonzero(found_BI == best_B1, axis=1) - 1
    first_B: np.ndarray = np.where(np.isfinite(best_B1[:, 0]), above_B + 1 + alike_B // 2, 0)
    return first_B


def discounted_gain(lists: Lists, k: int) -> np.ndarray:
    """nDCG@k with gain 1 and discount log2(1 + rank) over the best that is possible; NaN if nothing is relevant."""
    discount_K = 1 / np.log2(1 + np.arange(1, k + 1))
    ideal_K = np.concatenate([[0.0], np.cumsum(discount_K)])
    return _over(lists.relevant_UL[:, :k] @ discount_K, ideal_K[np.minimum(lists.relevant_U, k)])


def worth(lists: Lists) -> np.ndarray:
    """What settings are chosen by: the mean of nDCG@10 and recall@20, so that neither is bought with the other."""
    worth_U: np.ndarray = (discounted_gain(lists, 10) + recall(lists, 20)) / 2
    return worth_U


def recall(lists: Lists, k: int) -> np.ndarray:
    """Relevant items among the first k, over as many as could be there."""
    return _over(lists.relevant_UL[:, :k].sum(axis=1), np.minimum(lists.relevant_U, k))


def hit(lists: Lists, k: int) -> np.ndarray:
    """1 if a relevant item is among the first k, else 0."""
    return _over(lists.relevant_UL[:, :k].max(axis=1), lists.relevant_U > 0)


def reciprocal_rank(lists: Lists) -> np.ndarray:
    """1 / rank of the first relevant item."""
    return _over(lists.relevant_U > 0, lists.first_U)


def liked_share(lists: Lists, k: int) -> np.ndarray:
    """Of the first k items that the user has rated, the share that is relevant; NaN if none is rated."""
    return _over(lists.relevant_UL[:, :k].sum(axis=1), lists.rated_UL[:, :k].sum(axis=1))


def mean_over_list(lists: Lists, value_I: np.ndarray, k: int) -> np.ndarray:
    """The mean of a number of each item over the first k."""
    item_UK = lists.item_UL[:, :k]
    there_UK = item_UK >= 0
    return _over((value_I[item_UK] * there_UK).sum(axis=1), there_UK.sum(axis=1))


def exposure(lists: Lists, items: int, k: int) -> np.ndarray:
    """How many lists each item is in, (I)."""
    shown = lists.item_UL[:, :k].ravel()
    return np.bincount(shown[shown >= 0], minlength=items)


def gini(count_I: np.ndarray) -> float:
    """Gini coefficient of the exposure: 0 if all items are shown equally often, near 1 if only one is."""
    total = count_I.sum()
    if not total:
        return float("nan")
    in_order = np.sort(count_I)
    rank = np.arange(1, len(in_order) + 1)
    return float(((2 * rank - len(in_order) - 1) * in_order).sum() / (len(in_order) * total))


def diversity(lists: Lists, code_T: np.ndarray, count_I: np.ndarray, k: int) -> np.ndarray:
    """1 - mean cosine of the contents of two of the first k items; a content is the set of an item's values.

    `code_T` holds the values' numbers, end to end, `count_I` how many each item has. NaN for fewer than two items.
    """
    item_UK = lists.item_UL[:, :k]
    user_P, place_P = np.nonzero(item_UK >= 0)
    item_P = item_UK[user_P, place_P]
    length_P = count_I[item_P]
    values = code_T[ragged.positions(ragged.starts(count_I)[item_P], length_P)].astype(np.int64)
    weight = np.repeat(1 / np.sqrt(np.maximum(length_P, 1)), length_P)
    owner = np.repeat(user_P, length_P)
    _, pair = np.unique(owner * (int(code_T.max(initial=0)) + 1) + values, return_inverse=True)
    sums = np.bincount(pair, weights=weight)
    user_of = np.zeros(len(sums), dtype=np.int64)
    user_of[pair] = owner
    square_U = np.bincount(user_of, weights=sums**2, minlength=len(item_UK))
    own_U = np.bincount(user_P, weights=length_P > 0, minlength=len(item_UK))  # cosine of an item with itself
    n_U = np.bincount(user_P, minlength=len(item_UK))
    return 1 - _over(square_U - own_U, n_U * (n_U - 1))


def _over(part_U: np.ndarray, whole_U: np.ndarray) -> np.ndarray:
    """Quotient, NaN where the denominator is 0."""
    part_U, whole_U = np.asarray(part_U, dtype=np.float64), np.asarray(whole_U, dtype=np.float64)
    quotient: np.ndarray = np.divide(part_U, whole_U, out=np.full(len(whole_U), np.nan), where=whole_U > 0)
    return quotient
