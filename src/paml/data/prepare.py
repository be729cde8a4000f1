"""From a source's raw tables to a prepared data set, by the paper's protocol."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from paml.data.build import Chosen, write_split
from paml.data.dataset import (
    Dataset,
    RuleRecord,
    SourceRecord,
)
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
from paml.data.schema import DTYPES, Field, Schema, without_invalid_values
from paml.data.sources import LoadRequest, RawData, Source, find_source
from paml.data.sources.download import fetch
from paml.errors import DataError, SettingsError
from paml.files import new_folder
from paml.progress import SILENT, Progress
from paml.settings import Settings, build, build_all

DEFAULT_FOLDER = Path("paml-data")


def prepare(
    source: str,
    path: str | Path | None = None,
    out: str | Path | None = None,
    *,
    extra: str | Path | None = None,
    schema: str | Path | None = None,
    skip_bad_lines: bool = False,
    progress: Progress = SILENT,
    settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> Dataset:
    """Read a source (see `paml data list`) and write a prepared data set to the folder `out`.

    `path` is the folder or archive to read; without it the official archive is downloaded, if there is one.
    `extra` (`ml-1m`) and `schema` (`tables`) are further files that some sources take. `skip_bad_lines` counts lines
    that cannot be read, instead of raising DataError. Settings of the source and of the protocol are keyword arguments,
    or a mapping `settings`. The folder must not exist (default: `paml-data/SOURCE`); a failure leaves nothing behind.

    >>> import paml
    >>> data = paml.prepare("synthetic", out="world", users=500, seed=1)
    >>> data.manifest.users
    393
    """
    kind = find_source(source)
    source_settings, protocol = _settings(kind, {**(settings or {}), **more})
    inputs = {"path": path, "extra": extra, "schema": schema}
    paths = {argument: _input(kind, argument, given) for argument, given in inputs.items()}
    if not paths["path"] and not paths["schema"] and kind.takes and kind.archive is None:
        what = f"the source '{source}' needs a folder or archive"
        raise SettingsError(what, remedy="give the path of one", argument="path")
    target = Path(out) if out is not None else DEFAULT_FOLDER / source
    with new_folder(target) as folder, tempfile.TemporaryDirectory(dir=folder, prefix="work") as work:
        if paths["path"] is None and kind.archive is not None:
            paths["path"] = fetch(kind.archive, progress)
        request = LoadRequest(
            paths["path"],
            source_settings,
            Path(work),
            extra=paths["extra"],
            schema=paths["schema"],
            skip_bad_lines=skip_bad_lines,
            progress=progress,
        )
        raw = kind.load(request)
        record = SourceRecord(
            name=source,
            settings=source_settings.model_dump(mode="json"),
            checksum=raw.checksum,
            bad_lines=raw.bad_lines,
        )
        chosen = choose(raw, protocol, progress)
        notes = (*raw.notes, *_many_without_profile(raw, chosen.users), *_chosen_by_clicks(protocol))
        raw = replace(raw, notes=notes)
        write_split(raw, chosen, record, protocol, folder, progress)
    return Dataset.open(target)


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


def choose(raw: RawData, protocol: Protocol, progress: Progress = SILENT) -> Chosen:
    """Apply the protocol's rules on users to the raw tables."""
    schema = raw.schema
    with progress.step("reading profiles and contents"):
        users = _side(raw, "user", schema.user)
        items = _side(raw, "item", schema.item)
    with progress.step("counting interactions"):
        counts, repeated = _counts(raw)
        _require_known_items(raw, items)
        users = _with_counts(users, counts)
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

    If a user rated an item more than once, only the last rating counts, so that no (user, item) pair is in both the
    support and the query set. For clicks, repeated impressions all count.
    """
    target, scale = pl.col("target").cast(pl.Float64), raw.schema.target
    invalid = ~scale.is_valid(target)
    counts = (
        raw.interactions.group_by("user")
        .agg(
            _rows=pl.len().cast(pl.Int64),
            _positives=(target > 0).sum().cast(pl.Int64),
            _items=(pl.col("item").n_unique() if scale.kind == "rating" else pl.len()).cast(pl.Int64),
            _invalid=invalid.sum(),
        )
        .collect(engine="streaming")
    )
    if not len(counts):
        raise DataError("has no rows", where=raw.files.get("interactions", "interactions"), remedy="name another file")
    if counts["_invalid"].sum():
        user, item, value = raw.interactions.filter(invalid).select("user", "item", "target").head(1).collect().row(0)
        expected = f"{scale.low:g} to {scale.high:g} in steps of {scale.step:g}" if scale.kind == "rating" else "0 or 1"
        raise DataError(
            f"user '{user}', item '{item}': target {value} is off the scale",
            where=raw.files.get("interactions", "interactions"),
            remedy=f"expected {expected}",
        )
    repeated = int((counts["_rows"] - counts["_items"]).sum()) if scale.kind == "rating" else 0
    if repeated:
        counts = counts.with_columns(_rows=pl.col("_items"))
    return counts.drop("_items", "_invalid"), repeated


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


def _many_without_profile(raw: RawData, users: pl.DataFrame) -> list[str]:
    """A note if the users' file has few of the kept users: keys are then often written differently."""
    count = int(users["_without_profile"].sum())
    if "user" not in raw.files or 2 * count <= len(users):
        return []
    file = raw.files["user"]
    return [f"{count:,} of {len(users):,} users have no row in {file}: are keys written as in the interactions?"]


def _chosen_by_clicks(protocol: Protocol) -> list[str]:
    """A note on what the paper's rule for clicks does to query rows."""
    if protocol.min_counts != "clicks":
        return []
    least = protocol.min_interactions
    known = "one click" if least == 2 else f"fewer than {least} clicks"
    return [
        f"warning: min_counts=clicks, the paper's rule, chooses users by their query rows, too: whoever has {known} "
        "among the support rows is certain to have one among the query rows, which is not so for new users; "
        "min_counts=rows does not look at clicks"
    ]


def _apply_rules(users: pl.DataFrame, protocol: Protocol, schema: Schema) -> tuple[pl.DataFrame, list[RuleRecord]]:
    """The rules in the paper's order (unless `cold_rule` is last), with a record of each."""
    if protocol.min_counts == "clicks" and schema.target.kind != "click":
        raise SettingsError("min_counts is 'clicks', but the targets are ratings", remedy="use min_counts=rows")
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

    users = apply("users with log data", with_interactions(users))
    if protocol.cold_rule == "first":
        users = apply_cold_rule(users)
    if protocol.drop_invalid_profiles:
        users = apply("no blank or invalid profile value", valid_profiles(users, schema.features("user")))
    rows = "interactions" if schema.target.kind == "click" else "ratings"
    counted = "clicks" if protocol.min_counts == "clicks" else rows
    enough = enough_interactions(users, protocol.min_interactions, protocol.min_counts)
    users = apply(f"at least {protocol.min_interactions} {counted}", enough)
    if protocol.cold_rule == "last":
        users = apply_cold_rule(users)
    return users, rules
