"""What a comparison's figures are drawn from: its results and frames, and each entry's name, colour and marker."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from paml.analysis.comparisons import GROUPS, OverSeeds, balanced, by_group, defined, of_method, per_user
from paml.analysis.format import count
from paml.analysis.plan import AGAIN, MetricFacts, RateFacts
from paml.analysis.results import Results
from paml.files import read_parquet
from paml.report.figures import style

FRAMES = ("rows", "embeddings", "history", "predictions")
MAX_CURVES = 8


@dataclass(frozen=True)
class DrawnEntry:
    """A line of the tables as it is drawn."""

    name: str
    label: str
    kind: str
    rate: RateFacts | None
    colour: str
    marker: str

    @property
    def learned(self) -> bool:
        """Whether it is a method or a variant of one."""
        return self.kind in ("method", "variant")

    @property
    def rate_name(self) -> str:
        """What a user's rate is."""
        return "learning rate" if self.rate is None else self.rate.label

    @property
    def rate_bound(self) -> float | None:
        """The largest rate that its settings allow, if it is known."""
        return None if self.rate is None else self.rate.bound


@dataclass(frozen=True)
class UserRates:
    """The rates of some users, in all seeds."""

    rate_N: np.ndarray
    """N rows: a user in a seed."""
    users: int
    """Distinct ones."""
    seeds: int

    @property
    def who(self) -> str:
        """How many users they are, and in how many seeds."""
        users = count(self.users, "user")
        return users if self.seeds == 1 else f"{users} in {count(self.seeds, 'seed')}"


@dataclass(frozen=True)
class Material:
    """Results and frames of a comparison; a missing frame is empty."""

    results: Results
    frames: dict[str, pl.DataFrame]

    @classmethod
    def read(cls, folder: Path, results: Results) -> "Material":
        """The frames of a comparison's folder."""
        paths = {name: folder / f"{name}.parquet" for name in FRAMES}
        frames = {name: read_parquet(path, AGAIN) for name, path in paths.items() if path.exists()}
        failed = {cell.method for cell in results.failed}
        compared = pl.col("seed").is_in(results.seeds) & ~pl.col("method").is_in(failed)
        return cls(results, {name: frame.filter(compared) for name, frame in frames.items()})  # as the tables

    @cached_property
    def entries(self) -> list[DrawnEntry]:
        """In the order of the tables; a method has the same colour in every comparison."""
        greys, colours = 0, 0
        found = []
        for k, entry in enumerate(self.results.plan.entries):
            if not entry.learned:
                colour, greys = style.GREYS[greys % len(style.GREYS)], greys + 1
            elif entry.name in style.METHOD_COLOURS:
                colour = style.METHOD_COLOURS[entry.name]
            else:
                colour, colours = style.MORE_COLOURS[colours % len(style.MORE_COLOURS)], colours + 1
            marker = style.MARKERS[k % len(style.MARKERS)]
            found.append(DrawnEntry(entry.name, entry.label, entry.kind, entry.rate, colour, marker))
        return found

    @property
    def unit(self) -> str:
        """The headline metric and its direction, for an axis."""
        return self.axis(self.results.plan.headline)

    def axis(self, metric: MetricFacts) -> str:
        """A metric and its direction, for an axis."""
        return f"{metric.label} ({metric.better} is better)"

    def frame(self, name: str) -> pl.DataFrame:
        """A frame; a missing one has no columns."""
        return self.frames.get(name, pl.DataFrame())

    def present(self, frame: str = "rows") -> list[DrawnEntry]:
        """The entries that have rows in a frame."""
        rows = self.frame(frame)
        names = set(rows["method"].unique()) if "method" in rows.columns else set()
        return [entry for entry in self.entries if entry.name in names]

    def best_baseline(self, metric: MetricFacts | None = None) -> DrawnEntry | None:
        """By the headline metric or, for a metric of lists, by the first of these."""
        found = self.results.best if metric is None or metric.about == "rows" else self.results.best_lists
        best = found.baseline
        return next((entry for entry in self.entries if entry.name == best), None)

    def few(self, among: list[DrawnEntry], metric: MetricFacts | None = None) -> list[DrawnEntry]:
        """What fits into one panel: the best baseline, the methods, and variants if there is room."""
        learned = sorted((entry for entry in among if entry.learned), key=lambda entry: entry.kind)
        return [*self.baseline_of(among, metric), *learned[:MAX_CURVES]]

    def baseline_of(self, among: list[DrawnEntry], metric: MetricFacts | None = None) -> list[DrawnEntry]:
        """The best baseline, if it is there."""
        best = self.best_baseline(metric)
        return [entry for entry in among if best is not None and entry.name == best.name]

    def beyond_few(self, among: list[DrawnEntry]) -> str:
        """How many methods and variants `few` has no room for, as the end of a caption."""
        learned = sum(entry.learned for entry in among)
        return f" {learned - MAX_CURVES} of {learned} methods and variants are not shown." * (learned > MAX_CURVES)

    def per_user(self, entry: DrawnEntry) -> np.ndarray:
        """The headline metric of each user for whom it is defined: the mean over seeds."""
        return defined(self._users(entry))

    def per_group(self, entry: DrawnEntry) -> tuple[np.ndarray, np.ndarray]:
        """The same of major and of minor users."""
        return by_group(self._users(entry))

    def balanced(self, entry: DrawnEntry) -> np.ndarray:
        """One value per user, whose mean is the one of the tables, for intervals around it."""
        return balanced(self._rows(entry))

    def _users(self, entry: DrawnEntry) -> pl.DataFrame:
        return per_user(self._rows(entry))

    def _rows(self, entry: DrawnEntry) -> pl.DataFrame:
        return of_method(self.frame("rows"), entry.name, self.results.plan.headline.name)

    def rates(self, entry: DrawnEntry) -> dict[str, UserRates]:
        """Rates of all, of major and of minor users; none where a training has one rate for all users."""
        rows = self.frame("rows")
        if "rate" not in rows.columns:
            return {}
        rate = pl.col("rate").cast(pl.Float64)
        own = rows.filter((pl.col("method") == entry.name) & rate.is_finite())
        if not own.group_by("seed").agg(personal=rate.max() > rate.min())["personal"].any():
            return {}
        parts = {group: own if group == "all" else own.filter(pl.col("group") == group) for group in GROUPS}
        return {
            group: UserRates(part["rate"].to_numpy(), part["user"].n_unique(), part["seed"].n_unique())
            for group, part in parts.items()
        }

    def summary(self, entry: DrawnEntry, metric: str | None = None, group: str = "all") -> OverSeeds:
        """Mean and standard deviation over seeds, as in the tables."""
        return self.results.summary(entry.name, metric, group)

    def mean(self, entry: DrawnEntry) -> float | None:
        """The mean of the headline metric, as in the tables."""
        return self.results.mean(entry.name)

    def variants_of(self, method: str) -> dict[str, dict[str, str]]:
        """The settings of a method's variants by name."""
        variants = [entry for entry in self.results.plan.entries if entry.kind == "variant"]
        return {entry.name: entry.settings for entry in variants if entry.method == method}


def as_number(value: object) -> float | None:
    """A setting as a number: settings may be text."""
    try:
        return float(str(value))
    except ValueError:
        return None
