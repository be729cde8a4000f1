"""LensKit's rankers: item neighbours, EASE, SLIM and implicit matrix factorisation, given the same support sets.

LensKit learns; a whole block of new users is then scored at once by LensKit's own formula with what it has learnt. Item
weights are multiplied with the users' histories, and a user's factors are the solution of a small linear system.
Only where an item has more rated neighbours than may count, LensKit scores user by user. Which rows count, all
or only liked ones, is part of each grid. Where LensKit has no score, popularity decides.

EASE and SLIM cover at most `item_item.MAX_ITEMS` items.

Legend: B users of a block, C users of a chunk, L places, I items, K items that LensKit knows, F factors.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from paml.baselines.item_item import ItemWeights, covered_items
from paml.baselines.lenskit import start_lenskit
from paml.baselines.popularity import Popularity
from paml.baselines.rows import Fitted, Ranker, Setting, tune_ranker
from paml.data.dataset import Dataset
from paml.episodes import ragged
from paml.episodes.histories import Histories, counts_alike
from paml.evaluation.ranking import Rank

if TYPE_CHECKING:
    from lenskit.als import ImplicitMFScorer
    from lenskit.data import Dataset as LensKitDataset
    from lenskit.knn import EASEScorer, ItemKNNScorer
    from lenskit.knn.slim import SLIMScorer

TINY = 1e-7
"""What popularity adds to a score: it orders items that have none, and changes nothing among those that have one."""
EPOCHS, CHUNK = 10, 64

NEIGHBOUR_GRID: tuple[dict[str, Setting], ...] = tuple(
    {"neighbours": neighbours, "rows": rows} for rows, neighbours in product(("all", "liked"), (1000, 200, 50, 20))
)
EASE_GRID: tuple[dict[str, Setting], ...] = tuple(
    {"ridge": ridge, "rows": rows}
    for rows, ridges in (("all", (5000.0, 2000.0, 10000.0, 500.0, 100.0)), ("liked", (2000.0, 5000.0, 500.0)))
    for ridge in ridges
)
SLIM_GRID: tuple[dict[str, Setting], ...] = tuple(
    {"l1": l1, "l2": l2, "rows": rows}
    for rows, l1, l2 in (
        ("all", 1.0, 5000.0),
        ("all", 1.0, 10000.0),
        ("all", 5.0, 3000.0),
        ("all", 1.0, 1000.0),
        ("liked", 1.0, 5000.0),
        ("liked", 1.0, 1000.0),
        ("liked", 5.0, 100.0),
    )
)
FACTOR_GRID: tuple[dict[str, Setting], ...] = tuple(
    {"features": features, "regularisation": regularisation, "weight": weight, "rows": rows}
    for rows, features, regularisation, weight in (
        ("all", 64, 30.0, 1.0),
        ("all", 32, 30.0, 1.0),
        ("all", 64, 60.0, 2.0),
        ("all", 64, 10.0, 1.0),
        ("all", 32, 3.0, 2.0),
        ("liked", 64, 30.0, 1.0),
        ("liked", 64, 10.0, 1.0),
        ("liked", 32, 3.0, 2.0),
    )
)


@dataclass(frozen=True)
class Summed:
    """Item weights that LensKit has learnt, times the user's history."""

    weights: ItemWeights
    popularity: Popularity

    def rank(self, data: Dataset) -> Rank:
        """X W, for a block at once."""
        share_I = TINY * self.popularity.share_I
        return lambda known: self.weights.scores(Histories.of_known(data, known)).add_(share_I)


