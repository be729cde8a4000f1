"""The results of a comparison in a notebook."""

from html import escape
from typing import TYPE_CHECKING

from paml.analysis.format import spread
from paml.analysis.plan import MetricFacts
from paml.notebook import BLUE, ORANGE, card, intervals, more, table

if TYPE_CHECKING:
    from paml.analysis.results import Results

MAX_METRICS = 4
SENTENCES = 3  # of the verdict, before one asks for more


def results_html(results: "Results") -> str:
    """The verdict, the metrics by which entries are judged, and the first of them as a figure."""
    plan = results.plan
    metrics = _metrics(results)
    shown = [entry for entry in plan.entries if any(entry.name in results.table[one.name] for one in metrics)]
    rows = [(entry.label, *(_cell(results, entry.name, metric) for metric in metrics)) for entry in shown]
    header = ("", *(f"{metric.short} {'↓' if metric.better == 'lower' else '↑'}" for metric in metrics))
    found = table(rows, header, range(1, len(header)))
    title = f"Comparison on {plan.data.source}: {len(plan.entries)} entries, {len(results.seeds)} seeds"
    missing = [f"Not finished: {len(results.missing)} cells."] if results.missing else []
    first, rest = results.verdict[:SENTENCES], results.verdict[SENTENCES:]
    figure = _figure(results, metrics[0]) if metrics else ""
    return card(title, figure, found, *map(escape, (*missing, *first)), more("more", rest))


def _metrics(results: "Results") -> list[MetricFacts]:
    """The headline metric, that of lists, and then the others, as far as there are values."""
    plan = results.plan
    first = [plan.headline, *([plan.list_headline] if plan.list_headline is not None else [])]
    ordered = list(dict.fromkeys([*first, *plan.metrics]))
    return [metric for metric in ordered if results.table.get(metric.name)][:MAX_METRICS]


def _cell(results: "Results", entry: str, metric: MetricFacts) -> str:
    found = results.table[metric.name].get(entry, {}).get("all")
    return "" if found is None else spread(found.mean, found.deviation, metric.digits)


def _figure(results: "Results", metric: MetricFacts) -> str:
    """Means over seeds, and the standard deviation between them to both sides."""
    values = {name: groups["all"] for name, groups in results.table[metric.name].items() if "all" in groups}
    lines = [
        (entry.label, found.mean, found.deviation or 0.0, BLUE if entry.learned else ORANGE)
        for entry in results.plan.entries
        if (found := values.get(entry.name)) is not None and found.mean is not None
    ]
    between = " ± standard deviation between seeds" if any(reach for _, _, reach, _ in lines) else ""
    return intervals(lines, f"{metric.short}{between}, {metric.better} is better") if lines else ""
