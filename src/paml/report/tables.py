"""The tables of a comparison, made from its results alone: this module only decides what is shown where.

`all_tables(results)` returns those that have anything to show; `render(table, form)` is in `render.py`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from paml.analysis.format import (
    NOTHING,
    amount,
    count,
    interval,
    listing,
    number,
    p_value,
    percent,
    significant,
    spread,
)
from paml.analysis.paper import papers_costs
from paml.analysis.plan import Entry, MetricFacts
from paml.analysis.quoted import PAPERS_COSTS
from paml.analysis.rates import LEARNING_RATE, NEAR_BOUND, not_personal
from paml.analysis.results import ByProfile, Results
from paml.analysis.tests import Interval
from paml.analysis.verdict import WITHIN, judgement, paired_of, undefined
from paml.report.paired_tables import paired, pairs, why_unsure
from paml.report.paper_tables import paper
from paml.report.render import STAR, Table, ranked as _ranked

MAX_VALUES = 12  # columns of a table by a field of the profile
_KINDS = ("reference", "baseline", "method", "variant")
_JUDGEMENTS = {
    "equal": f"equal within {WITHIN}",
    "small": f"different, below {WITHIN}",
    "different": "different",
    "undecided": "undecided",
    "unknown": "not testable",
}
_ARROWS = {"lower": "↓", "higher": "↑"}
_COSTS = {
    "fit_seconds": "fit, s",
    "seconds_per_epoch": "epoch, s",
    "users_per_second": "users/s",
    "adapt_ms": "adapt and score a user, ms",
    "peak_mb": "additional memory, MB",
    "refit_seconds": "refit, s",
}


def all_tables(results: Results) -> list[Table]:
    """All tables with at least one number, in the order of a report."""
    made = [
        _with_chance(results, comparison(results)),
        groups(results),
        rates(results),
        paired(results),
        pairs(results),
        shots(results),
        by_activity(results),
        by_group(results),
        items(results),
        cost(results),
        *paper(results),
    ]
    return [table for table in made if table is not None and _has_numbers(table)]


def comparison(results: Results) -> Table:
    """All entries by all metrics; references stand above the line and are not ranked."""
    order, metrics, pooled = _order(results), results.plan.metrics, results.plan.pooled
    rows = tuple(
        (
            entry.label,
            *(_starred(results, metric, entry.name) for metric in metrics),
            *(_over_all_rows(results, metric, entry.name) for metric in pooled),
            _remark(results, entry),
        )
        for entry in order
    )
    ranked = [entry.name if entry.kind != "reference" else None for entry in order]
    values = [
        *([None if name is None else results.mean(name, metric.name) for name in ranked] for metric in metrics),
        *([None if name is None else results.pooled[metric.name][name].mean for name in ranked] for metric in pooled),
    ]
    best, second = _ranked(values, [metric.better for metric in (*metrics, *pooled)])
    columns = ("", *(f"{metric.label} {_ARROWS[metric.better]}" for metric in (*metrics, *pooled)), "remark")
    note = " ".join(_comparison_notes(results))
    return Table("comparison", "Comparison on test users", columns, rows, note, best, second, _rules(order))


def _with_chance(results: Results, table: Table) -> Table:
    """A last line: what a random order of a user's query rows gives, for metrics that have such a level."""
    if not results.chance or not table.rows:
        return table
    cells = dict.fromkeys(table.columns, "")
    for metric in (*results.plan.metrics, *results.plan.pooled):
        level = results.chance.get(metric.name)
        if level is not None:
            cells[f"{metric.label} {_ARROWS[metric.better]}"] = spread(level.mean, level.deviation, metric.digits)
    line = ("by chance", *list(cells.values())[1:-1], "random order")
    return replace(table, rows=(*table.rows, line), rules=(*table.rules, len(table.rows)))


def _comparison_notes(results: Results) -> list[str]:
    """What the numbers are, what stars mean, and what is excluded."""
    seeds = len(results.seeds)
    over = f"Mean ± standard deviation over {seeds} seeds" if seeds > 1 else "One seed"
    notes = [f"{over} of the mean over users; ↓ lower is better, ↑ higher is better."]
    if any(found.star for line in results.improvements.values() for found in line.values()):
        notes.append(
            "*: significantly better than the best of the paper's baselines (MeLU, Meta-SGD, transfer learning) by the "
            "paper's t-test, p < 0.05; the table of paired tests is sounder."
        )
    if results.plan.names("reference"):
        notes.append("The reference was also fitted to the test users' known rows; it is not ranked.")
    notes += [
        f"{metric.label}: all query rows of a seed's test users ranked together." for metric in results.plan.pooled
    ]
    notes += undefined(results)
    if results.missing:
        notes.append(f"Preliminary: {count(len(results.missing), 'cell')} not finished.")
    return notes


