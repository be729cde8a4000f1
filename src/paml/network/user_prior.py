"""The user prior: what the profile and the choice of rated items say about a user before any rating is read.

    m_i  =  P(profile)  +  Q sum_j g_j / sqrt(n + 5)      over the n items j of the support set

m_i is the prior mean of the user's weights for the item vectors, added to the last layer's output as v_j m_i; the
solver continues from there. It does not cover affinities between items (affinity.py).
What people rate says a lot: someone who chose three horror films likes horror films, whatever the ratings.

Legend: B users, S support rows, N distinct items, D width of an item's vector without affinity, G width of g,
K outputs.
"""

import torch
from torch import Tensor, nn

from paml.engine.rows import sum_of_rows
from paml.episodes.features import Features
from paml.network.embeddings import FieldEmbedder

FULL_WEIGHT = 5  # with many more support rows, the sum is divided by about the root of their number


class UserPrior(nn.Module):
    """m_i with one more row, which is added to the outputs: (B, D + 1, K)."""

    def __init__(
        self, profile: FieldEmbedder | None, choice: int, width: int, outputs: int, rng: torch.Generator
    ) -> None:
        """`profile` is a summed embedder of width (D + 1) K, or None; `choice` is G, or 0; `width` is D."""
        super().__init__()
        self.profile, self.width, self._shape = profile, width, (width + 1, outputs)
        initial = torch.randn(choice, (width + 1) * outputs, generator=rng) * 0.1
        self.choice = nn.Parameter(initial) if choice else None

    def forward(self, users: Features, choice_NG: Tensor | None, index_BS: Tensor, mask_BS: Tensor) -> Tensor | None:
        """m_i; None if the network has no prior."""
        parts = [] if self.profile is None else [self.profile(users)]
        if self.choice is not None:
            assert choice_NG is not None
            sum_BG = sum_of_rows(choice_NG, index_BS, mask_BS)
            parts.append(sum_BG * (mask_BS.sum(dim=1, keepdim=True) + FULL_WEIGHT).rsqrt() @ self.choice)
        return torch.stack(parts).sum(dim=0).view(-1, *self._shape) if parts else None

    def by_row(self, choice_NG: Tensor | None, index_BS: Tensor, mask_BS: Tensor) -> Tensor | None:
        """What each chosen item adds to m_i, (B, S, D + 1, K); None if choice is not used."""
        if self.choice is None or choice_NG is None:
            return None
        scale_BS = mask_BS * (mask_BS.sum(dim=1, keepdim=True) + FULL_WEIGHT).rsqrt()
        return (choice_NG[index_BS] * scale_BS.unsqueeze(-1) @ self.choice).view(*index_BS.shape, *self._shape)

    def shifts(self, choice_NG: Tensor | None, index_BS: Tensor, mask_BS: Tensor, next_BR: Tensor) -> Tensor | None:
        """How m_i changes if one of the items `next` is also chosen, (B, R, D + 1, K); None if choice is not used."""
        if self.choice is None or choice_NG is None:
            return None
        sum_BG = (choice_NG[index_BS] * mask_BS.unsqueeze(-1)).sum(dim=1)
        count_B11 = mask_BS.sum(dim=1).view(-1, 1, 1) + FULL_WEIGHT
        after_BRG = (sum_BG.unsqueeze(1) + nn.functional.embedding(next_BR, choice_NG)) * (count_B11 + 1).rsqrt()
        before_B1G = sum_BG.unsqueeze(1) * count_B11.rsqrt()
        return ((after_BRG - before_B1G) @ self.choice).view(*next_BR.shape, *self._shape)
