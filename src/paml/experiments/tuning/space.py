"""What `paml tune` searches: the settings and their ranges, for every method, or those of a TOML file.

A space is a visible dict, setting -> range. Whether a range has whole numbers follows from the setting's own type, and
every bound and choice must be a value that the recipe accepts. In a file:

    [outer_rate]
    low = 1e-4
    high = 1e-2
    log = true

    [hidden]
    among = ["64,32", "128,64"]
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paml.errors import SettingsError, nearest
from paml.settings import build, read_toml
from paml.training.recipe import Recipe

Choice = str | int | float | bool


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; `log` for settings whose order of magnitude matters."""

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Among:
    """One of a few values."""

    choices: tuple[Choice, ...]


Space = dict[str, Range | Among]

COMMON: Space = {
    "outer_rate": Range(1e-4, 3e-2, log=True),
    "weight_decay": Range(1e-7, 1e-1, log=True),
    "batch_size": Among((16, 32, 64, 128)),
    "embedding_scale": Range(1e-2, 1.0, log=True),
    "item_embedding": Among((8, 16, 32)),
}
GRADIENT: Space = {"inner_steps": Range(1, 5)}
FIXED_RATE: Space = GRADIENT | {"inner_rate": Range(1e-3, 1.0, log=True)}
PERSONAL_RATE: Space = GRADIENT | {"rate_scale": Range(1e-3, 1.0, log=True)}
MEMORY: Space = {
    "kernel_delta": Range(0.05, 10.0, log=True),
    "neighbours": Range(5, 50),
    "neighbours_inference": Range(3, 50),
    "warmup_rate": Range(1e-3, 1.0, log=True),
}
SPACES: dict[str, Space] = {
    "melu": COMMON | FIXED_RATE,
    "meta_sgd": COMMON | FIXED_RATE,
    "transfer": COMMON | FIXED_RATE,
    "paml": COMMON | PERSONAL_RATE,
    "at_paml": COMMON | PERSONAL_RATE | MEMORY,
    "reg_paml": COMMON | PERSONAL_RATE | {"gamma": Range(1e-6, 1e-1, log=True)},
    "ridge": COMMON | {"rate_scale": Range(1e-2, 10.0, log=True)},
}


def space_for(method: str, held: Iterable[str], file: str | Path | None = None) -> Space:
    """What is searched for a method: its own space, or a file's, without the settings that are held fixed."""
    held = set(held)
    if file is None:
        space = {name: range_ for name, range_ in SPACES[method].items() if name not in held}
    else:
        space = read_space(Path(file))
        both = sorted(held & set(space))
        if both:
            remedy = "remove it from one of the two"
            raise SettingsError(f"setting '{both[0]}' is both searched and held fixed", where=file, remedy=remedy)
    if not space:
        raise SettingsError("nothing to search: all settings are held fixed", where=file, remedy="leave some free")
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
