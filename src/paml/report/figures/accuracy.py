"""Figures of how good the entries are: means, distributions over users, profiles, new items, clicks."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from paml.analysis.comparisons import OverSeeds
from paml.analysis.format import count, percent
from paml.analysis.plan import MetricFacts
from paml.analysis.results import Pooled
from paml.analysis.tests import mean_interval
from paml.report.figures import style
from paml.report.figures.material import DrawnEntry, Material
from paml.report.figures.style import INK, PAPER
from paml.report.tables import common_values, left_out

BINS = 10


def comparison(material: Material) -> Canvas | None:
    """Every entry's mean of the headline metric with a bootstrap interval over users."""
    means = {entry: mean for entry in material.present() if (mean := material.mean(entry)) is not None}
    if not means:
        return None
    figure = style.canvas(style.rows_height(len(means)))
    axes = style.rows_panel(figure, [entry.label for entry in means], right=0.62)
    style.separators(axes, ["learned" if entry.learned else entry.kind for entry in means])
    edges = []
    for k, (entry, mean) in enumerate(means.items()):
        interval = mean_interval(material.balanced(entry), np.random.default_rng(0))
        low, high = (mean, mean) if interval is None else (interval.low, interval.high)
        axes.plot([low, high], [k, k], color=entry.colour, linewidth=2.2, alpha=0.75)
        (dot,) = axes.plot(
            [mean],
            [k],
            "D" if entry.kind == "reference" else "o",
            color=entry.colour,
            markersize=6.5,
            markeredgecolor=PAPER,
            markeredgewidth=0.8,
        )
        style.mark(dot, f"{entry.label}: {mean:.4f}, 95 % from {low:.4f} to {high:.4f}")
        axes.annotate(
            f"{mean:.3f}", (1.02, k), xycoords=("axes fraction", "data"), va="center_baseline", annotation_clip=False
        )
        edges += [low, high, mean]
    baseline = material.best_baseline()
    reach = None if baseline is None else material.mean(baseline)
    if reach is not None:
        axes.axvline(reach, color=INK, alpha=0.55, linewidth=0.8, linestyle=(0, (3, 3)), zorder=0)
    fit(axes, edges)
    axes.set_xlabel(material.unit)
    return figure


def boxes(material: Material) -> Canvas | None:
    """Users' values of the headline metric, all of them."""
    return _boxes(material, whole=True)


def boxes_enlarged(material: Material) -> Canvas | None:
    """The same, up to the whiskers; None where these have no length, because most users have the same value."""
    return _boxes(material, whole=False)


def _boxes(material: Material, whole: bool) -> Canvas | None:
    users = {entry: material.per_user(entry) for entry in material.present()}
    users = {entry: value_U for entry, value_U in users.items() if len(value_U)}
    if not users:
        return None
    figure = style.canvas(style.rows_height(len(users)))
    axes = style.rows_panel(figure, [entry.label for entry in users])
    style.separators(axes, ["learned" if entry.learned else entry.kind for entry in users])
    reach = [
        box(axes, k, entry.label, entry.colour, value_U, whole) for k, (entry, value_U) in enumerate(users.items())
    ]
    if not whole and all(low == high for low, high in reach):
        return None
    fit(axes, [edge for pair in reach for edge in pair])
    axes.set_xlabel(f"a user's {material.unit}")
    return figure


def zeros(material: Material) -> str:
    """How many users have 0, as the end of a caption; empty unless they are half of an entry's."""
    users = [value_U for entry in material.present() if len(value_U := material.per_user(entry))]
    shares = sorted(float((value_U == 0).mean()) for value_U in users)
    if not shares or shares[-1] < 0.5:
        return ""
    least, most = percent(shares[0], 0), percent(shares[-1], 0)
    return f" The value is 0 for {least if least == most else f'{least} to {most}'} of the users, by entry."


def box(
    axes: Axes,
    y: float,
    meaning: str,
    colour: str,
    value_U: np.ndarray,
    whole: bool,
    half: float = 0.29,
    alpha: float = 0.85,
) -> tuple[float, float]:
    """Quartiles and median, whiskers to the last user within 1.5 boxes, the users beyond as dots; its ends."""
    first, median, third = (float(q) for q in np.quantile(value_U, [0.25, 0.5, 0.75]))
    span = 1.5 * (third - first)
    inside_U = value_U[(value_U >= first - span) & (value_U <= third + span)]
    low, high = float(inside_U.min()), float(inside_U.max())
    for edge, end in ((first, low), (third, high)):
        axes.plot([edge, end], [y, y], color=colour, linewidth=1, alpha=min(1, alpha + 0.15), solid_capstyle="butt")
    body = Rectangle((first, y - half), third - first, 2 * half, facecolor=colour, edgecolor="none", alpha=alpha)
    axes.add_patch(body)
    style.mark(body, f"{meaning}: median {median:.4f}, quartiles {first:.4f} and {third:.4f}, {len(value_U)} users")
    stroke = PAPER if third > first else INK  # on the box, or in place of one without width
    axes.plot([median, median], [y - half, y + half], color=stroke, linewidth=1.6, solid_capstyle="butt")
    if not whole:
        return low, high
    beyond_U = value_U[(value_U < low) | (value_U > high)]
    if len(beyond_U):
        step = float(np.ptp(value_U)) / 400  # points that cannot be told apart are drawn once
        seen = np.unique(np.round(beyond_U / step)) * step
        style.dots(axes, np.column_stack([seen, np.full(len(seen), y)]), colour, 1.8, min(0.7, alpha))
    return float(value_U.min()), float(value_U.max())


