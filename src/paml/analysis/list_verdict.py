"""The verdict about lists: who shows users the best ones, by how much, from when on, to whom, and how varied."""

from paml.analysis.format import percent, upper
from paml.analysis.plan import MetricFacts
from paml.analysis.results import Results
from paml.analysis.sentences import beats_from, difference, group_gap, leader, value

COVERAGE = "coverage"


def about_lists(results: Results) -> list[str]:
    """The sentences; none if no entry ranks all items."""
    metric = results.plan.list_headline
    if metric is None or leader(results, results.best_lists, metric) is None:
        return []
    return [
        *_best(results, metric),
        *beats_from(results, metric, results.best_lists.method, "has better lists than every baseline"),
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
