"""Write a prepared data set: users are split, rows ordered, fields encoded, and everything is recorded.

This is the part of preparation that depends on the seed; which users are kept is decided before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import polars as pl

from paml.data.croissant import write_croissant
from paml.data.dataset import (
    FORMAT,
    Manifest,
    RuleRecord,
    Side,
    SourceRecord,
    Vocabulary,
    content_digests,
)
from paml.data.new_items import hold_out, new_items
from paml.data.protocol import KNOWN, SPLITS, Groups, Protocol, is_major, split_cold_users, support_counts
from paml.data.schema import DTYPES, Schema, without_invalid_values
from paml.data.sources import RawData
from paml.data.target_encoding import with_rates
from paml.data.time_split import support_in_days
from paml.data.vocabulary import Categories, Encoder, FieldEncoder, fit
from paml.errors import DataError, SettingsError
from paml.files import listed
from paml.progress import SILENT, Progress


@dataclass(frozen=True)
class Chosen:
    """What is kept, before any split: users with `_rows` (the number of interactions of each), items, groups."""

    users: pl.DataFrame
    items: pl.DataFrame
    groups: Groups
    rules: tuple[RuleRecord, ...]
    repeated: int = 0
    """Interactions of the raw tables that are ignored: earlier ratings of the same item by the same user."""


def write_split(
    raw: RawData,
    chosen: Chosen,
    record: SourceRecord,
    protocol: Protocol,
    folder: Path,
    progress: Progress = SILENT,
) -> None:
    """Split users and rows with the protocol's seed, and write the result to `folder`."""
    schema, users, items = raw.schema, chosen.users, chosen.items
    if "_split" in users.columns:  # by time
        codes, users = users["_split"].to_numpy(), users.drop("_split")
    else:
        codes = split_cold_users(users["_training_only"].to_numpy(), protocol.user_ratio, protocol.seed)
    order = np.argsort(codes, kind="stable")
    users = users[order]
    ends = np.cumsum(np.bincount(codes, minlength=len(SPLITS)))
    if ends[0] == 0:
        raise DataError("no training users are left", where=record.name, remedy="loosen the protocol's settings")
    users_without_profile = int(users["_without_profile"].sum())
    major = is_major(users, chosen.groups.common, protocol.major_above)
    with progress.step("sorting interactions by user"):
        rows = _ordered_rows(raw, users, items, protocol, once=chosen.repeated > 0)
    known_support = np.zeros(0, dtype=np.int64)
    if protocol.new_items != "0":
        split = hold_out(users, rows, ends, new_items(raw, items, protocol), protocol.seed)
        users, rows, ends, known_support = split.users, split.rows, split.ends, split.known_support_U
        major = is_major(users, chosen.groups.common, protocol.major_above)
    names = (*SPLITS, KNOWN)[: len(ends)]
    offsets = np.concatenate([[0], np.cumsum(users["_rows"].to_numpy().astype(np.int64))])
    support = _support(rows, offsets, protocol)
    support[ends[2] :] = known_support
    with progress.step("writing"):
        place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
        rows = rows.with_columns(query=pl.Series(place >= np.repeat(support, np.diff(offsets))))
        del place
        facts = {}
        if raw.best is not None:
            if ends[2] > ends[1]:
                facts[raw.best] = _best_of_test_users(rows, int(ends[1]), int(ends[2]))
            rows = rows.drop("_best")
        arrays: dict[str, np.ndarray] = {
            "offsets": offsets,
            "support": support.astype(np.int32),
            "major": major,
            "item": rows["item"].cast(pl.Int32).to_numpy(),
            "target": rows["target"].to_numpy(),
        }
        items = with_rates(items, schema.item, rows[: offsets[ends[0]]])
        if protocol.active_users == "train":  # who they are, for other splits
            users = users.with_columns(training_only="_training_only")
        tables = _as_written(users, items, rows, support, major, dict(zip(names, ends, strict=True)))
        vocabulary = _encode(schema, tables, rows[: offsets[ends[0]]], int(ends[0]), chosen.groups, arrays)
        _save(folder, tables, arrays, vocabulary)
        starts = np.concatenate([[0], ends[:-1]])
        manifest = Manifest(
            format=FORMAT,
            created_by=f"paml {version('paml')}",
            fingerprint="",
            seal="",
            source=record.model_copy(
                update={
                    "facts": facts,
                    "repeated": chosen.repeated or record.repeated,
                    "users_without_profile": users_without_profile or record.users_without_profile,
                }
            ),
            protocol=protocol,
            data_schema=schema,
            rules=chosen.rules,
            users=len(users),
            items=len(items),
            interactions=len(rows),
            splits={name: (int(a), int(b)) for name, a, b in zip(names, starts, ends, strict=True)},
            major={name: int(major[a:b].sum()) for name, a, b in zip(names, starts, ends, strict=True)},
            common_shares=chosen.groups.shares,
            vocabulary=_sizes(vocabulary),
            content=content_digests(folder),
            notes=raw.notes,
            files={str(file.relative_to(folder)): listed(file) for file in _files(folder)},
        )
        manifest = manifest.model_copy(update={"fingerprint": manifest.computed_fingerprint()})
        manifest = manifest.model_copy(update={"seal": manifest.computed_seal()})
        write_croissant(folder, manifest)
        (folder / "manifest.json").write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")


