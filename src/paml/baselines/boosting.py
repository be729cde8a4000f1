"""Gradient boosting (LightGBM) on profile, content, context and support-set statistics.

Trained on episodes: each training user's rows are split again into support and query rows, statistics come from the
former (`paml.baselines.features`), and the trees learn the residual of the bias prediction on the latter. Trees are
added until the loss on validation users stops falling.

Legend: N rows, P picked rows, F features.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, logit

from paml.baselines.features import Statistics, Values, places, training_episodes
from paml.baselines.rows import Fitted, Setting, SplitRows, to_target, tune
from paml.data.dataset import Dataset
from paml.data.schema import Kind, Target

if TYPE_CHECKING:
    from lightgbm import Booster

GRID: tuple[dict[str, Setting], ...] = (
    {"leaves": 31, "rows_per_leaf": 200},
    {"leaves": 15, "rows_per_leaf": 100},
)
LEARNING_RATE, MAX_TREES, PATIENCE = 0.05, 500, 30
TREES_UNSEEN = 150  # if there are no validation users to decide when to stop
MAX_CODES = 255  # a categorical field with more values gets no column: it would identify single training users
MAX_HOT = 32  # a multi-valued field with more values is represented by its statistics alone


@dataclass(frozen=True)
class Table:
    """Features of some rows, and which columns hold categorical codes."""

    matrix_PF: np.ndarray
    categorical: list[int]
    start_P: np.ndarray
    """What the trees start from: for ratings the bias prediction, for clicks the log-odds of the training rate."""


class Tabulator:
    """Makes the tables for training rows and for new users' rows."""

    def __init__(self, data: Dataset) -> None:
        self._data, self._statistics = data, Statistics(data)

    def table(self, rows: SplitRows, pick_P: np.ndarray, *, training: bool) -> Table:
        """Features of the picked rows; `training` says whether they are training rows."""
        columns = self._statistics.columns(rows, pick_P, training=training)
        click = self._data.schema.target.kind == "click"
        start_P = (
            np.full(len(pick_P), logit(np.clip(self._statistics.mean, 1e-3, 1 - 1e-3))) if click else columns["bias"]
        )
        categorical: list[int] = []
        for side, place_P in places(rows, pick_P).items():
            for field in self._data.schema.features(side):
                name = f"{side}.{field.name}"
                size = self._data.manifest.vocabulary.get(name, 0)
                if field.kind is Kind.MULTI:
                    columns |= _hot(Values.of(self._data, side, field), place_P) if size <= MAX_HOT else {}
                elif size <= MAX_CODES:
                    categorical += [len(columns)] if field.kind is Kind.CATEGORICAL else []
                    columns[name] = self._data.array(name)[place_P]
        matrix_PF = np.stack([column.astype(np.float32) for column in columns.values()], axis=1)
        return Table(matrix_PF, categorical, start_P)


def _hot(values: Values, place_P: np.ndarray) -> dict[str, np.ndarray]:
    """One column per known value of a multi-valued field: whether the list holds it."""
    hot_VP = np.zeros((values.size, len(place_P)), dtype=np.float32)
    row_E, code_E = values.pairs(place_P)
    hot_VP[code_E, row_E] = 1.0
    return {f"{values.name}.{code}": hot_VP[code] for code in range(1, values.size)}


@dataclass(frozen=True)
class BoostedTrees:
    """Fitted trees, whose output is added to the starting value."""

    booster: "Booster"
    tabulator: Tabulator
    target: Target

    def predict(self, rows: SplitRows) -> np.ndarray:
        """Predictions for query rows; 0 for all other rows."""
        pick_Q = np.flatnonzero(rows.query_N)
        table = self.tabulator.table(rows, pick_Q, training=False)
        prediction_N = np.zeros(len(rows.query_N))
        prediction_N[pick_Q] = self.output(self.booster.predict(table.matrix_PF, raw_score=True) + table.start_P)
        return prediction_N

    def output(self, raw_P: np.ndarray) -> np.ndarray:
        """Ratings unchanged, log-odds as probabilities."""
        output_P: np.ndarray = expit(raw_P) if self.target.kind == "click" else raw_P
        return output_P


def fit_lightgbm(data: Dataset, seed: int) -> Fitted:
    """Trees for ratings (squared error) or clicks (entropy), tuned over the grid above."""
    import lightgbm

    tabulator, target = Tabulator(data), data.schema.target
    episodes = training_episodes(data, np.random.default_rng(seed))
    tables = [tabulator.table(episode.rows, episode.pick_P, training=True) for episode in episodes]
    train = lightgbm.Dataset(
        np.concatenate([table.matrix_PF for table in tables]),
        np.concatenate([episode.rows.target_N[episode.pick_P] for episode in episodes]),
        weight=np.concatenate([episode.weight_P for episode in episodes]),
        init_score=np.concatenate([table.start_P for table in tables]),
        categorical_feature=tables[0].categorical,
        params={"verbosity": -1, "feature_pre_filter": False, "max_bin": 63},
    )
    validation = SplitRows.of(data, "validation")
    query_Q = np.flatnonzero(validation.query_N)
    table = tabulator.table(validation, query_Q, training=False)
    watched = lightgbm.Dataset(table.matrix_PF, validation.target_N[query_Q], init_score=table.start_P, reference=train)

    def validation_loss(prediction_Q: np.ndarray, _: lightgbm.Dataset) -> tuple[str, float, bool]:
        prediction_N = np.zeros(len(validation.query_N))
        prediction_N[query_Q] = to_target(prediction_Q, target)
        return "loss", validation.loss(target, prediction_N), False

    def fit(leaves: int, rows_per_leaf: int) -> BoostedTrees:
        settings = {
            "objective": "binary" if target.kind == "click" else "regression",
            "metric": "none",
            "learning_rate": LEARNING_RATE,
            "num_leaves": leaves,
            "min_data_in_leaf": rows_per_leaf,
            "feature_fraction": 0.7,
            "bagging_fraction": 0.5,
            "bagging_freq": 1,
            "seed": seed,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
            "feature_pre_filter": False,
            "max_bin": 63,
        }
        if not validation.users:
            return BoostedTrees(lightgbm.train(settings, train, TREES_UNSEEN), tabulator, target)
        stop = lightgbm.early_stopping(PATIENCE, verbose=False)
        booster = lightgbm.train(
            settings, train, MAX_TREES, valid_sets=[watched], feval=validation_loss, callbacks=[stop]
        )
        return BoostedTrees(booster, tabulator, target)

    return tune(data, GRID, fit, lambda trees: {"trees": trees.booster.best_iteration or TREES_UNSEEN})
