"""Scores as sums over a user's history, s_uj = sum_i x_ui W_ij, and the strongest of these: a linear autoencoder.

EDLAE (Steck, NeurIPS 2020; `engine.autoencoder`) learns W from the training users' rows, weighted by rating, of which a
share is dropped. How much dropout is best depends on how much is known about a user: the fewer known rows, the more of
it, in three steps (with two, users with twenty lose 6 % of nDCG@10). Popularity by profile is added with a tuned
weight, and decides alone where no rating is known.

W is dense. In a catalogue of more than MAX_ITEMS items, it covers those with the most training rows; all others are
ranked by popularity.

Legend: U users, B users of a block, I items, K items that W covers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from paml.baselines.popularity import ProfilePopularity, tuned_profile
from paml.baselines.rows import Fitted, Setting, tune_ranker
from paml.data.dataset import Dataset
from paml.engine.autoencoder import co_occurrences, item_item, sparse_matrix
from paml.episodes.histories import Histories, counts_alike
from paml.episodes.tasks import Known
from paml.evaluation.ranking import Rank

MAX_ITEMS = 6000
FEW, SOME = 15, 25  # users with at most so many known rows are scored with `few_dropout` and with `some_dropout`


def _setting(
    dropout: float,
    some_dropout: float,
    few_dropout: float,
    ridge: float = 200.0,
    popularity: float = 0.03,
    rows: str = "graded",
) -> dict[str, Setting]:
    shares: dict[str, Setting] = {"dropout": dropout, "some_dropout": some_dropout, "few_dropout": few_dropout}
    return {**shares, "ridge": ridge, "popularity": popularity, "rows": rows}


EDLAE_GRID: tuple[dict[str, Setting], ...] = (  # those that share weights are side by side
    _setting(0.3, 0.8, 0.9),
    _setting(0.3, 0.8, 0.9, popularity=0.1),
    _setting(0.3, 0.8, 0.9, popularity=0.01),
    _setting(0.3, 0.8, 0.95),
    _setting(0.5, 0.5, 0.5, popularity=0.1),
    _setting(0.8, 0.8, 0.8, popularity=0.1),
    _setting(0.3, 0.8, 0.9, ridge=500.0),
    _setting(0.5, 0.8, 0.9, ridge=500.0),
    _setting(0.3, 0.8, 0.9, ridge=1000.0),
    _setting(0.3, 0.8, 0.9, ridge=50.0),
    _setting(0.3, 0.8, 0.9, rows="all"),
    _setting(0.3, 0.8, 0.9, rows="liked"),
)
TARGETS = {"graded": "preferred", "all": "preferred", "liked": "liked"}
"""The weights of rows as targets, by their weights as inputs."""


@dataclass(frozen=True)
class ItemWeights:
    """Weights W between items, and how a row counts."""

    rows: str
    """A name of `histories.WEIGHTS`, or `liked`."""
    item_K: np.ndarray
    """The items that W covers."""
    weight_KK: np.ndarray | sp.csr_array

    def scores(self, histories: Histories) -> Tensor:
        """X W, 0 for items that W does not cover, (B, I)."""
        score_BI = torch.zeros(histories.users, histories.items)
        x_BK, weight_KK = histories.matrix(self.rows)[:, self.item_K], self.weight_KK
        score_BK = x_BK @ weight_KK if isinstance(weight_KK, np.ndarray) else (x_BK @ weight_KK).toarray()
        score_BI[:, torch.from_numpy(self.item_K)] = torch.from_numpy(score_BK)
        return score_BI


def covered_items(histories: Histories) -> np.ndarray:
    """The items that dense weights cover: those with the most training rows, at most MAX_ITEMS, in order.

    An item without any row has no weights, and would only make the matrices larger.
    """
    count_I = np.bincount(histories.item_N, minlength=histories.items)
    most_K: np.ndarray = np.sort(np.argsort(-count_I, kind="stable")[: min(MAX_ITEMS, np.count_nonzero(count_I))])
    return most_K


@dataclass(frozen=True)
class Autoencoder:
    """EDLAE and popularity by profile: X W + popularity * p."""

    many: ItemWeights
    some: ItemWeights
    """For users with at most SOME known rows."""
    few: ItemWeights
    """For users with at most FEW known rows."""
    profile: ProfilePopularity
    popularity: float

    def rank(self, data: Dataset) -> Rank:
        """Users of a block with few known rows, with some, and with many."""

        def scores(known: Known) -> Tensor:
            histories = Histories.of_known(data, known)
            step_B = np.digitize(known.support.mask_BL.sum(axis=1), (FEW, SOME), right=True)
            score_BI = self.popularity * self.profile.log_shares(data, known).exp()
            for step, weights in enumerate((self.few, self.some, self.many)):
                chosen_B = step_B == step
                if chosen_B.any():
                    score_BI[torch.from_numpy(chosen_B)] += weights.scores(histories.of_users(chosen_B))
            return score_BI

        return scores


def fit_edlae(data: Dataset, seed: int) -> Fitted:
    """The autoencoder with the best dropout, ridge, weight of popularity, and weights of rows."""
    histories, profile = Histories.of_training(data), tuned_profile(data)
    learn = _learner(histories)

    def fit(
        dropout: float, some_dropout: float, few_dropout: float, ridge: float, popularity: float, rows: str
    ) -> Autoencoder:
        many, some, few = (learn(rows, share, ridge) for share in (dropout, some_dropout, few_dropout))
        return Autoencoder(many, some, few, profile, popularity)

    alike = counts_alike(data.schema.target)  # then there is only one way to weight them
    return tune_ranker(data, [one for one in EDLAE_GRID if not alike or one["rows"] == "graded"], fit)


def _learner(histories: Histories) -> Callable[[str, float, float], ItemWeights]:
    """Learns weights by rows, dropout and ridge; X^T X and X^T Y of the last rows are kept."""
    item_K = covered_items(histories)

    def matrix(weights: str) -> Tensor:
        place = sp.coo_array(histories.matrix(weights)[:, item_K])
        row_N, column_N = (torch.from_numpy(index.astype(np.int64)) for index in place.coords)
        return sparse_matrix(row_N, column_N, torch.from_numpy(place.data), place.shape)

    @lru_cache(maxsize=1)
    def products(rows: str) -> tuple[Tensor, Tensor]:
        x_UK = matrix(rows)
        gram_KK = co_occurrences(x_UK, x_UK)
        return gram_KK, gram_KK if TARGETS[rows] == rows else co_occurrences(x_UK, matrix(TARGETS[rows]))

    @lru_cache(maxsize=3)
    def learn(rows: str, dropout: float, ridge: float) -> ItemWeights:
        return ItemWeights(rows, item_K, item_item(*products(rows), dropout, ridge).numpy())

    return learn
