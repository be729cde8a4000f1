"""Figures of how the entries behave: few ratings, activity, training, cost, the regulariser's weight."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from paml.analysis.plan import MetricFacts
from paml.report.figures import style
from paml.report.figures.accuracy import fit
from paml.report.figures.material import DrawnEntry, Material, as_number
from paml.report.figures.style import INK, PAPER


def shots(material: Material) -> Canvas | None:
    """The headline metric by the number of known ratings."""
    return _shots(material, material.results.plan.headline)


def list_shots(material: Material) -> Canvas | None:
    """The metric that lists are judged by first, by the number of known ratings."""
    metric = material.results.plan.list_headline
    return None if metric is None else _shots(material, metric)


def _shots(material: Material, metric: MetricFacts) -> Canvas | None:
    found, target = material.results.shots[metric.name], material.results.plan.data.target
    what = {"rating": "ratings", "click": "events", "choice": "choices"}[target]
    return _curves(material, found.values, found.means, f"known {what} of the user", metric)


def activity(material: Material) -> Canvas | None:
    """The headline metric by the users' numbers of support rows."""
    bins = material.results.by_activity.bins
    names = [part.label.replace("-", "–") for part in bins]
    means = {entry.name: [part.means[entry.name] for part in bins] for entry in material.entries}
    return _curves(
        material, names, means, "support rows of the user (quarters of the users)", material.results.plan.headline
    )


def _curves(
    material: Material,
    names: Sequence[str],
    means: Mapping[str, Sequence[float | None]],
    label: str,
    metric: MetricFacts,
) -> Canvas | None:
    """One curve per entry over named steps."""
    known = [entry for entry in material.entries if any(mean is not None for mean in means[entry.name])]
    shown = material.few(known, metric)
    if len(names) < 2 or not shown:
        return None
    figure, axes = style.lines_panel(2.5, material.axis(metric), label)
    ends = []
    for entry in shown:
        points = [(k, mean) for k, mean in enumerate(means[entry.name]) if mean is not None]
        x_K, y_K = [k for k, _ in points], [mean for _, mean in points]
        (line,) = axes.plot(x_K, y_K, color=entry.colour, marker=entry.marker, markersize=4, linewidth=1.5)
        said = ", ".join(f"{names[k]}: {mean:.4f}" for k, mean in points)
        style.mark(line, f"{entry.label}; {said}")
        ends.append((float(x_K[-1]), y_K[-1], entry.label, entry.colour))
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.2, len(names) - 0.8)
    values = [mean for entry in shown for mean in means[entry.name] if mean is not None]
    _cut(axes, values, whole=metric.better == "higher")
    style.end_labels(axes, ends)
    return figure


def _cut(axes: Axes, values: Sequence[float], *, whole: bool = False) -> None:
    """Limits at which most curves can be told apart, whatever a single one does; with `whole`, none is cut off."""
    low, crowd, high = (float(value) for value in np.quantile(values, [0, 0.9, 1]))
    high = min(high, crowd + 1.5 * (crowd - low)) if crowd > low and not whole else high
    room = 0.06 * (high - low) or 0.05
    axes.set_ylim(low - room, high + room)


def learning(material: Material) -> Canvas | None:
    """The validation metric by epoch: mean over seeds, and each seed as a thin line."""
    history = material.frame("history")
    shown = [entry for entry in material.few(material.present("history")) if entry.learned]
    if not shown or "validation" not in history.columns:
        return None
    known = history.filter(pl.col("validation").is_finite()).sort("seed", "epoch")
    watched = "loss" if material.results.plan.lists_only else material.unit
    figure, axes = style.lines_panel(2.5, f"validation users' {watched}", "epoch")
    ends = []
    for entry in shown:
        own = known.filter(pl.col("method") == entry.name)
        for seed in own["seed"].unique().sort():
            part = own.filter(pl.col("seed") == seed)
            axes.plot(part["epoch"], part["validation"], color=entry.colour, alpha=0.3, linewidth=0.7)
        mean = mean_curve(own)
        if not len(mean):
            continue
        (line,) = axes.plot(mean["epoch"], mean["validation"], color=entry.colour, linewidth=1.7)
        best = min(mean["validation"].to_list())
        style.mark(line, f"{entry.label}: {len(mean)} epochs, best {best:.4f}")
        ends.append((float(mean["epoch"][-1]), float(mean["validation"][-1]), entry.label, entry.colour))
    if not ends:
        return None
    _cut(axes, known.filter(pl.col("method").is_in([entry.name for entry in shown]))["validation"].to_list())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.end_labels(axes, ends)
    return figure


def mean_curve(history: pl.DataFrame) -> pl.DataFrame:
    """Mean of `validation` over seeds by `epoch`; a seed that has stopped counts with its last value."""
    epochs = history.select("epoch").unique().sort("epoch")
    grid = history.select("seed").unique().join(epochs, how="cross")
    held = grid.join(history, on=["seed", "epoch"], how="left").sort("seed", "epoch")
    held = held.with_columns(pl.col("validation").forward_fill().over("seed"))
    return held.group_by("epoch", maintain_order=True).agg(pl.col("validation").mean()).sort("epoch")


