"""What `paml tune` searches: the settings and ranges of a method (methods/spaces.py), or those of a TOML file.

Whether a range has whole numbers follows from the setting's own type, and every bound and choice must be a value that
the recipe accepts. In a file:

    [outer_rate]
    low = 1e-4
    high = 1e-2
    log = true

    [hidden]
    among = ["64,32", "128,64"]
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paml.errors import SettingsError, nearest
from paml.methods.registry import find_method
from paml.methods.spaces import Among, Choice, Range, Space
from paml.settings import build, read_toml
from paml.training.recipe import Recipe


def space_for(method: str, held: Iterable[str], file: str | Path | None = None) -> Space:
    """What is searched for a method: its own space, or a file's, without the settings that are held fixed."""
    held = set(held)
    if file is None:
        space = {name: range_ for name, range_ in _own_space(method).items() if name not in held}
    else:
        space = read_space(Path(file))
        both = sorted(held & set(space))
        if both:
            remedy = "remove it from one of the two"
            raise SettingsError(f"setting '{both[0]}' is both searched and held fixed", where=file, remedy=remedy)
    if not space:
        raise SettingsError("nothing to search: all settings are held fixed", where=file, remedy="leave some free")
    return space


def _own_space(method: str) -> Space:
    """A method's own space; somebody else's may name settings or values that recipes do not have."""
    space = find_method(method).space
    for name, range_ in space.items():
        if name not in Recipe.model_fields:
            what = f"the search space of '{method}' has the unknown setting '{name}'"
            raise SettingsError(what, remedy=nearest(name, Recipe.model_fields))
        for value in range_.choices if isinstance(range_, Among) else (range_.low, range_.high):
            _accepted(name, value)
    return space


def read_space(path: Path) -> Space:
    """A space from a TOML file, every entry checked."""
    space = {}
    for name, entry in read_toml(path).items():
        try:
            space[name] = _parse(name, entry)
        except SettingsError as error:
            raise SettingsError(error.what, where=path, remedy=error.remedy) from None
    return space


def place(name: str, range_: Range | Among, value: Any) -> Choice | None:
    """A setting's value as it stands in the range, None where it lies outside."""
    if isinstance(range_, Range):
        return value if range_.low <= value <= range_.high else None
    wanted = _accepted(name, value)
    return next((choice for choice in range_.choices if _accepted(name, choice) == wanted), None)


def is_whole(name: str) -> bool:
    """Whether a setting is a whole number."""
    return Recipe.model_fields[name].annotation is int


def as_values(space: Space) -> dict[str, dict[str, Any]]:
    """A space as plain values, to store and to compare."""
    return {
        name: asdict(range_) if isinstance(range_, Range) else {"among": list(range_.choices)}
        for name, range_ in space.items()
    }


def _parse(name: str, entry: Any) -> Range | Among:
    if name not in Recipe.model_fields:
        raise SettingsError(f"unknown setting '{name}'", remedy=nearest(name, Recipe.model_fields))
    keys = set(entry) if isinstance(entry, Mapping) else set()
    if keys == {"among"}:
        return _parse_choices(name, entry["among"])
    if not {"low", "high"} <= keys <= {"low", "high", "log"}:
        unknown = sorted(keys - {"low", "high", "log", "among"})
        what = f"'{unknown[0]}' of setting '{name}'" if unknown else f"the range of setting '{name}'"
        raise SettingsError(f"{what} is not understood", remedy="give low and high, perhaps log, or among")
    low, high, log = entry["low"], entry["high"], entry.get("log", False)
    if Recipe.model_fields[name].annotation not in (int, float):
        raise SettingsError(f"setting '{name}' is not a number", remedy="write among = [...]")
    low, high = _accepted(name, low), _accepted(name, high)
    if not isinstance(log, bool) or not low < high or (log and low <= 0):
        remedy = "low must be below high, log true or false, and a logarithmic range must begin above 0"
        raise SettingsError(f"setting '{name}' cannot range from {low:g} to {high:g}", remedy=remedy)
    return Range(low, high, log)


def _parse_choices(name: str, values: Any) -> Among:
    if not isinstance(values, list) or not values:
        raise SettingsError(f"'among' of setting '{name}' is {values!r}", remedy="give a list of values")
    # a list is written as people type it: 64,32
    choices = [",".join(map(str, value)) if isinstance(value, list) else value for value in values]
    accepted = [_accepted(name, choice) for choice in choices]
    if any(value in accepted[:number] for number, value in enumerate(accepted)):
        raise SettingsError(f"setting '{name}' has the same choice twice", remedy="keep one of them")
    return Among(tuple(choices))


def _accepted(name: str, value: Any) -> Any:
    """A value as the recipe parses it, or the recipe's error."""
    return getattr(build(Recipe, {name: value}), name)
