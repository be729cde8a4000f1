"""A prepared data set split with another seed: the same users, items and groups, other training and test users.

Repeated trials need other splits, and the raw files may not be at hand. The rules on users do not depend on the seed,
so the prepared tables contain everything that is needed.
"""

from pathlib import Path

import polars as pl

from paml.data.build import Chosen, write_split
from paml.data.dataset import Dataset
from paml.data.protocol import Groups
from paml.data.sources import RawData
from paml.errors import SettingsError
from paml.files import new_folder
from paml.progress import SILENT, Progress

SPLIT_COLUMNS = ("split", "group", "support_rows", "query_rows")


def resplit(data: Dataset, seed: int, out: str | Path, progress: Progress = SILENT) -> Dataset:
    """Write the data set split with `seed` to `out`; facts about test users (the best reachable error) are dropped."""
    manifest, schema = data.manifest, data.schema
    if not manifest.protocol.can_be_split_again:
        what = "its split depends on time, or holds items out of training: it cannot be drawn again"
        raise SettingsError(what, where=data.path, remedy="keep its split, or prepare it with other settings")
    derived = [field.name for field in schema.item if field.derived is not None]
    users = data.users().collect()
    items = data.items().drop(derived).collect()
    ids = {"user": users["user"], "item": items["item"]}
    interactions = (
        data.interactions()
        .drop("query")
        .with_columns(pl.lit(ids[key]).gather(pl.col(key)).alias(key) for key in ("user", "item"))
    )
    raw = RawData(
        schema=schema,
        users=users.lazy(),
        items=items.lazy(),
        interactions=interactions,
        checksum=manifest.source.checksum,
        notes=manifest.notes,
    )
    active = "training_only" if "training_only" in users.columns else pl.lit(value=False)
    chosen_users = users.with_columns(
        _log=pl.lit(0),
        _rows=pl.col("support_rows") + pl.col("query_rows"),
        _positives=pl.lit(0),
        _without_profile=pl.lit(value=False),  # who they are is not recorded; their number is kept
        _training_only=active,
    ).drop(*SPLIT_COLUMNS, "training_only", strict=False)
    groups = Groups({name: list(values) for name, values in data.vocabulary.common.items()}, manifest.common_shares)
    protocol = manifest.protocol.model_copy(update={"seed": seed})
    with new_folder(Path(out)) as folder:
        chosen = Chosen(chosen_users, items, groups, manifest.rules)
        record = manifest.source.model_copy(update={"facts": {}})
        write_split(raw, chosen, record, protocol, folder, progress)
    return Dataset.open(out)
