"""Tables of what lists are ordered by: by predicted rating, by choice, and by preference, which blends them."""

from paml.analysis.format import NOTHING, interval, listing, number, p_value, precise, precise_interval
from paml.analysis.orders import CHOICE, FIXED, ORDERS, RATING, TESTED
from paml.analysis.plan import Entry
from paml.analysis.results import Results
from paml.report.layout import by_entry, in_order
from paml.report.paired_tables import in_each_seed, verdict_of
from paml.report.render import Table


def list_orders(results: Results) -> Table | None:
    """Every entry with a choice part: its lists by rating, by choice and by preference, with all ratings known."""
    found, order = results.by, [entry for entry in in_order(results) if entry.name in results.by.means]
    if results.plan.lists_only:
        return _without_ratings(results, order)
    rows: list[tuple[str, ...]] = []
    for metric in results.plan.about("list")[:TESTED]:
        for entry in order:
            means, test = found.means[entry.name], found.choice_over_rating[metric.name].get(entry.name)
            rows.append(
                (
                    metric.short,
                    entry.label,
                    *(number(means.get(by, {}).get(metric.name), metric.digits) for by in ORDERS),
                    NOTHING if test is None else number(test.difference, metric.digits),
                    NOTHING if test is None else interval(test.interval, metric.digits),
                )
            )
    if not rows:
        return None
    columns = ("metric", "", *(f"by {by}" for by in ORDERS), "choice − rating", "95 %")
    rules = tuple(range(len(order), len(rows), len(order)))
    return Table("list_orders", "What lists are ordered by", columns, tuple(rows), _note(results), rules=rules)


def _without_ratings(results: Results, order: list[Entry]) -> Table | None:
    """The same where there are no ratings to predict."""
    orders, metrics = [by for by in ORDERS if by != RATING], results.plan.about("list")[:TESTED]
    rows = [
        (
            metric.short,
            entry.label,
            *(number(results.by.means[entry.name].get(by, {}).get(metric.name), metric.digits) for by in orders),
        )
        for metric in metrics
        for entry in order
    ]
    note = (
        "The same users and candidates, with all choices known. Choice: the chance that the user chooses the item, "
        "alone. Preference: the same with what goes with what and popularity by profile, weighted on validation users; "
        "lists are usually ordered by it."
    )
    columns = ("metric", "", *(f"by {by}" for by in orders))
    rules = tuple(range(len(order), len(rows), max(len(order), 1)))
    said = " ".join([note, *_borrowed(results)])
    return Table("list_orders", "What lists are ordered by", columns, tuple(rows), said, rules=rules) if rows else None


def _borrowed(results: Results) -> list[str]:
    """Whose choice part is another method's."""
    label = results.plan.labels
    borrowed: dict[str, list[str]] = {}
    for entry in results.plan.entries:
        other = entry.choice_method
        if entry.name in results.by.means and other is not None and other != entry.method:
            borrowed.setdefault(label.get(other, other), []).append(entry.label)
    return [f"The choice part of {listing(names)} is learnt by {other}." for other, names in borrowed.items()]


def _note(results: Results) -> str:
    """What the three are, whose choice part is another method's, and what the interval is of."""
    said = [
        "The same users and candidates, with all ratings known. Rating: the predicted rating alone. Choice: the chance "
        "that the user chooses the item, alone. Preference: both, and what goes with what and popularity by profile, "
        "weighted on validation users; lists are usually ordered by it."
    ]
    return " ".join([*said, *_borrowed(results), "95 %: bootstrap over users of the difference."])


def choice_shots(results: Results) -> Table | None:
    """Lists by choice alone, by the number of known ratings."""
    metric, found = results.plan.list_headline, results.by.shots.get(CHOICE)
    if metric is None or found is None:
        return None
    title = f"{metric.short} of lists by choice alone, by the number of known {results.plan.data.known}s"
    note = "Only this many of a user's support rows are known; candidates and query rows are the same in all columns."

    def means(name: str) -> tuple[float | None, ...]:
        return found.means[name]

    order = [entry for entry in in_order(results) if entry.name in found.means]
    return by_entry(results, "choice_shots", title, found.values, means, note, metric, order)


def personal_rates(results: Results) -> Table | None:
    """Lists by choice alone: methods with a rate per user against MeLU, whose rate is the same for all."""
    label, lines = results.plan.labels, results.by.personal_rates
    rows: list[tuple[str, ...]] = []
    starts = []
    for metric in results.plan.about("list"):
        starts.append(len(rows))
        rows += [
            (
                metric.short,
                label[line.method],
                precise(line.difference, metric.digits),
                precise_interval(line.interval, metric.digits),
                p_value(line.holm_p),
                in_each_seed(line, metric),
                verdict_of(metric, line),
            )
            for line in lines.get(metric.name, ())
        ]
    if not rows:
        return None
    note = (
        f"Method − {label[FIXED]} for each user, lists by choice alone, with all support rows known: whether a rate of "
        "one's own helps to know what users choose. Surely: p (Holm) < 0.05, and all seeds have the same sign."
    )
    columns = ("metric", "method", "difference", "95 %", "p (Holm)", "in each seed", "the method is")
    title = "A rate of one's own, in lists by choice"
    kept = tuple(sorted({start for start in starts if 0 < start < len(rows)}))
    return Table("personal_rates", title, columns, tuple(rows), note, rules=kept)
