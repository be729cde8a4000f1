"""A prepared data set on disk: plain Parquet to read, flat arrays to train on, and a manifest with a fingerprint.

    DIR/users.parquet         user, profile fields as text and numbers, split, group, support_rows, query_rows
    DIR/items.parquet         item, content fields
    DIR/interactions.parquet  user, item (row numbers of the two tables), target, time, context, query
    DIR/vocabulary.json       value -> code for every field, fitted on training users; common values per user field
    DIR/arrays/*.npy          the same tables, encoded: memory-mapped, shared by processes
    DIR/manifest.json         where it came from, every rule with its count, the splits, checksums, the fingerprint

Users are ordered train, validation, test; interactions by user, each user's support rows before the query rows:
a split is a slice, and training never touches a page that holds validation or test rows.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from pydantic import Field as Described, ValidationError

from paml.data.integrity import PREPARE_AGAIN, array_types, file_names, map_array, verify
from paml.data.protocol import Protocol
from paml.data.schema import Field, Kind, Schema
from paml.data.vocabulary import EncodedColumn, Encoder
from paml.errors import Again, FormatError, SettingsError, shortened
from paml.files import Listed, as_model, exists, read_json, read_listed
from paml.progress import SILENT, Progress
from paml.settings import Settings, assignments

FORMAT = 3
SHOWN = 1 << 28  # bytes of a data set whose verification progress shows: less takes no time
Side = Literal["user", "item", "context"]


class SourceRecord(Settings):
    """Where the data came from."""

    name: str
    settings: dict[str, Any]
    checksum: str
    bad_lines: int = 0
    """Lines that could not be read and were skipped."""
    repeated: int = 0
    """Earlier ratings of the same item by the same user, which were left out."""
    users_without_profile: int = 0
    """Kept users for whom the source has no profile."""
    facts: dict[str, float] = Described(default_factory=dict)
    """Facts beyond the tables, such as the best reachable error on a synthetic world's test users."""


class RuleRecord(Settings):
    """What one rule of the protocol did."""

    rule: str
    kept: int
    dropped: int


class Manifest(Settings):
    """Everything about a data set except its rows.

    The fingerprint identifies the data and ignores `files` and `created_by`, which depend on library versions, the
    source's checksum, which depends on the files' format, and `notes`, which are only text; the seal covers everything,
    so that any edit is noticed.
    """

    format: int = FORMAT
    created_by: str
    fingerprint: str
    seal: str
    source: SourceRecord
    protocol: Protocol
    data_schema: Schema
    rules: tuple[RuleRecord, ...]
    users: int
    items: int
    interactions: int
    splits: dict[str, tuple[int, int]]
    """First user and end of each split."""
    major: dict[str, int]
    """Number of major users per split."""
    common_shares: dict[str, float]
    """Share of the source's users who have a common value, per user field (paper, Tab. 1)."""
    vocabulary: dict[str, int]
    """Number of codes per categorical or multi-valued field, "unknown" included."""
    content: dict[str, str]
    """SHA-256 of the arrays, the vocabulary and the identifiers."""
    files: dict[str, Listed]
    """Size and SHA-256 of every file."""
    notes: tuple[str, ...] = ()
    """What the source left out or does not contain, in sentences."""

    def computed_fingerprint(self) -> str:
        """SHA-256 of the data itself: independent of when and with which library versions it was written."""
        aside = dict.fromkeys(("fingerprint", "seal", "files", "created_by", "notes"), True)
        return self._digest(exclude={**aside, "source": {"checksum": True}})

    def computed_seal(self) -> str:
        """SHA-256 of the whole manifest except the seal."""
        return self._digest(exclude={"seal": True})

    def _digest(self, exclude: dict[str, Any]) -> str:
        covered = self.model_dump(mode="json", exclude=exclude)
        return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


class Vocabulary(Settings):
    """How values become codes, and which user values are common."""

    user: dict[str, Encoder]
    item: dict[str, Encoder]
    context: dict[str, Encoder]
    common: dict[str, tuple[str, ...]]


