"""From a source's raw tables to a prepared data set, by the paper's protocol."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack

import polars as pl

from paml.data.build import Chosen, write_split
from paml.data.dataset import (
    Dataset,
    RuleRecord,
    SourceRecord,
)
from paml.data.frames import FieldChange, load_frames
from paml.data.keywords import PrepareSettings
from paml.data.notes import LOG_RULE, PROFILE_RULE, WARNING, notes_on
from paml.data.protocol import (
    Kept,
    Protocol,
    active_users_train,
    cold_users,
    common_values,
    enough_interactions,
    valid_profiles,
    with_interactions,
)
from paml.data.reuse import reused
from paml.data.schema import DTYPES, Field, Schema, without_invalid_values
from paml.data.sources import LoadRequest, RawData, Source, find_source
from paml.data.sources.download import fetch
from paml.data.time_split import split_by_time, without_active_new_users
from paml.data.time_unit import in_seconds
from paml.errors import DataError, SettingsError
from paml.files import new_folder
from paml.progress import SILENT, Progress, chosen as chosen_progress
from paml.settings import Settings, build, build_all

DEFAULT_FOLDER = Path("paml-data")
COUNTED_ROWS = 1 << 24
"""Rows whose users are counted at once."""


def prepare(
    source: str | None = None,
    path: str | Path | None = None,
    out: str | Path | None = None,
    *,
    interactions: Any = None,
    users: Any = None,
    items: Any = None,
    schema: str | Path | Mapping[str, Any] | None = None,
    fields: Mapping[str, FieldChange] | None = None,
    extra: str | Path | None = None,
    skip_bad_lines: bool = False,
    reuse: bool = False,
    progress: Progress | bool | None = None,
    settings: Mapping[str, Any] | None = None,
    **more: Unpack[PrepareSettings],
) -> Dataset:
    """Read a source (see `paml data list`) and write a prepared data set to the folder `out`.

    `path` is the folder or archive to read; without it the official archive is downloaded, if there is one.
    `extra` (`ml-1m`) and `schema` (`tables`) are further files that some sources take. `skip_bad_lines` counts lines
    that cannot be read, instead of raising DataError. Settings of the source and of the protocol are keyword arguments,
    or a mapping `settings`. The folder must not exist (default: `paml-data/SOURCE`); a failure leaves nothing behind.
    With `reuse`, a data set there is returned if this call would make it: the input is read again and compared, and
    other settings or other data are refused. `progress` is as in `paml.train`.

    Tables in memory need no source: `interactions` and, if there are any, `users` and `items` are Polars or pandas data
    frames, lazy or not, Arrow tables, or anything that speaks Arrow's PyCapsule interface. Without a `schema` (a file,
    or a dictionary with the same keys) it is guessed and printed; `fields` corrects the guess: `{"zip": "categorical",
    "user.age": {"kind": "numeric", "minimum": 10}, "title": None}`, where None leaves a field out.

    >>> import paml, polars
    >>> data = paml.prepare("synthetic", out="world", users=500, seed=1)
    >>> data.manifest.users
    393
    >>> rows = [(user, item, 1 + user * item % 5) for user in range(30) for item in range(10)]
    >>> ratings = polars.DataFrame(rows, ["user", "item", "rating"], orient="row")
    >>> own = paml.prepare(interactions=ratings, out="own")
    """
    given = {"interactions": interactions, "users": users, "items": items}
    replaced: dict[str, Any] = {**(settings or {}), **more}
    if interactions is None:  # users and items are settings of a source
        replaced |= {name: value for name, value in given.items() if value is not None}
        given = {}
    source = _source_of(source, given, path=path, fields=fields, schema=schema)
    kind, shown = find_source(source), chosen_progress(progress)
    source_settings, protocol = _settings(kind, replaced)
    inputs = {"path": path, "extra": extra, "schema": None if isinstance(schema, Mapping) else schema}
    paths = {argument: _input(kind, argument, given) for argument, given in inputs.items()}
    if not given and not paths["path"] and not paths["schema"] and kind.takes and kind.archive is None:
        what = f"the source '{source}' needs a folder or archive"
        raise SettingsError(what, remedy="give the path of one", argument="path")
    preparation = Preparation(
        kind, source_settings, protocol, paths, given, schema, fields or {}, skip_bad_lines, shown
    )
    target = Path(out) if out is not None else DEFAULT_FOLDER / source
    if reuse and os.path.lexists(target):
        return reused(target, preparation)
    with new_folder(target) as folder, tempfile.TemporaryDirectory(dir=folder, prefix="work") as work:
        notes = preparation.write(preparation.load(Path(work)), folder)
    for note in notes:
        if note.startswith(WARNING):
            shown.say(note)
    return Dataset.open(target)


@dataclass(frozen=True)
class Preparation:
    """What a call asks for, checked; nothing is read yet."""

    kind: Source
    settings: Settings
    protocol: Protocol
    paths: Mapping[str, Path | None]
    frames: Mapping[str, Any]
    schema: str | Path | Mapping[str, Any] | None
    fields: Mapping[str, FieldChange]
    skip_bad_lines: bool
    progress: Progress

    def load(self, workdir: Path) -> RawData:
        """The raw tables, downloaded first if there is no other input; temporary files go to `workdir`."""
        path = self.paths["path"]
        request = LoadRequest(
            fetch(self.kind.archive, self.progress) if path is None and self.kind.archive is not None else path,
            self.settings,
            workdir,
            extra=self.paths["extra"],
            schema=self.paths["schema"],
            skip_bad_lines=self.skip_bad_lines,
            progress=self.progress,
        )
        return _from_frames(request, self.frames, self.schema, self.fields) if self.frames else self.kind.load(request)

    def record(self, raw: RawData) -> SourceRecord:
        """Where the tables came from."""
        settings = self.settings.model_dump(mode="json")
        return SourceRecord(name=self.kind.name, settings=settings, checksum=raw.checksum, bad_lines=raw.bad_lines)

    def write(self, raw: RawData, folder: Path) -> tuple[str, ...]:
        """Write the data set of these tables; what people should know about it."""
        record, new_users = self.record(raw), None
        raw, protocol = in_seconds(raw, self.protocol)
        if protocol.split == "time":
            with self.progress.step("cutting the log at dates"):
                raw, new_users, protocol = split_by_time(raw, protocol)
        chosen = choose(raw, protocol, self.progress, new_users)
        notes = notes_on(raw, chosen, self.protocol)
        write_split(replace(raw, notes=notes), chosen, record, protocol, folder, self.progress)
        return notes


def _source_of(
    source: str | None,
    frames: Mapping[str, Any],
    *,
    path: str | Path | None,
    fields: Mapping[str, FieldChange] | None,
    schema: str | Path | Mapping[str, Any] | None,
) -> str:
    """The source's name; frames are tables, and only they have fields that can be changed."""
    if not frames:
        if source is None:
            raise SettingsError(
                "no source and no interactions", remedy="name a source, or give a table of interactions"
            )
        if fields or isinstance(schema, Mapping):
            remedy = "write them into the schema file"
            raise SettingsError("fields and a schema as a dictionary are for tables in memory", remedy=remedy)
        return source
    if source not in (None, "tables") or path is not None:
        what = f"the source '{source}'" if path is None else f"the path '{path}'"
        raise SettingsError(f"{what} and a table of interactions are given", remedy="give one of them")
    return "tables"


