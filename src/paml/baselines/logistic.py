"""Logistic regression for clicks: every field one-hot or as a number, plus the user's and the item's click rate.

Trained on the same episodes as the boosting: the rates of a training row come from the user's support rows and from
other users' rows with the item.

Legend: P picked rows, F features, E (row, value) pairs.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from scipy.special import logit

from paml.baselines.features import Statistics, Values, places, training_episodes
from paml.baselines.means import fit_constant
from paml.baselines.rows import Fitted, Setting, SplitRows, tune
from paml.data.dataset import Dataset
from paml.data.schema import Kind

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

GRID: tuple[dict[str, Setting], ...] = ({"inverse_regularisation": 0.01}, {"inverse_regularisation": 0.1})
MIN_RATE = 0.001


class Encoder:
    """Makes the sparse feature matrix for the rows of any split."""

    def __init__(self, data: Dataset) -> None:
        self._data, self._statistics = data, Statistics(data)

    def matrix(self, rows: SplitRows, pick_P: np.ndarray, *, training: bool) -> sp.csr_array:
        """Features of the picked rows; `training` says whether they are training rows."""
        numbers, blocks = self._rates(rows, pick_P, training=training), []
        for side, place_P in places(rows, pick_P).items():
            for field in self._data.schema.features(side):
                if field.kind is Kind.NUMERIC:
                    numbers.append(np.clip(self._data.array(f"{side}.{field.name}")[place_P], -5, 5))
                else:
                    blocks.append(_hot(Values.of(self._data, side, field), place_P))
        return sp.csr_array(sp.hstack([sp.csr_array(np.stack(numbers, axis=1)), *blocks]))

    def _rates(self, rows: SplitRows, pick_P: np.ndarray, *, training: bool) -> list[np.ndarray]:
        """Log-odds of the item's and the user's shrunk rate, and how many rows each is based on."""
        mean = self._statistics.mean
        columns = self._statistics.columns(rows, pick_P, training=training)
        rates = [np.clip(mean + columns[name], MIN_RATE, 1 - MIN_RATE) for name in ("item_bias", "user_offset")]
        return [*(logit(rate_P) for rate_P in rates), columns["item_rows"] / 10, columns["user_rows"] / 10]


def _hot(values: Values, place_P: np.ndarray) -> sp.csr_array:
    """The mean of a list's one-hot values; "unknown" is not counted."""
    row_E, code_E = values.pairs(place_P)
    known = code_E > 0
    row_E, code_E = row_E[known], code_E[known]
    share_E = 1.0 / np.bincount(row_E, minlength=len(place_P))[row_E]
    return sp.csr_array((share_E, (row_E, code_E)), shape=(len(place_P), values.size))


@dataclass(frozen=True)
class LogisticModel:
    """A fitted logistic regression."""

    regression: "LogisticRegression"
    encoder: Encoder

    def predict(self, rows: SplitRows) -> np.ndarray:
        """Click probabilities for query rows."""
        pick_Q = np.flatnonzero(rows.query_N)
        prediction_N = np.zeros(len(rows.query_N))
        if len(pick_Q):
            prediction_N[pick_Q] = self.regression.predict_proba(self.encoder.matrix(rows, pick_Q, training=False))[
                :, 1
            ]
        return prediction_N


def fit_logistic(data: Dataset, seed: int) -> Fitted:
    """scikit-learn's logistic regression, tuned over the grid above."""
    from sklearn.linear_model import LogisticRegression

    encoder, episodes = Encoder(data), training_episodes(data, np.random.default_rng(seed))
    matrix_PF = sp.vstack([encoder.matrix(episode.rows, episode.pick_P, training=True) for episode in episodes])
    target_P = np.concatenate([episode.rows.target_N[episode.pick_P] > 0 for episode in episodes])
    if target_P.all() or not target_P.any():
        return fit_constant(data, seed)  # only one class: nothing to learn
    weight_P = np.concatenate([episode.weight_P for episode in episodes])

    def fit(inverse_regularisation: float) -> LogisticModel:
        regression = LogisticRegression(C=inverse_regularisation, max_iter=500, tol=1e-3)
        return LogisticModel(regression.fit(matrix_PF, target_P, sample_weight=weight_P / weight_P.mean()), encoder)

    return tune(data, GRID, fit)
