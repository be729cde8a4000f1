"""The plan of a comparison: made from what is asked for, checked, and put into a folder or found in one.

Every mistake is found before the first cell is begun.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from paml.analysis.plan import (
    DataFacts,
    Entry,
    MetricFacts,
    Plan,
    RateFacts,
    cell_folder,
    in_order,
    read_plan,
    write_plan,
)
from paml.analysis.results import read_failures
from paml.baselines.registry import baselines_for, find_baseline, rankers_for
from paml.data.dataset import Dataset
from paml.errors import SettingsError, nearest
from paml.evaluation.metrics import METRIC_REGISTRY, AnyMetric, exposure_metrics, metrics_for, row_metrics
from paml.evaluation.ranking import relevant_level
from paml.locks import NAME as LOCK
from paml.methods.registry import find_method, methods_of
from paml.settings import build, parse_assignments, require_same, written
from paml.training.recipe import (
    CHOICE,
    Recipe,
    check_parts,
    load_recipe,
    recipe_digest,
    recipe_for,
    require_read,
    settings_of_choice,
    trained_method,
)


def choose_entries(
    kind: str,
    recipe: str | Path,
    methods: Sequence[str] | None,
    baselines: Sequence[str] | None,
    variants: Sequence[str],
) -> list[Entry]:
    """The named entries; without names, all methods of the recipe and all baselines that are installed."""
    chosen = _installed_baselines(kind) if baselines is None else baselines
    wanted = methods_of(str(recipe)) if methods is None else methods
    return [
        *(_baseline(name) for name in chosen),
        *(Entry(name=name, label=find_method(name).label, kind="method", method=name) for name in wanted),
        *(variant(text) for text in variants),
    ]


def variant(text: str) -> Entry:
    """`"reg_paml gamma=0.01"` -> a method with other settings; without settings, the method itself."""
    method, *settings = text.split() or [""]
    return Entry(
        name=" ".join([method, *settings]),
        label=" ".join([find_method(method).label, *settings]),
        kind="variant" if settings else "method",
        method=method,
        settings=parse_assignments(settings),
    )


def _installed_baselines(kind: str) -> list[str]:
    known = baselines_for(kind) | rankers_for(kind)
    return [name for name, baseline in known.items() if baseline.is_installed()]


def _baseline(name: str) -> Entry:
    baseline = find_baseline(name)
    return Entry(name=name, label=baseline.label, kind="reference" if baseline.reference else "baseline")


def make_plan(
    data: Dataset,
    entries: Sequence[Entry],
    seeds: int,
    recipe: str | Path,
    *,
    same_split: bool,
    group_by: str | None,
    settings: Mapping[str, Any],
    liked: float | None = None,
) -> Plan:
    """The plan of a comparison, checked."""
    _check(data, entries, seeds, recipe, group_by, settings)
    level = relevant_level(data.schema.target, liked)
    kind = data.schema.target.kind
    usual = recipe_for(data, recipe, "reg_paml", settings)
    return Plan(
        created_by=f"paml {version('paml')}",
        data=_facts(data),
        recipe=str(recipe),
        recipe_digest=recipe_digest(recipe),
        settings={name: _as_typed(name, value) for name, value in settings.items()},
        gamma=usual.gamma,
        seeds=tuple(range(seeds)),
        same_split=same_split or not data.manifest.protocol.can_be_split_again,
        group_by=group_by,
        liked=level,
        entries=in_order([with_facts(entry, recipe, settings, data.manifest.source.name, kind) for entry in entries]),
        metrics=metric_facts(kind),
        pooled=pooled_facts(kind),
    )


def with_facts(entry: Entry, recipe: str | Path, settings: Mapping[str, Any], source: str, kind: str) -> Entry:
    """An entry and what is known about its users' rates, if it gives each user one, and about its choice part."""
    if entry.method is None:
        return entry
    given = {**settings, **entry.settings}
    chooses = CHOICE in (kind, given.get("head"))
    trained = trained_method(kind, recipe, entry.method, given)
    chosen = load_recipe(
        recipe, trained, {**given, "head": CHOICE} if chooses else given, source, CHOICE if chooses else kind
    )
    method, part = find_method(trained), None
    if chooses or chosen.choice_part:
        part = trained if chooses else chosen.choice_method or entry.method
    largest = method.largest_rate
    rate = None if largest is None else RateFacts(label=method.rate_label, bound=largest(chosen))
    return entry.model_copy(update={"rate": rate, "choice_method": part})


def metric_facts(kind: str) -> tuple[MetricFacts, ...]:
    """What a report must know about the metrics of ratings, or of clicks."""
    return tuple(_metric_facts(metric, metric.label) for metric in metrics_for(kind))


def pooled_facts(kind: str) -> tuple[MetricFacts, ...]:
    """The same for metrics over the rows, or the lists, of all users together."""
    rows = [_metric_facts(metric, metric.pooled) for metric in row_metrics(kind) if metric.pooled is not None]
    return (*rows, *(_metric_facts(metric, metric.label) for metric in exposure_metrics(kind)))


def _metric_facts(metric: AnyMetric, label: str) -> MetricFacts:
    origin = METRIC_REGISTRY.origin(metric.name)
    return MetricFacts(
        name=metric.name,
        label=label,
        better=metric.better,
        digits=metric.digits,
        about=metric.about,
        meaning=metric.meaning,
        package="" if origin is None else str(origin),
    )


