"""Figures of major and minor users: the distribution of their values, as violins and as boxes.

Legend: U users, G points of an axis.
"""

import numpy as np
from matplotlib.figure import Figure as Canvas

from paml.report.figures import style
from paml.report.figures.accuracy import box, fit
from paml.report.figures.material import DrawnEntry, Material
from paml.report.figures.style import INK

_GRID = 100
_ENLARGED = 0.97  # the share of users that an enlarged figure shows


def violins(material: Material) -> Canvas | None:
    """Users' values of the best baseline, of methods and of all variants: major users above the line, minor below."""
    return _violins(material, whole=True)


def violins_enlarged(material: Material) -> Canvas | None:
    """The same without the longest tails; None where these are all that there is, because most users have 0."""
    return _violins(material, whole=False)


def _violins(material: Material, whole: bool) -> Canvas | None:
    present = material.present()
    shown = [*material.baseline_of(present), *(entry for entry in present if entry.learned)]
    groups = {entry: material.per_group(entry) for entry in shown}
    groups = {entry: pair for entry, pair in groups.items() if all(len(set(part)) > 2 for part in pair)}
    if not groups:
        return None
    parts = [part for pair in groups.values() for part in pair]
    limit = max(float(part.max() if whole else np.quantile(part, _ENLARGED)) for part in parts)
    low = min(0.0, *(float(part.min()) for part in parts))
    if limit <= low:
        return None
    row = 1.8 * style.ROW
    figure = style.canvas(0.36 + row * len(groups) + 0.5)
    axes = style.panel(figure, style.LABELS, 0.36, style.WIDTH - style.LABELS - 0.2, row * len(groups))
    style.as_rows(axes, len(groups))
    style.separators(axes, [entry.kind for entry in groups])
    x_G = np.linspace(low, limit, _GRID)
    for k, (entry, pair) in enumerate(groups.items()):
        style.name_row(axes, k, entry.label)
        density = [kernel_density(part, x_G) for part in pair]
        height = 0.44 / max(part_G.max() for part_G in density)
        for part, density_G, side, group in zip(pair, density, (-1, 1), ("major", "minor"), strict=True):
            colour, alpha = (INK, 0.28) if group == "major" else (entry.colour, 0.85)
            shape = axes.fill_between(x_G, k, k + side * height * density_G, color=colour, alpha=alpha, linewidth=0)
            median = float(np.median(part))
            style.mark(shape, f"{entry.label}, {group} users: median {median:.4f}, {len(part)} users")
            axes.plot([median, median], [k + side * 0.03, k + side * 0.3], color=INK, linewidth=1.3)
    axes.set_xlim(low, limit)
    axes.set_xlabel(f"a user's {material.unit}")
    style.group_key(axes)
    return figure


def group_boxes(material: Material) -> Canvas | None:
    """Users' values of the best baseline and of methods: a box for major users and one for minor users."""
    return _group_boxes(material, whole=True)


def group_boxes_enlarged(material: Material) -> Canvas | None:
    """The same, up to the whiskers; None where these have no length."""
    return _group_boxes(material, whole=False)


def _group_boxes(material: Material, whole: bool) -> Canvas | None:
    present = material.present()
    shown = [*material.baseline_of(present), *_methods(present)]
    groups = {entry: material.per_group(entry) for entry in shown}
    groups = {entry: pair for entry, pair in groups.items() if all(len(part) for part in pair)}
    if not groups:
        return None
    row = 1.5 * style.ROW
    figure = style.canvas(0.36 + row * len(groups) + 0.5)
    axes = style.panel(figure, style.LABELS, 0.36, style.WIDTH - style.LABELS - 0.2, row * len(groups))
    style.as_rows(axes, len(groups))
    style.separators(axes, [entry.kind for entry in groups])
    reach: list[tuple[float, float]] = []
    for k, (entry, pair) in enumerate(groups.items()):
        style.name_row(axes, k, entry.label)
        for value_U, side, group in zip(pair, (-1, 1), ("major", "minor"), strict=True):
            colour, alpha = (INK, 0.45) if group == "major" else (entry.colour, 0.85)
            meaning = f"{entry.label}, {group} users"
            reach.append(box(axes, k + side * 0.21, meaning, colour, value_U, whole, 0.17, alpha))
    if not whole and all(low == high for low, high in reach):
        return None
    fit(axes, [edge for pair in reach for edge in pair])
    axes.set_xlabel(f"a user's {material.unit}")
    style.group_key(axes, 0.45)
    return figure


def _methods(entries: list[DrawnEntry]) -> list[DrawnEntry]:
    """Methods; where only variants were compared, those."""
    return [entry for entry in entries if entry.kind == "method"] or [entry for entry in entries if entry.learned]


def kernel_density(value_U: np.ndarray, x_G: np.ndarray) -> np.ndarray:
    """A smooth distribution: a Gaussian around every user, as wide as Silverman's rule says."""
    quartiles = np.quantile(value_U, [0.25, 0.75])
    spread = min(float(value_U.std()), float(np.ptp(quartiles)) / 1.34 or np.inf)
    width = max(0.9 * spread * len(value_U) ** -0.2, float(np.ptp(x_G)) / len(x_G))
    place_Q = np.quantile(value_U, (np.arange(400) + 0.5) / 400) if len(value_U) > 400 else value_U
    scaled_GQ = (x_G[:, None] - place_Q[None, :]) / width
    density_G: np.ndarray = np.exp(-(scaled_GQ**2) / 2).mean(1) / (width * np.sqrt(2 * np.pi))
    return density_G
