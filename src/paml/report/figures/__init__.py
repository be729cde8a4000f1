"""A comparison's figures: their titles and captions, and each as SVG and PDF.

accuracy   how good the entries are
behaviour  how they behave: rates, embeddings, few ratings, training, cost
material   the data that figures are drawn from
style      how they look and are written
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure as Canvas

from paml.analysis.results import Results
from paml.report.figures import accuracy, behaviour, style
from paml.report.figures.material import Material


@dataclass(frozen=True)
class Figure:
    """A drawn figure."""

    title: str
    caption: str
    svg: str
    pdf: bytes


@dataclass(frozen=True)
class _Kind:
    title: str
    caption: str | Callable[[Material], str]
    draw: Callable[[Material], Canvas | None]


_BOX = "Box: quartiles and median; whiskers: the last user within 1.5 boxes"
_GROUPS = "major users in grey, minor users in colour"
FIGURES: dict[str, _Kind] = {
    "comparison": _Kind(
        "All entries",
        "Mean over test users with a 95 % bootstrap interval over users; the dashed line is the best baseline.",
        accuracy.comparison,
    ),
    "boxes_enlarged": _Kind(
        "Users' errors, enlarged", f"{_BOX}; users beyond the whiskers are not shown.", accuracy.boxes_enlarged
    ),
    "boxes": _Kind("Users' errors, all users", f"{_BOX}; dots: the users beyond.", accuracy.boxes),
    "violins": _Kind(
        "Errors of major and minor users",
        f"Distribution over users, {_GROUPS}, medians as strokes; the longest tails are cut off at the right.",
        accuracy.violins,
    ),
    "clicks": _Kind(
        "AUC and NEL, as in the paper's Fig. 3",
        "AUC from chance (0.5) on: mean over users of each user's, and over all query rows together; a user's NEL (box:"
        " quartiles and median, whiskers: the last user within 1.5 boxes); its mean. Strokes: deviation over seeds.",
        accuracy.clicks,
    ),
    "calibration": _Kind(
        "Calibration",
        "Predicted and observed share of clicks, by tenths of the predictions, corrected for the training weights;"
        " on the dashed line they agree.",
        accuracy.calibration,
    ),
    "rates": _Kind(
        "Learning rates of major and minor users",
        f"Distribution over users of the rate each method gives them, {_GROUPS}; methods with one rate for all are"
        " excluded.",
        behaviour.rates,
    ),
    "embeddings": _Kind(
        "User embeddings",
        f"t-SNE of up to {behaviour.EMBEDDED:,} test users, {_GROUPS}; the axes have no unit.",
        behaviour.embeddings,
    ),
    "shots": _Kind(
        "Few ratings",
        "The same predictions when only the first few support rows of a user are known; curves far above the others are"
        " cut off.",
        behaviour.shots,
    ),
    "activity": _Kind(
        "Active and less active users", "Mean by the number of a user's support rows.", behaviour.activity
    ),
    "by_group": _Kind("Users by their profile", accuracy.by_group_caption, accuracy.by_group),
    "items": _Kind(
        "Known and new items",
        "Query rows on items that training users interacted with (filled) and did not (open).",
        accuracy.items,
    ),
    "learning": _Kind(
        "Learning curves",
        "Validation users after each epoch: mean over seeds, each seed a thin line.",
        behaviour.learning,
    ),
    "cost": _Kind(
        "Accuracy and cost",
        "Time to adapt to one user and to score the query rows, amortised over batches.",
        behaviour.cost,
    ),
    "gamma": _Kind(
        "The regulariser's weight", "REG-PAML with other values of γ; strokes: deviation over seeds.", behaviour.gamma
    ),
    "failure": _Kind(
        "A failure case",
        f"Learning rates with the outer rate {behaviour.FAILING_RATE:g}, beside the usual one: {_GROUPS}.",
        behaviour.failure,
    ),
}


def figures(folder: Path, results: Results) -> dict[str, Figure]:
    """The figures whose data a comparison's folder has, by name, in the order of the page."""
    material = Material.read(folder, results)
    drawn = {}
    with style.drawing():
        for name, kind in FIGURES.items():
            canvas = kind.draw(material)
            if canvas is not None:
                svg = style.svg_text(canvas, name, kind.title)
                caption = kind.caption if isinstance(kind.caption, str) else kind.caption(material)
                drawn[name] = Figure(kind.title, caption, svg, style.pdf_bytes(canvas, kind.title))
    return drawn


def save_figures(drawn: dict[str, Figure], folder: Path) -> None:
    """Write figures/NAME.svg and figures/NAME.pdf, and remove those of an earlier report that are gone now."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        for suffix, content in (("svg", figure.svg.encode()), ("pdf", figure.pdf)):
            partial = folder / f".{name}.{suffix}.partial"
            partial.write_bytes(content)
            partial.replace(folder / f"{name}.{suffix}")
    for name in FIGURES:
        if name not in drawn:
            (folder / f"{name}.svg").unlink(missing_ok=True)
            (folder / f"{name}.pdf").unlink(missing_ok=True)
