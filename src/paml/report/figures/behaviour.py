"""Figures of how the entries behave: rates, embeddings, few ratings, activity, training, cost, other settings."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from paml.report.figures import style
from paml.report.figures.accuracy import kernel_density
from paml.report.figures.material import DrawnEntry, Material
from paml.report.figures.style import INK

MAX_PANELS = 6
EMBEDDED = 500
FAILING_RATE = 5e-4
_GRID = 120


def rates(material: Material) -> Canvas | None:
    """Learning rates of major and minor users, one panel per entry."""
    shown = [entry for entry in material.present() if all(len(part) > 1 for part in material.rates(entry))]
    shown = sorted(shown, key=lambda entry: entry.kind)  # methods before variants
    return _rates(material, shown[:MAX_PANELS], shared=False)


def failure(material: Material) -> Canvas | None:
    """The paper's failure case, a larger outer rate, beside the usual one."""
    by_name = {entry.name: entry for entry in material.present()}
    for method in by_name:
        for variant, settings in material.variants_of(method).items():
            if _number(settings.get("outer_rate")) == FAILING_RATE and variant in by_name:
                pair = [by_name[method], by_name[variant]]
                if all(len(part) > 1 for entry in pair for part in material.rates(entry)):
                    return _rates(material, pair, shared=True)
    return None


def _rates(material: Material, shown: Sequence[DrawnEntry], shared: bool) -> Canvas | None:
    if not shown:
        return None
    pairs = [material.rates(entry) for entry in shown]
    step = 0.98
    figure = style.canvas(0.36 + step * len(shown) + 0.26)
    everyone = np.concatenate([part for pair in pairs for part in pair])
    for k, (entry, pair) in enumerate(zip(shown, pairs, strict=True)):
        axes = style.panel(figure, style.LABELS, 0.36 + step * k, style.WIDTH - style.LABELS - 0.25, 0.66)
        both = everyone if shared else np.concatenate(pair)
        low, high = float(both.min()), float(both.max())
        room = 0.06 * (high - low)
        x_G = np.linspace(low - room, high + room, _GRID)
        for part, group in zip(pair, ("major", "minor"), strict=True):
            density_G = kernel_density(part, x_G)
            if group == "major":
                shape = axes.fill_between(x_G, 0, density_G, color=INK, alpha=0.28, linewidth=0)
            else:
                shape = axes.fill_between(x_G, 0, density_G, color=entry.colour, alpha=0.45, linewidth=0)
                axes.plot(x_G, density_G, color=entry.colour, linewidth=1.5)
            meaning = f"{entry.label}, {group} users: mean rate {part.mean():.4g}, median {np.median(part):.4g}"
            style.mark(shape, f"{meaning}, {len(part)} users")
        axes.set_xlim(x_G[0], x_G[-1])
        axes.set_ylim(0, None)
        axes.set_yticks([])
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
        style.name_row(axes, axes.get_ylim()[1] / 2, entry.label)
        if k == 0:
            style.group_key(axes)
    axes.set_xlabel("a user's learning rate")
    return figure


