"""Names and what they stand for: entries of paml itself, and of other packages.

A registry belongs to the module whose visible dict it completes: methods, baselines, sources, metrics, rates, solvers.
Entries of others come from entry points (group `paml.methods`, and so on) or from `paml.register`. Nothing is looked
for at import: an entry point is loaded when its name is asked for, and all of a group when all names are.

An entry of another package that cannot be imported, is not what it should be, or takes a name that exists is skipped
with a `PluginWarning` that names its package; to ask for it by name is an error that says the same.
"""

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from paml.errors import SettingsError, nearest, shortened

NAME = re.compile(r"[a-z][a-z0-9_-]*")
T = TypeVar("T")


class PluginWarning(UserWarning):
    """An entry of another package that is skipped, with the reason."""


@dataclass(frozen=True)
class Origin:
    """Where an entry comes from, if not from paml: an installed package, or a module that registered it."""

    package: str
    """Name of the distribution, or of the module."""
    version: str = ""
    """Empty for a module that called `paml.register`."""

    def __str__(self) -> str:
        return f"the package '{self.package} {self.version}'" if self.version else f"the module '{self.package}'"


class Registry(Generic[T]):
    """All entries of one kind.

    `problem` says in words what is wrong with an entry of somebody else's, or None; it is given its name, too.
    """

    def __init__(self, kind: str, builtin: Mapping[str, T], problem: Callable[[str, object], str | None]) -> None:
        self.kind, self._builtin, self._problem = kind, builtin, problem
        self._added: dict[str, tuple[T, Origin]] = {}
        self._broken: dict[str, str] = {}
        self._waiting: dict[str, EntryPoint] | None = None
        """Entry points that were found and not loaded; None before anybody looked."""

    def find(self, name: str) -> T:
        """The entry called `name`, or a SettingsError that lists the known ones or says why this one is skipped."""
        if name in self._builtin:
            return self._builtin[name]
        if name not in self._added:
            self._load(name)  # if it cannot be used, that is an error here, and no warning
        if name in self._added:
            return self._added[name][0]
        if name in self._broken:
            raise SettingsError(self._broken[name], remedy="repair or uninstall it")
        raise SettingsError(f"unknown {self.kind} '{name}'", remedy=nearest(name, self.all()))

    def get(self, name: str) -> T | None:
        """The entry called `name`, or None if there is none that can be used."""
        try:
            return self.find(name)
        except SettingsError:
            return None

    def all(self) -> dict[str, T]:
        """Every entry that can be used: those of paml first, in their order."""
        for name in sorted(self._entry_points()):
            self._load(name)
            if name in self._broken:
                warnings.warn(self._broken[name], PluginWarning, stacklevel=2)
        return {**self._builtin, **{name: entry for name, (entry, _) in self._added.items()}}

    def origin(self, name: str) -> Origin | None:
        """Where an entry comes from; None if it is paml's own."""
        return self._added[name][1] if name in self._added else None

    def origins(self) -> list[Origin]:
        """Where the entries come from that were used so far and are not paml's own."""
        return list(dict.fromkeys(origin for _, origin in self._added.values()))

    def register(self, name: str, entry: object, origin: Origin) -> None:
        """Add an entry; one that cannot be used is a SettingsError."""
        self._entry_points()  # whose names are taken, too
        reason = self._reason(name, entry)
        if reason is not None:
            raise SettingsError(f"the {self.kind} '{name}' of {origin} {reason}", remedy="see docs/extending.md")
        self._added[name] = cast(T, entry), origin

    def forget(self, name: str) -> None:
        """Remove an entry that was registered, so that a test leaves nothing behind."""
        self._added.pop(name, None)

    def _entry_points(self) -> dict[str, EntryPoint]:
        """Those that were not loaded yet; of two with the same name, the second package's is refused."""
        if self._waiting is None:
            self._waiting = {}
            found = entry_points(group=f"paml.{self.kind}s")
            for point in sorted(found, key=lambda point: (_origin(point).package, point.name)):
                taken = self._taken(point.name)
                if taken is None:
                    self._waiting[point.name] = point
                else:
                    who = f"the {self.kind} '{point.name}' of {_origin(point)}"
                    warnings.warn(f"{who} is skipped: {taken}", PluginWarning, stacklevel=2)
        return self._waiting

    def _taken(self, name: str) -> str | None:
        """Who has a name already."""
        if name in self._builtin:
            return f"paml has a {self.kind} of that name"
        if name in self._added:
            return f"{self._added[name][1]} has a {self.kind} of that name"
        if self._waiting is not None and name in self._waiting:
            return f"{_origin(self._waiting[name])} has a {self.kind} of that name"
        return None

    def _load(self, name: str) -> None:
        """Load one entry point, if there is one of this name; what cannot be used is skipped."""
        point = self._entry_points().get(name)
        if point is None:
            return
        origin, who = _origin(point), f"the {self.kind} '{name}' of {_origin(point)} is skipped"
        del self._entry_points()[name]
        try:
            entry = point.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001, whatever the other package does while it is imported
            self._broken[name] = f"{who}: it cannot be imported ({in_a_line(error)})"
        else:
            reason = self._reason(name, entry)
            if reason is None:
                self._added[name] = entry, origin
                return
            self._broken[name] = f"{who}: it {reason}"

    def _reason(self, name: str, entry: object) -> str | None:
        """Why an entry cannot be used, in words that follow its name."""
        if not NAME.fullmatch(name):
            return "has a name with other characters than a-z, 0-9, _ and -"
        taken = self._taken(name)
        if taken is not None:
            return f"is refused: {taken}"
        try:
            return self._problem(name, entry)
        except Exception as error:  # noqa: BLE001, an entry may do anything when it is looked at
            return f"cannot be checked ({in_a_line(error)})"


def in_a_line(error: BaseException) -> str:
    """An error of somebody else's code, for a message: its type and the first line of its text."""
    return f"{type(error).__name__}: {shortened(str(error).partition(chr(10))[0], 200)}"


def of_type(expected: type[Any], name: str, entry: object, function: str) -> str | None:
    """What is wrong with an entry that should be an `expected`, know its own name and have a `function`."""
    if not isinstance(entry, expected):
        return f"is a {type(entry).__name__}, not a {expected.__name__}"
    if getattr(entry, "name", name) != name:
        return f"calls itself '{getattr(entry, 'name', '')}'"
    if not callable(getattr(entry, function)):
        return f"has a function `{function}` that cannot be called"
    return None


def callable_entry(name: str, entry: object) -> str | None:
    """What is wrong with an entry that should be a function or a class."""
    return None if callable(entry) else f"is a {type(entry).__name__}, and cannot be called"


def _origin(point: EntryPoint) -> Origin:
    distribution = point.dist
    assert distribution is not None, "entry points of installed packages have one"
    return Origin(distribution.name, distribution.version)
