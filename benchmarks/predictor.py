"""A new user rates a few items and wants ten: milliseconds of adapt + recommend(10), next to LensKit, in one run.

All see the same test users with the same ratings, in turn, and score all items. LensKit's biased factorisation folds
the user in and ranks; paml adapts an ensemble as in the recipe `tuned`, and ranks by its predicted ratings alone, as
LensKit does, or by preference, which adapts a second ensemble. What LensKit has for lists by what people choose are its
implicit factorisation, item neighbours and EASE (where its dense weights fit). Times are processor time, with one
thread: other work on the machine counts less than in time by the clock, though it still competes for caches. Only users
with a rated item that LensKit was trained on are measured, by all: the others get an empty list from it, in no time.

PAML_BENCH_RUN names trained runs (as PATH does folders), which are measured on their data set in place of newly trained
ones; PAML_BENCH_DATA a prepared data set; otherwise MovieLens-1M is prepared from the folder in PAML_DATA_HOME, or a
synthetic data set of its size is made.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import paml
from paml.baselines.item_item import MAX_ITEMS
from paml.baselines.lenskit import EPOCHS, FACTORISATION_GRID, _dataset, start_lenskit
from paml.baselines.lenskit_ranking import EASE_GRID, FACTOR_GRID, NEIGHBOUR_GRID
from paml.baselines.rows import SplitRows
from paml.recommend.requests import NewUser, Rating
from paml.recommend.threads import use_threads

METHODS = ("ridge", "reg_paml")
LENSKIT = "LensKit biased MF"
IMPLICIT, NEIGHBOURS, EASE = "LensKit implicit MF", "LensKit item neighbours", "LensKit EASE"
Caller = Callable[[tuple[np.ndarray, np.ndarray]], Any]
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
    """Test users whom both answer, with their support ratings, for paml (profile, ids) and LensKit (item numbers)."""
    first, _ = data.manifest.splits["test"]
    profiles = data.users().slice(first, USERS).select(field.name for field in data.schema.user).collect().to_dicts()
    ids = data.items().select("item").collect()["item"].to_list()
    rows = SplitRows.of(data, "test")
    trained = np.unique(SplitRows.of(data, "train").item_N)
    ours, theirs = [], []
    for number, profile in enumerate(profiles):
        known = np.flatnonzero((rows.user_N == number) & rows.support_N)
        item, target = rows.item_N[known], rows.target_N[known]
        if not np.isin(item, trained).any():
            continue
        ours.append(NewUser(profile, [Rating(ids[i], float(y)) for i, y in zip(item, target, strict=True)]))
        theirs.append((item, target))
    return ours, theirs


def lenskit_callers(data: paml.Dataset) -> dict[str, Caller]:
    """LensKit's models, trained as among the baselines: ratings in, the ten best of all items out."""
    start_lenskit()
    from lenskit.als import BiasedMFScorer, ImplicitMFScorer
    from lenskit.knn import EASEScorer, ItemKNNScorer
    from lenskit.training import TrainingOptions

    rated, chosen = FACTORISATION_GRID[0], FACTOR_GRID[0]
    scorers = {
        LENSKIT: BiasedMFScorer(
            embedding_size=rated["features"], regularization=rated["regularisation"], epochs=EPOCHS
        ),
        IMPLICIT: ImplicitMFScorer(
            embedding_size=chosen["features"], regularization=chosen["regularisation"], epochs=EPOCHS
        ),
        NEIGHBOURS: ItemKNNScorer(feedback="implicit", max_nbrs=NEIGHBOUR_GRID[0]["neighbours"]),
    }
    if data.manifest.items <= MAX_ITEMS:
        scorers[EASE] = EASEScorer(regularization=EASE_GRID[0]["ridge"])
    dataset = _dataset(data)
    for scorer in scorers.values():
        scorer.train(dataset, TrainingOptions(rng=0))
    return {name: _caller(scorer, data.manifest.items) for name, scorer in scorers.items()}


