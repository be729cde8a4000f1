"""The paper's tables beside ours, under the numbers that they have in the paper."""

from paml.analysis.format import p_value, spread
from paml.analysis.plan import Better
from paml.analysis.quoted import ABLATION, ABLATION_GROUPS, COMPARISON, FAILURE, GROUPS, PRINTED
from paml.analysis.results import Paper, PaperRow, Results
from paml.report.render import STAR, Table, ranked

Key = tuple[str, str]
"""Metric and group of users."""


def paper(results: Results) -> list[Table]:
    """Those of the data set; lines and quantities that either side lacks have no number."""
    found = results.paper
    if found is None or not found.rows:
        return []
    metrics = {(name, "all"): results.plan.metric(name).label for name in PRINTED}
    groups = {("mse", "major"): "MSE major", ("mse", "minor"): "MSE minor"}
    by_group = {**groups, ("p_value", "all"): "p"}
    tables = [
        _beside(found, COMPARISON, "The paper's comparison (Tab. 2) beside ours", metrics),
        _beside(found, ABLATION, "The paper's ablation (Tab. 3) beside ours", metrics),
        _beside(found, GROUPS, "The paper's major and minor users (Tab. 4) beside ours", by_group),
        _beside(found, ABLATION_GROUPS, "The paper's major and minor users by gamma (Tab. 5) beside ours", by_group),
        _failure(found, {("mse", "all"): "MSE", **groups, **metrics}),
    ]
    return [table for table in tables if table.rows]


def _beside(found: Paper, table: str, title: str, columns: dict[Key, str]) -> Table:
    """For each quantity two columns: the paper's and ours; the best of a column is bold, as in the paper's tables."""
    lines = _lines(found, table)
    rows = tuple((label, *(cell for key in columns for cell in _pair(line[key]))) for label, line in lines.items())
    values, directions = [], []
    for key in columns:
        shown = [] if key[0] == "p_value" else list(lines.values())
        values += [[line[key].paper for line in shown], [line[key].ours for line in shown]]
        directions += [_better(key), _better(key)]
    best, second = ranked(values, directions)
    titles = ("", *(f"{name}, {whose}" for name in columns.values() for whose in ("paper", "ours")))
    ours = [k for k, line in enumerate(lines.values()) if all(row.paper is None for row in line.values())]
    return Table(f"paper_{table}", title, titles, rows, _note(found, table), best, second, tuple(ours[:1]))


def _failure(found: Paper, columns: dict[Key, str]) -> Table:
    """A line for each quantity: AT-PAML as it usually is, and the failure case."""
    lines = _lines(found, FAILURE)
    rows = tuple(
        (name, *(cell for line in lines.values() for cell in _pair(line[key]))) for key, name in columns.items()
    )
    titles = ("", *(f"{label}, {whose}" for label in lines for whose in ("paper", "ours")))
    title = "The paper's failure case (Fig. 8) beside ours"
    return Table(f"paper_{FAILURE}", title, titles, rows if lines else (), _note(found, FAILURE))


def _lines(found: Paper, table: str) -> dict[str, dict[Key, PaperRow]]:
    """The lines of a table, by label."""
    lines: dict[str, dict[Key, PaperRow]] = {}
    for row in found.rows:
        if row.table == table:
            lines.setdefault(row.label, {})[row.metric, row.group] = row
    return lines


def _note(found: Paper, table: str) -> str:
    said = found.differences if table == COMPARISON else ()
    return " ".join(["The paper's numbers are quoted as they are.", *found.footnotes.get(table, ()), *said])


def _better(key: Key) -> Better:
    return "lower" if key[0] == "mse" else "higher"


def _pair(row: PaperRow) -> tuple[str, str]:
    """The paper's and our cell."""
    if row.metric == "p_value":
        return p_value(row.paper), p_value(row.ours)
    stars = (STAR if star else "" for star in (row.paper_star, row.star))
    cells = spread(row.paper, row.paper_deviation), spread(row.ours, row.deviation)
    theirs, ours = (cell + star for cell, star in zip(cells, stars, strict=True))
    return theirs, ours
