"""What every source is given, and what it returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from paml.data.schema import Schema
from paml.data.sources.download import Archive
from paml.progress import SILENT, Progress
from paml.settings import Settings

if TYPE_CHECKING:
    from paml.data.sources.events import Events


@dataclass(frozen=True)
class RawData:
    """Three raw tables and their schema; keys may be of any type that the tables agree on.

    `users` has the key `user`, the user fields, and optionally `_log` (how much log data a user has, if that is more
    than the interactions: for example implicit ratings); `items` has the key `item` and the item fields; `interactions`
    has `user`, `item`, `target`, optionally `time` (a number), and the context fields.
    """

    schema: Schema
    users: pl.LazyFrame
    items: pl.LazyFrame
    interactions: pl.LazyFrame
    checksum: str
    """Identifies the input that the tables were read or generated from."""
    bad_lines: int = 0
    """Lines that were skipped because they could not be read."""
    best: str | None = None
    """Name of the fact in the interactions' column `_best`: each row's lowest reachable expected loss."""
    notes: tuple[str, ...] = ()
    """What was left out or is unknown, in sentences for people."""
    events: "Events | None" = None
    """What choices among the interactions were made of."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Names of the files that users, items and interactions were read from, for error messages."""


@dataclass(frozen=True)
class LoadRequest:
    """What a source may use: the path of the input, its settings, and a folder for temporary files."""

    path: Path | None
    settings: Settings
    workdir: Path
    extra: Path | None = None
    """A further file that adds to the input."""
    schema: Path | None = None
    """A file that describes the input."""
    skip_bad_lines: bool = False
    progress: Progress = SILENT


@dataclass(frozen=True)
class Paper:
    """What the paper reports about a data set (Tab. 1, Sec. 5, Tab. 6), for comparison with ours."""

    users: int
    items: int
    major: float
    """Share of major users."""
    common_shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """A kind of input: its name, what it takes, and the function that reads it."""

    name: str
    summary: str
    settings: type[Settings]
    load: Callable[[LoadRequest], RawData]
    takes: frozenset[str]
    """Which of the inputs `path`, `extra` and `schema` it knows."""
    archive: Archive | None = None
    """What is downloaded if no input is given."""
    paper: Paper | None = None
    protocol: Callable[[Settings], Mapping[str, Any]] = lambda _: {}
    """Settings of the protocol whose defaults differ for this source, given the source's own settings."""