def cost(material: Material) -> Canvas | None:
    """The headline metric beside the time that adapting to one user takes, a line per entry."""
    points: dict[DrawnEntry, tuple[float, float]] = {}
    for entry in material.entries:
        time, mean = material.results.cost[entry.name].adapt_ms, material.mean(entry)
        if time is not None and time > 0 and mean is not None:
            points[entry] = mean, time
    if not points:
        return None
    figure = style.canvas(style.rows_height(len(points)) + 0.28)
    gap = 0.3
    width = (style.WIDTH - style.LABELS - 0.2 - gap) / 2
    unbeaten = _unbeaten(material, points)
    for side, label in enumerate((material.unit, "milliseconds")):
        axes = style.panel(figure, style.LABELS + side * (width + gap), 0.36, width, style.ROW * len(points))
        style.as_rows(axes, len(points))
        kinds = ["learned" if entry.learned else entry.kind for entry in points]
        style.separators(axes, kinds, gap if side else style.LABELS)
        for k, (entry, pair) in enumerate(points.items()):
            face = entry.colour if entry in unbeaten else PAPER
            (dot,) = axes.plot([pair[side]], [k], "o", color=entry.colour, markerfacecolor=face, markersize=6)
            style.mark(dot, f"{entry.label}: {pair[1]:.4g} ms, {pair[0]:.4f}")
            if side == 0:
                style.name_row(axes, k, entry.label)
        axes.set_xlabel(label)
        if side == 0:
            fit(axes, [mean for mean, _ in points.values()])
            _key(axes)
        else:
            axes.set_xscale("log")
            _log_axis(axes, [time for _, time in points.values()], max_ticks=4)
    return figure


def _key(axes: Axes) -> None:
    faces = (INK, PAPER)
    handles = [axes.plot([], [], "o", color=INK, markerfacecolor=face, markersize=5.5)[0] for face in faces]
    style.legend(axes, handles, ["no other is both better and faster", "another is"])


def _unbeaten(material: Material, points: Mapping[DrawnEntry, tuple[float, float]]) -> set[DrawnEntry]:
    """The entries to which no other is better and faster."""
    sign = 1 if material.results.plan.headline.better == "lower" else -1
    return {
        entry
        for entry, (mean, time) in points.items()
        if not any(sign * other < sign * mean and faster < time for other, faster in points.values())
    }


def gamma(material: Material) -> Canvas | None:
    """REG-PAML with several weights of its regulariser."""
    by_name = {entry.name: entry for entry in material.entries}
    weights = {
        name: as_number(settings.get("gamma"))
        for name, settings in material.variants_of("reg_paml").items()
        if set(settings) == {"gamma"}
    }
    if "reg_paml" in by_name:
        weights["reg_paml"] = material.results.plan.gamma
    known = sorted(
        (w, name)
        for name, w in weights.items()
        if w is not None and w > 0 and name in by_name and material.mean(by_name[name]) is not None
    )
    if len({w for w, _ in known}) < 2:
        return None
    figure, axes = style.lines_panel(2.3, material.unit, "γ, the weight of the regulariser", right=1.1)
    axes.set_xscale("log")
    ends = []
    for group, marker, colour in (
        ("all", "o", INK),
        ("major", "s", style.GREYS[2]),
        ("minor", "^", style.METHOD_COLOURS["reg_paml"]),
    ):
        found = [(w, material.summary(by_name[name], group=group)) for w, name in known]
        points = [(w, one.mean, one.deviation or 0.0) for w, one in found if one.mean is not None]
        if not points:
            continue
        for w, mean, deviation in points:
            axes.plot([w, w], [mean - deviation, mean + deviation], color=colour, linewidth=1, alpha=0.7)
        (line,) = axes.plot(
            [w for w, *_ in points],
            [mean for _, mean, _ in points],
            color=colour,
            marker=marker,
            markersize=5,
            linewidth=1.5,
        )
        style.mark(line, f"{group} users; " + ", ".join(f"{w:g}: {mean:.4f}" for w, mean, _ in points))
        ends.append((points[-1][0], points[-1][1], f"{group} users", colour))
    _log_axis(axes, [w for w, _ in known])
    axes.set_xticks(sorted({w for w, _ in known}))
    style.end_labels(axes, ends)
    return figure


def _log_axis(axes: Axes, values: list[float], max_ticks: int = 7) -> None:
    """1, 2, 5, 10 ... in plain digits, a little beyond the values."""
    low, high = min(values) / 1.4, max(values) * 1.4
    powers = [
        m * 10.0**k for k in range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1) for m in (1, 2, 5)
    ]
    inside = [tick for tick in powers if low <= tick <= high]
    if len(inside) > max_ticks:
        inside = [tick for tick in inside if np.isclose(np.log10(tick) % 1, 0) or np.isclose(np.log10(tick) % 1, 1)]
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(inside))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: style.plain(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
