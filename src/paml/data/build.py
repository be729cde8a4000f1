"""Write a prepared data set: users are split, rows ordered, fields encoded, and everything is recorded.

This is the part of preparation that depends on the seed; which users are kept is decided before.
"""

import tempfile
from collections.abc import Callable, Mapping
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
from paml.data.protocol import KNOWN, SPLITS, Groups, Protocol, is_major, split_cold_users
from paml.data.row_files import GROUP_ROWS, TrainingRows, Wanted, write_rows
from paml.data.row_order import Part, ordered_parts
from paml.data.schema import Schema
from paml.data.sources import RawData
from paml.data.target_encoding import with_rates
from paml.data.vocabulary import Categories, Encoder, FieldEncoder, fit
from paml.errors import DataError
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
    known_support = np.zeros(0, dtype=np.int64)
    with (
        progress.step("sorting interactions by user"),
        tempfile.TemporaryDirectory(dir=folder, prefix="work") as temporary,
    ):
        work = Path(temporary)
        parts = ordered_parts(raw, users, items, protocol, work, once=chosen.repeated > 0)
        if protocol.new_items != "0":
            rows = pl.concat([part.rows for part in parts])
            split = hold_out(users, rows, ends, new_items(raw, items, protocol), protocol.seed)
            users, ends, known_support = split.users, split.ends, split.known_support_U
            parts = iter([Part(0, len(users), split.rows)])
            major = is_major(users, chosen.groups.common, protocol.major_above)
        offsets = np.concatenate([[0], np.cumsum(users["_rows"].to_numpy().astype(np.int64))])
        test = (int(ends[1]), int(ends[2])) if raw.best is not None and ends[2] > ends[1] else None
        written = write_rows(parts, Wanted(protocol, offsets, known_support, test), folder, work)
    names, support, best = (*SPLITS, KNOWN)[: len(ends)], written.support_U, written.best()
    with progress.step("writing"):
        facts = {} if raw.best is None or best is None else {raw.best: best}
        training = TrainingRows(folder, int(offsets[ends[0]]))
        arrays: dict[str, np.ndarray] = {"offsets": offsets, "support": support.astype(np.int32), "major": major}
        items = with_rates(items, schema.item, training)
        if protocol.active_users == "train":  # who they are, for other splits
            users = users.with_columns(training_only="_training_only")
        tables = _as_written(users, items, support, major, dict(zip(names, ends, strict=True)))
        vocabulary = _encode(schema, tables, training, int(ends[0]), chosen.groups, arrays)
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
            interactions=int(offsets[-1]),
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


def _as_written(
    users: pl.DataFrame,
    items: pl.DataFrame,
    support: np.ndarray,
    major: np.ndarray,
    ends: Mapping[str, int],
) -> dict[str, pl.DataFrame]:
    """Users and items as people and other programs read them; `ends` are those of the splits."""
    split = np.repeat(np.array([*ends]), np.diff([*ends.values()], prepend=0))
    users = users.with_columns(
        pl.col("user").cast(pl.String),
        split=pl.Series(split, dtype=pl.String),
        group=pl.Series(np.where(major, "major", "minor"), dtype=pl.String),
        support_rows=pl.Series(support),
        query_rows=pl.col("_rows") - pl.Series(support),
    ).drop("_log", "_rows", "_positives", "_without_profile", "_training_only")
    return {"users": users, "items": items.with_columns(pl.col("item").cast(pl.String))}


def _encode(
    schema: Schema,
    tables: Mapping[str, pl.DataFrame],
    training: TrainingRows,
    training_users: int,
    groups: Groups,
    arrays: dict[str, np.ndarray],
) -> Vocabulary:
    """Fit every field on training users and the items they interacted with; add its encoded column to `arrays`.

    Fields of interactions are read one at a time: there are more rows of them than of anything else.
    """
    users, items = tables["users"], tables["items"]
    met = items[np.flatnonzero(training.interacted(len(items)))]
    columns: dict[Side, Callable[[str], tuple[pl.Series, pl.Series]]] = {
        "user": lambda name: (users[name], users[name][:training_users]),
        "item": lambda name: (items[name], met[name]),
        "context": training.context,
    }
    encoders: dict[Side, dict[str, Encoder]] = {"user": {}, "item": {}, "context": {}}
    for side, column_of in columns.items():
        for field in schema.features(side):
            whole, fitted_on = column_of(field.name)
            encoder = fit(field, fitted_on)
            encoders[side][field.name] = encoder
            encoded = FieldEncoder(field, encoder).column(whole)
            if encoded.offsets is not None:
                arrays[f"{side}.{field.name}.offsets"] = encoded.offsets
            arrays[f"{side}.{field.name}"] = encoded.values
    common = {name: tuple(values) for name, values in groups.common.items()}
    return Vocabulary(user=encoders["user"], item=encoders["item"], context=encoders["context"], common=common)


def _save(
    folder: Path, tables: Mapping[str, pl.DataFrame], arrays: Mapping[str, np.ndarray], vocabulary: Vocabulary
) -> None:
    for name, table in tables.items():
        table.write_parquet(folder / f"{name}.parquet", row_group_size=GROUP_ROWS)
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
