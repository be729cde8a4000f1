"""The tables of paired tests: methods against the best baseline, and against each other."""

from collections.abc import Sequence

from paml.analysis.comparisons import Paired, improves
from paml.analysis.format import NOTHING, count, interval, listing, number, p_value, significant
from paml.analysis.plan import MetricFacts
from paml.analysis.results import Results
from paml.analysis.tests import Interval
from paml.analysis.verdict import sureness
from paml.report.render import Table


def paired(results: Results) -> Table:
    """Methods and variants against the best baseline of each metric, user by user."""
    label = results.plan.labels
    rows: list[tuple[str, ...]] = []
    rules, against = [], []
    for metric in results.plan.metrics:
        rules.append(len(rows))
        places, lines = metric.digits, results.paired[metric.name]
        against += [f"{label[lines[0].reference]} ({metric.label}; {count(lines[0].users, 'user')})"] if lines else []
        rows += [
            (
                metric.label,
                label[line.method],
                number(line.difference, places),
                interval(line.interval, places),
                p_value(line.t_p),
                p_value(line.wilcoxon_p),
                p_value(line.holm_p),
                ", ".join(number(value, places) for value in line.by_seed) or NOTHING,
                _sure(metric, line),
            )
            for line in lines
        ]
    note = (
        "Method − baseline for each user, averaged over a seed's users, then over seeds. The baseline is the best by "
        f"that metric: {listing(against)}. 95 %: bootstrap over users, each with the rows of all seeds. "
        "Surely: p (Holm) < 0.05, and all seeds have the same sign."
    )
    tests = ("p (t)", "p (Wilcoxon)", "p (Holm)")
    columns = ("metric", "method", "difference", "95 %", *tests, "in each seed", "the method is")
    return Table("paired", "Paired tests against the best baseline", columns, tuple(rows), note, rules=tuple(rules[1:]))


def pairs(results: Results) -> Table:
    """Every two methods, user by user, with digits enough to see a difference."""
    label, metric = results.plan.labels, results.plan.headline
    rows = tuple(
        (
            label[line.reference],
            label[line.method],
            significant(line.difference, 2),
            significant_interval(line.interval, 2),
            p_value(line.t_p),
            p_value(line.holm_p),
            in_each_seed(line.by_seed),
            "the same for every user" if line.identical else _sure(metric, line),
        )
        for line in results.pairs
    )
    first = [line.reference for line in results.pairs]
    note = (
        f"The second method's {metric.label} less the first's, as in the table above; Holm's correction is for all "
        f"{count(len(rows), 'pair')}. Printed with as many digits as it takes."
    )
    columns = ("first", "second", "difference", "95 %", "p (t)", "p (Holm)", "in each seed", "the second is")
    rules = tuple(k for k in range(1, len(rows)) if first[k] != first[k - 1])
    return Table("pairs", f"Method against method, {metric.label}", columns, rows, note, rules=rules)


def significant_interval(found: Interval | None, digits: int = 2) -> str:
    """From where to where."""
    return NOTHING if found is None else f"{significant(found.low, digits)} to {significant(found.high, digits)}"


def in_each_seed(values: Sequence[float]) -> str:
    """The values of the seeds, in order."""
    return ", ".join(significant(value, 2) for value in values) or NOTHING


def _sure(metric: MetricFacts, line: Paired) -> str:
    return why_unsure(line) or ("surely better" if improves(metric.better, line.difference) else "surely worse")


def why_unsure(line: Paired | None) -> str:
    """Why a difference is not sure; empty where it is."""
    found = "unknown" if line is None else sureness(line)
    return {"sure": "", "unknown": "not testable"}.get(found, found)
