"""A comparison made by hand, completed by everything that a report can show."""

from pathlib import Path

import numpy as np
import polars as pl

from paml.analysis.plan import read_plan
from paml.analysis.results import Results, write_results
from paml.analysis.summarise import summarise_comparison

VARIANTS = ("reg_paml gamma=0.01", "reg_paml outer_rate=5e-4")
PERSONAL = ("paml", "reg_paml", *VARIANTS)


def complete(folder: Path) -> Path:
    """Add what only some figures need, and results: personal rates, embeddings, learning curves, predicted clicks."""
    rng = np.random.default_rng(0)
    rows = pl.read_parquet(folder / "rows.parquet")
    drawn = pl.Series(rng.gamma(5, 0.01, len(rows)))
    rows = rows.with_columns(rate=pl.when(pl.col("method").is_in(PERSONAL)).then(drawn).otherwise(pl.col("rate")))
    rows.write_parquet(folder / "rows.parquet")
    known = rows.filter(pl.col("method").is_in([*PERSONAL, "melu"]))
    first = known.filter(pl.col("seed") == 0)
    vectors = pl.Series(rng.normal(size=(len(first), 8)).astype(np.float32).tolist(), dtype=pl.List(pl.Float32))
    first.select("method", "seed", "user", "group").with_columns(vector=vectors).write_parquet(
        folder / "embeddings.parquet"
    )
    cells = known.select("method", "seed").unique(maintain_order=True)
    epochs = cells.join(pl.DataFrame({"epoch": range(1, 7)}), how="cross")
    epochs.with_columns(loss=1 / pl.col("epoch"), validation=0.8 + 0.5 / pl.col("epoch")).write_parquet(
        folder / "history.parquet"
    )
    if read_plan(folder).data.target == "click":
        parts = []
        for name, seed in rows.select("method", "seed").unique(maintain_order=True).iter_rows():
            p_N = rng.uniform(0.05, 0.6, 400)
            columns = {"label": (rng.random(400) < p_N).astype(np.int64), "p": p_N}
            parts.append(pl.DataFrame({"method": [name] * 400, "seed": [seed] * 400, **columns}))
        pl.concat(parts).write_parquet(folder / "predictions.parquet")
    summarise_again(folder)
    return folder


def summarise_again(folder: Path) -> Results:
    """Results of the folder's rows as they are now, stored."""
    results = summarise_comparison(folder, resamples=50)
    write_results(folder, results)
    return results
