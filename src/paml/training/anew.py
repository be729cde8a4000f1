"""The command that trains a run of another version again: with the same data, method, seed and settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paml.errors import Again
from paml.settings import assignments
from paml.training.recipe import CHOICE, SHARED, Recipe, choice_recipe, load_recipe, recipe_names
from paml.training.sizing import EMBEDDED


def anew(path: Path, run: Mapping[str, Any], choice: Mapping[str, Any]) -> Again:
    """The command for a run in a folder, by what its settings file says, and that of its choice part if it has one.

    Settings are written out where this version's recipe gives other ones; so are the numbers of rules, because the data
    whose size they go by may be gone, and everything that is from a recipe of the user's own, whose file is not known.
    """
    recipe = run.get("recipe_name")
    recipe = recipe if recipe in recipe_names() else "tuned"
    options = {name: run[name] for name in ("method", "seed") if name in run}
    words = ["train", str(run.get("data_path", "DATA")), *assignments(_given(recipe, run, choice))]
    return Again(words, {**options, "recipe": recipe, "out": f"{path}-new"})


def _given(recipe: str, run: Mapping[str, Any], choice: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the recipe gives otherwise, of both parts."""
    method, stored = str(run.get("method")), _table(run, "recipe")
    head = {"head": CHOICE} if stored.get("head") == CHOICE else {}
    kind = str(_table(_table(run, "data_schema"), "target").get("kind"))
    given = _other(stored, load_recipe(recipe, method, head, target=CHOICE if head else kind)) | head
    if not choice:
        return given
    own = _table(choice, "recipe")
    other = _other(own, choice_recipe(recipe, str(choice.get("method")), {}, method, EMBEDDED))
    shared = {name: own[name] for name in SHARED if name in given and name in own}
    return given | {f"{CHOICE}.{name}": value for name, value in {**other, **shared}.items()}


def _other(stored: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Stored settings that this version knows and its recipe has otherwise; some are not stored at their defaults."""
    fields = Recipe.model_fields
    whole = {name: field.default for name, field in fields.items() if field.exclude_if is not None} | dict(stored)
    now = {name: getattr(recipe, name) for name in fields}
    return {
        name: whole[name]
        for name in fields
        if name in whole and assignments({name: whole[name]}) != assignments({name: now[name]})
    }


def _table(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}
