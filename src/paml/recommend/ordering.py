"""What lists are ordered by (preference.py), in few operations: few rows of the large tables are looked up and summed.

The predicted rating comes last, because few items need it: it lies on the scale, so that whoever is too far behind
without it is not among the best (user.py).

Legend: S support rows, I items, K items that the weights between items cover, V values of profile fields; one user.
"""

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from paml.data.schema import Kind
from paml.recommend.preference import Preference, link_weights, profile_share, rating_weight
from paml.recommend.requests import EncodedUser, Values

START = torch.tensor([0])


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
    def without_rating(self, user: EncodedUser, log_p_I: np.ndarray) -> np.ndarray:
        """What lists are ordered by but for the predicted rating, (I); `log_p_I` are log chances of a choice."""
        share = profile_share(self._blend, float(len(user.index_S)))
        score_I = (1 - share) * log_p_I
        if share:
            score_I += share * self._log_shares(user.profile)
        if len(self._item_K) and len(user.index_S):
            linked_K = self._linked(user)
            if self._covers_all:
                score_I += linked_K
            else:
                score_I[self._item_K] += linked_K
        return score_I

    def _log_shares(self, profile: Values) -> np.ndarray:
        """log q, (I)."""
        log_q_I = self._log_share_I.copy()
        for (name, kind), start in self._fields:
            if kind is not Kind.MULTI:
                log_q_I += self._lift_VI[start + profile[name]]
            elif len(profile[name]):
                log_q_I += self._lift_VI[[start + code for code in profile[name]]].mean(axis=0)
        # the losses of values are constants of a user, which the softmax takes out
        log_q_I -= log_q_I.max()
        log_q_I -= np.log(np.exp(log_q_I).sum())
        return log_q_I

    def _linked(self, user: EncodedUser) -> np.ndarray:
        """What the rated items say about those that go with them, (K): rows of F and of M, weighted."""
        place_S = self._place_I[user.index_S]
        x_S = np.interp(user.y_S, self._level_L, self._weight_L) * (place_S >= 0)
        few, many = link_weights(self._blend, float(len(place_S)))
        place_S = place_S.clip(min=0)
        index = torch.from_numpy(np.concatenate([place_S, place_S + len(self._item_K)]))
        weight = torch.from_numpy(np.concatenate([few * x_S, many * x_S]).astype(np.float32))
        linked_1K = embedding_bag(index, self._link_QK, START, mode="sum", per_sample_weights=weight)
        return linked_1K[0].numpy()
