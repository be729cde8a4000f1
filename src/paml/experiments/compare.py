"""Methods x seeds -> rows -> statistics -> report: which is best, by how much, for whom, at what cost, and is it real?

A comparison is a folder; every finished cell (an entry with one seed) lies in it whole, so that a killed comparison
continues where it was and a report can be made of what there is. Every seed has its own split of the users, unless the
same split is asked for; within a seed all entries see the same rows.
"""

import json
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from paml.analysis.results import FORMAT, read_plan, summarise_comparison
from paml.baselines import BASELINES, baselines_for, find_baseline
from paml.data.dataset import Dataset
from paml.data.resplit import resplit
from paml.errors import SettingsError, TrainingError, nearest
from paml.experiments.cells import Entry, cell_name, run_cell
from paml.files import write_text
from paml.methods.registry import find_method, methods_of
from paml.progress import SILENT, Inside, Progress
from paml.report import write_report
from paml.training.recipe import load_recipe, recipe_digest

FRAMES = ("rows", "scenarios", "predictions", "embeddings", "history", "cost")
ABLATION = (
    *(f"reg_paml gamma={gamma}" for gamma in ("1e-5", "1e-4", "1e-2")),
    "reg_paml outer_rate=5e-4",
)
"""The paper's ablation of gamma (1e-3 is REG-PAML itself), and its failure case."""


