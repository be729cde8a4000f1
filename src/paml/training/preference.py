"""The parts of a preference that are counted or solved, fitted on training users; their weights, on validation users.

What goes with what is EDLAE (engine/autoencoder.py) for the items with the most training rows, in catalogues where
that is affordable; popularity by profile is counted. The numbers of the blend are found one after the other, each the
best of a few for the lists of validation users, with as many known ratings as it is about, and only if that is more
than noise.

Legend: U users, B users of a block, I items, K covered items, V values of profile fields.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from paml.data.dataset import Dataset
from paml.data.schema import Kind, Schema
from paml.engine.autoencoder import co_occurrences, item_item, sparse_matrix
from paml.episodes import ragged
from paml.episodes.batches import Loader
from paml.episodes.histories import Histories, level_weights
from paml.episodes.tasks import Known, Tasks
from paml.evaluation.ranking import JUDGED_SHOTS, rank_users, worth
from paml.progress import Progress
from paml.recommend.preference import Blend, Outputs, Parts, Preference, preference_file, profile_fields
from paml.training import checkpoint
from paml.training.run import Run

MAX_ITEMS = 6000  # items with the most training rows that weights between items cover
MAX_SHARE_UNCOVERED = 0.5  # where these are fewer than half of the items people rated, there are no such weights
FEW_DROPOUT, MANY_DROPOUT, RIDGE = 0.96, 0.33, 400.0
STRENGTH = 100.0  # users that popularity among a profile value's users is shrunk by
LIFT = 0.75  # weight of what profile values change: several say the same, so all of it would be too much
BEYOND_NOISE = 2.0  # standard errors
MAX_LIFTS = 1 << 24  # numbers in the table of popularity by profile value; with more, it is popularity alone
MAX_CELLS = 1 << 24  # scores of validation users that are held at once, for each part and number of known ratings

Shots = tuple[int | None, ...]
CHOICES: dict[str, tuple[tuple[float, ...], Shots]] = {
    "profile": ((0.0, 0.25, 0.5, 0.75, 1.0), (0, 1, 3)),
    "linger": ((0.5, 1.0, 2.0, 5.0, 10.0, 30.0), (1, 3, 5, 10)),
    "few": ((0.0, 20.0, 40.0, 80.0, 140.0, 200.0), (1, 3, 5, 10)),
    "many": ((0.0, 4.0, 8.0, 12.0, 16.0, 24.0), (10, None)),
    "rating": ((0.0, 0.3, 0.6, 1.0, 1.5), (5, 10, None)),
}
"""What is tried for each number of the blend, in this order, twice; and with how many known ratings it is judged.

