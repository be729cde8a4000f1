"""LensKit's matrix factorisation and item neighbours: third-party code, given the same support sets.

A new user is scored through the history in LensKit's query. Its interface scores one user per call, so there is a loop
over users here, with one call for each user's query items (about a thousand users per second). Where LensKit has no
score, for items that nobody rated in training and users without a known rating, the item + user bias is used.

Legend: N rows, U users.
"""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from paml.baselines.means import BiasModel, tuned_bias
from paml.baselines.rows import Fitted, Setting, SplitRows, tune
from paml.data.dataset import Dataset

if TYPE_CHECKING:
    from lenskit.als import BiasedMFScorer
    from lenskit.data import Dataset as LensKitDataset
    from lenskit.knn import ItemKNNScorer

FACTORISATION_GRID: tuple[dict[str, Setting], ...] = (
    {"features": 64, "regularisation": 0.12},
    {"features": 64, "regularisation": 0.1},
    {"features": 32, "regularisation": 0.1},
    {"features": 32, "regularisation": 0.15},
    {"features": 16, "regularisation": 0.2},
)
NEIGHBOUR_GRID: tuple[dict[str, Setting], ...] = (
    {"neighbours": 20, "min_neighbours": 3, "min_similarity": 1e-6},
    {"neighbours": 20, "min_neighbours": 1, "min_similarity": 1e-6},
    {"neighbours": 10, "min_neighbours": 3, "min_similarity": 1e-6},
    {"neighbours": 40, "min_neighbours": 3, "min_similarity": 1e-6},
    {"neighbours": 40, "min_neighbours": 5, "min_similarity": 1e-6},
    {"neighbours": 20, "min_neighbours": 3, "min_similarity": 0.01},
)
EPOCHS = 10


@dataclass(frozen=True)
class LensKitModel:
    """A trained LensKit scorer, and the fallback where it has no score."""

    scorer: "BiasedMFScorer | ItemKNNScorer"
    fallback: BiasModel

    def predict(self, rows: SplitRows) -> np.ndarray:
        """Scores of each user's query items, given the known support ratings of items that LensKit knows."""
        from lenskit.data import ItemList, RecQuery

        prediction_N = self.fallback.predict(rows)
        # LensKit 2025.8's item neighbours panic on a rated item that is not in their vocabulary.
        known_N = rows.support_N & np.isin(rows.item_N, self.scorer.items.ids())
        end_U = np.cumsum(np.bincount(rows.user_N, minlength=rows.users))
        for user, user_rows in enumerate(np.split(np.arange(len(rows.user_N)), end_U[:-1]), rows.first_user):
            rated, asked = user_rows[known_N[user_rows]], user_rows[rows.query_N[user_rows]]
            if not len(rated):
                continue
            history = ItemList(item_ids=rows.item_N[rated], rating=rows.target_N[rated])
            query = RecQuery(user_id=user, history_items=history)
            scores = self.scorer(query, ItemList(item_ids=rows.item_N[asked])).scores()
            assert scores is not None
            prediction_N[asked] = np.where(np.isfinite(scores), scores, prediction_N[asked])
        return prediction_N


def fit_factorisation(data: Dataset, seed: int) -> Fitted:
    """Biased matrix factorisation by alternating least squares; new users are folded in."""
    start_lenskit()
    from lenskit.als import BiasedMFScorer
    from lenskit.training import TrainingOptions

    dataset, fallback = _dataset(data), tuned_bias(data)

    def fit(features: int, regularisation: float) -> LensKitModel:
        scorer = BiasedMFScorer(embedding_size=features, regularization=regularisation, epochs=EPOCHS)
        scorer.train(dataset, TrainingOptions(rng=seed))
        return LensKitModel(scorer, fallback)

    return tune(data, FACTORISATION_GRID, fit)


def fit_neighbours(data: Dataset, seed: int) -> Fitted:
    """Item neighbours by the cosine similarity of item-centred ratings, weighted by that similarity.

    An item with fewer than `min_neighbours` rated neighbours gets the bias, which matters for users with few ratings.
    """
    start_lenskit()
    from lenskit.knn import ItemKNNScorer

    dataset, fallback = _dataset(data), tuned_bias(data)

    def fit(neighbours: int, min_neighbours: int, min_similarity: float) -> LensKitModel:
        scorer = ItemKNNScorer(
            max_nbrs=neighbours, min_nbrs=min_neighbours, min_sim=min_similarity, feedback="explicit"
        )
        scorer.train(dataset)
        return LensKitModel(scorer, fallback)

    return tune(data, NEIGHBOUR_GRID, fit)


def _dataset(data: Dataset) -> "LensKitDataset":
    """All ratings of training users."""
    import pandas as pd
    from lenskit.data import from_interactions_df

    train = SplitRows.of(data, "train")
    return from_interactions_df(
        pd.DataFrame({"user_id": train.user_N + train.first_user, "item_id": train.item_N, "rating": train.target_N})
    )


def start_lenskit() -> None:
    """Let LensKit set up its threads, and restore those of PyTorch and of the matrix products afterwards."""
    from lenskit.parallel import ensure_parallel_init
    from threadpoolctl import threadpool_limits

    threads, sharing = torch.get_num_threads(), torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    with warnings.catch_warnings(), threadpool_limits(None):
        warnings.filterwarnings(
            "ignore", "failed to set", RuntimeWarning
        )  # PyTorch's threads were already running, as intended
        ensure_parallel_init()  # type: ignore[no-untyped-call]
    torch.set_num_threads(threads)
    torch.multiprocessing.set_sharing_strategy(sharing)  # type: ignore[no-untyped-call]
