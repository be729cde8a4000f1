"""A comparison's figures: their titles and captions, and each as SVG and PDF.

accuracy    how good the entries are
groups      major and minor users: violins and boxes
rates       the learning rate of each user
embeddings  users in the plane, and how well embeddings tell minor from major users
behaviour   few ratings, activity, training, cost, the regulariser's weight
material    the data that figures are drawn from
style       how they look and are written
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure as Canvas

from paml.analysis.results import Results
from paml.files import replacing
from paml.report.figures import accuracy, behaviour, embeddings, groups, rates, style
from paml.report.figures.material import Material


@dataclass(frozen=True)
class Figure:
    """A drawn figure."""

    title: str
    caption: str
    svg: str
    """In the colours of the page that it becomes a part of."""
    pdf: bytes


@dataclass(frozen=True)
class _Kind:
    title: str
    caption: str | Callable[[Material], str]
    draw: Callable[[Material], Canvas | None]


def _few(caption: str) -> Callable[[Material], str]:
    """A caption that says how many methods and variants there was no room for."""
    return lambda material: caption + material.beyond_few(material.present())


def _zeros(caption: str) -> Callable[[Material], str]:
    """A caption that also says how many users have 0, where they are many."""
    return lambda material: caption + accuracy.zeros(material)


_BOX = "Box: quartiles and median; whiskers: the last user within 1.5 boxes"
_GROUPS = "major users in grey, minor users in colour"
_VIOLINS = f"Distribution over users of the best baseline, the methods and all variants, {_GROUPS}, medians as strokes"
FIGURES: dict[str, _Kind] = {
    "comparison": _Kind(
        "All entries",
        "Mean over test users with a 95 % bootstrap interval over users; the dashed line is the best baseline.",
        accuracy.comparison,
    ),
    "boxes_enlarged": _Kind(
        "Users' errors, enlarged",
        f"{_BOX}; users beyond the whiskers are not shown. As the paper's Figs. 5a and 6a.",
        accuracy.boxes_enlarged,
    ),
    "boxes": _Kind(
        "Users' errors, all users",
        _zeros(f"{_BOX}; dots: the users beyond. As the paper's Figs. 5b and 6b (of clicks: 3b)."),
        accuracy.boxes,
    ),
    "violins": _Kind(
        "Errors of major and minor users, all users", _zeros(f"{_VIOLINS}. As the paper's Fig. 9a."), groups.violins
    ),
    "violins_enlarged": _Kind(
        "Errors of major and minor users, enlarged",
        f"{_VIOLINS}; the longest tails are cut off at the right. As the paper's Fig. 9b.",
        groups.violins_enlarged,
    ),
    "group_boxes": _Kind(
        "Methods by group, all users",
        _zeros(
            f"{_BOX}; dots: the users beyond; {_GROUPS}. The best baseline and the methods, as the paper's Fig. 10a."
        ),
        groups.group_boxes,
    ),
    "group_boxes_enlarged": _Kind(
        "Methods by group, enlarged",
        f"The same up to the whiskers; {_GROUPS}. As the paper's Fig. 10b.",
        groups.group_boxes_enlarged,
    ),
    "clicks": _Kind(
        "AUC and NEL, as in the paper's Fig. 3",
        "AUC from chance (0.5) on: mean over users of each user's, and over all query rows together; a user's NEL (box:"
        " quartiles and median, whiskers: the last user within 1.5 boxes); its mean. Strokes: deviation over seeds.",
        accuracy.clicks,
    ),
    "calibration": _Kind(
        "Calibration",
        _few("Predicted and observed share of clicks, by tenths of the predictions; on the dashed line they agree."),
        accuracy.calibration,
    ),
    "rates": _Kind(
        "Rates of major and minor users",
        f"Distribution over users of the rate each entry gives them, {_GROUPS}, as the paper's Figs. 4 and 7. Every"
        " panel has its own axis: look at its numbers before you compare. A dashed line is the largest rate that the"
        " settings allow, where the plan says it. Entries with one rate for all users are excluded.",
        rates.rates,
    ),
    "rates_common": _Kind(
        "Rates on a common axis",
        "Line: all users, as the paper's Fig. 7; areas: the parts of major (grey) and minor users (colour) in it."
        " At the right: mean ± standard deviation over users and seeds. The axis begins at 0; a dashed line is the"
        " largest rate that the settings allow, where the plan says it. Heights differ between panels.",
        rates.rates_common,
    ),
    "embeddings": _Kind("User embeddings", embeddings.embeddings_caption, embeddings.embeddings),
    "shots": _Kind(
        "Few ratings",
        _few(
            "The same predictions when only the first few support rows of a user are known; curves far above the others"
            " are cut off."
        ),
        behaviour.shots,
    ),
    "list_shots": _Kind(
        "What a user would be shown, few ratings",
        _few(
            "How good the list of all items is when only the first few support rows of a user are known; candidates are"
            " all items but the user's support rows, known or not."
        ),
        behaviour.list_shots,
    ),
    "activity": _Kind(
        "Active and less active users", _few("Mean by the number of a user's support rows."), behaviour.activity
    ),
    "by_group": _Kind("Users by their profile", accuracy.by_group_caption, accuracy.by_group),
    "items": _Kind(
        "Known and new items",
        "Query rows on items that training users interacted with (filled) and did not (open).",
        accuracy.items,
    ),
    "learning": _Kind(
        "Learning curves",
        _few(
            "Validation users after each epoch: mean over seeds, each seed a thin line. A seed that has stopped counts"
            " in the mean with its last value; what lies far above is cut off."
        ),
        behaviour.learning,
    ),
    "cost": _Kind(
        "Accuracy and cost",
        "Left: mean over test users; right: time to adapt to one user and to score the query rows, amortised over"
        " batches.",
        behaviour.cost,
    ),
    "gamma": _Kind(
        "The regulariser's weight",
        "REG-PAML with other values of γ, by group as the paper's Tab. 5; strokes: deviation over seeds.",
        behaviour.gamma,
    ),
    "failure": _Kind("The paper's failure case", rates.failure_caption, rates.failure),
}


def figures(folder: Path, results: Results) -> dict[str, Figure]:
    """The figures whose data a comparison's folder has, by name, in the order of the page."""
    material = Material.read(folder, results)
    drawn = {}
    with style.drawing():
        for name, kind in FIGURES.items():
            canvas = None if name == "shots" and results.plan.lists_only else kind.draw(material)
            if canvas is not None:
                title = _title(kind.title, results)
                svg = style.svg_text(canvas, name, title)
                caption = kind.caption if isinstance(kind.caption, str) else kind.caption(material)
                drawn[name] = Figure(title, caption, svg, style.pdf_bytes(canvas, title))
    return drawn


def _title(title: str, results: Results) -> str:
    """Where lists alone are judged, a user's value is not an error, and nobody has rated anything."""
    if not results.plan.lists_only:
        return title
    label = results.plan.headline.short
    return title.replace("Users' errors", f"Users' {label}").replace("Errors", label).replace("ratings", "choices")


def save_figures(drawn: dict[str, Figure], folder: Path) -> None:
    """Write figures/NAME.svg and figures/NAME.pdf, and remove those of an earlier report that are gone now."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        for suffix, content in (("svg", style.standalone(figure.svg).encode()), ("pdf", figure.pdf)):
            with replacing(folder / f"{name}.{suffix}") as file:
                file.write(content)
    for name in FIGURES:
        if name not in drawn:
            (folder / f"{name}.svg").unlink(missing_ok=True)
            (folder / f"{name}.pdf").unlink(missing_ok=True)
