"""Recipes: all settings of a training run, typed; named ones are TOML files in `recipes/`, others your own files.

A recipe file has settings at the top, and tables `[method.NAME]`, `[target.KIND]` and `[source.NAME]` for what differs
by method, by kind of target (rating, click, choice) and by data set; in this order later tables override earlier ones,
and `[source.NAME.method.NAME]` or `[target.choice.method.NAME]` override all; `[method.NAME.choice]` is for the choice
part of a method's runs. A data set's table is about its ratings or clicks, not about choice. A setting that is "auto"
gets its value from the data's size (`sizing.py`).
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from paml.data.dataset import Dataset
from paml.errors import SettingsError, nearest
from paml.methods.registry import LearnerSettings, find_method, tensors_of_a_member
from paml.network.build import DataShape
from paml.settings import Settings, added, build, read_toml
from paml.training.sizing import CHOICE_RULES, EMBEDDED, RULES, DataSize, is_ruled

TABLES = ("method", "target", "source")
CHOICE = "choice"
"""The head of a choice among all items, and the kind of target for its table in a recipe."""
SHARED = ("epochs", "ensemble_size", "batch_size", "exclude_fields", "liked", "unliked_weight", "sampled_items")
"""Settings that, if replaced, are replaced in both parts of a run."""


class OuterSettings(Settings):
    """The outer loop: passes, steps, episodes."""

    epochs: int = Field(20, ge=0, description="passes over the training users")
    batch_size: int = Field(32, gt=0, description="users per outer step")
    outer_rate: float = Field(5e-5, gt=0, description="outer learning rate beta")
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="the outer rate over the epochs: constant, or falling along a cosine"
    )
    optimizer: Literal["adam", "adamw"] = Field("adam", description="outer optimiser")
    weight_decay: float = Field(0.0, ge=0, description="weight decay in the outer step, except for biases and rates")
    ema_decay: float = Field(
        0.0, ge=0, lt=1, description="weights are averaged over outer steps with this decay; 0 for none"
    )
    clip_norm: float = Field(0.0, ge=0, description="largest norm of the outer gradient; 0 for no limit")
    patience: int = Field(
        0, ge=0, description="stop after this many epochs without improvement on validation; 0: never"
    )
    random_support: bool = Field(False, description="train with a random share of support rows instead of a fixed one")
    support_share: float = Field(0.8, gt=0, lt=1, description="share of support rows in training episodes")
    sampled_items: int = Field(
        8192, gt=0, description="items drawn per training batch for head=choice, in catalogues of more than 20,000"
    )
    few_shot_share: float = added(
        0.0,
        "share of training episodes with a log-uniform number of support rows, from 0 to all but one",
        ge=0,
        le=1,
    )


class PartSettings(Settings):
    """What else a run consists of."""

    choice_part: bool = Field(
        False, description="also learn which items users choose, and order lists by that and the predicted rating"
    )
    choice_method: str = Field("", description="the method of that part; the same if empty")


class Recipe(PartSettings, OuterSettings, LearnerSettings):
    """All settings of a training run; the defaults are the paper's table of hyper-parameters.

    Each component has its own settings, defined beside what they build; a recipe is all of them, flat.
    """


def recipe_names() -> list[str]:
    """The named recipes that come with the package."""
    entries = files("paml.training").joinpath("recipes").iterdir()
    return sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml"))


def load_recipe(
    recipe: str | Path,
    method: str,
    overrides: Mapping[str, Any],
    source: str = "",
    target: str = "rating",
    size: DataSize = EMBEDDED,
) -> Recipe:
    """A recipe, by name or as a .toml file, for a method and a data set, with some settings replaced."""
    values, overrides = _read(recipe), _of_part(overrides, target)
    if target == CHOICE and CHOICE not in values.get("target", {}) and values.get("head") != CHOICE:
        values = _read("tuned")  # a recipe for ratings alone, such as one that a search has found
    source = "" if target == CHOICE else source
    tables = {kind: values.pop(kind, {}) for kind in TABLES}
    for kind, name in zip(TABLES, (method, target, source), strict=True):
        values |= tables[kind].get(name, {})
    values |= values.pop("method", {}).get(method, {})
    values.pop(CHOICE, None)  # of the method's table: for the choice part of its runs
    return _sized({**values, **overrides}, size)


def _of_part(overrides: Mapping[str, Any], target: str) -> dict[str, Any]:
    """The replaced settings of one part: `choice.NAME` is for the choice part, and others for both only if SHARED."""
    prefix = f"{CHOICE}."
    for name in overrides:
        if name.startswith(prefix) and name.removeprefix(prefix) not in Recipe.model_fields:
            known = [f"{prefix}{one}" for one in Recipe.model_fields]
            raise SettingsError(f"unknown setting '{name}'", remedy=nearest(name, known))
    common = {name: value for name, value in overrides.items() if not name.startswith(prefix)}
    if target != CHOICE:
        return common
    if common.get("head") != CHOICE:  # the choice part of a run, not a run of its own
        common = {name: value for name, value in common.items() if name in SHARED}
    own = {name.removeprefix(prefix): value for name, value in overrides.items() if name.startswith(prefix)}
    return {**common, **own}


def settings_of_choice(overrides: Mapping[str, Any]) -> list[str]:
    """Those of the replaced settings that are for the choice part alone."""
    return [name for name in overrides if name.startswith(f"{CHOICE}.")]


WITH_PART = "leave it out, or set choice_part=true where items are rated or clicked"


def require_read(overrides: Mapping[str, Any], *, chooses: bool, who: str, remedy: str = WITH_PART) -> None:
    """Raise a SettingsError for settings of the choice part where there is none: nobody would read them."""
    if (unread := settings_of_choice(overrides)) and not chooses:
        raise SettingsError(f"'{unread[0]}' is for the choice part, which {who} not have", remedy=remedy)


def choice_recipe(
    recipe: str | Path, method: str, overrides: Mapping[str, Any], run_method: str, size: DataSize
) -> Recipe:
    """The recipe of the choice part, by `method`, of a run of `run_method`, whose table may have a table for it."""
    own = _read(recipe).get("method", {}).get(run_method, {}).get(CHOICE, {})
    given = {**{f"{CHOICE}.{name}": value for name, value in own.items()}, **overrides}
    given |= {f"{CHOICE}.{name}": value for name, value in overrides.items() if name in SHARED}
    given |= {name: value for name, value in overrides.items() if name.startswith(f"{CHOICE}.")}
    return load_recipe(recipe, method, given, target=CHOICE, size=size)


def recipe_for(data: Dataset, recipe: str | Path, method: str, overrides: Mapping[str, Any]) -> Recipe:
    """The recipe of a method for a prepared data set; with `head=choice`, for a choice among all items.

    On a data set of choices a run is the choice part of the method's runs, and all settings are for that.
    """
    if data.schema.target.kind == CHOICE and overrides.get("head") != CHOICE:
        _require_choices(recipe)
        own = {f"{CHOICE}.{name}": value for name, value in overrides.items() if name in Recipe.model_fields}
        chooser = trained_method(CHOICE, recipe, method, overrides)
        return choice_recipe(recipe, chooser, {"head": CHOICE, **overrides, **own}, method, DataSize.of(data))
    target = CHOICE if overrides.get("head") == CHOICE else data.schema.target.kind
    return load_recipe(recipe, method, overrides, data.manifest.source.name, target, DataSize.of(data))


def trained_method(kind: str, recipe: str | Path, method: str, overrides: Mapping[str, Any]) -> str:
    """The method that a run trains: itself but, on choices, the one of the choice part of its runs.

    With `head=choice` it is the method itself, whatever the kind of target.
    """
    if kind != CHOICE or overrides.get("head") == CHOICE:
        return method
    given = {name: value for name, value in overrides.items() if name == "choice_method"}
    return load_recipe(recipe, method, {"head": CHOICE, **given}, target=CHOICE).choice_method or method


def parts_of(
    data: Dataset, recipe: str | Path, method: str, overrides: Mapping[str, Any]
) -> dict[str, tuple[str, Recipe]]:
    """Method and recipe of the parts of a run: of the run itself, by the name "", and of its choice part."""
    values = recipe_for(data, recipe, method, overrides)
    require_read(overrides, chooses=values.choice_part or values.head == CHOICE, who="this run does")
    trained = trained_method(data.schema.target.kind, recipe, method, overrides)
    find_method(trained)
    parts = {"": (trained, values)}
    if values.choice_part and values.head != CHOICE:
        chooser = values.choice_method or method
        find_method(chooser)
        choice = choice_recipe(recipe, chooser, overrides, method, DataSize.of(data))
        if choice.exclude_fields != values.exclude_fields:
            raise SettingsError("both parts of a run have the same fields", remedy="set exclude_fields for both")
        parts[CHOICE] = chooser, choice
    _require_validation(data, overrides)
    return parts


def _require_validation(data: Dataset, overrides: Mapping[str, Any]) -> None:
    """Refuse patience that is asked for where nobody validates; a recipe's own is for data sets of all kinds."""
    first, end = data.manifest.splits["validation"]
    asked = next((name for name in ("patience", f"{CHOICE}.patience") if overrides.get(name, 0) not in (0, "0")), None)
    if asked is not None and first == end:
        what = f"{asked} is {overrides[asked]}, and the data set has no validation users to stop by"
        raise SettingsError(what, where=data.path, remedy="leave it out, or prepare the data with another user_ratio")


