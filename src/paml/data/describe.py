"""What a prepared data set contains, as one plain dictionary for people and programs."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from paml.data.dataset import Dataset
from paml.data.sources import SOURCE_REGISTRY

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def describe(data: Dataset | str | Path) -> dict[str, Any]:
    """Describe a prepared data set, or the one in a folder, as a plain dictionary.

    It has sizes, splits, groups, how many users each rule dropped, the target's histogram, quantiles of rows per user,
    shares of common values, and under `paper` what the paper reports about the same data (None if it does not).

    >>> import paml
    >>> data = paml.prepare("synthetic", out="world", users=500)
    >>> paml.describe(data)["splits"]
    {'train': 275, 'validation': 39, 'test': 79}
    """
    data = Dataset.of(data)
    manifest = data.manifest
    sizes = {name: end - first for name, (first, end) in manifest.splits.items()}
    rows_U = np.diff(data.array("offsets"))
    source = SOURCE_REGISTRY.get(manifest.source.name)
    major = sum(manifest.major.values())
    return {
        "path": str(data.path),
        "fingerprint": manifest.fingerprint,
        "source": manifest.source.model_dump(mode="json"),
        "target": manifest.data_schema.target.model_dump(mode="json"),
        "users": manifest.users,
        "items": manifest.items,
        "items_interacted": int(data.interactions().select(pl.col("item").n_unique()).collect().item()),
        "interactions": manifest.interactions,
        "splits": sizes,
        "groups": {"major": major / manifest.users, "minor": 1 - major / manifest.users},
        "major_users": manifest.major,
        "common_shares": manifest.common_shares,
        "dropped": {rule.rule: rule.dropped for rule in manifest.rules},
        "bad_lines": manifest.source.bad_lines,
        "repeated": manifest.source.repeated,
        "users_without_profile": manifest.source.users_without_profile,
        "notes": list(manifest.notes),
        "paper": asdict(source.paper) if source is not None and source.paper is not None else None,
        "histogram": _histogram(data),
        "rows_per_user": {f"{q:.0%}": float(np.quantile(rows_U, q)) for q in QUANTILES},
        "vocabulary": manifest.vocabulary,
        "protocol": manifest.protocol.model_dump(mode="json"),
    }


def _histogram(data: Dataset) -> dict[str, int]:
    """How often each target value occurs; all levels of the scale are included."""
    counts = data.interactions().group_by("target").len().collect()
    found = {f"{value:g}": int(count) for value, count in counts.iter_rows()}
    levels = {f"{level:g}": 0 for level in data.schema.target.levels if level >= data.schema.target.lowest}
    return dict(sorted({**levels, **found}.items(), key=lambda entry: float(entry[0])))