Each is judged where it matters: with all of them together, what helps with many ratings would be lost in the noise of
the others."""
START = Blend(profile=0.75, linger=0.5, few=140.0, many=8.0, rating=0.6, fade=3)
START_BY_TIME = Blend(profile=0.75, linger=5.0, few=20.0, many=8.0, rating=0.6, fade=3)
"""Where the search begins, and what is used without validation users. What somebody rated first tells less about what
comes later than any rating about any other, so that popularity by profile counts for longer."""

HALVED = ("few_KK", "many_KK")
"""Stored with half the digits: they are by far the largest."""


def finish_preference(data: Dataset, folder: Path, progress: Progress) -> None:
    """Fit and store the preference of a run whose parts are trained, unless that is done."""
    file = preference_file(folder)
    if file.exists():
        return
    run = Run.load(folder, complete=False)
    with progress.step("weighing what lists are ordered by", 1) as step:
        preference = fit_preference(data, run)
        step.advance(1)
    tensors = {name: tensor.half() if name in HALVED else tensor for name, tensor in preference.state_dict().items()}
    checkpoint.save(file, tensors, {"parts": run.seals, "blend": preference.blend.model_dump()})


def fit_preference(data: Dataset, run: Run) -> Preference:
    """Counts and weights of training users, and the blend that is best for validation users."""
    histories, schema = Histories.of_training(data), run.settings.data_schema
    tensors = {**_links(histories), **_popularity(data, schema, histories)}
    start = START_BY_TIME if data.manifest.protocol.support_by == "time" else START
    preference = Preference(schema, data.manifest.vocabulary, tensors, start)
    loader = Loader(data, run.ensemble.inputs, next(run.ensemble.parameters()).device)
    preference.blend = _best_blend(data, preference, loader, run.outputs(loader))
    return preference


def _links(histories: Histories) -> dict[str, Tensor]:
    """Weights between the items with the most rows; none if these are too small a part of what people rate."""
    count_I = np.bincount(histories.item_N, minlength=histories.items)
    item_K = np.sort(np.argsort(-count_I, kind="stable")[:MAX_ITEMS])
    target = histories.target
    if count_I[item_K].sum() < (1 - MAX_SHARE_UNCOVERED) * count_I.sum():
        item_K = item_K[:0]
    x_UK, y_UK = (_matrix(histories, name, item_K) for name in ("graded", "preferred"))
    gram_KK, cross_KK = co_occurrences(x_UK, x_UK), co_occurrences(x_UK, y_UK)
    few_KK, many_KK = (item_item(gram_KK, cross_KK, share, RIDGE).half() for share in (FEW_DROPOUT, MANY_DROPOUT))
    levels, weight = level_weights(target, "graded")
    return {
        "item_K": torch.from_numpy(item_K),
        "few_KK": few_KK,
        "many_KK": many_KK,
        "level_L": torch.from_numpy(levels.astype(np.float32)),
        "weight_L": torch.tensor(weight, dtype=torch.float32),
    }


def _matrix(histories: Histories, weights: str, item_K: np.ndarray) -> Tensor:
    place = sp.coo_array(histories.matrix(weights)[:, item_K])
    row_N, column_N = (torch.from_numpy(index.astype(np.int64)) for index in place.coords)
    return sparse_matrix(row_N, column_N, torch.from_numpy(place.data), place.shape)


def _popularity(data: Dataset, schema: Schema, histories: Histories) -> dict[str, Tensor]:
    """log p_i and, by value v, a log(1 + n_vi / (s p_i)) and a log(1 + n_v / s), which differ by a log(p_vi / p_i)."""
    share_I = (histories.liked_I + 0.5) / (histories.users + 1)
    values = [_values(data, schema, name, kind) for name, kind in profile_fields(schema)]
    size = sum(value_UV.shape[1] for value_UV in values)
    log_share_I = torch.from_numpy(np.log(share_I).astype(np.float32))
    if not values or size * histories.items > MAX_LIFTS:
        none = {"lift_VI": torch.zeros(0, histories.items), "loss_V": torch.zeros(0)}
        return {"log_share_I": log_share_I, **none}
    value_UV = sp.csr_array(sp.hstack(values))
    lift_VI = LIFT * np.log1p((value_UV.T @ histories.matrix("liked")).toarray() / (STRENGTH * share_I))
    loss_V = LIFT * np.log1p(np.asarray(value_UV.sum(axis=0)) / STRENGTH)
    first = np.cumsum([0, *(value_UV.shape[1] for value_UV in values[:-1])])
    lift_VI[first], loss_V[first] = 0.0, 0.0  # an unknown value says nothing
    return {
        "log_share_I": log_share_I,
        "lift_VI": torch.from_numpy(lift_VI.astype(np.float32)),
        "loss_V": torch.from_numpy(loss_V.astype(np.float32)),
    }


def _values(data: Dataset, schema: Schema, name: str, kind: Kind) -> sp.csr_array:
    """(U, V): 1 for the value that a training user has, 1 / length in lists."""
    field = next(one for one in schema.features("user") if one.name == name)
    column, (first, end) = data.column("user", field), data.manifest.splits["train"]
    if column.offsets is None:
        count_U, code_E = np.ones(end - first, dtype=np.int64), column.values[first:end]
    else:
        offset_U = np.asarray(column.offsets[first : end + 1], dtype=np.int64)
        count_U, code_E = np.diff(offset_U), column.values[offset_U[0] : offset_U[-1]]
    share_E = np.repeat(1 / np.maximum(count_U, 1), count_U).astype(np.float32)
    places = ragged.owners(count_U), code_E.astype(np.int64)
    return sp.csr_array((share_E, places), shape=(end - first, data.manifest.vocabulary[f"user.{name}"]))


def _best_blend(data: Dataset, preference: Preference, loader: Loader, outputs: Outputs) -> Blend:
    """Each number in turn, the others held, from those that the preference has; of equals the first."""
    tasks = Tasks.of(data, "validation")
    tasks = tasks.part(0, max(1, MAX_CELLS // max(data.manifest.items, 1)))
    best = preference.blend
    if not len(tasks):
        return best
    judge = _Judge(data, tasks, preference, loader, outputs)
    for name, (choices, shots) in [*CHOICES.items(), *CHOICES.items()]:
        value_U = judge.worths(best, shots)
        if not len(value_U):
            continue  # no validation user likes anything
        tried = [best.model_copy(update={name: choice}) for choice in choices]
        winner = max(tried, key=lambda blend: float(judge.worths(blend, shots).mean()))
        if _is_better(judge.worths(winner, shots), value_U):
            best = winner
    return best


def _is_better(new_U: np.ndarray, old_U: np.ndarray) -> bool:
    """Whether the mean has grown by more than noise: the start is a good guess, and the best of many is often luck."""
    gain_U = new_U - old_U
    return len(gain_U) > 1 and float(gain_U.mean()) > BEYOND_NOISE * float(gain_U.std(ddof=1)) / np.sqrt(len(gain_U))


class _Judge:
    """Scores validation users with any blend: the parts are computed once for each number of known ratings."""

    def __init__(self, data: Dataset, tasks: Tasks, preference: Preference, loader: Loader, outputs: Outputs) -> None:
        self._data, self._tasks = data, tasks
        self._known: dict[int | None, dict[bytes, tuple[Parts, Tensor]]] = {}
        for shots in JUDGED_SHOTS:
            kept = self._known.setdefault(shots, {})
            rank_users(data, tasks, self._keeping(kept, preference, loader, outputs), shots)

    def _keeping(
        self, kept: dict[bytes, tuple[Parts, Tensor]], preference: Preference, loader: Loader, outputs: Outputs
    ) -> Callable[[Known], Tensor]:
        def rank(known: Known) -> Tensor:
            batch = loader.load_known(known, loader.all_items())
            parts = preference.parts(batch, *outputs(batch))
            kept[known.user_B.tobytes()] = parts, batch.support.mask_BR.sum(dim=1, keepdim=True)
            return parts.choice_BI

        return rank

    @torch.no_grad()
    def worths(self, blend: Blend, numbers: Shots) -> np.ndarray:
        """What lists are worth to each user who likes anything, a mean over these numbers of known ratings."""
        worth_U: np.ndarray = np.mean([self._worths(blend, shots) for shots in numbers], axis=0)
        defined_U: np.ndarray = worth_U[np.isfinite(worth_U)]
        return defined_U

    @cache  # noqa: B019 - as long as a blend is searched for
    def _worths(self, blend: Blend, shots: int | None) -> np.ndarray:
        kept = self._known[shots]

        def rank(known: Known) -> Tensor:
            parts, count_B1 = kept[known.user_B.tobytes()]
            return parts.score(blend, count_B1)

        return worth(rank_users(self._data, self._tasks, rank, shots))
