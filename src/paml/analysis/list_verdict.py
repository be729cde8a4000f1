"""The verdict about lists: who shows users the best ones, by how much, from when on, to whom, and how varied."""

from paml.analysis.comparisons import Paired, improves
from paml.analysis.format import interval, listing, number, percent, precise, precise_interval, signed, upper
from paml.analysis.orders import FIXED, ORDERS
from paml.analysis.plan import MetricFacts
from paml.analysis.results import Results
from paml.analysis.sentences import beats_from, difference, group_gap, leader, sureness, value

COVERAGE = "coverage"


def about_lists(results: Results) -> list[str]:
    """The sentences; none if no entry ranks all items. Where only lists are judged, the verdict has most of them."""
    metric = results.plan.list_headline
    if metric is None or leader(results, results.best_lists, metric) is None:
        return []
    if results.plan.lists_only:
        return [*_orders(results, metric), *_coverage(results)]
    return [
        *_best(results, metric),
        *beats_from(results, metric, results.best_lists.method, "has better lists than every baseline"),
        *_orders(results, metric),
        *_minor_users(results, metric),
        *_coverage(results),
    ]


def _best(results: Results, metric: MetricFacts) -> list[str]:
    """Whose lists are best, then the best method's against those of the best baseline that ranks."""
    method, baseline = results.best_lists.method, results.best_lists.baseline
    label, first = results.plan.labels, leader(results, results.best_lists, metric)
    assert first is not None
    who = label[first] if first == method or method is None else f"{label[first]}, a baseline,"
    best = f"Of all items, {who} shows users the best list: {metric.label} {value(results, first, metric)}"
    if method is None or baseline is None:
        return [f"{best}; there is no {'method' if method is None else 'baseline'} that ranks to compare with."]
    if first == method:
        names = "It", f"the best baseline that ranks, {label[baseline]} ({value(results, baseline, metric)})"
    else:
        names = f"The best method by its lists, {label[method]} ({value(results, method, metric)}),", "that"
    return [f"{best}.", difference(results, metric, method, *names)]


def _orders(results: Results, metric: MetricFacts) -> list[str]:
    """What the choice part brings over the predicted rating, and whether a rate of one's own brings anything to it."""
    said = [*_choice_over_rating(results, metric), *_personal_rates(results, metric)]
    return [" ".join(said)] if said else []


def _choice_over_rating(results: Results, metric: MetricFacts) -> list[str]:
    """For the method with the best lists or, if it has not both orders, the first that has."""
    tests, best = results.by.choice_over_rating.get(metric.name, {}), results.best_lists.method
    name = best if best in tests else next(iter(tests), None)
    test = None if name is None else tests[name]
    if name is None or test is None or test.difference is None:
        return []
    means, places = results.by.means[name], metric.digits
    rating, choice, usual = (means.get(order, {}).get(metric.name) for order in ORDERS)
    known = f"difference {signed(test.difference, places)}"
    known += f", 95 % interval {interval(test.interval, places)}" if test.interval else ""
    sure = "" if sureness(test) == "sure" else ", not sure"
    return [
        f"Ordered by choice and not by predicted rating, {results.plan.labels[name]}'s lists have {metric.short} "
        f"{number(choice, places)} and not {number(rating, places)} ({known}{sure}); by preference, which blends them, "
        f"{number(usual, places)}."
    ]


def _personal_rates(results: Results, metric: MetricFacts) -> list[str]:
    """Against MeLU, by choice alone."""
    label, lines = results.plan.labels, results.by.personal_rates.get(metric.name, ())
    known = [line for line in lines if line.difference is not None]
    if not known:
        return []
    sure = [line for line in known if sureness(line) == "sure"]
    helped = [label[line.method] for line in sure if improves(metric.better, line.difference)]
    harmed = [label[line.method] for line in sure if not improves(metric.better, line.difference)]
    found = [f"{verb} {listing(names)}" for verb, names in (("helps", helped), ("harms", harmed)) if names]
    effects = listing([f"{label[line.method]} {_effect(line, metric)}" for line in known])
    verb = listing(found) or "brings nothing sure"
    return [f"In lists by choice alone, a rate of one's own {verb} against {label[FIXED]}: {effects}."]


def _effect(line: Paired, metric: MetricFacts) -> str:
    places = metric.digits
    known = f" ({precise_interval(line.interval, places)})" if line.interval else ""
    sign = "+" if line.difference is not None and line.difference > 0 else ""
    return f"{sign}{precise(line.difference, places)}{known}"


def _minor_users(results: Results, metric: MetricFacts) -> list[str]:
    """How minor users' lists compare with major users', for the best method (or baseline)."""
    name = results.best_lists.method or results.best_lists.baseline
    found = None if name is None else results.list_groups.get(name)
    if name is None or found is None or not (found.gap.major_users and found.gap.minor_users):
        return []  # that a group has no users is said of the errors already
    said = group_gap(results, metric, name, found, results.best_lists.baseline)
    return [f"By the lists, {sentence[:1].lower()}{sentence[1:]}" for sentence in said]


def _coverage(results: Results) -> list[str]:
    """Which share of the items anybody is shown."""
    label, found = results.plan.labels, results.pooled.get(COVERAGE, {})
    names = [name for name in (results.best_lists.method, results.best_lists.baseline) if name is not None]
    shares = [(label[name], mean) for name in names if name in found and (mean := found[name].mean) is not None]
    if not shares:
        return []
    (who, share), *others = shares
    beside = "".join(f"; those of {other}, {percent(mean)}" for other, mean in others)
    return [f"{upper(who)}'s first ten show {percent(share)} of all items to somebody{beside}."]
