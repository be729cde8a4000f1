"""How tables are laid out: the order of entries, the lines between kinds, a table of one metric."""

from collections.abc import Callable, Sequence

from paml.analysis.format import number
from paml.analysis.plan import Entry, MetricFacts
from paml.analysis.results import Results
from paml.report.render import Table, ranked

ARROWS = {"lower": "↓", "higher": "↑"}
KINDS = ("reference", "baseline", "method", "variant")


def by_entry(
    results: Results,
    name: str,
    title: str,
    columns: Sequence[str],
    values: Callable[[str], Sequence[float | None]],
    note: str,
    metric: MetricFacts | None = None,
    order: list[Entry] | None = None,
) -> Table:
    """A line for each entry (all, or those in `order`), a metric's means in columns, the best of each in bold.

    The metric is the headline's, unless another is given.
    """
    order, shown = in_order(results) if order is None else order, metric or results.plan.headline
    lines = [list(values(entry.name)) for entry in order]
    rows = tuple(
        (entry.label, *(number(value, shown.digits) for value in line))
        for entry, line in zip(order, lines, strict=True)
    )
    compared = [
        [None if entry.kind == "reference" else line[j] for entry, line in zip(order, lines, strict=True)]
        for j in range(len(columns))
    ]
    best, second = ranked(compared, [shown.better] * len(columns))
    return Table(name, title, ("", *columns), rows, note, best, second, rules(order))


def in_order(results: Results) -> list[Entry]:
    """References first, above the line; then as in the plan."""
    return sorted(results.plan.entries, key=lambda entry: KINDS.index(entry.kind))


def rules(order: list[Entry]) -> tuple[int, ...]:
    """A rule between kinds."""
    return tuple(k for k in range(1, len(order)) if order[k].kind != order[k - 1].kind)
