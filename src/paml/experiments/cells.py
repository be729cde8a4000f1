"""A cell of a comparison: one entry (a baseline, a method, or a method with other settings) with one seed.

Fitting gets a data set without targets and items of test users, prediction one without the targets of query rows, and
ranking one without their items, too (`blinding.py`).
"""

import gc
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import torch

from paml.analysis.plan import Entry, Plan, cell_folder, cell_name
from paml.baselines import BASELINE_REGISTRY, SplitRows, find_baseline
from paml.data.dataset import Dataset
from paml.episodes.batches import Loader
from paml.episodes.tasks import Tasks
from paml.errors import LeakageError, TrainingError
from paml.evaluation.blinding import BlindedDataset
from paml.evaluation.ranking import Orders
from paml.evaluation.scenarios import Scores, score
from paml.evaluation.scoring import predict_rows
from paml.experiments.orders import can_be_ranked, orders_of
from paml.files import new_folder
from paml.methods.registry import METHOD_REGISTRY
from paml.progress import Progress
from paml.registry import in_a_line
from paml.training.allocator import return_freed_memory
from paml.training.recipe import settings_of_choice
from paml.training.run import Run
from paml.training.train import train

EMBEDDED_USERS = 2000  # whose embeddings are kept, for figures


def run_cell(data: Dataset, folder: Path, plan: Plan, entry: Entry, seed: int, progress: Progress) -> None:
    """Fit an entry, score it on the test users, and store everything."""
    with _peak_memory() as peak, _named_failure(entry):
        if entry.method is None:
            scores, frames = _run_baseline(data, plan, entry.name, seed)
        else:
            scores, frames = _run_method(data, folder, plan, entry, seed, progress)
    frames["rows"], frames["scenarios"] = scores.rows, scores.scenarios
    for name, frame in (("predictions", scores.predictions), ("pooled", scores.pooled)):
        if frame is not None:
            frames[name] = frame
    cost = frames["cost"].with_columns(
        adapt_ms=pl.lit(scores.milliseconds, dtype=pl.Float64),
        rank_ms=pl.lit(scores.rank_milliseconds, dtype=pl.Float64),
        peak_mb=pl.lit(peak[0], dtype=pl.Float64),
    )
    frames["cost"] = cost
    with new_folder(cell_folder(folder, entry.name, seed)) as cell:
        for name, frame in frames.items():
            marked = frame.select(
                pl.lit(entry.name).alias("method"), pl.lit(seed, dtype=pl.Int64).alias("seed"), pl.all()
            )
            marked.write_parquet(cell / f"{name}.parquet")


@contextmanager
def _named_failure(entry: Entry) -> Iterator[None]:
    """What goes wrong in somebody else's code is that entry's failure, named with its package; the others go on."""
    registry = BASELINE_REGISTRY if entry.method is None else METHOD_REGISTRY
    origin = registry.origin(entry.method or entry.name)
    try:
        yield
    except (TrainingError, LeakageError, OSError):
        raise
    except Exception as error:
        if origin is None:
            raise
        raise TrainingError(f"{origin} failed ({in_a_line(error)})") from error


def _run_baseline(data: Dataset, plan: Plan, name: str, seed: int) -> tuple[Scores, dict[str, pl.DataFrame]]:
    baseline = find_baseline(name)
    # a reference may know the items of test users' rows beforehand, and nobody their targets
    blinded = BlindedDataset(data, "targets" if baseline.reference else "all")
    started = time.perf_counter()
    fitted = baseline.fit(blinded, seed)
    seconds = time.perf_counter() - started
    test, predictor = SplitRows.of(BlindedDataset(data, "query"), "test"), fitted.predictor

    def predict(shots: int | None) -> tuple[np.ndarray, None]:
        assert predictor is not None
        return predictor.predict(test if shots is None else test.with_shots(shots)), None

    def predict_known() -> np.ndarray:
        assert predictor is not None
        return predictor.predict(SplitRows.of(BlindedDataset(data, "query"), "known"))

    cost = pl.DataFrame({"fit_seconds": [seconds], "refit_seconds": [fitted.refit_seconds]})
    cost = cost.with_columns(pl.col("refit_seconds").cast(pl.Float64), chosen=pl.lit(json.dumps(fitted.chosen)))
    few, predicts = not baseline.reference, None if predictor is None else predict
    known = None if predictor is None or baseline.reference else predict_known
    ranker, blinded = fitted.ranker, BlindedDataset(data, "items")
    orders = None if ranker is None else Orders.single(ranker.rank(blinded))
    scores = score(data, name, predicts, few=few, orders=orders, liked=plan.liked, predict_known=known)
    return replace(scores, milliseconds=None) if baseline.reference else scores, {"cost": cost}


