"""The tables of a comparison, made from its results alone: this module only decides what is shown where.

`all_tables(results)` returns those that have anything to show; `render(table, form)` is in `render.py`.
"""

from collections.abc import Iterable
from dataclasses import replace

from paml.analysis.format import (
    NOTHING,
    amount,
    count,
    listing,
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
from paml.analysis.verdict import paired_of, undefined
from paml.report.group_tables import groups, list_groups
from paml.report.layout import ARROWS, by_entry, in_order, rules
from paml.report.list_tables import list_contents, list_shots, lists, shot_tests
from paml.report.order_tables import choice_shots, list_orders, personal_rates
from paml.report.paired_tables import paired, paired_lists, pairs, why_unsure
from paml.report.paper_tables import paper
from paml.report.render import STAR, Table, ranked as _ranked

MAX_VALUES = 12  # columns of a table by a field of the profile
_COSTS = {
    "fit_seconds": "fit, s",
    "seconds_per_epoch": "epoch, s",
    "users_per_second": "users/s",
    "adapt_ms": "adapt and score a user, ms",
    "rank_ms": "rank all items, ms",
    "peak_mb": "additional memory, MB",
    "refit_seconds": "refit, s",
}


def all_tables(results: Results) -> list[Table]:
    """All tables with at least one number, in the order of a report."""
    made = [
        _with_chance(results, comparison(results)),
        groups(results),
        lists(results),
        list_orders(results),
        choice_shots(results),
        personal_rates(results),
        list_contents(results),
        list_shots(results),
        *shot_tests(results),
        None if results.plan.lists_only else list_groups(results),  # `groups` has the same and more
        paired_lists(results),
        rates(results),
        paired(results),
        pairs(results),
        None if results.plan.lists_only else shots(results),
        by_activity(results),
        by_group(results),
        items(results),
        cost(results),
        *paper(results),
    ]
    return [table for table in made if table is not None and _has_numbers(table)]


def comparison(results: Results) -> Table:
    """All entries by the metrics of query rows; references stand above the line and are not ranked."""
    order, metrics, pooled = in_order(results), results.plan.about("rows"), _pooled_rows(results)
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
    columns = ("", *(f"{metric.label} {ARROWS[metric.better]}" for metric in (*metrics, *pooled)), "remark")
    note = " ".join(_comparison_notes(results))
    return Table("comparison", "Comparison on test users", columns, rows, note, best, second, rules(order))


def _with_chance(results: Results, table: Table) -> Table:
    """A last line: what a random order of a user's query rows gives, for metrics that have such a level."""
    if not results.chance or not table.rows:
        return table
    cells = dict.fromkeys(table.columns, "")
    for metric in (*results.plan.about("rows"), *_pooled_rows(results)):
        level = results.chance.get(metric.name)
        if level is not None:
            cells[f"{metric.label} {ARROWS[metric.better]}"] = spread(level.mean, level.deviation, metric.digits)
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
        f"{metric.label}: all query rows of a seed's test users ranked together." for metric in _pooled_rows(results)
    ]
    notes += undefined(results)
    if results.missing:
        notes.append(f"Preliminary: {count(len(results.missing), 'cell')} not finished.")
    return notes


def _pooled_rows(results: Results) -> list[MetricFacts]:
    """The metrics over the query rows of all users together."""
    return [metric for metric in results.plan.pooled if metric.about == "rows"]


def rates(results: Results) -> Table:
    """The rates that methods give their users: how large, how different, how many at the bound, and by group."""
    order = [entry for entry in in_order(results) if entry.name in results.rates]
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
    return Table("rates", "Learning rates by group", columns, tuple(rows), said, rules=rules(order))


def _interval(found: Interval | None) -> str:
    """For numbers that may be very small."""
    return NOTHING if found is None else f"{significant(found.low, 2)} to {significant(found.high, 2)}"


def shots(results: Results) -> Table:
    """By the number of known ratings."""
    found = results.shots[results.plan.headline.name]
    title = f"{results.plan.headline.label} by the number of known {results.plan.data.known}s"
    note = "Only this many of a user's support rows are known; the query rows are the same."
    return by_entry(results, "shots", title, found.values, lambda name: found.means[name], note)


def by_activity(results: Results) -> Table:
    """By quartiles of users' numbers of support rows."""
    bins = results.by_activity.bins
    columns = [f"{part.label} ({count(part.users, 'user')})" for part in bins]
    title = f"{results.plan.headline.label} by users' activity"
    note = "Users by their number of support rows, in quarters."
    return by_entry(results, "activity", title, columns, lambda name: [part.means[name] for part in bins], note)


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

    return by_entry(results, "by_group", title, columns, means, left_out(found))


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
    if not found.known:
        return by_entry(results, "items", title, columns, lambda name: [found.warm[name], found.cold[name]], note)
    columns = [f"new users, {column}" for column in columns]
    columns.append(f"known users, cold items ({count(found.known_users, 'user')})")
    note += " Known users are training users, with what training saw of them as support set."
    values = found.warm, found.cold, found.known
    return by_entry(results, "items", title, columns, lambda name: [one[name] for one in values], note)


def cost(results: Results) -> Table:
    """Time and memory, means over seeds; with the paper's settings, beside what the paper names."""
    order, quoted = in_order(results), papers_costs(results.plan)
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
    if {entry.kind for entry in order} & {"baseline"} and any(entry.learned for entry in order):
        note += " A baseline's time includes all settings that were tried; a method's is that of one training."
    if quoted:
        note += f" {PAPERS_COSTS}"
    columns = ("", *(_COSTS[key] for key in shown), *(("the paper's time", "the paper's memory") if quoted else ()))
    return Table("cost", "Cost", columns, rows, note, rules=rules(order))


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
    elif results.mean(name) is None and _ranks(results, name):
        said.append("only ranks")
    elif name == results.best.baseline:
        said.append("best baseline")
    elif results.loses_to.get(name):
        best, *others = (label[other] for other in results.loses_to[name])  # the test is against the best
        said.append(f"loses to {listing([f'{best} ({doubt})' if doubt else best, *others], 1)}")
    elif name in results.loses_to and results.best.baseline is not None and missing < seeds:
        said.append("better than every baseline, not surely" if doubt else "beats every baseline")
    return "; ".join(said)


def _ranks(results: Results, name: str) -> bool:
    metric = results.plan.list_headline
    return metric is not None and results.mean(name, metric.name) is not None


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