class Dataset:
    """An opened data set; tables and arrays are read on demand."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self._types = array_types(manifest.data_schema)

    @classmethod
    def open(cls, path: str | Path) -> "Dataset":
        """Open a prepared data set; also available as `paml.open_data`.

        `path` is a folder written by `paml.prepare`. Raises FormatError if a file is missing or has another size than
        recorded, or if the manifest was edited; `verify` checks the contents as well, as training and comparison do.

        >>> import paml
        >>> folder = paml.prepare("synthetic", out="world", users=500).path
        >>> paml.open_data(folder).manifest.items
        500
        """
        path = Path(path)
        manifest = _read_manifest(path / "manifest.json")
        for name, recorded in manifest.files.items():
            file = path / name
            there = exists(file, PREPARE_AGAIN)
            if not there or not file.is_file() or file.stat().st_size != recorded.size:
                raise FormatError("is missing or has a different size than recorded", where=file, remedy=PREPARE_AGAIN)
        return cls(path, manifest)

    def verify(self) -> None:
        """Read everything and compare it with the digests in the manifest; FormatError if anything differs."""
        verify(self)

    def verify_once(self, progress: Progress = SILENT) -> None:
        """The same, unless this process has done so and no file has changed since, by size, times and inode."""
        found = _stamp(self)
        if _VERIFIED.get(self.path.resolve()) == found:
            return
        large = sum(file.size for file in self.manifest.files.values()) > SHOWN
        with (progress if large else SILENT).step("verifying the data set"):
            self.verify()
        _VERIFIED[self.path.resolve()] = found

    @classmethod
    def of(cls, data: object) -> "Dataset":
        """A data set, or the one in a folder; anything else is an error that says so."""
        if isinstance(data, Dataset):
            return data
        if isinstance(data, str | os.PathLike):
            return cls.open(Path(data))
        remedy = "give what paml.prepare returns, or its folder"
        raise SettingsError(f"{shortened(repr(data))} is not a data set", remedy=remedy)

    def __repr__(self) -> str:
        m = self.manifest
        sizes = f"{m.users:,} users, {m.items:,} items, {m.interactions:,} {m.data_schema.target.kind}s"
        return f"Dataset({str(self.path)!r}: {m.source.name}, {sizes})"

    def _repr_html_(self) -> str:
        """For notebooks."""
        from paml.data.show import dataset_html

        return dataset_html(self)

    @property
    def fingerprint(self) -> str:
        """Identifies the data set; a run records the fingerprint of the data it was trained on."""
        return self.manifest.fingerprint

    @property
    def schema(self) -> Schema:
        """Fields and target."""
        return self.manifest.data_schema

    def users(self) -> pl.LazyFrame:
        """Profiles, splits and groups, one row per user."""
        return _scan(self.path / "users.parquet")

    def items(self) -> pl.LazyFrame:
        """Content fields, one row per item."""
        return _scan(self.path / "items.parquet")

    def interactions(self) -> pl.LazyFrame:
        """Targets, one row per interaction."""
        return _scan(self.path / "interactions.parquet")

    def array(self, name: str) -> np.ndarray:
        """A memory-mapped array: `item`, `target`, `offsets`, `support`, `major`, or a field such as `user.FIELD`."""
        return self._map(name)

    def _map(self, name: str, mode: Literal["r", "c"] = "r") -> np.ndarray:
        return map_array(self.path / "arrays" / f"{name}.npy", self._types[name], mode)

    def column(self, side: Side, field: Field) -> EncodedColumn:
        """An encoded field of all users, items or interactions."""
        name = f"{side}.{field.name}"
        offsets = self.array(f"{name}.offsets") if field.kind is Kind.MULTI else None
        return EncodedColumn(self.array(name), offsets)

    @property
    def training_rows(self) -> int:
        """Number of interactions of training users; they come first."""
        return int(self.array("offsets")[self.manifest.splits["train"][1]])

    def interacted_in_training(self, rows_at_once: int = 1 << 20) -> np.ndarray:
        """Which items training users interacted with, by item row; the rows are read in chunks."""
        interacted_I = np.zeros(self.manifest.items, dtype=bool)
        item = self.array("item")[: self.training_rows]
        for start in range(0, len(item), rows_at_once):
            interacted_I[item[start : start + rows_at_once]] = True
        return interacted_I

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """How the values of each field are encoded."""
        file = self.path / "vocabulary.json"
        try:
            return Vocabulary.model_validate_json(read_listed(file, self.manifest.files[file.name], PREPARE_AGAIN))
        except ValidationError:
            raise FormatError("is damaged", where=file, remedy=PREPARE_AGAIN) from None


def content_digests(path: Path) -> dict[str, str]:
    """SHA-256 of every array, of the vocabulary, and of the three tables' values."""
    digests = {f"arrays/{file.name}": _file_digest(file) for file in sorted((path / "arrays").iterdir())}
    digests["vocabulary.json"] = _file_digest(path / "vocabulary.json")
    for table in ("users", "items", "interactions"):
        frame = _scan(path / f"{table}.parquet")
        try:
            digests[f"{table}.parquet"] = _table_digest(frame)
        except pl.exceptions.PolarsError as error:
            raise FormatError(f"is damaged ({error})", where=path / f"{table}.parquet", remedy=PREPARE_AGAIN) from None
    return digests


