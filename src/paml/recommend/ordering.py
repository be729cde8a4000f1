"""What lists are ordered by (preference.py), in few operations: few rows of the large tables are looked up and summed.

The predicted rating comes last, because few items need it: it lies on the scale, so that whoever is too far behind
without it is not among the best (user.py).

Legend: B users, S support rows, T rows of weights between items, I items, K items that these weights cover, V values of
profile fields.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from paml.data.schema import Kind
from paml.recommend.preference import Preference, link_weights, profile_share, rating_weight
from paml.recommend.requests import EncodedUser, Values


def log_softmax(score: np.ndarray) -> np.ndarray:
    """Log chances from outputs of all items, (..., I); for few users faster than PyTorch's."""
    log_p: np.ndarray = score - np.maximum.reduce(score, axis=-1, keepdims=True)
    log_p -= np.log(np.add.reduce(np.exp(log_p), axis=-1, keepdims=True))
    return log_p


class Ordering:
    """`Preference.score` for new users, looked up. Nothing changes after loading: threads may share it."""

    def __init__(self, preference: Preference) -> None:
        self._blend, self._fields, self._link_QK = preference.blend, preference.fields, preference.link_QK
        self._level_L, self._weight_L = preference.level_L.numpy(), preference.weight_L.numpy()
        self._log_share_I, self._lift_VI = preference.log_share_I.numpy(), preference.lift_VI.numpy()
        self._place_I, self._item_K = preference.place_I.numpy(), preference.item_K.numpy()
        self._covers_all = np.array_equal(self._item_K, np.arange(len(self._place_I)))

    def rating_weight(self, user: EncodedUser) -> float:
        """What a predicted rating is multiplied by before it is added to the rest."""
        return rating_weight(self._blend, float(len(user.index_S)))

    @torch.inference_mode()
    def without_rating(self, users: Sequence[EncodedUser], log_p_BI: np.ndarray) -> np.ndarray:
        """What lists are ordered by but for the predicted rating, (B, I); `log_p_BI` are log chances of a choice."""
        score_BI = np.empty_like(log_p_BI)
        for user, log_p_I, score_I in zip(users, log_p_BI, score_BI, strict=True):
            share = profile_share(self._blend, float(len(user.index_S)))
            np.multiply(log_p_I, 1 - share, out=score_I)
            if share:
                score_I += share * self._log_shares(user.profile)
        if len(self._item_K) and any(len(user.index_S) for user in users):
            linked_BK = self._linked(users)
            if self._covers_all:
                score_BI += linked_BK
            else:
                score_BI[:, self._item_K] += linked_BK
        return score_BI

    def _log_shares(self, profile: Values) -> np.ndarray:
        """log q, (I)."""
        log_q_I = self._log_share_I.copy()
        for (name, kind), start in self._fields:
            if kind is not Kind.MULTI:
                log_q_I += self._lift_VI[start + profile[name]]
            elif len(profile[name]):
                log_q_I += self._lift_VI[[start + code for code in profile[name]]].mean(axis=0)
        return log_softmax(log_q_I)  # which takes out the losses of values: they are constants of a user

    def _linked(self, users: Sequence[EncodedUser]) -> np.ndarray:
        """What the rated items say about those that go with them, (B, K): rows of F and of M, weighted."""
        rows, weights = zip(*map(self._links, users), strict=True)
        count_B = [len(row_T) for row_T in rows]
        linked_BK = embedding_bag(
            torch.from_numpy(np.concatenate(rows)),
            self._link_QK,
            torch.tensor([0, *accumulate(count_B[:-1])]),
            mode="sum",
            per_sample_weights=torch.from_numpy(np.concatenate(weights)),
        )
        return linked_BK.numpy()

    def _links(self, user: EncodedUser) -> tuple[np.ndarray, np.ndarray]:
        """One user's rows of F and of M, which lie in turn, and their weights, (T) each."""
        place_S = self._place_I[user.index_S]
        x_S = np.interp(user.y_S, self._level_L, self._weight_L) * (place_S >= 0)
        few, many = link_weights(self._blend, float(len(place_S)))
        place_S = np.maximum(place_S, 0)
        weight_T = np.multiply.outer(x_S, (few, many)).astype(np.float32).ravel()
        return np.add.outer(2 * place_S, (0, 1)).ravel(), weight_T