def groups(results: Results) -> Table:
    """Major and minor users: the paper's test, the gap, and whether it is shown to be small."""
    order, places, name = _order(results), results.plan.headline.digits, results.plan.headline.label
    rows = []
    for entry in order:
        found = results.groups[entry.name]
        major, minor = (results.summary(entry.name, group=group) for group in ("major", "minor"))
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
    baseline = results.best.baseline
    note = (
        "p: the paper's two-tailed t-test of major against minor users; a large p does not show that they are equal. "
        "Gap: minor − major, with a bootstrap interval and Welch's test; a user's seeds are one observation. "
        f"p (equal): of a gap of {WITHIN} of the mean or more; below 0.05 the groups are equal within {WITHIN}."
    )
    if baseline is not None:
        note += f" Against baseline: the gap less that of {results.plan.labels[baseline]}."
    tests = ("p", "gap", "95 %", "p (gap)", "p (equal)", "groups are", "against baseline", "95 % (against)")
    columns = ("", f"{name} major", f"{name} minor", *tests)
    return Table("groups", f"Major and minor users, {name}", columns, tuple(rows), note, rules=_rules(order))


def rates(results: Results) -> Table:
    """The rates that methods give their users: how large, how different, how many at the bound, and by group."""
    order = [entry for entry in _order(results) if entry.name in results.rates]
    rows = []
    for entry in order:
        found = results.rates[entry.name]
        gap = found.gap
        rows.append(
            (
                entry.label if found.label == LEARNING_RATE else f"{entry.label} ({found.label})",
                significant(found.mean),
                significant(found.deviation),
                amount(found.bound),
                NOTHING if found.at_bound is None else percent(found.at_bound),
                significant(gap.major),
                significant(gap.minor),
                significant(gap.difference),
                _interval(gap.welch),
                p_value(gap.welch_p),
            )
        )
    note = (
        "Means over seeds of a seed's users. Between users: the standard deviation within a seed. At the bound: users "
        f"within {percent(1 - NEAR_BOUND, 0)} of the largest rate that the method can give. Gap: minor − major, with "
        "Welch's interval and test."
    )
    said = " ".join([note, *not_personal(results.rates, results.plan.labels)])
    tests = ("major", "minor", "gap", "95 %", "p (gap)")
    columns = ("", "mean", "between users", "bound", "at the bound", *tests)
    return Table("rates", "Learning rates by group", columns, tuple(rows), said, rules=_rules(order))


def _interval(found: Interval | None) -> str:
    """For numbers that may be very small."""
    return NOTHING if found is None else f"{significant(found.low, 2)} to {significant(found.high, 2)}"


def shots(results: Results) -> Table:
    """By the number of known ratings."""
    found = results.shots
    title = f"{results.plan.headline.label} by the number of known {results.plan.data.known}s"
    note = "Only this many of a user's support rows are known; the query rows are the same."
    return _by_entry(results, "shots", title, found.values, lambda name: found.means[name], note)


def by_activity(results: Results) -> Table:
    """By quartiles of users' numbers of support rows."""
    bins = results.by_activity.bins
    columns = [f"{part.label} ({count(part.users, 'user')})" for part in bins]
    title = f"{results.plan.headline.label} by users' activity"
    note = "Users by their number of support rows, in quarters."
    return _by_entry(results, "activity", title, columns, lambda name: [part.means[name] for part in bins], note)


def by_group(results: Results) -> Table | None:
    """By a field of the profile; if it has many values, those with the most users."""
    found = results.by_group
    if found is None:
        return None
    shown, values = common_values(found), found.values
    columns = [f"{value} ({count(users, 'user')})" for value, users in shown.items()]
    title = f"{results.plan.headline.label} by {found.field}"

    def means(name: str) -> list[float | None]:
        return [values[value][name].mean for value in shown]

    return _by_entry(results, "by_group", title, columns, means, left_out(found))


def common_values(found: ByProfile) -> dict[str, int]:
    """The values of a field of the profile that have the most users, in their natural order, and how many users."""
    users = {value: max((one.users for one in line.values()), default=0) for value, line in found.values.items()}
    common = sorted(users, key=lambda value: -users[value])[:MAX_VALUES]
    return {value: users[value] for value in sorted(common, key=_natural)}