def _support(rows: pl.DataFrame, offsets: np.ndarray, protocol: Protocol) -> np.ndarray:
    """Support rows of each user: a share, the first ones, or those of the first days; at least one, and not all."""
    count_U = np.diff(offsets)
    if protocol.support_first is not None:
        support_U = np.full(len(count_U), protocol.support_first)
    elif protocol.support_days is not None:
        support_U = support_in_days(rows["time"].cast(pl.Float64).to_numpy(), offsets, protocol.support_days)
    else:
        return support_counts(count_U, protocol.support_share, protocol.support_rounding)
    limited_U: np.ndarray = np.clip(support_U, 1, count_U - 1).astype(np.int64)
    return limited_U


def _best_of_test_users(rows: pl.DataFrame, first_test_user: int, end: int) -> float:
    """The lowest reachable loss on the test users' query rows: the mean over users of each user's mean."""
    query = rows.lazy().filter(pl.col("user").is_between(first_test_user, end - 1) & pl.col("query"))
    best = query.group_by("user").agg(pl.col("_best").cast(pl.Float64).mean()).sort("user").select("_best").collect()
    return float(np.mean(best["_best"].to_numpy()))


def _ordered_rows(
    raw: RawData, users: pl.DataFrame, items: pl.DataFrame, protocol: Protocol, *, once: bool
) -> pl.DataFrame:
    """The kept users' interactions, keys replaced by row numbers, ordered by user with the support rows first.

    Each source row draws a random key; sorting by (user, key) is a total order, so the result does not depend on the
    order in which a parallel join returns rows. With `once`, only the last row of each (user, item) pair is kept.
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
        .with_columns(without_invalid_values(raw.schema.context))
        .collect(engine="streaming")
    )
    if once:
        rows = rows.sort(["user", "item", *(["time"] if has_time else []), "_source_row"])
        new_user, new_item = (pl.col(name) != pl.col(name).shift(-1) for name in ("user", "item"))
        rows = rows.filter((new_user | new_item).fill_null(True))  # the last row of each pair; null in the last row
    rows = rows.with_columns(keys.gather(rows["_source_row"]))
    by = ["user", "time", "_key"] if protocol.support_by == "time" else ["user", "_key"]
    return rows.sort([*by, "_source_row"]).drop("_source_row", "_key")


def _as_written(
    users: pl.DataFrame,
    items: pl.DataFrame,
    rows: pl.DataFrame,
    support: np.ndarray,
    major: np.ndarray,
    ends: Mapping[str, int],
) -> dict[str, pl.DataFrame]:
    """The three tables as people and other programs read them; `ends` are those of the splits."""
    split = np.repeat(np.array([*ends]), np.diff([*ends.values()], prepend=0))
    users = users.with_columns(
        pl.col("user").cast(pl.String),
        split=pl.Series(split, dtype=pl.String),
        group=pl.Series(np.where(major, "major", "minor"), dtype=pl.String),
        support_rows=pl.Series(support),
        query_rows=pl.col("_rows") - pl.Series(support),
    ).drop("_log", "_rows", "_positives", "_without_profile", "_training_only")
    return {"users": users, "items": items.with_columns(pl.col("item").cast(pl.String)), "interactions": rows}


def _encode(
    schema: Schema,
    tables: Mapping[str, pl.DataFrame],
    training_rows: pl.DataFrame,
    training_users: int,
    groups: Groups,
    arrays: dict[str, np.ndarray],
) -> Vocabulary:
    """Fit every field on training users and the items they interacted with; add its encoded column to `arrays`."""
    interacted = training_rows["item"].unique().sort()
    training: dict[Side, pl.DataFrame] = {
        "user": tables["users"][:training_users],
        "item": tables["items"][interacted],
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
            encoded = FieldEncoder(field, encoder).column(whole[side][field.name])
            if encoded.offsets is not None:
                arrays[f"{side}.{field.name}.offsets"] = encoded.offsets
            arrays[f"{side}.{field.name}"] = encoded.values
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