@dataclass(frozen=True)
class Neighbours:
    """The sum of the similarities of an item with its nearest neighbours in the history, at most `neighbours`."""

    scorer: "ItemKNNScorer"
    weights: ItemWeights
    neighbours: int
    popularity: Popularity

    def rank(self, data: Dataset) -> Rank:
        """X W where no history is longer than `neighbours`; the other users are scored by LensKit one by one."""

        def scores(histories: Histories) -> Tensor:
            x_BI = histories.matrix(self.weights.rows)
            score_BI = self.weights.scores(histories)
            for user in np.flatnonzero(np.diff(x_BI.indptr) > self.neighbours):
                item_L = x_BI.indices[x_BI.indptr[user] : x_BI.indptr[user + 1]]
                score_BI[user, torch.from_numpy(self.weights.item_K)] = self._by_lenskit(item_L)
            return score_BI.add_(TINY * self.popularity.share_I)

        return lambda known: scores(Histories.of_known(data, known))

    def _by_lenskit(self, item_L: np.ndarray) -> Tensor:
        """LensKit's scores of the items that it knows, 0 where there is none."""
        from lenskit.data import ItemList, RecQuery

        # LensKit 2025.8's item neighbours panic on a rated item that is not in their vocabulary.
        known_L = item_L[np.isin(item_L, self.weights.item_K)]
        query = RecQuery(history_items=ItemList(item_ids=known_L))
        score_K = self.scorer(query, ItemList(item_ids=self.weights.item_K)).scores()
        assert score_K is not None
        return torch.from_numpy(np.nan_to_num(np.asarray(score_K, dtype=np.float32)))


@dataclass(frozen=True)
class FoldedIn:
    """Implicit factorisation (Hu, Koren and Volinsky, ICDM 2008): a new user's factors from the history.

    p_u = (Q^T Q + r I + w sum_i q_i q_i^T)^-1 (1 + w) sum_i q_i over the items i of the history; s_uj = p_u . q_j.
    """

    rows: str
    item_K: np.ndarray
    factor_KF: Tensor
    background_FF: Tensor
    """Q^T Q + r I."""
    weight: float
    popularity: Popularity

    def rank(self, data: Dataset) -> Rank:
        """One linear system per user, a block at once."""

        def scores(histories: Histories) -> Tensor:
            score_BI = (TINY * self.popularity.share_I).repeat(histories.users, 1)
            score_BI[:, torch.from_numpy(self.item_K)] += self.users(histories) @ self.factor_KF.T
            return score_BI

        return lambda known: scores(Histories.of_known(data, known))

    def users(self, histories: Histories) -> Tensor:
        """The users' factors, (B, F)."""
        x_BK = sp.csr_array(histories.matrix(self.rows)[:, self.item_K])
        count_B = np.diff(x_BK.indptr)
        place_L = np.arange(count_B.max(initial=1))
        mask_BL = place_L < count_B[:, None]
        item_BL = np.zeros(mask_BL.shape, dtype=np.int64)
        item_BL[mask_BL] = x_BK.indices[ragged.positions(x_BK.indptr[:-1], count_B)]
        factors = (
            self.factor_KF[torch.from_numpy(item_BL[start : start + CHUNK])]
            * torch.from_numpy(mask_BL[start : start + CHUNK]).unsqueeze(2)
            for start in range(0, len(item_BL), CHUNK)
        )
        return torch.cat([self._solved(factor_CLF) for factor_CLF in factors])

    def _solved(self, factor_CLF: Tensor) -> Tensor:
        """The solution for users whose items have these factors, 0 at padding."""
        matrix_CFF = self.background_FF + self.weight * factor_CLF.mT @ factor_CLF
        solution_CF: Tensor = torch.linalg.solve(matrix_CFF, (1 + self.weight) * factor_CLF.sum(dim=1))
        return solution_CF


def fit_implicit_neighbours(data: Dataset, seed: int) -> Fitted:
    """Item neighbours by the cosine of who rated or clicked them."""
    from lenskit.knn import ItemKNNScorer

    @cache
    def learn(dataset: "LensKitDataset", rows: str) -> tuple[ItemKNNScorer, ItemWeights]:
        """Similarities: the same for any number of neighbours."""
        scorer = ItemKNNScorer(feedback="implicit")
        scorer.train(dataset)
        return scorer, ItemWeights(rows, _items(scorer), sp.csr_array(scorer.sim_matrix.to_scipy()))

    def fit(dataset: "LensKitDataset", rows: str, popularity: Popularity, neighbours: int) -> Neighbours:
        scorer, weights = learn(dataset, rows)
        scorer = copy(scorer)
        scorer.config = scorer.config.model_copy(update={"max_nbrs": neighbours})
        return Neighbours(scorer, weights, neighbours, popularity)

    return _tuned(data, NEIGHBOUR_GRID, fit, dense=False)


