"""How figures look and how they are stored: one width, one colour per entry, SVG that fits light and dark pages.

Ink and paper are sentinel colours: in files they are what they say, within a page they become the page's own colours.
What a mark means is its `<title>`, which browsers show when the pointer is on it.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Outline

INK, PAPER = "#1d2126", "#fefefd"
_DPI = 100  # what matplotlib measures in; neither SVG nor PDF has pixels
WIDTH = 5.6  # inches: a column of the page, and of a paper
ROW = 0.3  # inches per line of a figure with one line per entry
LABELS = 1.8  # inches for the entries' names
METHOD_COLOURS = {  # after Okabe and Ito, brought to a lightness that stands out on white and on black (3:1)
    "melu": "#2a93cc",
    "meta_sgd": "#14946c",
    "transfer": "#b8629a",
    "paml": "#bd7a00",
    "at_paml": "#d55e00",
    "reg_paml": "#2472b8",
}
MORE_COLOURS = ("#7d6cc4", "#7b8a1f", "#a0624f", "#12909c", "#c2527a", "#5f7fa8", "#9a7b2c", "#4f8f4a")
GREYS = ("#6e7379", "#7c8187", "#888d93", "#74797f", "#82878d", "#8d9298", "#787d83")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
_SETTINGS: Any = {  # as matplotlib names them
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a name may hold dollar signs
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": True,
    "axes.linewidth": 0.6,
    "lines.solid_capstyle": "round",
    "path.simplify": False,
}
_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_IN_A_PAGE = {INK: "currentColor", PAPER: "var(--paper, #fff)"}
_DARK = {INK: "#e6e8ea", PAPER: "#15181b"}
_DARK_RULES = "".join(
    f'[style*="{part}: {colour}"]{{{part}:{dark}!important}}'
    for colour, dark in _DARK.items()
    for part in ("fill", "stroke")
)
_STANDALONE = f"svg{{color-scheme:light dark}}@media(prefers-color-scheme:dark){{{_DARK_RULES}}}"


@contextmanager
def drawing() -> Iterator[None]:
    """Draw and write in our style; letters that our font lacks are text in SVG, which viewers have fonts for."""
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def canvas(height: float) -> Canvas:
    """An empty figure of the common width."""
    return Canvas(figsize=(WIDTH, height), dpi=_DPI)


def panel(figure: Canvas, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place given in inches from the figure's upper left corner."""
    wide, high = figure.get_size_inches()
    axes = figure.add_axes((left / wide, 1 - (top + height) / high, width / wide, height / high))
    for side in ("left", "top", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_alpha(0.5)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5)
    return axes


def rows_panel(figure: Canvas, labels: Sequence[str], top: float = 0.08, right: float = 0.2) -> Axes:
    """Axes with one line per label: line k lies at y = k, from the top."""
    axes = panel(figure, LABELS, top, WIDTH - LABELS - right, ROW * len(labels))
    as_rows(axes, len(labels))
    for k, label in enumerate(labels):
        name_row(axes, k, label)
    return axes


def as_rows(axes: Axes, lines: int) -> None:
    """Line k lies at y = k, from the top."""
    axes.set_ylim(lines - 0.5, -0.5)
    axes.set_yticks([])
    axes.grid(axis="x", color=INK, alpha=0.14, linewidth=0.6)


def name_row(axes: Axes, y: float, label: str, lines: int = 2) -> None:
    """A name left of the axes, in one or two lines."""
    parts = textwrap.wrap(label, 24, max_lines=lines, placeholder=" …") or [""]
    for k, part in enumerate(parts):
        shift = (len(parts) - 1) / 2 - k
        axes.annotate(
            part,
            (0, y),
            (-8, 10 * shift),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            va="center_baseline",
            annotation_clip=False,
        )


def rows_height(lines: int, bottom: float = 0.5) -> float:
    """Of a figure with one line per entry."""
    return 0.08 + ROW * lines + bottom


def lines_panel(height: float, unit: str, label: str, right: float = 1.75) -> tuple[Canvas, Axes]:
    """A figure with axes for curves: the unit above, room for the curves' names at the right."""
    figure = canvas(height + 0.82)
    axes = panel(figure, 0.5, 0.32, WIDTH - 0.5 - right, height)
    axes.grid(axis="y", color=INK, alpha=0.14, linewidth=0.6)
    axes.set_xlabel(label)
    axes.annotate(unit, (0, 1), (-34, 10), xycoords="axes fraction", textcoords="offset points")
    return figure, axes


def separators(axes: Axes, kinds: Sequence[str], left: float = LABELS) -> None:
    """Thin lines between the kinds of entries, which begin `left` inches before the axes."""
    xmin = -left / (axes.bbox.width / _DPI)
    for k, (before, after) in enumerate(pairwise(kinds)):
        if before != after:
            axes.axhline(k + 0.5, color=INK, alpha=0.35, linewidth=0.6, xmin=xmin, clip_on=False)


