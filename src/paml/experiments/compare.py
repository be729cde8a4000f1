"""Methods x seeds -> rows -> statistics -> report: which is best, by how much, for whom, at what cost, and is it real?

A comparison is a folder; every finished cell (an entry with one seed) is stored in it whole, so that a killed
comparison continues where it stopped and a report can be made of what is finished. Every seed has its own split of the
users, unless the same split is requested; within a seed all entries see the same rows.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from paml.analysis.plan import Entry, Plan, cell_folder
from paml.analysis.results import MissingCell, Results, write_failures
from paml.data.dataset import Dataset
from paml.data.resplit import resplit
from paml.errors import TrainingError
from paml.experiments.cells import run_cell
from paml.experiments.environment import record_environment
from paml.experiments.plan import choose_entries, make_plan, open_comparison
from paml.files import make_folder
from paml.locks import NAME as LOCK, hold
from paml.progress import Inside, Progress, chosen
from paml.report.refresh import refresh
from paml.training.keywords import CompareSettings

ABLATION = (
    *(f"reg_paml gamma={gamma}" for gamma in ("1e-5", "1e-4", "1e-2")),
    "at_paml outer_rate=5e-4",
    "paml outer_rate=5e-5",
    "reg_paml head=classes",
)
"""The paper's ablation of gamma (1e-3 is REG-PAML itself) and its failure case; PAML with the outer rate of the other
two (its own is a tenth of theirs); and the second reading of the paper's last layer, a softmax over the levels."""


def compare(
    data: Dataset | str | Path,
    methods: Sequence[str] | None = None,
    seeds: int = 3,
    recipe: str | Path = "tuned",
    *,
    out: str | Path,
    reuse: bool = True,
    baselines: Sequence[str] | None = None,
    variants: Sequence[str] = (),
    same_split: bool = False,
    group_by: str | None = None,
    liked: float | None = None,
    progress: Progress | bool | None = None,
    settings: Mapping[str, Any] | None = None,
    **more: Unpack[CompareSettings],
) -> Results:
    """Fit every method, variant and baseline with every seed; write results, tables and a report to `out`.

    Without `methods`, all are compared (with the recipe `paper`, the paper's six); without `baselines`, all whose
    packages are installed. `variants` are methods with other settings (`"reg_paml gamma=0.01"`); `settings` and further
    keywords replace the recipe's in all methods. Each seed has its own split of the users, unless `same_split`;
    `group_by` is a user field whose values are also compared. `liked` is the lowest target of an item that belongs on a
    user's list (by default three quarters of the scale: 4 of 5). A comparison of the same data and settings in `out` is
    continued, extended by new entries and seeds, or returned if it is finished, unless `reuse=False`. A training that
    diverges is excluded with the reason, and the others go on. `progress` is as in `paml.train`.

    >>> results = paml.compare(data, ["melu", "reg_paml"], seeds=3, out="comparison")
    >>> results.verdict
    """
    data, shown = Dataset.of(data), chosen(progress)
    data.verify_once(shown)
    entries = choose_entries(data.schema.target.kind, recipe, methods, baselines, variants)
    wanted = make_plan(
        data,
        entries,
        seeds,
        recipe,
        same_split=same_split,
        group_by=group_by,
        settings={**(settings or {}), **more},
        liked=liked,
    )
    folder = Path(out)
    make_folder(folder)
    with hold(folder / LOCK, folder, "comparing in it"):
        run_grid(data, folder, open_comparison(folder, wanted, reuse=reuse), shown)
        return refresh(folder)


def run_grid(data: Dataset, folder: Path, plan: Plan, progress: Progress) -> None:
    """Run every cell that is not finished yet, seed by seed, so that early reports compare all entries."""
    cells = [(entry, seed) for seed in plan.seeds for entry in plan.entries]
    todo = [(entry, seed) for entry, seed in cells if not cell_folder(folder, entry.name, seed).exists()]
    if todo:
        record_environment(folder)
    took: dict[str, tuple[bool, float]] = {}
    failures: list[MissingCell] = []
    with progress.step("comparing", len(cells)) as step:
        step.advance(len(cells) - len(todo))
        for number, (entry, seed) in enumerate(todo):
            note = f"{entry.name}, seed {seed}{_time_left(todo[number:], took)}"
            step.advance(0, note)
            started = time.perf_counter()
            split = _split(data, folder, plan, seed)
            try:
                run_cell(split, folder, plan, entry, seed, Inside(step, note))
            except TrainingError as error:
                failures.append(MissingCell(method=entry.name, seed=seed, reason=error.what))
            took[entry.name] = entry.learned, time.perf_counter() - started
            step.advance(1)
    write_failures(folder, failures)


def _time_left(todo: list[tuple[Entry, int]], took: Mapping[str, tuple[bool, float]]) -> str:
    """Estimated from the same entries with other seeds or, without any, from entries of the same kind."""
    seconds = 0.0
    for entry, _ in todo:
        alike = [spent for learned, spent in took.values() if learned == entry.learned]
        if not alike:
            return ""  # nothing of its kind was fitted yet
        seconds += took[entry.name][1] if entry.name in took else float(np.mean(alike))
    return f", about {seconds / 60:.0f} min left" if seconds >= 60 else ", less than a minute left"


def _split(data: Dataset, folder: Path, plan: Plan, seed: int) -> Dataset:
    """The data set as it is for seed 0, with another split for each other seed."""
    if plan.same_split or seed == 0:
        return data
    path = folder / "splits" / str(seed)
    split = Dataset.open(path) if path.exists() else resplit(data, data.manifest.protocol.seed + seed, path)
    split.verify_once()
    return split