def _run_method(
    data: Dataset, folder: Path, plan: Plan, entry: Entry, seed: int, progress: Progress
) -> tuple[Scores, dict[str, pl.DataFrame]]:
    assert entry.method is not None
    path = folder / "runs" / cell_name(entry.name, seed)
    unread = settings_of_choice(plan.settings) if entry.choice_method is None else ()
    common = {name: value for name, value in plan.settings.items() if name not in unread}
    started = time.perf_counter()
    run = train(
        BlindedDataset(data, "all"),
        entry.method,
        plan.recipe,
        seed=seed,
        out=path,
        reuse=True,
        progress=progress,
        settings={**common, **entry.settings},
    )
    seconds = time.perf_counter() - started
    tasks, device = Tasks.of(data, "test"), next(run.ensemble.parameters()).device
    loader = Loader(BlindedDataset(data, "query"), run.ensemble.inputs, device)

    def predict(shots: int | None) -> tuple[np.ndarray, np.ndarray]:
        return predict_rows(run.ensemble, loader, tasks, shots)

    def predict_known() -> np.ndarray:
        return predict_rows(run.ensemble, loader, Tasks.of(data, "known"))[0]

    frames = {"history": _history(path), "cost": _cost(run, seconds)}
    if seed == plan.seeds[0] and run.ensemble.members[0].network.user.width:
        frames["embeddings"] = _embeddings(run, loader, tasks, data)
    predicts = None if run.rater is None else predict
    orders = (
        orders_of(run, BlindedDataset(data, "items")) if can_be_ranked(run, len(tasks), data.manifest.items) else None
    )
    known = None if predicts is None else predict_known
    rate_U = predict(None)[1] if run.rater is None else None
    scores = score(
        data,
        entry.name,
        predicts,
        few=True,
        orders=orders,
        liked=plan.liked,
        predict_known=known,
        rate_U=rate_U,
    )
    return scores, frames


def _history(run: Path) -> pl.DataFrame:
    """One row per epoch."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    metric = next((name for line in lines for name in line if name.startswith("validation_")), "validation_mse")
    schema = dict.fromkeys(("loss", "validation", "seconds", "users_per_second"), pl.Float64)
    rows = [{**line, "validation": line.get(metric)} for line in lines]
    columns = ("epoch", *schema)
    return pl.DataFrame(
        [{name: row.get(name) for name in columns} for row in rows], schema={"epoch": pl.Int64, **schema}
    )


def _cost(run: Run, seconds: float) -> pl.DataFrame:
    """Training time, validation included; if training was interrupted, at least the time of its training steps."""
    history = _history(run.path)
    steps = float(history["seconds"].sum())
    return pl.DataFrame(
        {
            "fit_seconds": [max(seconds, steps)],
            "seconds_per_epoch": [steps / max(len(history), 1)],
            "users_per_second": [history["users_per_second"].median()],
            "refit_seconds": [None],
        },
        schema_overrides={"users_per_second": pl.Float64, "refit_seconds": pl.Float64},
    )


@torch.no_grad()
def _embeddings(run: Run, loader: Loader, tasks: Tasks, data: Dataset) -> pl.DataFrame:
    """User embeddings h of some test users, from the ensemble's first member."""
    some = tasks.part(0, EMBEDDED_USERS)
    users = data.users().slice(some.first, len(some)).select("user", "group").collect()
    network = run.ensemble.members[0].network
    vectors = np.zeros((len(some), network.user.width), dtype=np.float32)
    for task_batch in some.stored(256):
        batch = loader.load(task_batch)
        vectors[batch.user_B - some.first] = network.embed_users(batch.users).numpy(force=True)
    return users.with_columns(vector=pl.Series(vectors).arr.to_list())


@contextmanager
def _peak_memory() -> Iterator[list[float | None]]:
    """By how many MB the process grew within the block, at its peak; None where the system does not say."""
    peak: list[float | None] = [None]
    gc.collect()
    return_freed_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
        before = _status("VmRSS")
    except OSError:
        yield peak
        return
    yield peak
    peak[0] = max(_status("VmHWM") - before, 0.0)


def _status(name: str) -> float:
    """A size in MB that Linux reports for this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1e3
