"""What lists are ordered by (preference.py), in few operations: few rows of the large tables are looked up and summed.

Legend: B users, S support rows, I items, K items that the weights between items cover, V values of profile fields, T
rows of all users, end to end.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from paml.data.schema import Kind
from paml.recommend.preference import Preference, link_weights, profile_share, rating_weight
from paml.recommend.requests import EncodedUser, Values


class Ordering:
    """`Preference.score` for new users, looked up. Nothing changes after loading: threads may share it."""

    def __init__(self, preference: Preference) -> None:
        self._preference, self._blend = preference, preference.blend
        self._level_L, self._weight_L = preference.level_L.numpy(), preference.weight_L.numpy()
        self._place_I = preference.place_I.numpy()
        self._links = (preference.few_KK, preference.many_KK) if preference.links_items else ()

    @torch.inference_mode()
    def score(self, users: Sequence[EncodedUser], log_p_BI: Tensor, rating_BI: Tensor | None) -> Tensor:
        """What lists are ordered by, (B, I); `log_p_BI` are log chances of being chosen."""
        count_B1 = torch.tensor([[float(len(user.index_S))] for user in users])
        share_B1 = profile_share(self._blend, count_B1)
        score_BI = (1 - share_B1) * log_p_BI
        if self._blend.profile:
            score_BI.addcmul_(share_B1, self._log_shares([user.profile for user in users]))
        self._add_links(score_BI, users, link_weights(self._blend, count_B1))
        return score_BI if rating_BI is None else score_BI.addcmul_(rating_weight(self._blend, count_B1), rating_BI)

    def _log_shares(self, profiles: Sequence[Values]) -> Tensor:
        """log q, (B, I)."""
        preference = self._preference
        places: list[int] = []
        weights: list[float] = []
        starts: list[int] = []
        for profile in profiles:
            starts.append(len(places))
            for (name, kind), start in preference.fields:
                codes = profile[name] if kind is Kind.MULTI else (profile[name],)
                places += [start + code for code in codes]
                weights += [1 / len(codes) for _ in codes]
        if not places:
            return torch.log_softmax(preference.log_share_I, dim=0).expand(len(starts), -1)
        lift_BI = embedding_bag(
            torch.tensor(places),
            preference.lift_VI,
            torch.tensor(starts),
            mode="sum",
            per_sample_weights=torch.tensor(weights),
        )
        # the losses of values are constants of a user, which the softmax takes out
        return torch.log_softmax(lift_BI.add_(preference.log_share_I), dim=1)

    def _add_links(self, score_BI: Tensor, users: Sequence[EncodedUser], weights: Sequence[Tensor]) -> None:
        """Add what the rated items say about those that go with them."""
        if not self._links or not any(len(user.index_S) for user in users):
            return
        place_T = self._place_I[np.concatenate([user.index_S for user in users])]
        y_T = np.concatenate([user.y_S for user in users])
        x_T = np.interp(y_T, self._level_L, self._weight_L).astype(np.float32) * (place_T >= 0)
        start_B = torch.from_numpy(np.cumsum([0, *(len(user.index_S) for user in users[:-1])]))
        index_T, weight_T = torch.from_numpy(place_T.clip(min=0)), torch.from_numpy(x_T)
        few_BK, many_BK = (
            embedding_bag(index_T, link_KK, start_B, mode="sum", per_sample_weights=weight_T) for link_KK in self._links
        )
        linked_BK = (weights[0] * few_BK).addcmul_(weights[1], many_BK)
        place = self._preference.item_K
        if len(users) > 1:
            place = (len(self._place_I) * torch.arange(len(users)).unsqueeze(1) + place).view(-1)
        score_BI.view(-1).index_add_(0, place, linked_BK.view(-1))