def check_parts(data: Dataset, recipe: str | Path, method: str, overrides: Mapping[str, Any]) -> Recipe:
    """Raise a SettingsError unless the networks of a run could be built, and without building any; the run's recipe."""
    parts = parts_of(data, recipe, method, overrides)
    for trained, values in parts.values():
        with suppress(RuntimeError, MemoryError):  # too large: a failure of its own when it is built
            tensors_of_a_member(trained, DataShape.of(data, values.exclude_fields), values)
    return parts[""][1]


def _require_choices(recipe: str | Path) -> None:
    """Raise a SettingsError if a recipe is for ratings alone."""
    values = _read(recipe)
    if CHOICE not in values.get("target", {}) and values.get("head") != CHOICE:
        remedy = "use the recipe tuned, or add [target.choice] to your own"
        raise SettingsError(f"the recipe '{recipe_label(recipe)}' says nothing about choices", remedy=remedy)


def _sized(values: Mapping[str, Any], size: DataSize) -> Recipe:
    """The settings, with numbers for those that are left to a rule."""
    ruled = [name for name, value in values.items() if is_ruled(name, value)]
    given = {name: value for name, value in values.items() if name not in ruled}
    if not ruled:
        return build(Recipe, given)
    partial = build(Recipe, given)
    rules, inputs = CHOICE_RULES if partial.head == CHOICE else RULES, size.without(partial.exclude_fields)
    return build(Recipe, {**given, **{name: rules[name](inputs) for name in ruled}})