def embeddings(material: Material) -> Canvas | None:
    """User embeddings in the plane (t-SNE), by group."""
    shown = sorted(material.present("embeddings"), key=lambda entry: entry.kind)
    shown = [entry for entry in shown if entry.kind == "method"] or shown
    placed = [(entry, *_placed(material.frame("embeddings").filter(pl.col("method") == entry.name))) for entry in shown]
    placed = [found for found in placed if len(found[1]) > 4][:MAX_PANELS]
    if not placed:
        return None
    columns = min(3, len(placed))
    lines = -(-len(placed) // columns)
    size = (style.WIDTH - 0.1 * (columns - 1)) / columns if columns > 1 else 3.0
    figure = style.canvas(0.3 + lines * (size + 0.28))
    for k, (entry, point_U2, minor_U) in enumerate(placed):
        left, top = (k % columns) * (size + 0.1), 0.52 + (k // columns) * (size + 0.28)
        axes = style.panel(figure, left, top, size, size - 0.06)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set(visible=True, alpha=0.25)
        reach = 1.06 * float(np.abs(point_U2).max())
        axes.set_xlim(-reach, reach)
        axes.set_ylim(-reach, reach)
        major = style.dots(axes, point_U2[~minor_U], INK, 2.2, 0.3)
        minor = style.dots(axes, point_U2[minor_U], entry.colour, 2.8, 0.9)
        style.mark(major, f"{entry.label}: {int((~minor_U).sum())} major users")
        style.mark(minor, f"{entry.label}: {int(minor_U.sum())} minor users")
        axes.annotate(entry.label, (0, 1), (1, 4), xycoords="axes fraction", textcoords="offset points")
        if k == 0:
            style.group_key(figure)
    return figure


def _placed(users: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Positions in the plane, centred, and which users are minor; only the first users where there are many."""
    from sklearn.manifold import TSNE  # slow to import

    users = users.sort("seed", "user").filter(pl.col("seed") == pl.col("seed").min()).head(EMBEDDED)
    vector_UH = np.array(users["vector"].to_list(), dtype=np.float64)
    if len(vector_UH) < 5 or not np.ptp(vector_UH, axis=0).any():
        return np.zeros((0, 2)), np.zeros(0, dtype=bool)
    start_U2 = _plane(vector_UH)
    tsne = TSNE(perplexity=min(30.0, (len(vector_UH) - 1) / 3), init=start_U2, random_state=0, max_iter=500)
    point_U2 = tsne.fit_transform(vector_UH)
    point_U2 = point_U2 - (point_U2.max(0) + point_U2.min(0)) / 2
    return point_U2, (users["group"] == "minor").to_numpy()


def _plane(vector_UH: np.ndarray) -> np.ndarray:
    """The first two principal components, scaled down, as t-SNE's start; the second is 0 if there is only one."""
    centred_UH = vector_UH - vector_UH.mean(0)
    left_UK, size_K, _ = np.linalg.svd(centred_UH, full_matrices=False)
    plane_U2 = np.zeros((len(vector_UH), 2))
    kept = min(2, len(size_K))
    plane_U2[:, :kept] = left_UK[:, :kept] * size_K[:kept]
    found: np.ndarray = plane_U2 / (plane_U2[:, 0].std() or 1.0) * 1e-4
    return found


def shots(material: Material) -> Canvas | None:
    """The headline metric by the number of known ratings."""
    found, target = material.results.shots, material.results.plan.data.target
    what = "ratings" if target == "rating" else "events"
    return _curves(material, found.values, found.means, f"known {what} of the user")


def activity(material: Material) -> Canvas | None:
    """The headline metric by the users' numbers of support rows."""
    bins = material.results.by_activity.bins
    names = [part.label.replace("-", "–") for part in bins]
    means = {entry.name: [part.means[entry.name] for part in bins] for entry in material.entries}
    return _curves(material, names, means, "support rows of the user (quarters of the users)")


def _curves(
    material: Material, names: Sequence[str], means: Mapping[str, Sequence[float | None]], label: str
) -> Canvas | None:
    """One curve per entry over named steps."""
    known = [entry for entry in material.entries if any(mean is not None for mean in means[entry.name])]
    shown = material.few(known)
    if len(names) < 2 or not shown:
        return None
    figure, axes = style.lines_panel(2.5, material.unit, label)
    ends = []
    for entry in shown:
        points = [(k, mean) for k, mean in enumerate(means[entry.name]) if mean is not None]
        x_K, y_K = [k for k, _ in points], [mean for _, mean in points]
        (line,) = axes.plot(x_K, y_K, color=entry.colour, marker=entry.marker, markersize=4, linewidth=1.5)
        values = ", ".join(f"{names[k]}: {mean:.4f}" for k, mean in points)
        style.mark(line, f"{entry.label}; {values}")
        ends.append((float(x_K[-1]), y_K[-1], entry.label, entry.colour))
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.2, len(names) - 0.8)
    _cut(axes, [mean for entry in shown for mean in means[entry.name] if mean is not None])
    style.end_labels(axes, ends)
    return figure


def _cut(axes: Axes, values: Sequence[float]) -> None:
    """Limits at which most curves can be told apart, whatever a single one does."""
    low, crowd, high = (float(value) for value in np.quantile(values, [0, 0.9, 1]))
    high = min(high, crowd + 1.5 * (crowd - low)) if crowd > low else high
    room = 0.06 * (high - low) or 0.05
    axes.set_ylim(low - room, high + room)


def learning(material: Material) -> Canvas | None:
    """The validation metric by epoch: mean over seeds, and each seed as a thin line."""
    history = material.frame("history")
    shown = [entry for entry in material.few(material.present("history")) if entry.learned]
    if not shown or "validation" not in history.columns:
        return None
    figure, axes = style.lines_panel(2.5, f"validation users' {material.unit}", "epoch")
    ends = []
    for entry in shown:
        own = history.filter((pl.col("method") == entry.name) & pl.col("validation").is_finite()).sort("seed", "epoch")
        for seed in own["seed"].unique().sort():
            part = own.filter(pl.col("seed") == seed)
            axes.plot(part["epoch"], part["validation"], color=entry.colour, alpha=0.3, linewidth=0.7)
        mean = own.group_by("epoch").agg(pl.col("validation").mean()).sort("epoch")
        if not len(mean):
            continue
        (line,) = axes.plot(mean["epoch"], mean["validation"], color=entry.colour, linewidth=1.7)
        best = min(mean["validation"].to_list())
        style.mark(line, f"{entry.label}: {len(mean)} epochs, best {best:.4f}")
        ends.append((float(mean["epoch"][-1]), float(mean["validation"][-1]), entry.label, entry.colour))
    if not ends:
        return None
    drawn = history.filter(pl.col("method").is_in([e.name for e in shown]) & pl.col("validation").is_finite())
    _cut(axes, drawn["validation"].to_list())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.end_labels(axes, ends)
    return figure


def cost(material: Material) -> Canvas | None:
    """The headline metric against the time that adapting to one user takes."""
    points = []
    for entry in material.entries:
        time, mean = material.results.cost[entry.name].adapt_ms, material.mean(entry)
        if time is not None and time > 0 and mean is not None:
            points.append((entry, time, mean))
    if not points:
        return None
    figure, axes = style.lines_panel(3.2, material.unit, "milliseconds to adapt to a user and score")
    axes.grid(axis="x", color=INK, alpha=0.14, linewidth=0.6)
    axes.set_xscale("log")
    _log_axis(axes, [time for _, time, _ in points])
    for entry, time, mean in points:
        (dot,) = axes.plot([time], [mean], entry.marker, color=entry.colour, markersize=6)
        style.mark(dot, f"{entry.label}: {time:.4g} ms, {mean:.4f}")
    low, high = min(mean for *_, mean in points), max(mean for *_, mean in points)
    room = 0.06 * (high - low) or 0.05
    axes.set_ylim(low - room, high + room)
    style.end_labels(axes, [(time, mean, entry.label, entry.colour) for entry, time, mean in points])
    return figure


def gamma(material: Material) -> Canvas | None:
    """REG-PAML with several weights of its regulariser."""
    by_name = {entry.name: entry for entry in material.entries}
    weights = {
        name: _number(settings.get("gamma"))
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


def _log_axis(axes: Axes, values: list[float]) -> None:
    """1, 2, 5, 10 ... in plain digits, a little beyond the values."""
    low, high = min(values) / 1.4, max(values) * 1.4
    powers = [
        m * 10.0**k for k in range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1) for m in (1, 2, 5)
    ]
    inside = [tick for tick in powers if low <= tick <= high]
    if len(inside) > 7:
        inside = [tick for tick in inside if np.isclose(np.log10(tick) % 1, 0) or np.isclose(np.log10(tick) % 1, 1)]
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(inside))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _plain(value: float) -> str:
    """0.0005, 5e−06: as short as possible."""
    text = f"{value:.3g}".replace("e-0", "e-").replace("-", "−")
    return "0" if text in ("−0", "0") else text


def _number(value: object) -> float | None:
    """A setting as a number: settings may be text."""
    try:
        return float(str(value))
    except ValueError:
        return None