def compare(
    data: Dataset | str | Path,
    methods: Sequence[str] | None = None,
    seeds: int = 3,
    recipe: str | Path = "tuned",
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

    Without `methods`, all are taken (of the recipe `paper`, the paper's six); without `baselines`, all whose packages
    are installed. A training that diverges is left out with the reason, and the others go on.

    >>> results = paml.compare(data, ["melu", "reg_paml"], seeds=3, out="comparison")
    """
    data = data if isinstance(data, Dataset) else Dataset.open(data)
    kind = data.schema.target.kind
    known = baselines_for(kind)
    chosen = [name for name in known if known[name].is_installed()] if baselines is None else list(baselines)
    entries = [Entry(find_baseline(name).name) for name in chosen]
    wanted = methods_of(str(recipe)) if methods is None else methods
    entries += [Entry(name, name) for name in wanted if find_method(name)]
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
    plan = _open_folder(folder, plan)
    _run_grid(data, folder, plan, _entries(plan), progress)
    return refresh(folder)


def refresh(folder: str | Path) -> dict[str, Any]:
    """Gather the finished cells, and write results and report anew."""
    folder = Path(folder)
    plan = read_plan(folder)
    _gather(folder, plan)
    results = summarise_comparison(folder)
    found = {name: value for name, value in results.items() if name != "cost"}
    for name, part in (("results", found), ("costs", results["cost"])):
        write_text(folder / f"{name}.json", json.dumps(part, indent=1, allow_nan=False) + "\n")
    write_report(folder)
    return results


def _check(
    data: Dataset,
    entries: list[Entry],
    kind: str,
    recipe: str | Path,
    group_by: str | None,
    settings: Mapping[str, Any],
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
            BASELINES[entry.name].require(kind)
        else:
            load_recipe(recipe, entry.method, {**settings, **(entry.settings or {})}, data.manifest.source.name, kind)
    fields = [field.name for field in data.schema.features("user")]
    if group_by is not None and group_by not in fields:
        remedy = nearest(group_by, fields) if fields else "the data set has no user fields"
        raise SettingsError(f"no user field '{group_by}' to group by", remedy=remedy)


def _plan(
    data: Dataset,
    entries: list[Entry],
    seeds: int,
    recipe: str | Path,
    same_split: bool,
    group_by: str | None,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    manifest = data.manifest
    return {
        "format": FORMAT,
        "created_by": f"paml {version('paml')}",
        "data": {
            "path": str(data.path.resolve()),
            "fingerprint": data.fingerprint,
            "source": manifest.source.name,
            "target": data.schema.target.kind,
            "users": manifest.users,
            "items": manifest.items,
            "interactions": manifest.interactions,
        },
        "recipe": str(recipe),
        "recipe_digest": recipe_digest(recipe),
        "settings": {name: _as_typed(value) for name, value in settings.items()},
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


def _as_typed(value: Any) -> str:
    """A setting as people type it on the command line."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _open_folder(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Begin a comparison, or continue one that was begun with the same data, recipe and settings, and add to it.

    Cells of another version are not mixed with ours: they may have been fitted in another way.
    """
    if (folder / "plan.json").exists():
        found = read_plan(folder)
        if found.get("created_by") != plan["created_by"]:
            begun = found.get("created_by", "an unknown version")
            remedy = "choose another folder, or continue with that version"
            what = f"was begun with {begun}, and this is {plan['created_by']}"
            raise SettingsError(what, where=folder, remedy=remedy, argument="out")
        if found["data"]["fingerprint"] != plan["data"]["fingerprint"]:
            raise SettingsError(
                "was begun with another data set", where=folder, remedy="choose another folder", argument="out"
            )
        for name, what in (
            ("recipe", "another recipe"),
            ("recipe_digest", "a recipe of the same name but other content"),
            ("settings", "other settings"),
            ("same_split", "other splits"),
        ):
            if found.get(name) != plan[name]:
                raise SettingsError(
                    f"was begun with {what}", where=folder, remedy="choose another folder", argument="out"
                )
        for name in ("baselines", "methods", "seeds"):
            plan[name] = [*found[name], *(value for value in plan[name] if value not in found[name])]
        plan["variants"] = {**found["variants"], **plan["variants"]}
        plan["group_by"] = plan["group_by"] or found["group_by"]
    elif folder.exists() and any(folder.iterdir()):
        raise SettingsError(
            "is no comparison, and not empty", where=folder, remedy="choose another folder", argument="out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "plan.json", json.dumps(plan, indent=1) + "\n")
    return plan


def _entries(plan: Mapping[str, Any]) -> list[Entry]:
    """Everything that a plan has."""
    plain = [*(Entry(name) for name in plan["baselines"]), *(Entry(name, name) for name in plan["methods"])]
    return plain + [Entry(name, made["method"], made["settings"]) for name, made in plan["variants"].items()]


def _run_grid(data: Dataset, folder: Path, plan: Mapping[str, Any], entries: list[Entry], progress: Progress) -> None:
    """Every cell that is not there yet, seed by seed, so that early reports compare all entries."""
    cells = [(entry, seed) for seed in plan["seeds"] for entry in entries]
    todo = [cell for cell in cells if not (folder / "cells" / cell_name(cell[0].name, cell[1])).exists()]
    took: dict[str, float] = {}
    failures: list[dict[str, Any]] = []
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
                failures.append({"method": entry.name, "seed": seed, "reason": error.what})
            took[entry.name] = time.perf_counter() - started
            step.advance(1)
    write_text(folder / "failures.json", json.dumps(failures, indent=1) + "\n")


def _time_left(todo: list[tuple[Entry, int]], took: Mapping[str, float]) -> str:
    """From how long the same entries took with other seeds; of others, from entries of the same kind."""
    kinds = {entry.name: entry.method is None for entry, _ in todo}
    methods = [seconds for name, seconds in took.items() if not kinds.get(name, name in BASELINES)]
    baselines = [seconds for name, seconds in took.items() if kinds.get(name, name in BASELINES)]
    seconds = 0.0
    for entry, _ in todo:
        alike = baselines if entry.method is None else methods
        if entry.name not in took and not alike:
            return ""  # nothing like it was fitted yet
        seconds += took.get(entry.name) or float(np.mean(alike))
    return f", about {seconds / 60:.0f} min left" if seconds >= 60 else ", less than a minute left"


def _split(data: Dataset, folder: Path, plan: Mapping[str, Any], seed: int) -> Dataset:
    """The data set as it is for seed 0, split anew for the others."""
    if plan["same_split"] or seed == 0:
        return data
    path = folder / "splits" / str(seed)
    return Dataset.open(path) if path.exists() else resplit(data, data.manifest.protocol.seed + seed, path)


def _gather(folder: Path, plan: Mapping[str, Any]) -> None:
    """One file of each kind from the finished cells of the plan, in the plan's order."""
    names = [*plan["baselines"], *plan["methods"], *plan["variants"]]
    cells = [folder / "cells" / cell_name(name, seed) for name in names for seed in plan["seeds"]]
    if not any(cell.exists() for cell in cells):
        return  # a folder that was passed on without its cells keeps what was gathered before
    for frame in FRAMES:
        files = [cell / f"{frame}.parquet" for cell in cells if (cell / f"{frame}.parquet").exists()]
        target = folder / f"{frame}.parquet"
        if not files:
            target.unlink(missing_ok=True)
            continue
        partial = folder / f".{frame}.parquet.partial"
        pl.concat([pl.read_parquet(file) for file in files], how="diagonal_relaxed").write_parquet(partial)
        partial.replace(target)
