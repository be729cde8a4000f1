"""What a comparison's figures are drawn from: its results and frames, and each entry's name, colour and sign."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from paml.analysis.comparisons import better, by_group, defined, of_method, per_user
from paml.analysis.format import metric_label
from paml.report.figures import style

FRAMES = ("rows", "embeddings", "history", "predictions")
MAX_CURVES = 8


@dataclass(frozen=True)
class Entry:
    """A line of the tables as it is drawn."""

    name: str
    label: str
    kind: str
    colour: str
    marker: str

    @property
    def learned(self) -> bool:
        """Whether it is a method or a variant of one."""
        return self.kind in ("method", "variant")


@dataclass(frozen=True)
class Material:
    """Results and frames of a comparison; a frame that is not there is empty."""

    results: dict[str, Any]
    frames: dict[str, pl.DataFrame]

    @classmethod
    def read(cls, folder: Path, results: dict[str, Any]) -> "Material":
        """The frames of a comparison's folder."""
        paths = {name: folder / f"{name}.parquet" for name in FRAMES}
        return cls(results, {name: pl.read_parquet(path) for name, path in paths.items() if path.exists()})

    @cached_property
    def entries(self) -> list[Entry]:
        """In the order of the tables; a method has the same colour in every comparison."""
        greys, colours = 0, 0
        found = []
        for k, entry in enumerate(self.results["entries"]):
            name, kind = entry["name"], entry["kind"]
            if kind in ("baseline", "reference"):
                colour, greys = style.GREYS[greys % len(style.GREYS)], greys + 1
            elif name in style.METHOD_COLOURS:
                colour = style.METHOD_COLOURS[name]
            else:
                colour, colours = style.MORE_COLOURS[colours % len(style.MORE_COLOURS)], colours + 1
            found.append(Entry(name, entry["label"], kind, colour, style.MARKERS[k % len(style.MARKERS)]))
        return found

    @property
    def metric(self) -> str:
        """The headline metric."""
        return str(self.results["headline"])

    @property
    def unit(self) -> str:
        """The headline metric and its direction, for an axis."""
        return self.axis(self.metric)

    def axis(self, metric: str) -> str:
        """A metric and its direction, for an axis."""
        return f"{metric_label(metric)} ({better(metric)} is better)"

    def frame(self, name: str) -> pl.DataFrame:
        """A frame; without columns where there is none."""
        return self.frames.get(name, pl.DataFrame())

    def present(self, frame: str = "rows") -> list[Entry]:
        """The entries that a frame has rows of."""
        rows = self.frame(frame)
        names = set(rows["method"].unique()) if "method" in rows.columns else set()
        return [entry for entry in self.entries if entry.name in names]

    def best_baseline(self) -> Entry | None:
        """By the headline metric."""
        best = self.results["best"]["baseline"]
        return next((entry for entry in self.entries if entry.name == best), None)

    def few(self, among: list[Entry]) -> list[Entry]:
        """What one panel can hold: the best baseline and the methods; variants as far as there is room."""
        baseline = self.best_baseline()
        learned = sorted((entry for entry in among if entry.learned), key=lambda entry: entry.kind)
        first = [entry for entry in among if baseline is not None and entry.name == baseline.name]
        return [*first, *learned[:MAX_CURVES]]

    def per_user(self, entry: Entry, metric: str | None = None) -> np.ndarray:
        """One value per user for whom it is defined: the mean over seeds."""
        return defined(per_user(of_method(self.frame("rows"), entry.name, metric or self.metric)))

    def per_group(self, entry: Entry) -> tuple[np.ndarray, np.ndarray]:
        """The same of major and of minor users."""
        return by_group(per_user(of_method(self.frame("rows"), entry.name, self.metric)))

    def rates(self, entry: Entry) -> tuple[np.ndarray, np.ndarray]:
        """Learning rates of major and of minor users, in all seeds; nothing where a training has one for all users."""
        nobody = np.zeros(0)
        rows = self.frame("rows")
        if "rate" not in rows.columns:
            return nobody, nobody
        rate = pl.col("rate").cast(pl.Float64)
        own = rows.filter((pl.col("method") == entry.name) & rate.is_finite())
        if not own.group_by("seed").agg(personal=rate.max() > rate.min())["personal"].any():
            return nobody, nobody
        major, minor = (own.filter(pl.col("group") == group)["rate"].to_numpy() for group in ("major", "minor"))
        return major, minor

    def mean(self, entry: Entry, metric: str | None = None, group: str = "all") -> tuple[float | None, float | None]:
        """Mean and standard deviation over seeds, as in the tables."""
        found = self.results["table"].get(metric or self.metric, {}).get(entry.name, {}).get(group) or {}
        return found.get("mean"), found.get("deviation")

    def variants_of(self, method: str) -> dict[str, dict[str, Any]]:
        """The settings of a method's variants by name."""
        variants = self.results["plan"].get("variants") or {}
        return {name: found["settings"] for name, found in variants.items() if found["method"] == method}
