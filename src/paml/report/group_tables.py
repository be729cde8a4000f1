"""Tables of major and minor users: by errors, and by lists."""

from collections.abc import Mapping

from paml.analysis.format import NOTHING, interval, number, p_value, spread
from paml.analysis.plan import MetricFacts
from paml.analysis.results import Groups, Results
from paml.analysis.sentences import WITHIN, judgement
from paml.report.layout import in_order, rules, short
from paml.report.render import Table

_JUDGEMENTS = {
    "equal": f"equal within {WITHIN}",
    "small": f"different, below {WITHIN}",
    "different": "different",
    "undecided": "undecided",
    "unknown": "not testable",
}


def groups(results: Results) -> Table:
    """Major and minor users by the headline metric."""
    return _groups(results, "groups", results.plan.headline, results.groups, results.best.baseline)


def list_groups(results: Results) -> Table | None:
    """The same by the lists that users would be shown."""
    metric = results.plan.list_headline
    if metric is None:
        return None
    return _groups(results, "list_groups", metric, results.list_groups, results.best_lists.baseline)


def _groups(
    results: Results, key: str, metric: MetricFacts, by_entry: Mapping[str, Groups], baseline: str | None
) -> Table:
    """The paper's test, the gap, and whether it is shown to be small."""
    order, places = [entry for entry in in_order(results) if entry.name in by_entry], metric.digits
    rows = []
    for entry in order:
        found = by_entry[entry.name]
        major, minor = (results.summary(entry.name, metric.name, group) for group in ("major", "minor"))
        gap, against = found.gap, found.gap_against_baseline
        rows.append(
            (
                entry.label,
                *(spread(summary.mean, summary.deviation, places) for summary in (major, minor)),
                p_value(found.test.p_value),
                number(gap.difference, places),
                interval(gap.interval, places),
                p_value(gap.welch_p),
                p_value(gap.equivalence_p),
                NOTHING if gap.difference is None else _JUDGEMENTS[judgement(gap)],
                NOTHING if against is None else number(against.difference, places),
                NOTHING if against is None else interval(against.interval, places),
            )
        )
    note = (
        "p: the paper's two-tailed t-test of major against minor users; a large p does not show that they are equal. "
        "Gap: minor − major, with a bootstrap interval and Welch's test; a user's seeds are one observation. "
        f"p (equal): of a gap of {WITHIN} of the mean or more; below 0.05 the groups are equal within {WITHIN}."
    )
    if baseline is not None:
        note += f" Against baseline: the gap less that of {results.plan.labels[baseline]}."
    tests = ("p", "gap", "95 %", "p (gap)", "p (equal)", "groups are", "against baseline", "95 % (against)")
    columns = ("", f"{short(metric)} major", f"{short(metric)} minor", *tests)
    return Table(key, f"Major and minor users, {metric.label}", columns, tuple(rows), note, rules=rules(order))
