"""The cells of a comparison, several at once: in processes here (`workers.py`), or on a Dask cluster (`cluster.py`)."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paml.analysis.plan import Entry, Plan, cell_folder
from paml.analysis.results import MissingCell
from paml.data.dataset import Dataset
from paml.data.resplit import resplit
from paml.errors import InUse, PamlError, SettingsError, TooLarge, TrainingError
from paml.experiments.cells import run_cell
from paml.experiments.cluster import Cluster
from paml.experiments.workers import WorkerDied, Workers
from paml.progress import Progress, Step

Cell = tuple[Entry, int]
"""An entry and a seed."""
Crew = Workers | Cluster
"""Who does the work."""
FAILURES = (TrainingError, TooLarge, InUse)
"""What is one cell's failure, and no reason to stop the others."""


class CellTimes:
    """How long cells took, and how long the others will take."""

    def __init__(self) -> None:
        self._took: dict[str, tuple[bool, float]] = {}

    def add(self, entry: Entry, seconds: float) -> None:
        """Note a cell that has ended."""
        self._took[entry.name] = entry.learned, seconds

    def of(self, entry: Entry) -> float:
        """How long the entry took with another seed; 0 if it was not fitted yet."""
        return self._took[entry.name][1] if entry.name in self._took else 0.0

    def left(self, todo: Sequence[Cell], jobs: int = 1) -> str:
        """Estimated from the same entries with other seeds or, without any, from entries of the same kind."""
        seconds = 0.0
        for entry, _ in todo:
            alike = [spent for learned, spent in self._took.values() if learned == entry.learned]
            if not alike:
                return ""  # nothing of its kind was fitted yet
            seconds += self.of(entry) or float(np.mean(alike))
        seconds /= jobs
        return f", about {seconds / 60:.0f} min left" if seconds >= 60 else ", less than a minute left"


def split_of(data: Dataset, folder: Path, plan: Plan, seed: int) -> Dataset:
    """The data set as it is for seed 0, with another split for each other seed."""
    if plan.same_split or seed == 0:
        return data
    path = folder / "splits" / str(seed)
    split = Dataset.open(path) if path.exists() else resplit(data, data.manifest.protocol.seed + seed, path)
    split.verify_once()
    return split


def run_cell_of(path: Path, folder: Path, plan: Plan, entry: Entry, seed: int, progress: Progress) -> None:
    """`run_cell` in another process: of the data set in a folder; a cell that a dead process has finished stays."""
    cell = cell_folder(folder, entry.name, seed)
    if cell.exists():
        return
    data = Dataset.open(path)
    data.verify_once()  # before targets are erased, which no digest fits
    try:
        run_cell(data, folder, plan, entry, seed, progress)
    except PamlError:
        if not cell.exists():  # otherwise a process that had been given up has finished it meanwhile
            raise


def cluster_for(address: str, data: Dataset, folder: Path, plan: Plan, threads: int) -> Cluster:
    """A cluster whose workers see what the cells of this plan read and write."""
    recipe = [Path(plan.recipe)] if plan.recipe.endswith(".toml") else []
    for path in recipe:
        if not path.is_absolute():
            remedy = "give its absolute path"
            raise SettingsError("other machines cannot find this recipe", where=path, remedy=remedy, argument="recipe")
    return Cluster(address, folder.resolve(), [data.path.resolve() / "manifest.json", *recipe], threads)


def run_at_once(
    data: Dataset, folder: Path, plan: Plan, todo: Sequence[Cell], step: Step, workers: Crew
) -> list[MissingCell]:
    """Run cells in other processes, as many at once as there are workers; those that failed, in the grid's order.

    Seed by seed, and within a seed those first that took longest before: the last cell is one that others wait for.
    Splits are made here, before the first cell that needs them: two processes would write the same folder.
    """
    waiting, begun = [*todo], {}
    times, failures = CellTimes(), {}
    with workers:
        while waiting or workers.at_work:
            while waiting and workers.is_free:
                entry, seed = cell = _next(waiting, times)
                waiting.remove(cell)
                split = split_of(data, folder, plan, seed)
                begun[entry.name, seed] = cell, time.perf_counter()
                paths = split.path.resolve(), folder.resolve()
                workers.begin((entry.name, seed), run_cell_of, *paths, plan, entry, seed)
            under_way = [begun[key][0] for key, _ in workers.at_work]
            step.advance(0, _note(workers) + times.left([*under_way, *waiting], workers.count))
            for outcome in workers.ended():
                (entry, seed), started = begun[outcome.key]
                try:
                    outcome.result()
                except (*FAILURES, WorkerDied) as error:
                    failures[outcome.key] = MissingCell(method=entry.name, seed=seed, reason=error.what)
                times.add(entry, time.perf_counter() - started)
                step.advance(1)
    return [failures[entry.name, seed] for entry, seed in todo if (entry.name, seed) in failures]


def _next(waiting: Sequence[Cell], times: CellTimes) -> Cell:
    """The longest cell of the first seed; of those that are not known, the first."""
    return max((cell for cell in waiting if cell[1] == waiting[0][1]), key=lambda cell: times.of(cell[0]))


def _note(workers: Crew) -> str:
    """Which cells are under way, and how far each is."""
    return " | ".join(f"{name}, seed {seed}" + (f" · {note}" if note else "") for (name, seed), note in workers.at_work)