def end_labels(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Names of curves (x, y, name, colour) at the right of the axes, moved apart, each with a line to its end."""
    if not ends:
        return
    low, high = axes.get_ylim()
    gap = 12 / 72 / (axes.bbox.height / _DPI)
    order = sorted(range(len(ends)), key=lambda k: ends[k][1])
    wanted_K = np.array([(ends[k][1] - low) / (high - low) for k in order])
    placed_K = spread_out(wanted_K, gap)
    for k, place in zip(order, placed_K, strict=True):
        x, y, name, colour = ends[k]
        axes.annotate(
            shortened(name),
            (x, y),
            (1.08, place),
            xycoords="data",
            textcoords="axes fraction",
            va="center_baseline",
            ha="left",
            annotation_clip=False,
            fontsize=8.5,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.7,
                "alpha": 0.7,
                "shrinkA": 1,
                "shrinkB": 3,
                "relpos": (0, 0.5),
            },
        )


def legend(place: Axes | Canvas, handles: Sequence[Artist], names: Sequence[str]) -> None:
    """A legend in one line: above axes, or at the top of a figure."""
    where: dict[str, Any] = {"loc": "upper left"}
    if isinstance(place, Axes):
        where = {"loc": "lower left", "bbox_to_anchor": (0, 1)}
    place.legend(
        handles,
        names,
        **where,
        ncols=len(names),
        frameon=False,
        borderaxespad=0,
        borderpad=0.2,
        handlelength=1.1,
        handleheight=0.8,
        handletextpad=0.6,
        fontsize=8.5,
    )


def group_key(place: Axes | Canvas, grey_alpha: float = 0.28) -> None:
    """A legend: major users in grey, minor users in the entry's colour."""
    grey = Rectangle((0, 0), 1, 1, facecolor=INK, alpha=grey_alpha)
    coloured = Rectangle((0, 0), 1, 1, facecolor=METHOD_COLOURS["reg_paml"], alpha=0.85)
    legend(place, [grey, coloured], ["major users", "minor users (in colour)"])


def plain(value: float, digits: int = 3) -> str:
    """0.0005, 5e−6: as short as possible."""
    text = f"{value:.{digits}g}".replace("e-0", "e-").replace("-", "−")
    return "0" if text in ("−0", "0") else text


def shortened(name: str, max_length: int = 21) -> str:
    """A name that fits beside a curve: if too long, without what is in brackets, then its beginning and its end."""
    bare = name.partition(" (")[0] if len(name) > max_length else name
    half = max_length // 2
    return bare if len(bare) <= max_length else f"{bare[: half - 1].rstrip(' ,')}…{bare[-half:].lstrip(' ,')}"


def spread_out(wanted_K: np.ndarray, gap: float) -> np.ndarray:
    """Ascending places near the wanted ones, at least a gap apart; within 0 to 1 where there is room."""
    from scipy.optimize import isotonic_regression  # slow to import

    if not len(wanted_K):
        return wanted_K
    step_K = gap * np.arange(len(wanted_K))
    free_K = isotonic_regression(np.clip(wanted_K, 0, 1) - step_K).x
    room = 1 - step_K[-1]
    placed_K: np.ndarray = np.clip(free_K, min(0, room / 2), max(room, room / 2)) + step_K
    return placed_K


def dots(axes: Axes, point_N2: np.ndarray, colour: str, size: float, alpha: float = 1.0) -> PathPatch:
    """Many points as one path: lines of no length with round ends."""
    vertex_N2 = np.repeat(point_N2, 2, axis=0)
    codes = np.tile([Outline.MOVETO, Outline.LINETO], len(point_N2)).astype(Outline.code_type)
    outline = Outline(vertex_N2, codes)
    outline.should_simplify = False
    patch = PathPatch(
        outline, fill=False, edgecolor=colour, linewidth=size, alpha=alpha, capstyle="round", joinstyle="round"
    )
    axes.add_patch(patch)
    return patch


def mark(artist: Artist, meaning: str) -> None:
    """Say what an artist means."""
    artist.set_gid(f"mark:{meaning}")


def svg_text(figure: Canvas, name: str, title: str) -> str:
    """An SVG document in a page's colours: the same bytes for the same figure, ids that begin with its name."""
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = text.replace("xlink:href", "href").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    text = re.sub(r' (d|x|y)="[^"]*"', lambda found: _rounded(found[0]), text)
    text = re.sub(r"<defs>\s*<style[^>]*>[^<]*</style>\s*</defs>\s*", "", text)  # it would apply to the whole page
    text = re.sub(r"(font: [\d.]+px|font-family:) [^;\"]*", rf"\1 {_FONTS}", text)
    for colour, own in _IN_A_PAGE.items():
        text = text.replace(colour, own)
    text = _explain(text, name)
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    opening = text.index(">", text.index("<svg")) + 1
    head = f"\n<title>{escape(title)}</title>\n<style>{_STANDALONE}</style>"
    return f"{text[:opening]}{head}{text[opening:]}"


def standalone(svg: str) -> str:
    """The same as a file of its own: colours are plain numbers, which every program understands.

    Programs other than browsers drop what is drawn in the colour of a CSS variable. Browsers exchange ink and paper in
    dark mode by the document's style.
    """
    for colour, own in _IN_A_PAGE.items():
        svg = svg.replace(own, colour)
    return svg


def _rounded(attribute: str) -> str:
    """A hundredth of a point is finer than any screen."""
    return re.sub(r"\s+", " ", re.sub(r"(\.\d\d)\d+", r"\1", attribute)).replace(' "', '"')


def _explain(text: str, name: str) -> str:
    """Marks get their meaning as `<title>`; ids are kept where something refers to them."""
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    number = 0

    def rename(found: re.Match[str]) -> str:
        nonlocal number
        key, end = found[1], found[2]
        if key.startswith("mark:"):
            number += 1
            return f' id="{name}-{number}"{end}<title>{key.removeprefix("mark:")}</title>'
        return f' id="{name}-{key}"{end}' if key in used else end

    text = re.sub(r' id="([^"]*)"([^>]*>)', rename, text)
    return re.sub(r'(href="|url\()#', rf"\g<1>#{name}-", text)


def pdf_bytes(figure: Canvas, title: str) -> bytes:
    """The figure for a paper, the same bytes for the same figure."""
    file = io.BytesIO()
    figure.savefig(
        file, format="pdf", metadata={"Title": title, "CreationDate": None, "Creator": None, "Producer": None}
    )
    return file.getvalue()