def _facts(data: Dataset) -> DataFacts:
    manifest, kind = data.manifest, data.schema.target.kind
    return DataFacts(
        path=str(data.path.resolve()),
        fingerprint=data.fingerprint,
        source=manifest.source.name,
        target=kind,
        users=manifest.users,
        items=manifest.items,
        interactions=manifest.interactions,
    )


def _check(
    data: Dataset,
    entries: Sequence[Entry],
    seeds: int,
    recipe: str | Path,
    group_by: str | None,
    settings: Mapping[str, Any],
) -> None:
    if not entries:
        raise SettingsError("nothing to compare", remedy="name methods or baselines")
    names = [entry.name for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingsError(f"'{twice[0]}' is named twice", remedy="name each entry once")
    kind, choosers = data.schema.target.kind, set[bool]()
    for entry in entries:
        if entry.method is None:
            find_baseline(entry.name).require(kind)
        else:
            choosers.add(_check_method(data, entry.name, entry.method, recipe, settings, entry.settings))
    require_read(settings, chooses=True in choosers, who="the methods here do")
    fields = [field.name for field in data.schema.features("user")]
    if group_by is not None and group_by not in fields:
        remedy = nearest(group_by, fields) if fields else "the data set has no user fields"
        raise SettingsError(f"no user field '{group_by}' to group by", remedy=remedy)
    if seeds < 1:
        raise SettingsError(f"{seeds} seeds", remedy="at least one is needed")
    first, end = data.manifest.splits["test"]
    if first == end:
        remedy = "prepare it with another user_ratio"
        raise SettingsError("the data set has no test users", where=data.path, remedy=remedy)


def _check_method(
    data: Dataset, name: str, method: str, recipe: str | Path, common: Mapping[str, Any], own: Mapping[str, Any]
) -> bool:
    """Raise a SettingsError that names an entry if its networks cannot be built; whether it has a choice part."""
    chosen = recipe_for(data, recipe, method, {**common, **own})
    chooses = chosen.choice_part or chosen.head == CHOICE
    require_read(own, chooses=chooses, who=f"'{name}' does")
    unread = () if chooses else settings_of_choice(common)
    try:
        check_parts(data, recipe, method, {**{key: common[key] for key in common if key not in unread}, **own})
    except SettingsError as error:
        raise SettingsError(f"'{name}': {error.what}", where=error.where, remedy=error.remedy) from None
    return chooses


def _as_typed(name: str, value: Any) -> str:
    """A setting as people type it on the command line, however it was given: 1e-3 is 0.001."""
    plain = name.removeprefix(f"{CHOICE}.")
    with suppress(SettingsError):  # one that fits others alone, or is left to a rule
        value = getattr(build(Recipe, {plain: value}), plain)
    return written(value)


def open_comparison(folder: Path, plan: Plan, *, reuse: bool = True) -> Plan:
    """Begin a comparison in a folder, or continue and extend one of the same data and settings; the whole plan."""
    if (folder / "plan.json").exists():
        if not reuse:
            remedy = "choose another folder, or reuse what is in it"
            raise SettingsError("already has a comparison", where=folder, remedy=remedy, argument="reuse")
        plan = _continued(read_plan(folder), plan, folder)
    elif folder.exists() and any(file.name != LOCK for file in folder.iterdir()):
        raise SettingsError(
            "is neither empty nor a comparison", where=folder, remedy="choose another folder", argument="out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_plan(folder, plan)
    return plan


def _continued(found: Plan, plan: Plan, folder: Path) -> Plan:
    """What a folder was begun with, and what is new.

    Cells of another version are not mixed with ours: they may have been fitted in another way. An entry that has always
    failed is left out if it is not asked for again.
    """
    if found.created_by != plan.created_by:
        what = f"was begun with {found.created_by}, and this is {plan.created_by}"
        raise SettingsError(
            what, where=folder, remedy="choose another folder, or continue with that version", argument="out"
        )
    for same, what in (
        (found.data.fingerprint == plan.data.fingerprint, "another data set"),
        (found.recipe_digest == plan.recipe_digest, _other_recipe(found.recipe, plan.recipe)),
        (found.same_split == plan.same_split, "other splits"),
        (found.metrics == plan.metrics, "other metrics"),
        (math.isclose(found.liked, plan.liked), "another level of liked items"),
    ):
        if not same:
            raise SettingsError(f"was begun with {what}", where=folder, remedy="choose another folder", argument="out")
    before, now = ({k: _as_typed(k, one.settings[k]) for k in one.settings} for one in (found, plan))
    require_same(before, now, folder)
    failed = {name for name, _ in read_failures(folder)}
    kept = [entry for entry in found.entries if entry.name not in failed or _has_cells(folder, entry, found.seeds)]
    entries = {entry.name: entry for entry in (*kept, *plan.entries)}
    return plan.model_copy(
        update={
            "seeds": tuple(dict.fromkeys([*found.seeds, *plan.seeds])),
            "entries": in_order(entries.values()),
            "group_by": plan.group_by or found.group_by,
        }
    )


def _other_recipe(found: str, wanted: str) -> str:
    """What differs if two recipes say different things; a file may be named in several ways."""
    return "another recipe" if found != wanted else "a recipe of the same name but other content"


def _has_cells(folder: Path, entry: Entry, seeds: Sequence[int]) -> bool:
    return any(cell_folder(folder, entry.name, seed).exists() for seed in seeds)