def items(material: Material) -> Canvas | None:
    """The headline metric on items that training users interacted with, and on new ones."""
    found = material.results.items
    shown: dict[DrawnEntry, tuple[float, float]] = {}
    for entry in material.entries:
        warm, cold = found.warm[entry.name], found.cold[entry.name]
        if warm is not None and cold is not None:
            shown[entry] = warm, cold
    if not shown:
        return None
    figure = style.canvas(style.rows_height(len(shown)) + 0.28)
    axes = style.rows_panel(figure, [entry.label for entry in shown], top=0.36)
    style.separators(axes, ["learned" if entry.learned else entry.kind for entry in shown])
    for k, (entry, pair) in enumerate(shown.items()):
        axes.plot(pair, [k, k], color=entry.colour, linewidth=1.4, alpha=0.6)
        for kind, value, face in zip(("known", "new"), pair, (entry.colour, PAPER), strict=True):
            (dot,) = axes.plot(
                [value], [k], "o", color=entry.colour, markerfacecolor=face, markersize=6.5, markeredgewidth=1.5
            )
            style.mark(dot, f"{entry.label}, {kind} items: {value:.4f}")
    fit(axes, [value for pair in shown.values() for value in pair])
    axes.set_xlabel(material.unit)
    handles = [
        axes.plot([], [], "o", color=INK, markerfacecolor=face, markersize=6, markeredgewidth=1.4)[0]
        for face in (INK, PAPER)
    ]
    style.legend(axes, handles, ["known items", "new items"])
    return figure


def by_group(material: Material) -> Canvas | None:
    """The headline metric of the best method and the best baseline by a field of the profile."""
    found, best = material.results.by_group, material.results.best
    shown = [entry for entry in material.entries if entry.name in (best.baseline, best.method)]
    if found is None:
        return None
    values = {
        value: users
        for value, users in common_values(found).items()
        if any(found.values[value][entry.name].mean is not None for entry in shown)
    }
    if len(values) < 2:
        return None
    figure = style.canvas(style.rows_height(len(values)) + 0.28)
    unbroken = [count(users, "user").replace(" ", "\u00a0") for users in values.values()]
    labels = [f"{value} ({users})" for value, users in zip(values, unbroken, strict=True)]
    axes = style.rows_panel(figure, labels, top=0.36)
    edges = []
    for k, value in enumerate(values):
        for entry in shown:
            one = found.values[value][entry.name]
            if one.mean is not None:
                (dot,) = axes.plot([one.mean], [k], entry.marker, color=entry.colour, markersize=6.5)
                value_text = f"{one.mean:.4f}, {count(one.users, 'user')}"
                style.mark(dot, f"{entry.label}, {found.field} {value}: {value_text}")
                edges.append(one.mean)
    fit(axes, edges)
    axes.set_xlabel(material.unit)
    handles = [axes.plot([], [], entry.marker, color=entry.colour, markersize=6)[0] for entry in shown]
    style.legend(axes, handles, [style.shortened(entry.label) for entry in shown])
    return figure


def by_group_caption(material: Material) -> str:
    """Which field it is, and how many values are not shown."""
    found = material.results.by_group
    if found is None:
        return ""  # and no figure
    return f"The best method and the best baseline by the users' {found.field}. {left_out(found)}".rstrip()


