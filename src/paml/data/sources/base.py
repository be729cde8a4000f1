"""What every source delivers, and what it is given to do so."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from paml.data.schema import Schema
from paml.data.sources.download import Archive
from paml.progress import SILENT, Progress
from paml.settings import Settings


@dataclass(frozen=True)
class RawData:
    """Three raw tables and their schema; keys may be of any type that the tables agree on.

    `users` has the key `user`, the user fields, and optionally `_log` (how much log data there is of a user, if that is
    more than the interactions: implicit ratings, say), `items` the key `item` and the item fields, `interactions` has
    `user`, `item`, `target`, optionally `time` (a number) and the context fields.
    """

    schema: Schema
    users: pl.LazyFrame
    items: pl.LazyFrame
    interactions: pl.LazyFrame
    checksum: str
    """Identifies what the tables were read or made from."""
    bad_lines: int = 0
    """Lines that were skipped because they could not be read."""
    best: str | None = None
    """Name of the fact that the interactions' column `_best` holds: each row's least reachable expected loss."""
    notes: tuple[str, ...] = ()
    """What was left out or is not known, in sentences for people."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Names of the files that users, items and interactions were read from, for error messages."""


@dataclass(frozen=True)
class LoadRequest:
    """What a source may use: where the input lies, its settings, and a folder for temporary files."""

    path: Path | None
    settings: Settings
    workdir: Path
    extra: Path | None = None
    """A further file that completes the input."""
    schema: Path | None = None
    """A file that describes the input."""
    skip_bad_lines: bool = False
    progress: Progress = SILENT


@dataclass(frozen=True)
class Paper:
    """What the paper prints about a data set (Tab. 1, Sec. 5, Tab. 7), to stand beside what we find."""

    users: int
    items: int
    major: float
    """Share of major users."""
    common_shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """A kind of input: how it is called, what it takes, and the function that reads it."""

    name: str
    summary: str
    settings: type[Settings]
    load: Callable[[LoadRequest], RawData]
    takes: frozenset[str]
    """Which of the inputs `path`, `extra` and `schema` it knows."""
    archive: Archive | None = None
    """What is fetched if no input is given."""
    paper: Paper | None = None
