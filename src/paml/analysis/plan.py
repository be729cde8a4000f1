"""What a comparison is asked to do, as `plan.json` holds it: data, recipe, seeds, entries and metrics.

It holds all that a report says about names, labels and directions, so that only the plan and the rows are needed.
"""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from paml.files import as_model, read_json, write_text
from paml.settings import Settings, added

FORMAT: Final = 4
KINDS = ("baseline", "reference", "method", "variant")
"""Kinds of entries, in the order of tables."""
AGAIN = "compare again with this version"
Better = Literal["lower", "higher"]
About = Literal["rows", "list", "contents"]
"""What a metric is about: predictions for query rows, how good a list is, or what lists hold (shown, not judged)."""


class DataFacts(Settings):
    """The data set of a comparison."""

    path: str
    fingerprint: str
    source: str
    target: Literal["rating", "click", "choice"]
    users: int
    items: int
    interactions: int

    @property
    def known(self) -> str:
        """What a user's support rows are called."""
        return {"rating": "rating", "click": "interaction", "choice": "choice"}[self.target]


class MetricFacts(Settings):
    """A metric as tables and tests need it; its values are in the rows."""

    name: str
    label: str
    better: Better
    digits: int
    about: About = "rows"
    meaning: str = added("", "a sentence for the glossary, of a metric that this does not explain already")
    package: str = added("", "whose metric it is, if not paml's own")

    @property
    def short(self) -> str:
        """The label where it is clear what was ranked: nDCG@10 for "nDCG@10, catalogue"."""
        return self.label.partition(",")[0]

    @property
    def judged(self) -> bool:
        """Whether entries are compared by it."""
        return self.about != "contents"


class RateFacts(Settings):
    """The rate that a method gives each user."""

    label: str
    """What it is: a learning rate, or the variance of a prior."""
    bound: float | None
    """The largest that a user can have; None where it is not known."""


class Entry(Settings):
    """A line of the tables: a baseline, a method, or a method with other settings."""

    name: str
    label: str
    kind: Literal["baseline", "reference", "method", "variant"]
    """A reference is a baseline that knows more than a method may."""
    method: str | None = None
    """None for a baseline."""
    settings: dict[str, str] = Field(default_factory=dict)
    """Those of a variant, as people type them."""
    rate: RateFacts | None = None
    """None where all users have the same rate, and in plans that were made before this was recorded."""
    choice_method: str | None = None
    """The method of the part that knows which items users choose; None if there is no such part."""

    @property
    def learned(self) -> bool:
        """Whether it is a method, or a variant of one."""
        return self.method is not None


class Plan(Settings):
    """Everything that was asked for."""

    format: Literal[4] = FORMAT
    created_by: str
    data: DataFacts
    recipe: str
    recipe_digest: str
    settings: dict[str, str]
    """Those that replace the recipe's in all methods, as people type them."""
    gamma: float
    """The weight of REG-PAML's regulariser, as recipe and settings have it."""
    seeds: tuple[int, ...]
    same_split: bool
    group_by: str | None
    liked: float
    """The lowest target of a relevant item of a list."""
    entries: tuple[Entry, ...]
    """In the order of tables."""
    metrics: tuple[MetricFacts, ...] = Field(min_length=1)
    """In the order of tables; the first is the headline."""
    pooled: tuple[MetricFacts, ...] = ()
    """Metrics of the query rows, or the lists, of all users together, with their labels there."""

    @property
    def headline(self) -> MetricFacts:
        """The metric by which entries are judged first."""
        return self.metrics[0]

    @property
    def list_headline(self) -> MetricFacts | None:
        """The metric by which lists are judged first; None if lists are not judged at all."""
        return next(iter(self.about("list")), None)

    @property
    def lists_only(self) -> bool:
        """Whether entries are judged by lists alone, because there is nothing to predict for rows: choices."""
        return self.headline.about == "list"

    @property
    def labels(self) -> dict[str, str]:
        """Entry -> label."""
        return {entry.name: entry.label for entry in self.entries}

    def names(self, *kinds: str) -> list[str]:
        """The entries of some kinds, or all of them, in the order of tables."""
        return [entry.name for entry in self.entries if not kinds or entry.kind in kinds]

    def about(self, *subjects: About) -> list[MetricFacts]:
        """The metrics about some subjects, in the order of tables."""
        return [metric for metric in self.metrics if metric.about in subjects]

    def metric(self, name: str) -> MetricFacts:
        """One of the metrics."""
        return next(metric for metric in self.metrics if metric.name == name)


def in_order(entries: Collection[Entry]) -> tuple[Entry, ...]:
    """Entries in the order of tables: baselines, references, methods, variants."""
    return tuple(sorted(entries, key=lambda entry: KINDS.index(entry.kind)))


def read_plan(folder: Path) -> Plan:
    """The plan of a comparison's folder."""
    path = folder / "plan.json"
    return as_model(Plan, read_json(path, "a folder made by `paml compare` expected"), path, AGAIN)


def write_plan(folder: Path, plan: Plan) -> None:
    """Store a plan, atomically."""
    write_text(folder / "plan.json", plan.model_dump_json(indent=1) + "\n")


def cell_name(entry: str, seed: int) -> str:
    """A folder name for an entry and a seed."""
    return f"{re.sub(r'[^A-Za-z0-9_.=-]+', ' ', entry)}@{seed}"


def cell_folder(folder: Path, entry: str, seed: int) -> Path:
    """The folder of a finished cell of a comparison."""
    return folder / "cells" / cell_name(entry, seed)
