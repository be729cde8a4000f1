"""Figures of the rates that methods give to their users: by group, on a common axis, and the paper's failure case.

Legend: G points of an axis, N rows (a user in a seed).
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter

from paml.analysis.format import number
from paml.report.figures import style
from paml.report.figures.groups import kernel_density
from paml.report.figures.material import DrawnEntry, Material, UserRates, as_number
from paml.report.figures.style import INK

FAILING_RATE = 5e-4
PAPER_FAILURE = (2.127, 1.477, 3.148)
"""MSE of all, major and minor users in the paper's Fig. 8: AT-PAML on MovieLens-1M."""
_GRID = 240
_TOP = 0.36  # inches above the first panel, for the key
_SECTION = 0.62  # inches below the last panel of a section, for its axis


def rates(material: Material) -> Canvas | None:
    """Rates of major and minor users, one panel per entry, each with its own axis."""
    sections = list(_personal(material).values())
    if not sections:
        return None
    height, step = 0.5, 0.82
    figure = style.canvas(_TOP + sum(step * len(section) + 0.24 for section in sections))
    top = _TOP
    for section in sections:
        for entry in section:
            axes = style.panel(figure, style.LABELS, top, style.WIDTH - style.LABELS - 0.25, height)
            found = material.rates(entry)
            span = _span([found["all"]])
            bound = entry.rate_bound
            _densities(axes, entry, found, np.linspace(*span, _GRID), bound)
            _name_panel(axes, entry)
            _mark_bound(axes, entry, bound)
            if top == _TOP:
                style.group_key(axes)
            top += step
        axes.set_xlabel(f"a user's {section[-1].rate_name}")
        top += 0.24
    return figure


def rates_common(material: Material) -> Canvas | None:
    """The same on one axis that begins at 0: all users as a line, the groups as its parts."""
    sections = list(_personal(material).values())
    if not sections:
        return None
    spans = []
    for section in sections:
        bounds = [bound for entry in section if (bound := entry.rate_bound) is not None]
        most = max(float(material.rates(entry)["all"].rate_N.max()) for entry in section)
        spans.append((0.0, 1.03 * max([most, *bounds])))
    return _common(material, sections, spans)


def failure(material: Material) -> Canvas | None:
    """The paper's failure case, a larger outer rate, beside the usual one."""
    pair = _failing(material)
    if not pair:
        return None
    return _common(material, [pair], [_span([material.rates(entry)["all"] for entry in pair])])


def failure_caption(material: Material) -> str:
    """What was found with the larger rate, beside what the paper found."""
    pair = _failing(material)
    if not pair:
        return ""  # and no figure
    plan, parts = material.results.plan, []
    for entry in pair:
        means = [material.summary(entry, group=group).mean for group in ("all", "major", "minor")]
        parts.append(f"{entry.label} {_three(means)}")
    if plan.data.source == "ml-1m" and pair[0].name == "at_paml":
        parts.append(f"the paper's failure {_three(PAPER_FAILURE)}")
    return (
        f"Above: the usual outer rate; below: {FAILING_RATE:g}, as in the paper's Fig. 8 (there AT-PAML). Lines, areas"
        f" and numbers as on the common axis. {plan.headline.label} of all, major and minor users: {'; '.join(parts)}."
    )


def _three(means: Sequence[float | None]) -> str:
    return " / ".join(number(mean) for mean in means)


def _failing(material: Material) -> list[DrawnEntry]:
    """A method and its variant with the larger outer rate; AT-PAML, the paper's example, before others."""
    by_name = {entry.name: entry for entry in material.present()}
    for method in sorted(by_name, key=lambda name: name != "at_paml"):
        for variant, settings in material.variants_of(method).items():
            if set(settings) == {"outer_rate"} and as_number(settings["outer_rate"]) == FAILING_RATE:
                pair = [by_name[name] for name in (method, variant) if name in by_name]
                if len(pair) == 2 and all(_has_groups(material.rates(entry)) for entry in pair):
                    return pair
    return []


def _personal(material: Material) -> dict[str, list[DrawnEntry]]:
    """All entries with a rate per user, by what the rate is; methods before variants."""
    shown = [entry for entry in material.present() if _has_groups(material.rates(entry))]
    sections: dict[str, list[DrawnEntry]] = {}
    for entry in sorted(shown, key=lambda entry: entry.kind):
        sections.setdefault(entry.rate_name, []).append(entry)
    return sections


def _has_groups(found: dict[str, UserRates]) -> bool:
    return bool(found) and all(len(found[group].rate_N) > 1 for group in ("major", "minor"))


def _span(found: Sequence[UserRates]) -> tuple[float, float]:
    """A little wider than the rates are."""
    low, high = min(float(one.rate_N.min()) for one in found), max(float(one.rate_N.max()) for one in found)
    room = 0.06 * (high - low)
    return low - room, high + room


