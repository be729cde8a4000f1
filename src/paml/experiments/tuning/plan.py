"""What a search is asked to do: its budget, and its plan, put into a folder or found in one."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from paml.errors import SettingsError
from paml.files import as_model, read_json, write_text
from paml.locks import NAME as LOCK
from paml.settings import Settings

FORMAT: Final = 1
UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Budget:
    """A number of trials, a time, or both: whichever ends first."""

    trials: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str | int) -> "Budget":
        """`"30"` trials, `"20m"` or `"1h"`, or both: `"30,20m"`."""
        found: dict[str, float] = {}
        for part in str(text).split(","):
            match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", part.strip())
            kind = "seconds" if match and match[2] else "trials"
            amount = float(match[1]) * UNITS.get(match[2], 1) if match else 0
            if amount <= 0 or kind in found or (kind == "trials" and amount != int(amount)):
                remedy = "give a number of trials (30), a time (90s, 20m, 1h), or both (30,20m)"
                raise SettingsError(f"budget '{text}'", remedy=remedy)
            found[kind] = amount
        return cls(int(found["trials"]) if "trials" in found else None, found.get("seconds"))


class SearchPlan(Settings):
    """What is searched, and what the search was begun with."""

    format: Literal[1] = FORMAT
    source: str
    fingerprint: str
    method: str
    recipe: str
    start: dict[str, Any]
    """The whole starting recipe."""
    space: dict[str, dict[str, Any]]
    seed: int
    by: str | None = None
    """The metric that trials are judged by; None for the loss that training watches."""
    shared: bool = False
    """Whether its trials are in a storage that others use, too."""


def open_folder(folder: Path, plan: SearchPlan) -> None:
    """Begin a search, or check that the one in the folder was begun with the same data and settings."""
    file = folder / "plan.json"
    if file.exists():
        remedy = "choose another folder"
        found = as_model(SearchPlan, read_json(file, remedy), file, remedy)
        for same, what in (
            (found.fingerprint == plan.fingerprint, "another data set"),
            (found.method == plan.method, "another method"),
            (found.start == plan.start, "another recipe or other settings"),
            (found.space == plan.space, "another search space"),
            (found.seed == plan.seed, "another seed"),
            (found.by == plan.by, "another metric to judge by"),
            (found.shared == plan.shared, "a storage" if found.shared else "no storage"),
        ):
            if not same:
                remedy = "repeat what it was begun with, or choose another folder"
                raise SettingsError(f"was begun with {what}", where=folder, remedy=remedy, argument="out")
        return
    if any(other.name != LOCK for other in folder.iterdir()):
        raise SettingsError(
            "is neither empty nor a search", where=folder, remedy="choose another folder", argument="out"
        )
    write_text(file, plan.model_dump_json(indent=1) + "\n")