def _scan(path: Path) -> pl.LazyFrame:
    return pl.scan_parquet(path, glob=False)


def _table_digest(frame: pl.LazyFrame, batch_rows: int = 1 << 20) -> str:
    """SHA-256 of a table's values, independent of how Parquet stores them."""
    digest = hashlib.sha256()
    rows = frame.select(pl.len()).collect().item()
    for start in range(0, rows, batch_rows):
        for column in frame.slice(start, batch_rows).collect():
            digest.update(f"{column.name}\0{column.len()}\0".encode())
            if isinstance(column.dtype, pl.List):
                column = column.list.join("\x1e")
            if column.dtype == pl.String:
                digest.update("\0".join(column.fill_null("\x1f").to_list()).encode())
            else:
                digest.update(np.ascontiguousarray(column.to_numpy()).tobytes())
    return digest.hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_manifest(path: Path) -> Manifest:
    remedy = "give a folder made by 'paml data prepare'"
    missing = FormatError("no such prepared data set", where=path.parent, remedy=remedy)
    values = read_json(path, remedy, missing=missing)
    manifest = as_model(Manifest, values, path, PREPARE_AGAIN, lambda: _anew(path.parent, values))
    if manifest.computed_fingerprint() != manifest.fingerprint or manifest.computed_seal() != manifest.seal:
        raise FormatError("fingerprint mismatch: the manifest was edited", where=path, remedy=PREPARE_AGAIN)
    if set(manifest.files) != file_names(manifest.data_schema) or min(manifest.users, manifest.items) < 1:
        raise FormatError("does not list the files of its schema", where=path, remedy=PREPARE_AGAIN)
    return manifest


def _anew(path: Path, values: Mapping[str, Any]) -> Again:
    """The command that prepares a data set of another version again; only its input is not known any more."""
    source = values.get("source")
    found = source if isinstance(source, dict) else {}
    both = [given for given in (found.get("settings"), values.get("protocol")) if isinstance(given, dict)]
    settings = [word for given in both for word in assignments(given)]
    return Again(["data", "prepare", str(found.get("name", "SOURCE")), *settings], {"out": f"{path}-new"})


Stamp = tuple[tuple[int, ...], ...]
_VERIFIED: dict[Path, Stamp] = {}
"""What this process has verified: a comparison trains on the same data many times, and reads it once."""


def _stamp(data: Dataset) -> Stamp:
    """By what a changed file is noticed without reading it."""
    states = [(data.path / name).stat() for name in ("manifest.json", *sorted(data.manifest.files))]
    return tuple((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in states)
