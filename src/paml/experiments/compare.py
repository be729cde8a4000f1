"""Methods x seeds -> rows -> statistics -> report: which is best, by how much, for whom, at what cost, and is it real?

A comparison is a folder; every finished cell (an entry with one seed) is stored in it whole, so that a killed
comparison continues where it stopped and a report can be made of what is finished. Every seed has its own split of the
users, unless the same split is requested; within a seed all entries see the same rows.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from paml.analysis.plan import Plan, cell_folder
from paml.analysis.results import MissingCell, Results, write_failures
from paml.data.dataset import Dataset
from paml.errors import SettingsError
from paml.experiments.cells import run_cell
from paml.experiments.environment import record_environment
from paml.experiments.grid import FAILURES, Cell, CellTimes, Crew, cluster_for, run_at_once, split_of
from paml.experiments.plan import choose_entries, make_plan, open_comparison
from paml.experiments.workers import Workers, check_jobs
from paml.files import make_folder
from paml.locks import NAME as LOCK, hold
from paml.progress import Inside, Progress, Step, chosen
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
    jobs: int = 1,
    threads_per_job: int = 1,
    dask: str | None = None,
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

    With `jobs` above 1, as many cells are fitted at once, in processes of their own with `threads_per_job` threads; a
    cell whose process dies is done again. `dask` is the address of a Dask scheduler, on whose workers cells are fitted
    instead: they must see data set and `out` under the same names.

    >>> results = paml.compare(data, ["melu", "reg_paml"], seeds=3, out="comparison")
    >>> results.verdict
    """
    check_jobs(jobs, threads_per_job)
    if dask is not None and jobs > 1:
        raise SettingsError("jobs and dask are given", remedy="give one: a Dask cluster has workers", argument="dask")
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
        plan = open_comparison(folder, wanted, reuse=reuse)
        crew: Crew | None = None
        if dask is not None:
            crew = cluster_for(dask, data, folder, plan, threads_per_job)
        elif jobs > 1:
            crew = Workers(jobs, threads_per_job)
        run_grid(data, folder, plan, shown, crew, threads_per_job)
        return refresh(folder)


def run_grid(
    data: Dataset, folder: Path, plan: Plan, progress: Progress, crew: Crew | None = None, threads_per_job: int = 1
) -> None:
    """Run every cell that is not finished yet, seed by seed, so that early reports compare all entries.

    Without a crew, one after the other in this process.
    """
    cells = [(entry, seed) for seed in plan.seeds for entry in plan.entries]
    todo = [(entry, seed) for entry, seed in cells if not cell_folder(folder, entry.name, seed).exists()]
    if todo:
        record_environment(folder, None if crew is None else threads_per_job)
    failures: list[MissingCell] = []
    with progress.step("comparing", len(cells)) as step:
        step.advance(len(cells) - len(todo))
        if crew is None:
            failures = _run_one_by_one(data, folder, plan, todo, step)
        elif todo:
            failures = run_at_once(data, folder, plan, todo, step, crew)
    write_failures(folder, failures)


def _run_one_by_one(data: Dataset, folder: Path, plan: Plan, todo: Sequence[Cell], step: Step) -> list[MissingCell]:
    """Run cells in this process; those that failed."""
    times, failures = CellTimes(), []
    for number, (entry, seed) in enumerate(todo):
        note = f"{entry.name}, seed {seed}{times.left(todo[number:])}"
        step.advance(0, note)
        started = time.perf_counter()
        split = split_of(data, folder, plan, seed)
        try:
            run_cell(split, folder, plan, entry, seed, Inside(step, note))
        except FAILURES as error:
            failures.append(MissingCell(method=entry.name, seed=seed, reason=error.what))
        times.add(entry, time.perf_counter() - started)
        step.advance(1)
    return failures