def _from_frames(
    request: LoadRequest,
    given: Mapping[str, Any],
    schema: str | Path | Mapping[str, Any] | None,
    fields: Mapping[str, FieldChange],
) -> RawData:
    """The raw tables of frames; a guessed schema is printed."""
    raw, guessed = load_frames(request, {k: v for k, v in given.items() if v is not None}, schema, fields)
    if guessed is not None:
        print(guessed)  # noqa: T201 - people correct it with `fields`
    return raw


def _settings(kind: Source, given: Mapping[str, Any]) -> tuple[Settings, Protocol]:
    """Settings of the source and of the protocol, some of whose defaults may be the source's own."""
    source_settings, _ = build_all([kind.settings, Protocol], given)
    values = {key: value for key, value in given.items() if key in Protocol.model_fields}
    return source_settings, build(Protocol, {**kind.protocol(source_settings), **values})


def _input(kind: Source, argument: str, given: str | Path | None) -> Path | None:
    """An input that was given, if the source takes it and it exists."""
    if given is None:
        return None
    if argument not in kind.takes:
        raise SettingsError(f"the source '{kind.name}' takes no {argument}", remedy="leave it out", argument=argument)
    if not Path(given).exists():
        raise DataError("no such file or folder", where=given, remedy="check its name", argument=argument)
    return Path(given)


