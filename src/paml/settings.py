"""Typed settings: checked once, then passed on as values. Unknown keys are refused by name."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from paml.errors import SettingsError, nearest, shortened

MAX_DIFFERENCES = 4
"""How many settings a message about other settings names."""


class Settings(BaseModel):
    """Base of every settings class: immutable, no unknown keys, each field with a description."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    def part(self, component: type["S"]) -> "S":
        """The values of one component, where settings combine several."""
        assert isinstance(self, component)
        return component.model_validate({name: getattr(self, name) for name in component.model_fields})


S = TypeVar("S", bound=Settings)


def added(default: Any, description: str, **limits: Any) -> Any:
    """A field that older files do not have: at its default it is not written, so that their fingerprints stay valid."""
    return Field(default, description=description, exclude_if=lambda value: value == default, **limits)


def _parse_list(value: Any) -> Any:
    """`"320,192"` -> two parts."""
    return [part for part in value.split(",") if part] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_parse_list)]
Sizes = Annotated[tuple[Annotated[int, Field(gt=0)], ...], BeforeValidator(_parse_list)]


def build(settings: type[S], values: Mapping[str, Any]) -> S:
    """One settings object, or a SettingsError that names the key, the value and what is expected."""
    try:
        return settings.model_validate(dict(values))
    except ValidationError as error:
        raise _explain(error, settings.model_fields) from None


def build_all(classes: Sequence[type[Settings]], values: Mapping[str, Any]) -> list[Settings]:
    """Hand each key to the class that owns it, so that users type `key=value` without knowing which one does."""
    known = {key: owner for owner in classes for key in owner.model_fields}
    for key in values:
        if key not in known:
            raise SettingsError(f"unknown setting '{key}'", remedy=nearest(key, known))
    return [build(owner, {k: v for k, v in values.items() if known[k] is owner}) for owner in classes]


def require_same(found: Mapping[str, Any], wanted: Mapping[str, Any], where: Path, made: str = "begun") -> None:
    """Raise a SettingsError that names what differs between the settings of a folder and those wanted now."""
    names = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
    if not names:
        return
    shown = [
        f"{name} was {_shown(found.get(name))}, now {_shown(wanted.get(name))}" for name in names[:MAX_DIFFERENCES]
    ]
    if len(names) > MAX_DIFFERENCES:
        shown.append(f"and {len(names) - MAX_DIFFERENCES} more")
    remedy = "repeat what is there, or choose another folder"
    raise SettingsError(
        f"was {made} with other settings ({'; '.join(shown)})", where=where, remedy=remedy, argument="out"
    )


def _shown(value: Any) -> str:
    return "not given" if value is None else shortened(value)


def check_seed(seed: Any) -> None:
    """Raise a SettingsError unless all generators take a seed."""
    if not isinstance(seed, Integral) or not 0 <= int(seed) < 2**63:
        raise SettingsError(f"seed is {shortened(seed)}", remedy="expected a whole number from 0 to 2^63 - 1")


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """`["users=500", "seed=1"]` -> `{"users": "500", "seed": "1"}`; pydantic turns the text into types."""
    values: dict[str, str] = {}
    for text in assignments:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise SettingsError(f"'{text}' is not a setting", remedy="write it as key=value")
        if key in values:
            raise SettingsError(f"setting '{key}' is given twice", remedy="keep one of them")
        values[key] = value
    return values


def assignments(values: Mapping[str, Any]) -> list[str]:
    """`{"users": 500, "hidden": [32, 16]}` -> `["users=500", "hidden=32,16"]`, as one types them, without None."""
    return [f"{key}={written(value)}" for key, value in values.items() if value is not None]


def written(value: Any) -> str:
    """A value as one types it."""
    if isinstance(value, list | tuple):
        return ",".join(map(written, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file of settings, or a SettingsError that says why it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"cannot be read ({error.strerror})", where=path, remedy="check its name") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"is not TOML ({error})", where=path, remedy="write settings as key = value") from None


def _explain(error: ValidationError, known: Iterable[str]) -> SettingsError:
    """The first of pydantic's complaints as one sentence."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "settings"
    if first["type"] == "extra_forbidden":
        remedy = nearest(key, known) if len(first["loc"]) == 1 else "remove it, or correct its name"
        return SettingsError(f"unknown setting '{key}'", remedy=remedy)
    if first["type"] == "missing":
        return SettingsError(f"setting '{key}' is missing", remedy="add it")
    expected = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return SettingsError(f"setting '{key}' is {first['input']!r}", remedy=f"expected {expected}")