def clicks(material: Material) -> Canvas | None:
    """The paper's Fig. 3: AUC (per user, and pooled over users), the users' NEL as boxes, and the mean NEL."""
    results, plan = material.results, material.results.plan
    users = {entry: value_U for entry in material.present() if len(value_U := material.per_user(entry))}
    if plan.data.target != "click" or not users:
        return None
    entries, pooled = list(users), [metric for metric in plan.pooled if metric.about == "rows"]
    panels: list[Callable[[Axes], None]] = [
        *(
            partial(_bars, m, entries, [material.summary(one, m.name) for one in entries])
            for m in plan.about("rows")[1:]
        ),
        *(partial(_bars, m, entries, [results.pooled[m.name][one.name] for one in entries]) for m in pooled),
        partial(_user_boxes, plan.headline, users),
        partial(_bars, plan.headline, entries, [material.summary(one) for one in entries]),
    ]
    height = style.ROW * len(entries) + 0.75  # of a panel and its label; two stand side by side
    width = (style.WIDTH - style.LABELS - 0.5) / 2
    figure = style.canvas(height * ((len(panels) + 1) // 2))
    for k, draw in enumerate(panels):
        left, top = style.LABELS + k % 2 * (width + 0.3), 0.08 + k // 2 * height
        axes = style.panel(figure, left, top, width, style.ROW * len(entries))
        axes.set_ylim(len(entries) - 0.5, -0.5)
        axes.set_yticks([])
        axes.grid(axis="x", color=INK, alpha=0.14, linewidth=0.6)
        axes.locator_params(axis="x", nbins=4)
        for y, entry in enumerate(entries if k % 2 == 0 else []):
            style.name_row(axes, y, entry.label)
        draw(axes)
    return figure


def _bars(metric: MetricFacts, entries: list[DrawnEntry], found: Sequence[OverSeeds | Pooled], axes: Axes) -> None:
    """Means with the standard deviation over seeds; a ranking's from chance (0.5) on."""
    start = 0.5 if metric.better == "higher" else 0.0
    edges = [start]
    for k, (entry, one) in enumerate(zip(entries, found, strict=True)):
        if one.mean is None:
            continue
        deviation = one.deviation or 0.0
        (bar,) = axes.barh([k], [one.mean - start], left=start, height=0.6, color=entry.colour)
        style.mark(bar, f"{entry.label}: {metric.label} {one.mean:.4f} ± {deviation:.4f}")
        if deviation:
            axes.plot([one.mean - deviation, one.mean + deviation], [k, k], color=INK, linewidth=1.1)
        edges += [one.mean - deviation, one.mean + deviation]
    low, high = min(edges), max(edges)
    room = 0.06 * (high - low) or 0.06
    axes.set_xlim(low if low == start else low - room, high + room)
    axes.set_xlabel(f"{metric.label}\n({metric.better} is better)")


def _user_boxes(metric: MetricFacts, users: dict[DrawnEntry, np.ndarray], axes: Axes) -> None:
    reach = [box(axes, k, e.label, e.colour, value_U, False) for k, (e, value_U) in enumerate(users.items())]
    fit(axes, [edge for pair in reach for edge in pair])
    axes.set_xlabel(f"a user's {metric.label}\n({metric.better} is better)")


def calibration(material: Material) -> Canvas | None:
    """Predicted against observed clicks, by tenths of the predictions."""
    if material.results.plan.data.target != "click":
        return None
    curves = {}
    for entry in material.few(material.present("predictions")):
        own = material.frame("predictions").filter(pl.col("method") == entry.name)
        predicted_B, observed_B = calibration_curve(own["p"].to_numpy(), own["label"].to_numpy())
        if len(predicted_B) > 1:
            curves[entry] = predicted_B, observed_B
    if not curves:
        return None
    figure, axes = style.lines_panel(2.75, "observed share of clicks", "predicted share of clicks")
    axes.grid(axis="x", color=INK, alpha=0.14, linewidth=0.6)
    reach = 1.06 * max(float(part_B.max()) for pair in curves.values() for part_B in pair)
    axes.plot([0, reach], [0, reach], color=INK, alpha=0.5, linewidth=0.8, linestyle=(0, (3, 3)))
    ends = []
    for entry, (predicted_B, observed_B) in curves.items():
        (line,) = axes.plot(
            predicted_B, observed_B, color=entry.colour, marker=entry.marker, markersize=3.6, linewidth=1.3
        )
        style.mark(line, f"{entry.label}: {len(predicted_B)} tenths")
        ends.append((float(predicted_B[-1]), float(observed_B[-1]), entry.label, entry.colour))
    axes.set_xlim(0, reach)
    axes.set_ylim(0, reach)
    style.end_labels(axes, ends)
    return figure


def calibration_curve(p_N: np.ndarray, label_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean prediction and share of clicks in tenths of equal size."""
    known_N = np.isfinite(p_N)
    p_N, clicked_N = p_N[known_N].astype(np.float64), label_N[known_N]
    order = np.argsort(p_N, kind="stable")
    tenths = [part for part in np.array_split(order, BINS) if len(part)]
    predicted_B = np.array([p_N[part].mean() for part in tenths])
    observed_B = np.array([clicked_N[part].mean() for part in tenths])
    return predicted_B, observed_B


def fit(axes: Axes, edges: list[float]) -> None:
    """Limits a little wider than what is drawn."""
    low, high = min(edges), max(edges)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    axes.set_xlim(low - room, high + room)