def choose(
    raw: RawData, protocol: Protocol, progress: Progress = SILENT, new_users: pl.DataFrame | None = None
) -> Chosen:
    """Apply the protocol's rules on users to the raw tables; `new_users` has their splits by time, if they have any."""
    schema = raw.schema
    with progress.step("reading profiles and contents"):
        users = _side(raw, "user", schema.user)
        items = _side(raw, "item", schema.item)
    with progress.step("counting interactions"):
        counts, repeated = _counts(raw)
        _require_known_items(raw, items)
        users = _with_counts(users, counts)
    if new_users is not None:
        users = users.join(new_users, on="user", how="inner", maintain_order="left")
    groups = common_values(users, schema.features("user"), protocol.common_share)
    users, rules = _apply_rules(users, protocol, schema)
    users, items = (
        table.with_columns(without_invalid_values(fields))
        for table, fields in ((users, schema.user), (items, schema.item))
    )
    return Chosen(users, items, groups, tuple(rules), repeated)


def _side(raw: RawData, key: Literal["user", "item"], fields: tuple[Field, ...]) -> pl.DataFrame:
    """The table of users or items, each column with the type that its field's kind requires."""
    frame = raw.users if key == "user" else raw.items
    given = [field for field in fields if field.derived is None]
    log = ["_log"] if "_log" in frame.collect_schema() else []
    table = frame.select(key, *log, *(pl.col(field.name).cast(DTYPES[field.kind]) for field in given)).collect()
    twice = table[key].is_duplicated()
    if twice.any():
        where = raw.files.get(key, f"{key}s")
        for place in {"_line", "_row"} & set(frame.collect_schema().names()):
            where += f" {place[1:]} {frame.select(place).collect()[place].filter(twice)[1]}"
        first = table[key].filter(twice)[0]
        raise DataError(f"{key} '{first}' has more than one row", where=where, remedy="keep one row each")
    return table


def _counts(raw: RawData) -> tuple[pl.DataFrame, int]:
    """Rows and positive targets per user, and how many ratings are ignored; a target off the scale is an error.

    If a user rated or chose an item more than once, only the last row counts, so that no (user, item) pair is in both
    the support and the query set. For clicks, repeated impressions all count.
    """
    target, scale = pl.col("target").cast(pl.Float64), raw.schema.target
    invalid = ~scale.is_valid(target)
    columns = {
        "_rows": pl.len().cast(pl.Int64),
        "_positives": (target > 0).sum().cast(pl.Int64),
        "_lowest": target.min(),
        "_highest": target.max(),
        "_items": (pl.len() if scale.kind == "click" else pl.col("item").n_unique()).cast(pl.Int64),
        "_invalid": invalid.sum(),
    }
    # items of a user are counted in a set, so that memory grows with the rows: a share of the users at a time
    shares = raw.interactions.select(pl.len()).collect().item() // COUNTED_ROWS + 1
    of_share = (raw.interactions.filter(pl.col("user").hash() % shares == share) for share in range(shares))
    logs = of_share if shares > 1 else [raw.interactions]
    counts = pl.concat([log.group_by("user").agg(**columns).collect(engine="streaming") for log in logs])
    if not len(counts):
        raise DataError("has no rows", where=raw.files.get("interactions", "interactions"), remedy="name another file")
    if counts["_invalid"].sum():
        user, item, value = raw.interactions.filter(invalid).select("user", "item", "target").head(1).collect().row(0)
        span = f"{scale.lowest:g} to {scale.high:g} in steps of {scale.step:g}"
        expected = "0 or 1" if scale.kind == "click" else span
        raise DataError(
            f"user '{user}', item '{item}': target {value} is off the scale",
            where=raw.files.get("interactions", "interactions"),
            remedy=f"expected {expected}",
        )
    _require_both_outcomes(raw, counts)
    repeated = int((counts["_rows"] - counts["_items"]).sum())
    if repeated:
        counts = counts.with_columns(_rows=pl.col("_items"))
    return counts.drop("_items", "_invalid", "_lowest", "_highest"), repeated