def _common(
    material: Material, sections: Sequence[Sequence[DrawnEntry]], spans: Sequence[tuple[float, float]]
) -> Canvas:
    """A panel per entry; the panels of a section share an axis."""
    height, step, right = 0.46, 0.62, 1.7
    figure = style.canvas(_TOP + sum(step * (len(section) - 1) + height + _SECTION for section in sections))
    top = _TOP
    for section, span in zip(sections, spans, strict=True):
        unit = _unit(span[1])
        for entry in section:
            axes = style.panel(figure, style.LABELS, top, style.WIDTH - style.LABELS - right, height)
            found = material.rates(entry)
            bound = entry.rate_bound
            _densities(axes, entry, found, np.linspace(*span, _GRID), bound, shares=True)
            _name_panel(axes, entry)
            _mark_bound(axes, entry, bound)
            _moments(axes, found, unit)
            if entry is not section[-1]:
                axes.tick_params(labelbottom=False)
            if top == _TOP:
                style.group_key(axes)
            top += step
        axes.set_xlabel(f"a user's {section[-1].rate_name}")
        if unit != 1:
            _beside(axes, f"in units of {style.plain(unit)}", -37)
        top += height + _SECTION - step
    return figure


def _densities(
    axes: Axes,
    entry: DrawnEntry,
    found: dict[str, UserRates],
    x_G: np.ndarray,
    bound: float | None,
    shares: bool = False,
) -> None:
    """Major users in grey, minor users in colour; with shares, their areas add up to that of all users, a line."""
    everyone = len(found["all"].rate_N)
    for group in ("major", "minor"):
        one = found[group]
        density_G = bounded_density(one.rate_N, x_G, bound) * (len(one.rate_N) / everyone if shares else 1)
        colour, alpha = (INK, 0.28) if group == "major" else (entry.colour, 0.45)
        shape = axes.fill_between(x_G, 0, density_G, color=colour, alpha=alpha, linewidth=0)
        if group == "minor":
            axes.plot(x_G, density_G, color=entry.colour, linewidth=1.5)
        style.mark(shape, f"{entry.label}, {group} users: {_in_words(entry, one)}")
    if shares:
        (line,) = axes.plot(x_G, bounded_density(found["all"].rate_N, x_G, bound), color=INK, linewidth=1)
        style.mark(line, f"{entry.label}, all users: {_in_words(entry, found['all'])}")
    axes.set_xlim(x_G[0], x_G[-1])
    axes.set_ylim(0, None)
    axes.set_yticks([])
    digits = _digits(float(x_G[0]), float(x_G[-1]))
    axes.locator_params(axis="x", nbins=3 if digits > 4 else 4 if shares else 5)  # long numbers need room
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: style.plain(value, digits)))


def _digits(low: float, high: float) -> int:
    """As many as tell numbers apart that are a tenth of an axis apart, and at least three."""
    largest = max(abs(low), abs(high))
    return max(3, int(np.floor(np.log10(largest)) - np.floor(np.log10((high - low) / 10))) + 1)


def bounded_density(rate_N: np.ndarray, x_G: np.ndarray, bound: float | None) -> np.ndarray:
    """A smooth distribution without mass above the bound: what smoothing would put there is reflected."""
    density_G = kernel_density(rate_N, x_G)
    if bound is None:
        return density_G
    return np.where(x_G <= bound, density_G + kernel_density(2 * bound - rate_N, x_G), 0.0)


def _in_words(entry: DrawnEntry, one: UserRates) -> str:
    mean, median = one.rate_N.mean(), np.median(one.rate_N)
    return f"mean {entry.rate_name} {mean:.4g} ± {one.rate_N.std():.2g}, median {median:.4g}, {one.who}"


def _name_panel(axes: Axes, entry: DrawnEntry) -> None:
    style.name_row(axes, axes.get_ylim()[1] / 2, entry.label)


def _mark_bound(axes: Axes, entry: DrawnEntry, bound: float | None) -> None:
    """The largest rate that the settings allow, if it is on the axis."""
    if bound is not None and bound <= axes.get_xlim()[1]:
        line = axes.axvline(bound, color=INK, alpha=0.55, linewidth=0.9, linestyle=(0, (3, 3)))
        style.mark(line, f"{entry.label}: at most {bound:g}")


def _unit(largest: float) -> float:
    """What means and deviations are given in: a power of ten for small rates."""
    power = int(np.floor(np.log10(largest)))
    return float(f"1e{power}") if power < -2 else 1.0


def _moments(axes: Axes, found: dict[str, UserRates], unit: float) -> None:
    """Mean ± standard deviation over the users at the right of a panel, a line per group."""
    places = int(np.clip(1 - np.floor(np.log10(found["all"].rate_N.std() / unit)), 2, 5))  # two digits of the deviation
    for k, (group, one) in enumerate(found.items()):
        mean, deviation = one.rate_N.mean() / unit, one.rate_N.std() / unit
        _beside(axes, f"{group} {mean:.{places}f} ± {deviation:.{places}f}", 10 * (1 - k))


def _beside(axes: Axes, text: str, shift: float) -> None:
    """Text at the right of a panel, some points above its middle."""
    axes.annotate(
        text,
        (1, 0.5),
        (8, shift),
        xycoords="axes fraction",
        textcoords="offset points",
        va="center_baseline",
        fontsize=8,
        annotation_clip=False,
    )
