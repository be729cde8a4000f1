"""One figure and one table of several data sets: what personal rates change, for all, major and minor users.

python -m benchmarks.claim_figure FILE.svg OUT ...     folders of `python -m benchmarks.claim`
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from benchmarks.claim import GROUPS, OWN_RATES, PERSONAL
from paml.files import write_text
from paml.report.figures import style
from paml.report.figures.style import INK, METHOD_COLOURS, PAPER

TITLE = "Personal rates against a fixed rate of equal size"
COLOURS = {"all": INK, "major": style.GREYS[-1], "minor": METHOD_COLOURS["paml"]}
SHIFTS = {"all": -0.24, "major": 0.0, "minor": 0.24}


def main() -> None:
    """Draw the figure, and print the table."""
    target, *folders = map(Path, sys.argv[1:])
    found = {label(read(folder), folder.name): read(folder) for folder in folders}
    with style.drawing():
        write_text(target, style.svg_text(draw(found), "claim", TITLE))
    print("| data | PAML's rates: major | minor | | fixed rate | personal: all users | major | minor | rates alone |")
    print("|---|---|---|---|---:|---|---|---|---|")
    for name, summary in found.items():
        changes = [cell(summary, PERSONAL["paml"], group) for group in GROUPS]
        rates = f"{summary['rates']['major']} | {summary['rates']['minor']} | {summary['metric'].upper()}"
        after = cell(summary, OWN_RATES, "all")
        print(f"| {name} | {rates} | {summary['fixed']['all']:.4f} | {' | '.join(changes)} | {after} |")


def read(folder: Path) -> dict[str, Any]:
    """What `benchmarks.claim` found."""
    found: dict[str, Any] = json.loads((folder / "claim.json").read_text(encoding="utf-8"))
    return found


def label(summary: dict[str, Any], folder: str) -> str:
    """The embedded world by its dials, others by their folder."""
    settings = summary["settings"]
    if summary["source"] != "synthetic":
        return folder
    kind = "embedded clicks" if settings["target"] == "click" else "embedded ratings"
    dials = [f"{name.removeprefix('minor_')} {settings.get(name, 1):g}" for name in ("minor_distance", "minor_spread")]
    return f"{kind}, {', '.join(dials)}"


def cell(summary: dict[str, Any], line: str, group: str) -> str:
    """A difference in percent of the fixed rate's error, its interval, and the sign of every trial."""
    share = 100 / summary["fixed"][group]
    found = summary["differences"][line][group]
    signs = "".join("-" if value < 0 else "+" for value in found["trials"])
    low, high = found["low"] * share, found["high"] * share
    return f"{found['difference'] * share:+.1f} % ({low:+.1f} to {high:+.1f}; {signs})"


def draw(found: dict[str, dict[str, Any]]) -> Canvas:
    """A line per data set, and a mark with interval per group of users."""
    figure = style.canvas(style.rows_height(2 * len(found), 0.6) + 0.3)
    axes = style.panel(figure, style.LABELS, 0.38, style.WIDTH - style.LABELS - 0.2, 2 * style.ROW * len(found))
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_yticks([])
    axes.grid(axis="x", color=INK, alpha=0.14, linewidth=0.6)
    axes.axvline(0, color=INK, alpha=0.55, linewidth=0.8)
    handles = []
    for k, (name, summary) in enumerate(found.items()):
        style.name_row(axes, k, name)
        handles = [interval(axes, k, summary, group) for group in GROUPS]
    axes.set_xlabel("change of the error in % (left: personal rates are better)")
    style.legend(axes, handles, ["all users", "major users", "minor users"])
    return figure


def interval(axes: Axes, k: int, summary: dict[str, Any], group: str) -> Any:
    """A group's difference in percent of its error with the fixed rate."""
    found, share = summary["differences"][PERSONAL["paml"]][group], 100 / summary["fixed"][group]
    y, colour = k + SHIFTS[group], COLOURS[group]
    axes.plot([found["low"] * share, found["high"] * share], [y, y], color=colour, linewidth=2, alpha=0.7)
    (dot,) = axes.plot([found["difference"] * share], [y], "o", color=colour, markersize=5.5, markeredgecolor=PAPER)
    style.mark(dot, f"{group} users: {cell(summary, PERSONAL['paml'], group)}")
    return dot


if __name__ == "__main__":
    main()