def _require_both_outcomes(raw: RawData, counts: pl.DataFrame) -> None:
    """Raise DataError if all ratings or clicks are the same: then there is nothing to predict."""
    if raw.schema.target.kind == "choice":
        return  # there is: what is chosen, among all items
    rows, positives = int(counts["_rows"].sum()), int(counts["_positives"].sum())
    where, click = raw.files.get("interactions", "interactions"), raw.schema.target.kind == "click"
    if click and positives in (0, rows):
        what = f"all {rows:,} targets are {int(positives > 0)}: there is nothing to predict"
        missing = "what was shown and not clicked" if positives else "what was clicked"
        remedy = f"add rows for {missing}, or name another target" + (
            '; for likes alone, use kind = "choice"' if positives else ""
        )
        raise DataError(what, where=where, remedy=remedy)
    if not click and counts["_lowest"].min() == counts["_highest"].max():
        what = f"all {rows:,} ratings are {counts['_lowest'][0]:g}: there is nothing to predict"
        raise DataError(what, where=where, remedy="name another target, or give all ratings")


def _require_known_items(raw: RawData, items: pl.DataFrame) -> None:
    used = raw.interactions.select("item").unique().collect(engine="streaming")
    unknown = used.join(items.select("item"), on="item", how="anti").sort("item")
    if len(unknown):
        raise DataError(
            f"item '{unknown['item'][0]}' has interactions but no row ({len(unknown)} such items)",
            where=raw.files.get("item", "items"),
            remedy="add the missing rows, with blank fields if nothing is known",
        )


def _with_counts(users: pl.DataFrame, counts: pl.DataFrame) -> pl.DataFrame:
    """Users with their counts, followed by users who occur only in the interactions, with a blank profile."""
    known = users.join(counts, on="user", how="left", maintain_order="left")
    users_without_profile = counts.join(users.select("user"), on="user", how="anti").sort("user")
    users = pl.concat(
        [
            known.with_columns(_without_profile=pl.lit(value=False)),
            users_without_profile.with_columns(_without_profile=pl.lit(value=True)),
        ],
        how="diagonal",
    ).with_columns(pl.col("_rows", "_positives").fill_null(0), _training_only=pl.lit(value=False))
    log = [pl.col("_log")] if "_log" in users.columns else []
    return users.with_columns(_log=pl.coalesce(*log, "_rows"))  # for users without a profile, only the rows are known


def _apply_rules(users: pl.DataFrame, protocol: Protocol, schema: Schema) -> tuple[pl.DataFrame, list[RuleRecord]]:
    """The rules in the paper's order (unless `cold_rule` is last), with a record of each."""
    if protocol.min_counts == "clicks" and schema.target.kind != "click":
        what = f"min_counts is 'clicks', but the targets are {schema.target.kind}s"
        raise SettingsError(what, remedy="use min_counts=rows")
    rules: list[RuleRecord] = []

    def apply(rule: str, kept: Kept) -> pl.DataFrame:
        rules.append(RuleRecord(rule=rule, kept=len(kept.users), dropped=kept.dropped))
        if not len(kept.users):
            raise DataError(f"no users are left after the rule '{rule}'", remedy="loosen the protocol's settings")
        return kept.users

    def apply_cold_rule(users: pl.DataFrame) -> pl.DataFrame:
        share, rule = protocol.cold_share, f"{protocol.cold_share:.0%} with the least log data"
        if protocol.active_users == "train":
            return apply(f"{rule}, the others in training only", active_users_train(users, share))
        return apply(rule, cold_users(users, share))

    users = apply(LOG_RULE, with_interactions(users))
    if protocol.cold_rule == "first":
        users = apply_cold_rule(users)
    if protocol.drop_invalid_profiles:
        users = apply(PROFILE_RULE, valid_profiles(users, schema.features("user")))
    rows = {"rating": "ratings", "click": "interactions", "choice": "chosen items"}[schema.target.kind]
    counted = "clicks" if protocol.min_counts == "clicks" else rows
    enough = enough_interactions(users, protocol.min_interactions, protocol.min_counts)
    users = apply(f"at least {protocol.min_interactions} {counted}", enough)
    if protocol.cold_rule == "last":
        users = apply_cold_rule(users)
    if protocol.split == "time" and protocol.active_users == "train":
        users = apply("active users only if they came first", without_active_new_users(users))
    return users, rules
