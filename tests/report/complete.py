"""A comparison made by hand, completed by everything that a report can show."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from paml.analysis.results import summarise_comparison
from paml.baselines import reweighted

VARIANTS = {  # settings come from the command line as text
    "reg_paml gamma=0.01": {"method": "reg_paml", "settings": {"gamma": "0.01"}},
    "reg_paml gamma=1e-05": {"method": "reg_paml", "settings": {"outer_rate": "5e-4"}},
}
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
    plan = json.loads((folder / "plan.json").read_text())
    if plan["data"]["target"] == "click":
        parts = []
        for name, seed in rows.select("method", "seed").unique(maintain_order=True).iter_rows():
            p_N = rng.uniform(0.05, 0.6, 400)
            columns = {"label": (rng.random(400) < p_N).astype(np.int64), "p": reweighted(p_N)}
            parts.append(pl.DataFrame({"method": [name] * 400, "seed": [seed] * 400, **columns}))
        pl.concat(parts).write_parquet(folder / "predictions.parquet")
    write_results(folder)
    return folder


def read_results(folder: Path) -> dict[str, Any]:
    results, cost = (json.loads((folder / f"{name}.json").read_text()) for name in ("results", "costs"))
    return {**results, "cost": cost}


def write_results(folder: Path) -> dict[str, Any]:
    results = summarise_comparison(folder, resamples=50)
    (folder / "results.json").write_text(json.dumps({k: v for k, v in results.items() if k != "cost"}))
    (folder / "costs.json").write_text(json.dumps(results["cost"]))
    return results
