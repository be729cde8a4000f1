"""Methods x seeds -> rows -> statistics -> report: which is best, by how much, for whom, at what cost, and is it real?

A comparison is a folder; every finished cell (an entry with one seed) lies in it whole, so that a killed comparison
continues where it was and a report can be made of what there is. Every seed has its own split of the users, unless the
same split is asked for; within a seed all entries see the same rows.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from paml.baselines import BASELINES, baselines_for, find_baseline
from paml.cells import Entry, cell_name, run_cell
from paml.data.prepared import PreparedData
from paml.data.resplit import resplit
from paml.errors import SettingsError, nearest
from paml.files import write_text
from paml.methods import METHODS, find_method
from paml.progress import SILENT, Progress, Step
from paml.recipe import load_recipe
from paml.report import write_report
from paml.results import FORMAT, read_plan, summarise_comparison

FRAMES = ("rows", "scenarios", "predictions", "embeddings", "history", "cost")
ABLATION = (
    *(f"reg_paml gamma={gamma}" for gamma in ("1e-5", "1e-4", "1e-3", "1e-2")),
    "reg_paml outer_rate=5e-4",
)
"""The paper's ablation of gamma, and its failure case."""


def compare(
    data: PreparedData | str | Path,
    methods: Sequence[str] = tuple(METHODS),
    seeds: int = 3,
    recipe: str = "default",
    *,
    out: str | Path,
    baselines: Sequence[str] | None = None,
    variants: Sequence[str] = (),
    same_split: bool = False,
    group_by: str | None = None,
    progress: Progress = SILENT,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Fit every method, variant and baseline with every seed, and return what `out/results.json` holds.

    >>> results = paml.compare(data, ["melu", "reg_paml"], seeds=3, out="comparison")
    """
    data = data if isinstance(data, PreparedData) else PreparedData.open(data)
    kind = data.schema.target.kind
    chosen = list(baselines_for(kind)) if baselines is None else list(baselines)
    entries = [Entry(find_baseline(name).name) for name in chosen]
    entries += [Entry(name, name) for name in methods if find_method(name)]
    entries += [Entry.variant(text) for text in variants]
    _check(data, entries, kind, recipe, group_by, settings or {})
    if seeds < 1:
        raise SettingsError(f"{seeds} seeds", remedy="at least one")
    first, end = data.manifest.splits["test"]
    if first == end:
        raise SettingsError(
            "the data set has no test users", where=data.path, remedy="prepare it with another user_ratio"
        )
    folder = Path(out)
    plan = _plan(data, entries, seeds, recipe, same_split, group_by, settings or {})
    _open_folder(folder, plan)
    _run_grid(data, folder, plan, entries, progress)
    return refresh(folder)


def refresh(folder: str | Path) -> dict[str, Any]:
    """Gather the finished cells, and write results and report anew."""
    folder = Path(folder)
    plan = read_plan(folder)
    _gather(folder, plan)
    results = summarise_comparison(folder)
    write_text(folder / "results.json", json.dumps(results, indent=1, allow_nan=False) + "\n")
    write_report(folder)
    return results


def _check(
    data: PreparedData, entries: list[Entry], kind: str, recipe: str, group_by: str | None, settings: Mapping[str, Any]
) -> None:
    """Everything that can be wrong is found before the first cell is begun."""
    if not entries:
        raise SettingsError("nothing to compare", remedy="name methods or baselines")
    names = [entry.name for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingsError(f"'{twice[0]}' twice", remedy="name each entry once")
    for entry in entries:
        if entry.method is None:
            if kind not in BASELINES[entry.name].kinds:
                known = baselines_for(kind)
                raise SettingsError(
                    f"baseline '{entry.name}' does not predict a {kind}", remedy=nearest(entry.name, known)
                )
        else:
            load_recipe(recipe, entry.method, {**settings, **(entry.settings or {})}, data.manifest.source.name)
    fields = [field.name for field in data.schema.features("user")]
    if group_by is not None and group_by not in fields:
        remedy = nearest(group_by, fields) if fields else "the data set has no user fields"
        raise SettingsError(f"no user field '{group_by}' to group by", remedy=remedy)


def _plan(
    data: PreparedData,
    entries: list[Entry],
    seeds: int,
    recipe: str,
    same_split: bool,
    group_by: str | None,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    manifest = data.manifest
    plan = {
        "format": FORMAT,
        "data": {
            "path": str(data.path.resolve()),
            "fingerprint": data.fingerprint,
            "source": manifest.source.name,
            "target": data.schema.target.kind,
            "users": manifest.users,
            "items": manifest.items,
            "interactions": manifest.interactions,
        },
        "recipe": recipe,
        "settings": dict(settings),
        "seeds": list(range(seeds)),
        "same_split": same_split,
        "baselines": [entry.name for entry in entries if entry.method is None],
        "methods": [entry.name for entry in entries if entry.method == entry.name],
        "variants": {
            entry.name: {"method": entry.method, "settings": dict(entry.settings or {})}
            for entry in entries
            if entry.method is not None and entry.method != entry.name
        },
        "group_by": group_by,
    }
    as_stored: dict[str, Any] = json.loads(json.dumps(plan))
    return as_stored


def _open_folder(folder: Path, plan: Mapping[str, Any]) -> None:
    """Begin a comparison, or continue one that was begun with the same data, recipe and settings."""
    if (folder / "plan.json").exists():
        found = read_plan(folder)
        if found["data"]["fingerprint"] != plan["data"]["fingerprint"]:
            raise SettingsError("was begun with another data set", where=folder, remedy="choose another --out")
        for name, what in (
            ("recipe", "another recipe"),
            ("settings", "other settings"),
            ("same_split", "other splits"),
        ):
            if found[name] != plan[name]:
                raise SettingsError(f"was begun with {what}", where=folder, remedy="choose another --out")
    elif folder.exists() and any(folder.iterdir()):
        raise SettingsError("is no comparison, and not empty", where=folder, remedy="choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "plan.json", json.dumps(plan, indent=1) + "\n")


def _run_grid(
    data: PreparedData, folder: Path, plan: Mapping[str, Any], entries: list[Entry], progress: Progress
) -> None:
    """Every cell that is not there yet, seed by seed, so that early reports compare all entries."""
    cells = [(entry, seed) for seed in plan["seeds"] for entry in entries]
    todo = [cell for cell in cells if not (folder / "cells" / cell_name(cell[0].name, cell[1])).exists()]
    took: dict[str, float] = {}
    with progress.step("comparing", len(cells)) as step:
        step.advance(len(cells) - len(todo))
        for number, (entry, seed) in enumerate(todo):
            note = f"{entry.name}, seed {seed}{_time_left(todo[number:], took)}"
            step.advance(0, note)
            started = time.perf_counter()
            split = _split(data, folder, plan, seed)
            run_cell(split, folder, plan, entry, seed, _Inside(step, note))
            took[entry.name] = time.perf_counter() - started
            step.advance(1)


def _time_left(todo: list[tuple[Entry, int]], took: Mapping[str, float]) -> str:
    """From how long the same entries took with other seeds; before that is known, from all that is."""
    if not took:
        return ""
    typical = float(np.mean(list(took.values())))
    minutes = sum(took.get(entry.name, typical) for entry, _ in todo) / 60
    return f", about {minutes:.0f} min left" if minutes >= 1 else ", less than a minute left"


class _Inside(Progress):
    """The progress of one training, told as a note of the whole comparison's."""

    def __init__(self, outer: Step, title: str) -> None:
        self._outer, self._title = outer, title

    @contextmanager
    def step(self, title: str, total: int | None = None, *, in_bytes: bool = False) -> Iterator[Step]:
        """Pass notes on."""
        outer, prefix = self._outer, self._title

        class Inner(Step):
            def advance(self, amount: int = 1, note: str = "") -> None:
                outer.advance(0, f"{prefix} · {note}" if note else prefix)

        yield Inner()


def _split(data: PreparedData, folder: Path, plan: Mapping[str, Any], seed: int) -> PreparedData:
    """The data set as it is for seed 0, split anew for the others."""
    if plan["same_split"] or seed == 0:
        return data
    path = folder / "splits" / str(seed)
    return PreparedData.open(path) if path.exists() else resplit(data, data.manifest.protocol.seed + seed, path)


def _gather(folder: Path, plan: Mapping[str, Any]) -> None:
    """One file of each kind from the finished cells of the plan, in the plan's order."""
    names = [*plan["baselines"], *plan["methods"], *plan["variants"]]
    cells = [folder / "cells" / cell_name(name, seed) for name in names for seed in plan["seeds"]]
    for frame in FRAMES:
        files = [cell / f"{frame}.parquet" for cell in cells if (cell / f"{frame}.parquet").exists()]
        target = folder / f"{frame}.parquet"
        if not files:
            target.unlink(missing_ok=True)
            continue
        partial = folder / f".{frame}.parquet.partial"
        pl.concat([pl.read_parquet(file) for file in files], how="diagonal_relaxed").write_parquet(partial)
        partial.replace(target)
