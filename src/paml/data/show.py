"""A prepared data set in a notebook."""

from typing import TYPE_CHECKING

import numpy as np

from paml.notebook import BLUE, bars, card, table

if TYPE_CHECKING:
    from paml.data.dataset import Dataset

BINS = 24


def dataset_html(data: "Dataset") -> str:
    """Sizes, splits and fields, and how many ratings users have."""
    manifest, kind = data.manifest, data.schema.target.kind
    splits = ", ".join(f"{end - first:,} {name}" for name, (first, end) in manifest.splits.items())
    sides = {"user": data.schema.user, "item": data.schema.item, "context": data.schema.context}
    rows = [
        ("source", manifest.source.name),
        ("users", f"{manifest.users:,} ({splits})"),
        ("major users", f"{sum(manifest.major.values()) / manifest.users:.0%}"),
        ("items", f"{manifest.items:,}"),
        (f"{kind}s", f"{manifest.interactions:,}"),
        *((f"{side} fields", ", ".join(field.name for field in fields)) for side, fields in sides.items() if fields),
        ("fingerprint", manifest.fingerprint[:12]),
        ("folder", data.path),
    ]
    return card("Data set", table(rows), _rows_per_user(data))


def _rows_per_user(data: "Dataset") -> str:
    """Users by their number of rows, in bins of equal ratio."""
    rows_U = np.diff(data.array("offsets"))
    known_U = rows_U[rows_U > 0]
    low, high = int(known_U.min()), int(known_U.max())
    edges = np.unique(np.round(np.geomspace(low, high + 1, BINS + 1)))
    count_B = np.histogram(known_U, edges)[0]
    kind = data.schema.target.kind
    about = f"{kind}s per user, median {np.median(known_U):g}"
    return bars([("users", count_B.tolist(), BLUE)], (f"{low:,}", f"{high:,}"), about)