def _caller(scorer: Any, items: int) -> Caller:
    """One call as its users write it."""
    from lenskit.data import ItemList, RecQuery

    everything, known_ids = ItemList(item_ids=np.arange(items)), scorer.items.ids()

    def call(ratings: tuple[np.ndarray, np.ndarray]) -> Any:
        item, target = ratings
        known = np.isin(item, known_ids)
        history = ItemList(item_ids=item[known], rating=target[known])
        return scorer(RecQuery(history_items=history), everything).top_n(10)

    return call


def timed(call: Callable[..., Any], *arguments: Any) -> float:
    """Seconds of processor time of a call."""
    started = time.process_time()
    call(*arguments)
    return time.process_time() - started


def _alone(predictor: paml.Predictor, new_user: NewUser) -> None:
    predictor.adapt_many([new_user])[0].recommend(10)


def _together(predictor: paml.Predictor, new_users: list[NewUser]) -> None:
    for user in predictor.adapt_many(new_users, score=True):
        user.recommend(10)


def predictors(runs: Iterable[paml.Run]) -> dict[str, paml.Predictor]:
    """Of each run, lists by predicted rating alone and, if it has a choice part, by preference."""
    found = {}
    for run in runs:
        method = run.settings.method
        found[f"{method}, ratings"] = replace(run, choice=None, preference=None).predictor
        if run.preference is not None:
            found[f"{method}, preference"] = run.predictor
    return found


def main() -> None:
    """Print milliseconds of one user, of many at once, and both relative to LensKit's call for one."""
    use_threads(1)
    with TemporaryDirectory() as folder:
        given = [paml.load(path) for path in os.environ.get("PAML_BENCH_RUN", "").split(os.pathsep) if path]
        data = given[0].data() if given else data_set(Path(folder))
        runs = given or [paml.train(data, method, out=Path(folder) / method, **TRAINING) for method in METHODS]
        ours, theirs = new_users(data)
        rated = np.median([len(one.ratings) for one in ours])
        items = data.manifest.items
        print(
            f"{data.manifest.source.name}: {len(ours)} of {USERS} test users, whose items LensKit knows; "
            f"{rated:g} ratings (median), {items:,} items"
        )
        by_name, lenskit = predictors(runs), lenskit_callers(data)
        seconds: dict[str, list[float]] = {name: [] for name in (*lenskit, *by_name)}
        together: dict[str, list[float]] = {name: [] for name in by_name}
        for start in range(0, len(ours), TOGETHER):  # in turn, some users each: as busy services, all run warm
            some, ratings = ours[start : start + TOGETHER], theirs[start : start + TOGETHER]
            for name, predictor in by_name.items():
                seconds[name] += [timed(_alone, predictor, new_user) for new_user in some]
                together[name].append(timed(_together, predictor, some) / len(some))
            for name, call in lenskit.items():
                seconds[name] += [timed(call, one) for one in ratings]
        median = {name: float(np.median(values[WARM_UP:])) for name, values in seconds.items()}
        base = median[LENSKIT]
        for name, values in seconds.items():
            p50, p99 = 1e3 * median[name], 1e3 * np.quantile(values[WARM_UP:], 0.99)
            size = f" ({_members(by_name[name])})" if name in by_name else ""
            line = f"{name + size:<36} p50 {p50:6.2f} ms, p99 {p99:6.2f} ms, {median[name] / base:5.2f} times LensKit"
            if name in together:
                each = float(np.median(together[name][1:]))
                line += f"; {TOGETHER} users at once {1e3 * each:.2f} ms each, {each / base:.2f} times"
            print(line)
        for name in (one for one in by_name if "preference" in one):
            of_lists = (f"{median[name] / median[one]:.2f} times {one}" for one in lenskit if one != LENSKIT)
            print(f"{name}, p50: {', '.join(of_lists)}")


def _members(predictor: paml.Predictor) -> str:
    """How many networks answer."""
    parts = [predictor] if predictor.choice is None else [predictor, predictor.choice]
    return " + ".join(str(len(part.members)) for part in parts)


if __name__ == "__main__":
    main()
