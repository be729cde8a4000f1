"""A new user rates a few items and wants ten: milliseconds of adapt + recommend(10), next to LensKit, in one run.

Both see the same test users with the same ratings, in turn, and score all items. LensKit's biased factorisation folds
the user in and ranks; paml adapts an ensemble as in the recipe `tuned`. PAML_BENCH_DATA names a prepared data set;
otherwise MovieLens-1M is prepared from the folder in PAML_DATA_HOME, or a synthetic data set of its size is made.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import paml
from paml.baselines.lenskit import EPOCHS, FACTORISATION_GRID, _dataset, _start_lenskit
from paml.baselines.rows import SplitRows
from paml.recommend.requests import NewUser, Rating

METHODS = ("ridge", "reg_paml")
USERS, TOGETHER, WARM_UP = 400, 32, 20
TRAINING = {"epochs": 3}  # the time of a call does not depend on how well it was trained


def data_set(folder: Path) -> paml.Dataset:
    """What is measured on."""
    if prepared := os.environ.get("PAML_BENCH_DATA"):
        return paml.open_data(prepared)
    archive = Path(os.environ.get("PAML_DATA_HOME", "")) / "ml-1m.zip"
    if archive.is_file():
        return paml.prepare("ml-1m", archive, folder / "data")
    return paml.prepare("synthetic", out=folder / "data", users=6040, items=3883, median_rows=96)


def new_users(data: paml.Dataset) -> tuple[list[NewUser], list[tuple[np.ndarray, np.ndarray]]]:
    """Test users with their support ratings, for paml (profile, ids) and for LensKit (item numbers)."""
    first, _ = data.manifest.splits["test"]
    profiles = data.users().slice(first, USERS).select(field.name for field in data.schema.user).collect().to_dicts()
    ids = data.items().select("item").collect()["item"].to_list()
    rows = SplitRows.of(data, "test")
    ours, theirs = [], []
    for number, profile in enumerate(profiles):
        known = np.flatnonzero((rows.user_N == number) & rows.support_N)
        item, target = rows.item_N[known], rows.target_N[known]
        ours.append(NewUser(profile, [Rating(ids[i], float(y)) for i, y in zip(item, target, strict=True)]))
        theirs.append((item, target))
    return ours, theirs


def lenskit_caller(data: paml.Dataset) -> Callable[[tuple[np.ndarray, np.ndarray]], Any]:
    """LensKit's factorisation, trained as among the baselines: ratings in, the ten best of all items out."""
    _start_lenskit()
    from lenskit.als import BiasedMFScorer
    from lenskit.data import ItemList, RecQuery
    from lenskit.training import TrainingOptions

    first = FACTORISATION_GRID[0]
    scorer = BiasedMFScorer(embedding_size=first["features"], regularization=first["regularisation"], epochs=EPOCHS)
    scorer.train(_dataset(data), TrainingOptions(rng=0))
    everything = ItemList(item_ids=np.arange(data.manifest.items))

    def call(ratings: tuple[np.ndarray, np.ndarray]) -> Any:
        item, target = ratings
        known = np.isin(item, scorer.items.ids())
        history = ItemList(item_ids=item[known], rating=target[known])
        return scorer(RecQuery(history_items=history), everything).top_n(10)

    return call


def timed(call: Callable[..., Any], *arguments: Any) -> float:
    """Seconds of a call."""
    started = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - started


def _alone(predictor: paml.Predictor, new_user: NewUser) -> None:
    predictor.adapt_many([new_user])[0].recommend(10)


def _together(predictor: paml.Predictor, new_users: list[NewUser]) -> None:
    for user in predictor.adapt_many(new_users, score=True):
        user.recommend(10)


def main() -> None:
    """Print milliseconds of one user, of many at once, and the ratio to LensKit."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        data = data_set(Path(folder))
        ours, theirs = new_users(data)
        rated = np.median([len(one.ratings) for one in ours])
        items = data.manifest.items
        print(f"{data.manifest.source.name}: {len(ours)} test users, {rated:g} ratings (median), {items:,} items")
        predictors = {
            method: paml.train(data, method, out=Path(folder) / method, **TRAINING).predictor for method in METHODS
        }
        lenskit = lenskit_caller(data)
        seconds: dict[str, list[float]] = {name: [] for name in (*METHODS, "LensKit biased MF")}
        together: dict[str, list[float]] = {method: [] for method in METHODS}
        for start in range(0, len(ours), TOGETHER):  # in turn, some users each: as busy services, all run warm
            some, ratings = ours[start : start + TOGETHER], theirs[start : start + TOGETHER]
            for method, predictor in predictors.items():
                seconds[method] += [timed(_alone, predictor, new_user) for new_user in some]
                together[method].append(timed(_together, predictor, some) / len(some))
            seconds["LensKit biased MF"] += [timed(lenskit, one) for one in ratings]
        base = np.median(seconds["LensKit biased MF"][WARM_UP:])
        for name, values in seconds.items():
            p50, p99 = (1e3 * np.quantile(values[WARM_UP:], share) for share in (0.5, 0.99))
            size = f" (ensemble of {len(predictors[name].members)})" if name in predictors else ""
            line = f"{name + size:<26} p50 {p50:6.2f} ms, p99 {p99:6.2f} ms"
            line += f", {base * 1e3 / p50:5.2f} times as fast as LensKit"
            if name in together:
                line += f"; {TOGETHER} users at once {1e3 * np.median(together[name][1:]):.2f} ms each"
            print(line)


if __name__ == "__main__":
    main()
