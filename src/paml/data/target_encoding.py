"""Item features computed from the targets: how well training users liked an item.

Validation and test users are not used: their clicks change no feature. An item without training interactions gets the
mean. For training users, a rate does include the user's own target, as one among `n + strength`.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from paml.data.row_files import TrainingRows
from paml.data.schema import Field

MIN_RATE = 1e-6  # so that the logarithm of a rate without any click is finite


def with_rates(items: pl.DataFrame, fields: Sequence[Field], training: TrainingRows) -> pl.DataFrame:
    """Add each derived field: (sum of targets + strength * mean target) / (n + strength) over training rows."""
    derived = [field for field in fields if field.derived is not None]
    if not derived:
        return items
    item_N, target_N = training.array("item"), training.array("target").astype(np.float64)
    total_I = np.bincount(item_N, weights=target_N, minlength=len(items))
    count_I = np.bincount(item_N, minlength=len(items))
    mean = target_N.mean()
    columns = {}
    for field in derived:
        rate_I = (total_I + field.strength * mean) / (count_I + field.strength)
        columns[field.name] = rate_I if field.derived == "rate" else np.log(np.maximum(rate_I, MIN_RATE))
    return items.with_columns(pl.Series(name, values) for name, values in columns.items())