def recipe_digest(recipe: str | Path) -> str:
    """SHA-256 of a recipe's content, to detect another recipe of the same name."""
    return hashlib.sha256(json.dumps(_read(recipe), sort_keys=True).encode()).hexdigest()


def recipe_label(recipe: str | Path) -> str:
    """A recipe's name, or that of its file, for use in folder names."""
    return Path(recipe).name.removesuffix(".toml")


def _read(recipe: str | Path) -> dict[str, Any]:
    """A recipe's content; a user's own file is checked as a whole, with its tables for other methods and sources."""
    if not str(recipe).endswith(".toml"):
        if recipe not in recipe_names():
            raise SettingsError(f"unknown recipe '{recipe}'", remedy=nearest(str(recipe), recipe_names()))
        return tomllib.loads(files("paml.training").joinpath("recipes", f"{recipe}.toml").read_text(encoding="utf-8"))
    path = Path(recipe)
    values = read_toml(path)
    common = {name: value for name, value in values.items() if name not in TABLES}
    parts = [common]
    for kind in TABLES:
        for name, table in _tables(values, kind, kind, path).items():
            nested = kind == "source" or (kind, name) == ("target", CHOICE)
            within = _tables(table, "method", f"{kind}.{name}.method", path) if nested else {}
            if kind == "method" and isinstance(table.get(CHOICE), dict):
                within = {CHOICE: table[CHOICE]}
            inner = CHOICE if kind == "method" else "method"
            own = {setting: value for setting, value in table.items() if not within or setting != inner}
            parts += [{**common, **own}, *({**common, **own, **one} for one in within.values())]
    for part in parts:
        try:
            _sized(part, EMBEDDED)
        except SettingsError as error:
            raise SettingsError(error.what, where=path, remedy=error.remedy) from None
    return values


def _tables(values: Mapping[str, Any], key: str, name: str, path: Path) -> dict[str, dict[str, Any]]:
    """The tables under a key; anything else is an error."""
    tables = values.get(key, {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise SettingsError(f"'{name}' is not a table of tables", where=path, remedy=f"write [{name}.NAME]")
    return tables
