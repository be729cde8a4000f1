"""The tables of paired tests: methods against the best baseline, and against each other."""

from collections.abc import Sequence

from paml.analysis.comparisons import Paired, improves
from paml.analysis.format import NOTHING, count, interval, listing, number, p_value, precise, precise_interval
from paml.analysis.plan import MetricFacts
from paml.analysis.results import Results
from paml.analysis.sentences import compared_with, sureness
from paml.report.render import Table


def paired(results: Results) -> Table:
    """Methods and variants against the best baseline of each metric of query rows, user by user."""
    title = f"Paired tests against {compared_with(results.plan)}"
    return _paired(results, "paired", title, results.plan.about("rows"))


def paired_lists(results: Results) -> Table:
    """The same for lists of all items, with one p-value: there are more metrics, and the table must fit."""
    ranks = " that ranks" if results.plan.names("baseline") else ""
    title = f"Paired tests of lists against {compared_with(results.plan)}{ranks}"
    return _paired(results, "paired_lists", title, results.plan.about("list"), brief=True)


def _paired(results: Results, name: str, title: str, metrics: Sequence[MetricFacts], *, brief: bool = False) -> Table:
    label = results.plan.labels
    rows: list[tuple[str, ...]] = []
    rules: list[int] = []
    against: dict[str, list[str]] = {}
    for metric in metrics:
        rules.append(len(rows))
        places, lines = metric.digits, results.paired[metric.name]
        if lines:
            baseline = f"{label[lines[0].reference]} ({count(lines[0].users, 'user')})"
            against.setdefault(baseline, []).append(metric.short)
        rows += [
            (
                metric.short,
                label[line.method],
                number(line.difference, places),
                interval(line.interval, places),
                *(() if brief else (p_value(line.t_p), p_value(line.wilcoxon_p))),
                p_value(line.holm_p),
                ", ".join(number(value, places) for value in line.by_seed) or NOTHING,
                verdict_of(metric, line),
            )
            for line in lines
        ]
    best = "; ".join(f"by {listing(metrics)}, {baseline}" for baseline, metrics in against.items())
    papers = "" if results.plan.names("baseline") else " of the paper's, which are methods here,"
    note = (
        "Method − baseline for each user, averaged over a seed's users, then over seeds. The baseline is the best"
        f"{papers} by the same metric: {best}. 95 %: bootstrap over users, each with the rows of all seeds. "
        "Surely: p (Holm) < 0.05, and all seeds have the same sign."
    )
    tests = ("p (Holm)",) if brief else ("p (t)", "p (Wilcoxon)", "p (Holm)")
    columns = ("metric", "method", "difference", "95 %", *tests, "in each seed", "the method is")
    return Table(name, title, columns, tuple(rows), note, rules=tuple(rules[1:]))


def pairs(results: Results) -> Table:
    """Methods and variants with each other, user by user, with digits enough to see a difference."""
    label, metric = results.plan.labels, results.plan.headline
    rows = tuple(
        (
            label[line.reference],
            label[line.method],
            precise(line.difference, metric.digits),
            precise_interval(line.interval, metric.digits),
            p_value(line.t_p),
            p_value(line.holm_p),
            in_each_seed(line, metric),
            "the same for every user" if line.identical else verdict_of(metric, line),
        )
        for line in results.pairs
    )
    first = [line.reference for line in results.pairs]
    note = (
        f"The second entry's {metric.label} less the first's, as in the table above; Holm's correction is for all "
        f"{count(len(rows), 'pair')}. Printed with as many digits as it takes."
    )
    columns = ("first", "second", "difference", "95 %", "p (t)", "p (Holm)", "in each seed", "the second is")
    rules = tuple(k for k in range(1, len(rows)) if first[k] != first[k - 1])
    return Table("pairs", f"Method against method, {metric.label}", columns, rows, note, rules=rules)


def in_each_seed(line: Paired, metric: MetricFacts) -> str:
    """The difference in each seed, with digits enough to see it."""
    return ", ".join(precise(value, metric.digits) for value in line.by_seed) or NOTHING


def verdict_of(metric: MetricFacts, line: Paired) -> str:
    """Whether a method is surely better or worse, or why that is not sure."""
    return why_unsure(line) or ("surely better" if improves(metric.better, line.difference) else "surely worse")


def why_unsure(line: Paired | None) -> str:
    """Why a difference is not sure; empty where it is."""
    found = "unknown" if line is None else sureness(line)
    return {"sure": "", "unknown": "not testable"}.get(found, found)
