"""From a source's raw tables to a prepared data set, by the paper's protocol."""

import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from paml.data.item_rates import with_rates
from paml.data.prepared import (
    FORMAT,
    Manifest,
    PreparedData,
    RuleRecord,
    Side,
    SourceRecord,
    Vocabulary,
    content_digests,
)
from paml.data.protocol import (
    SPLITS,
    Groups,
    Kept,
    Protocol,
    cold_users,
    common_values,
    enough_interactions,
    is_major,
    right_profiles,
    split_users,
    support_counts,
    with_interactions,
)
from paml.data.schema import DTYPES, Field, Kind, Schema
from paml.data.sources import LoadRequest, RawData, Source, find_source
from paml.data.sources.download import fetch
from paml.data.vocabulary import Categories, Encoder, fit
from paml.errors import DataError, SettingsError
from paml.files import new_folder
from paml.progress import SILENT, Progress
from paml.settings import build_all

DEFAULT_FOLDER = Path("paml-data")


def prepare(
    name: str,
    source: str | Path | None = None,
    out: str | Path | None = None,
    *,
    extra: str | Path | None = None,
    schema: str | Path | None = None,
    skip_bad_lines: bool = False,
    progress: Progress = SILENT,
    settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> PreparedData:
    """Read the source called `name` (its input at `source`) and write a prepared data set to `out`.

    Without `source`, an official archive is fetched, where there is one; `extra` and `schema` are further inputs that
    some sources take (`ml-1m`, `tables`). Settings of the source and of the protocol are given by name, or as a
    mapping. The folder appears whole or not at all.

    >>> data = paml.prepare("synthetic", out="world", users=500, seed=1)
    """
    kind = find_source(name)
    source_settings, protocol = build_all([kind.settings, Protocol], {**(settings or {}), **more})
    assert isinstance(protocol, Protocol)
    inputs = {"from": source, "extra": extra, "schema": schema}
    paths = {option: _input(kind, option, path) for option, path in inputs.items()}
    if not paths["from"] and not paths["schema"] and kind.takes and kind.archive is None:
        raise SettingsError(f"the source '{name}' needs a folder or archive", remedy="give it with --from PATH")
    target = Path(out) if out is not None else DEFAULT_FOLDER / name
    with new_folder(target) as folder, tempfile.TemporaryDirectory(dir=folder, prefix="work") as work:
        if paths["from"] is None and kind.archive is not None:
            paths["from"] = fetch(kind.archive, progress)
        request = LoadRequest(
            paths["from"],
            source_settings,
            Path(work),
            extra=paths["extra"],
            schema=paths["schema"],
            skip_bad_lines=skip_bad_lines,
            progress=progress,
        )
        raw = kind.load(request)
        record = SourceRecord(
            name=name,
            settings=source_settings.model_dump(mode="json"),
            checksum=raw.checksum,
            bad_lines=raw.bad_lines,
        )
        write(raw, record, protocol, folder, progress)
    return PreparedData.open(target)


def _input(kind: Source, option: str, path: str | Path | None) -> Path | None:
    """An input that was given, if the source takes it and it exists."""
    if path is None:
        return None
    if option not in kind.takes:
        raise SettingsError(f"the source '{kind.name}' takes no --{option}", remedy=f"leave --{option} away")
    if not Path(path).exists():
        raise DataError("no such file or folder", where=path, remedy=f"check the path given with --{option}")
    return Path(path)


def write(raw: RawData, record: SourceRecord, protocol: Protocol, folder: Path, progress: Progress = SILENT) -> None:
    """Apply the protocol to raw tables and fill `folder`."""
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
    codes = split_users(len(users), protocol.user_ratio, protocol.seed)
    order = np.argsort(codes, kind="stable")
    users = users[order]
    ends = np.cumsum(np.bincount(codes, minlength=len(SPLITS)))
    if ends[0] == 0:
        raise DataError("no training users are left", where=record.name, remedy="loosen the protocol's settings")
    strangers = int(users["_stranger"].sum())
    major = is_major(users, groups.common, protocol.major_above)
    support = support_counts(users["_rows"].to_numpy(), protocol.support_share)
    with progress.step("sorting interactions by user"):
        rows = _ordered_rows(raw, users, items, protocol, once=repeated > 0)
    offsets = np.concatenate([[0], np.cumsum(users["_rows"].to_numpy().astype(np.int64))])
    with progress.step("writing"):
        place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
        rows = rows.with_columns(query=pl.Series(place >= np.repeat(support, np.diff(offsets))))
        del place
        facts = {}
        if raw.best is not None:
            if ends[2] > ends[1]:
                facts[raw.best] = _best_of_test_users(rows, int(ends[1]))
            rows = rows.drop("_best")
        arrays: dict[str, np.ndarray] = {
            "offsets": offsets,
            "support": support.astype(np.int32),
            "major": major,
            "item": rows["item"].cast(pl.Int32).to_numpy(),
            "target": rows["target"].to_numpy(),
        }
        items = with_rates(items, schema.item, rows[: offsets[ends[0]]])
        tables = _as_written(users, items, rows, support, major, ends)
        vocabulary = _encode(schema, tables, rows[: offsets[ends[0]]], int(ends[0]), groups, arrays)
        _save(folder, tables, arrays, vocabulary)
        starts = np.concatenate([[0], ends[:-1]])
        manifest = Manifest(
            format=FORMAT,
            created_by=f"paml {version('paml')}",
            fingerprint="",
            seal="",
            source=record.model_copy(update={"facts": facts, "repeated": repeated, "strangers": strangers}),
            protocol=protocol,
            fields=schema,
            rules=tuple(rules),
            users=len(users),
            items=len(items),
            interactions=len(rows),
            splits={name: (int(a), int(b)) for name, a, b in zip(SPLITS, starts, ends, strict=True)},
            major={name: int(major[a:b].sum()) for name, a, b in zip(SPLITS, starts, ends, strict=True)},
            common_shares=groups.shares,
            vocabulary=_sizes(vocabulary),
            content=content_digests(folder),
            notes=raw.notes,
            files={str(file.relative_to(folder)): file.stat().st_size for file in _files(folder)},
        )
        manifest = manifest.model_copy(update={"fingerprint": manifest.computed_fingerprint()})
        manifest = manifest.model_copy(update={"seal": manifest.computed_seal()})
        (folder / "manifest.json").write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")


def _side(raw: RawData, key: Literal["user", "item"], fields: tuple[Field, ...]) -> pl.DataFrame:
    """The table of users or items with columns of the types that the kinds of their fields ask for."""
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
    """Rows and positive targets per user; a target off the scale is an error.

    If users rated an item repeatedly only the last rating counts, so that no pair lies in both support and query set;
    how many do not count is returned. Repeated impressions of clicks all count.
    """
    target, scale = pl.col("target").cast(pl.Float64), raw.schema.target
    wrong = ~scale.is_right(target)
    counts = (
        raw.interactions.group_by("user")
        .agg(
            _rows=pl.len().cast(pl.Int64),
            _positives=(target > 0).sum().cast(pl.Int64),
            _items=(pl.col("item").n_unique() if scale.kind == "rating" else pl.len()).cast(pl.Int64),
            _wrong=wrong.sum(),
        )
        .collect(engine="streaming")
    )
    if counts["_wrong"].sum():
        user, item, value = raw.interactions.filter(wrong).select("user", "item", "target").head(1).collect().row(0)
        expected = f"{scale.low:g} to {scale.high:g} in steps of {scale.step:g}" if scale.kind == "rating" else "0 or 1"
        raise DataError(
            f"user '{user}', item '{item}': target {value} is off the scale",
            where=raw.files.get("interactions", "interactions"),
            remedy=f"expected {expected}",
        )
    repeated = int((counts["_rows"] - counts["_items"]).sum()) if scale.kind == "rating" else 0
    if repeated:
        counts = counts.with_columns(_rows=pl.col("_items"))
    return counts.drop("_items", "_wrong"), repeated


def _best_of_test_users(rows: pl.DataFrame, first_test_user: int) -> float:
    """The least reachable loss of the test users' query rows: the mean over users of each user's mean."""
    query = rows.lazy().filter((pl.col("user") >= first_test_user) & pl.col("query"))
    best = query.group_by("user").agg(pl.col("_best").cast(pl.Float64).mean()).sort("user").select("_best").collect()
    return float(np.mean(best["_best"].to_numpy()))


def _require_known_items(raw: RawData, items: pl.DataFrame) -> None:
    met = raw.interactions.select("item").unique().collect(engine="streaming")
    strangers = met.join(items.select("item"), on="item", how="anti").sort("item")
    if len(strangers):
        raise DataError(
            f"item '{strangers['item'][0]}' has interactions and no row ({len(strangers)} such items)",
            where=raw.files.get("item", "items"),
            remedy="add the missing rows, with blank fields if nothing is known",
        )


def _with_counts(users: pl.DataFrame, counts: pl.DataFrame) -> pl.DataFrame:
    """Users with their counts; users that only the interactions know follow, with a blank profile."""
    known = users.join(counts, on="user", how="left", maintain_order="left")
    strangers = counts.join(users.select("user"), on="user", how="anti").sort("user")
    users = pl.concat(
        [known.with_columns(_stranger=pl.lit(value=False)), strangers.with_columns(_stranger=pl.lit(value=True))],
        how="diagonal",
    ).with_columns(pl.col("_rows", "_positives").fill_null(0))
    return users if "_log" in users.columns else users.with_columns(_log=pl.col("_rows"))


def _apply_rules(users: pl.DataFrame, protocol: Protocol, schema: Schema) -> tuple[pl.DataFrame, list[RuleRecord]]:
    """The rules in the paper's order, with a record of each."""
    rules: list[RuleRecord] = []

    def apply(rule: str, kept: Kept) -> pl.DataFrame:
        rules.append(RuleRecord(rule=rule, kept=len(kept.users), dropped=kept.dropped))
        if not len(kept.users):
            raise DataError(f"no users are left after the rule '{rule}'", remedy="loosen the protocol's settings")
        return kept.users

    users = apply("users with log data", with_interactions(users))
    users = apply(f"{protocol.cold_share:.0%} with the least log data", cold_users(users, protocol.cold_share))
    if protocol.drop_wrong_profiles:
        users = apply("no blank or wrong profile value", right_profiles(users, schema.features("user")))
    clicks = schema.target.kind == "click"
    what = f"at least {protocol.min_interactions} {'clicks' if clicks else 'ratings'}"
    users = apply(what, enough_interactions(users, protocol.min_interactions, clicks=clicks))
    return users, rules


def _ordered_rows(
    raw: RawData, users: pl.DataFrame, items: pl.DataFrame, protocol: Protocol, *, once: bool
) -> pl.DataFrame:
    """The kept users' interactions, keys replaced by row numbers, ordered by user with the support rows first.

    Each source row draws a random key; sorting by (user, key) is a total order, so the result does not depend on the
    order in which a parallel join returns rows. With `once`, only the last of several rows of a user and an item stays.
    """
    total = raw.interactions.select(pl.len()).collect().item()
    keys = pl.Series("_key", np.random.default_rng([protocol.seed, 2]).random(total, dtype=np.float32))
    has_time = "time" in raw.interactions.collect_schema().names()
    if protocol.support_by == "time" and not has_time:
        raise SettingsError("support_by is 'time', but the interactions have no time", remedy="use support_by=random")
    context = [pl.col(field.name).cast(DTYPES[field.kind]) for field in raw.schema.context]
    user_rows = users.select("user").with_row_index("_user_row").lazy()
    item_rows = items.select("item").with_row_index("_item_row").lazy()
    rows = (
        raw.interactions.with_row_index("_source_row")
        .join(user_rows, on="user", how="inner")
        .join(item_rows, on="item", how="inner")
        .select(
            "_source_row",
            pl.col("_user_row").alias("user"),
            pl.col("_item_row").alias("item"),
            pl.col("target").cast(pl.Float32),
            *(["time"] if has_time else []),
            *(["_best"] if raw.best is not None else []),
            *context,
        )
        .collect(engine="streaming")
    )
    if once:
        rows = rows.sort(["user", "item", *(["time"] if has_time else []), "_source_row"])
        new_user, new_item = (pl.col(name) != pl.col(name).shift(-1) for name in ("user", "item"))
        rows = rows.filter((new_user | new_item).fill_null(True))  # the last row of each pair; null after the very last
    rows = rows.with_columns(keys.gather(rows["_source_row"]))
    by = ["user", "time", "_key"] if protocol.support_by == "time" else ["user", "_key"]
    return rows.sort([*by, "_source_row"]).drop("_source_row", "_key")


def _as_written(
    users: pl.DataFrame,
    items: pl.DataFrame,
    rows: pl.DataFrame,
    support: np.ndarray,
    major: np.ndarray,
    ends: np.ndarray,
) -> dict[str, pl.DataFrame]:
    """The three tables as people and other programs read them."""
    split = np.repeat(np.array(SPLITS), np.diff(ends, prepend=0))
    users = users.with_columns(
        pl.col("user").cast(pl.String),
        split=pl.Series(split, dtype=pl.String),
        group=pl.Series(np.where(major, "major", "minor"), dtype=pl.String),
        support_rows=pl.Series(support),
        query_rows=pl.col("_rows") - pl.Series(support),
    ).drop("_log", "_rows", "_positives", "_stranger")
    return {"users": users, "items": items.with_columns(pl.col("item").cast(pl.String)), "interactions": rows}


def _encode(
    schema: Schema,
    tables: Mapping[str, pl.DataFrame],
    training_rows: pl.DataFrame,
    training_users: int,
    groups: Groups,
    arrays: dict[str, np.ndarray],
) -> Vocabulary:
    """Fit every field on what training users are and met, and add its encoded column to `arrays`."""
    met = training_rows["item"].unique().sort()
    training: dict[Side, pl.DataFrame] = {
        "user": tables["users"][:training_users],
        "item": tables["items"][met],
        "context": training_rows,
    }
    whole: dict[Side, pl.DataFrame] = {
        "user": tables["users"],
        "item": tables["items"],
        "context": tables["interactions"],
    }
    encoders: dict[Side, dict[str, Encoder]] = {"user": {}, "item": {}, "context": {}}
    for side in encoders:
        for field in schema.features(side):
            encoder = fit(field, training[side][field.name])
            encoders[side][field.name] = encoder
            column = whole[side][field.name]
            if field.kind is Kind.MULTI:
                assert isinstance(encoder, Categories)
                offsets, codes = encoder.encode_lists(column)
                arrays[f"{side}.{field.name}.offsets"], arrays[f"{side}.{field.name}"] = offsets, codes
            else:
                arrays[f"{side}.{field.name}"] = encoder.encode(column)
    common = {name: tuple(values) for name, values in groups.common.items()}
    return Vocabulary(user=encoders["user"], item=encoders["item"], context=encoders["context"], common=common)


def _save(
    folder: Path, tables: Mapping[str, pl.DataFrame], arrays: Mapping[str, np.ndarray], vocabulary: Vocabulary
) -> None:
    for name, table in tables.items():
        table.write_parquet(folder / f"{name}.parquet", row_group_size=1 << 20)
    (folder / "arrays").mkdir()
    for name, array in arrays.items():
        np.save(folder / "arrays" / f"{name}.npy", array, allow_pickle=False)
    (folder / "vocabulary.json").write_text(vocabulary.model_dump_json(indent=1) + "\n", encoding="utf-8")


def _sizes(vocabulary: Vocabulary) -> dict[str, int]:
    sides = {"user": vocabulary.user, "item": vocabulary.item, "context": vocabulary.context}
    return {
        f"{side}.{name}": encoder.size
        for side, encoders in sides.items()
        for name, encoder in encoders.items()
        if isinstance(encoder, Categories)
    }


def _files(folder: Path) -> list[Path]:
    """The data set's own files (the source's working folder is still there at this point)."""
    return [*sorted(folder.glob("*.parquet")), folder / "vocabulary.json", *sorted((folder / "arrays").iterdir())]
