"""Tables of major and minor users: by errors, and by lists."""

from paml.analysis.format import NOTHING, interval, number, p_value, spread
from paml.analysis.results import Groups, Results
from paml.analysis.sentences import WITHIN, judgement
from paml.report.layout import in_order, rules
from paml.report.render import Table

_JUDGEMENTS = {
    "equal": f"equal within {WITHIN}",
    "small": f"different, below {WITHIN}",
    "different": "different",
    "undecided": "undecided",
    "unknown": "not testable",
}


def groups(results: Results) -> Table:
    """Major and minor users by the headline metric: the paper's test, the gap, and whether it is shown to be small."""
    order, places, name = in_order(results), results.plan.headline.digits, results.plan.headline.label
    rows = []
    for entry in order:
        found = results.groups[entry.name]
        major, minor = (results.summary(entry.name, group=group) for group in ("major", "minor"))
        gap = found.gap
        rows.append(
            (
                entry.label,
                *(spread(summary.mean, summary.deviation, places) for summary in (major, minor)),
                p_value(found.test.p_value),
                number(gap.difference, places),
                interval(gap.interval, places),
                p_value(gap.welch_p),
                p_value(gap.equivalence_p),
                *_judged(found, places),
            )
        )
    note = (
        "p: the paper's two-tailed t-test of major against minor users; a large p does not show that they are equal. "
        "Gap: minor − major, with a bootstrap interval and Welch's test; a user's seeds are one observation. "
        f"p (equal): of a gap of {WITHIN} of the mean or more; below 0.05 the groups are equal within {WITHIN}."
        f"{_against(results, results.best.baseline)}"
    )
    tests = ("p", "gap", "95 %", "p (gap)", "p (equal)", "groups are", "against baseline", "95 % (against)")
    columns = ("", f"{name} major", f"{name} minor", *tests)
    return Table("groups", f"Major and minor users, {name}", columns, tuple(rows), note, rules=rules(order))


def list_groups(results: Results) -> Table | None:
    """The same by the lists that users would be shown, without deviations and p-values: it must fit."""
    metric = results.plan.list_headline
    if metric is None:
        return None
    order, places = [entry for entry in in_order(results) if entry.name in results.list_groups], metric.digits
    rows = []
    for entry in order:
        found = results.list_groups[entry.name]
        means = (number(value, places) for value in (found.gap.major, found.gap.minor, found.gap.difference))
        rows.append((entry.label, *means, interval(found.gap.interval, places), *_judged(found, places)))
    note = (
        f"{metric.label}. Gap: minor − major, with a bootstrap interval over users; equal within {WITHIN}: of the "
        f"mean, by an equivalence test.{_against(results, results.best_lists.baseline)}"
    )
    columns = ("", "major", "minor", "gap", "95 %", "groups are", "against", "95 % (against)")
    title = f"Major and minor users, {metric.short} of the list"
    return Table("list_groups", title, columns, tuple(rows), note, rules=rules(order))


def _judged(found: Groups, places: int) -> tuple[str, str, str]:
    """What the gap is shown to be, and how it differs from the best baseline's."""
    gap, against = found.gap, found.gap_against_baseline
    return (
        NOTHING if gap.difference is None else _JUDGEMENTS[judgement(gap)],
        NOTHING if against is None else number(against.difference, places),
        NOTHING if against is None else interval(against.interval, places),
    )


def _against(results: Results, baseline: str | None) -> str:
    return "" if baseline is None else f" Against baseline: the gap less that of {results.plan.labels[baseline]}."