def left_out(found: ByProfile) -> str:
    """A note that there are more values, if there are."""
    values = len(found.values)
    return f"The {MAX_VALUES} values with the most users, of {values:,}." if values > MAX_VALUES else ""


def items(results: Results) -> Table:
    """Query rows on items that training users interacted with, and on items that they did not."""
    found = results.items
    columns = ["warm items", f"cold items ({count(found.cold_users, 'user')})"]
    title = f"{results.plan.headline.label} on warm and cold items"
    note = "Cold: no training user interacted with them. Users without such rows are excluded."
    return _by_entry(results, "items", title, columns, lambda name: [found.warm[name], found.cold[name]], note)


def cost(results: Results) -> Table:
    """Time and memory, means over seeds; with the paper's settings, beside what the paper names."""
    order, quoted = _order(results), papers_costs(results.plan)
    costs = {name: line.model_dump() for name, line in results.cost.items()}
    shown = [key for key in _COSTS if any(line[key] is not None for line in costs.values())]
    nothing = (NOTHING, NOTHING)
    rows = tuple(
        (
            entry.label,
            *(amount(costs[entry.name][key]) for key in shown),
            *(quoted.get(entry.name, nothing) if quoted else ()),
        )
        for entry in order
    )
    note = "Means over seeds; adapting is amortised over batches of users."
    if quoted:
        note += f" {PAPERS_COSTS}"
    columns = ("", *(_COSTS[key] for key in shown), *(("the paper's time", "the paper's memory") if quoted else ()))
    return Table("cost", "Cost", columns, rows, note, rules=_rules(order))


def _by_entry(
    results: Results,
    name: str,
    title: str,
    columns: Sequence[str],
    values: Callable[[str], Sequence[float | None]],
    note: str,
) -> Table:
    """A line for each entry, the headline metric's means in columns, the best of each column in bold."""
    order = _order(results)
    lines = [list(values(entry.name)) for entry in order]
    places = results.plan.headline.digits
    rows = tuple(
        (entry.label, *(number(value, places) for value in line)) for entry, line in zip(order, lines, strict=True)
    )
    compared = [
        [None if entry.kind == "reference" else line[j] for entry, line in zip(order, lines, strict=True)]
        for j in range(len(columns))
    ]
    best, second = _ranked(compared, [results.plan.headline.better] * len(columns))
    return Table(name, title, ("", *columns), rows, note, best, second, _rules(order))


def _order(results: Results) -> list[Entry]:
    """References first, above the line; then as in the plan."""
    return sorted(results.plan.entries, key=lambda entry: _KINDS.index(entry.kind))


def _rules(order: list[Entry]) -> tuple[int, ...]:
    """A rule between kinds."""
    return tuple(k for k in range(1, len(order)) if order[k].kind != order[k - 1].kind)


def _starred(results: Results, metric: MetricFacts, name: str) -> str:
    found, improvement = results.summary(name, metric.name), results.improvements[metric.name].get(name)
    star = STAR if improvement is not None and improvement.star else ""
    return spread(found.mean, found.deviation, metric.digits) + star


def _over_all_rows(results: Results, metric: MetricFacts, name: str) -> str:
    found = results.pooled[metric.name][name]
    return spread(found.mean, found.deviation, metric.digits)


def _remark(results: Results, entry: Entry) -> str:
    """In words: what it loses to, or that it leads, and whether that is sure; how many seeds are finished."""
    name, label = entry.name, results.plan.labels
    missing = sum(cell.method == name for cell in results.missing)
    seeds = len(results.plan.seeds)
    doubt = why_unsure(paired_of(results, name))
    said = [f"{seeds - missing} of {count(seeds, 'seed')}"] if missing else []
    if entry.kind == "reference":
        said.append("reference")
    elif name == results.best.baseline:
        said.append("best baseline")
    elif results.loses_to.get(name):
        best, *others = (label[other] for other in results.loses_to[name])  # the test is against the best
        said.append(f"loses to {listing([f'{best} ({doubt})' if doubt else best, *others], 1)}")
    elif name in results.loses_to and results.best.baseline is not None and missing < seeds:
        said.append("better than every baseline, not surely" if doubt else "beats every baseline")
    return "; ".join(said)


def _natural(value: str) -> tuple[bool, float, str]:
    """Numbers by size, before words."""
    try:
        return False, float(value), value
    except ValueError:
        return True, 0.0, value


def _has_numbers(table: Table) -> bool:
    return any(cell[:1].isdigit() or cell[:1] == "−" for cell in _cells(table))


def _cells(table: Table) -> Iterable[str]:
    return (cell for row in table.rows for cell in row[1:])