def fit_ease(data: Dataset, seed: int) -> Fitted:
    """Steck's shallow autoencoder (WWW 2019)."""
    from lenskit.knn import EASEScorer

    def fit(dataset: "LensKitDataset", rows: str, popularity: Popularity, ridge: float) -> Summed:
        scorer = EASEScorer(regularization=ridge)
        scorer.train(dataset)
        return Summed(ItemWeights(rows, _items(scorer), scorer.weights), popularity)

    return _tuned(data, EASE_GRID, fit, dense=True)


def fit_slim(data: Dataset, seed: int) -> Fitted:
    """Sparse linear methods (Ning and Karypis, ICDM 2011): an elastic net for every item."""
    from lenskit.knn.slim import SLIMScorer  # its package's stub lacks it
    from lenskit.training import TrainingOptions

    def fit(dataset: "LensKitDataset", rows: str, popularity: Popularity, l1: float, l2: float) -> Summed:
        scorer = SLIMScorer(l1_reg=l1, l2_reg=l2)
        scorer.train(dataset, TrainingOptions(rng=seed))
        return Summed(ItemWeights(rows, _items(scorer), scorer.weights), popularity)

    return _tuned(data, SLIM_GRID, fit, dense=True)


def fit_implicit_factorisation(data: Dataset, seed: int) -> Fitted:
    """Implicit factorisation by alternating least squares; new users are folded in."""
    from lenskit.als import ImplicitMFScorer
    from lenskit.training import TrainingOptions

    def fit(
        dataset: "LensKitDataset",
        rows: str,
        popularity: Popularity,
        features: int,
        regularisation: float,
        weight: float,
    ) -> FoldedIn:
        scorer = ImplicitMFScorer(embedding_size=features, regularization=regularisation, weight=weight, epochs=EPOCHS)
        scorer.train(dataset, TrainingOptions(rng=seed))
        factors, background = torch.from_numpy(scorer.item_embeddings), torch.from_numpy(scorer._OtOr)
        return FoldedIn(rows, _items(scorer), factors, background, weight, popularity)

    return _tuned(data, FACTOR_GRID, fit, dense=False)


def _tuned(data: Dataset, grid: tuple[dict[str, Setting], ...], fit: Callable[..., Ranker], *, dense: bool) -> Fitted:
    """The best of the grid; popularity alone where no training row counts. Of clicks, only clicked rows ever count."""
    start_lenskit()
    histories = Histories.of_training(data)
    popularity, item_K = Popularity.fit(histories), covered_items(histories) if dense else None

    @cache
    def dataset(rows: str) -> "LensKitDataset | None":
        return _dataset(histories, rows, item_K)

    def fit_one(rows: str, **settings: Setting) -> Ranker:
        training = dataset(rows)
        return popularity if training is None else fit(training, rows, popularity, **settings)

    alike = counts_alike(data.schema.target)
    return tune_ranker(data, [one for one in grid if not alike or one["rows"] == "liked"], fit_one)


def _items(scorer: "ItemKNNScorer | EASEScorer | SLIMScorer | ImplicitMFScorer") -> np.ndarray:
    """The items that LensKit knows, in its order, as an array that may be written to: PyTorch warns of others."""
    return np.array(scorer.items.ids(), dtype=np.int64)


def _dataset(histories: Histories, rows: str, item_K: np.ndarray | None) -> "LensKitDataset | None":
    """The training users' rows that count, of the given items only."""
    import pandas as pd
    from lenskit.data import from_interactions_df

    place = sp.coo_array(histories.matrix(rows))
    user_N, item_N = place.coords
    kept_N = np.isin(item_N, item_K) if item_K is not None else np.ones(len(item_N), dtype=bool)
    if not kept_N.any():
        return None
    return from_interactions_df(pd.DataFrame({"user_id": user_N[kept_N], "item_id": item_N[kept_N]}))
