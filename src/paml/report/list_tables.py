"""Tables of what a user would be shown: how good the lists of all items are, what they hold, and few known ratings."""

from paml.analysis.format import NOTHING, exact, interval, number, spread
from paml.analysis.plan import MetricFacts
from paml.analysis.results import Results, ShotTest
from paml.analysis.verdict import undefined
from paml.report.layout import ARROWS, by_entry, in_order, rules
from paml.report.render import Table, ranked

FOLLOWED = 2
"""Metrics of lists that are tested at each number of known ratings: the first so many."""
LISTS = (
    "lists",
    "list_orders",
    "choice_shots",
    "personal_rates",
    "list_contents",
    "list_shots",
    "list_groups",
    "paired_lists",
)
AGAINST = "against_"
LIKED_SHARE = "liked10"


def is_about_lists(name: str) -> bool:
    """Whether a table, by its name, is about what a user would be shown."""
    return name in LISTS or name.startswith(AGAINST)


def lists(results: Results) -> Table:
    """How good the lists are: entries that rank, by the metrics of lists."""
    metrics = results.plan.about("list")
    order = [entry for entry in in_order(results) if any(_mean(results, m, entry.name) is not None for m in metrics)]
    rows = tuple(
        (entry.label, *(_cell(results, metric, entry.name, k == 0) for k, metric in enumerate(metrics)))
        for entry in order
    )
    compared = [
        [None if entry.kind == "reference" else _mean(results, metric, entry.name) for entry in order]
        for metric in metrics
    ]
    best, second = ranked(compared, [metric.better for metric in metrics])
    columns = ("", *(f"{metric.short} {ARROWS[metric.better]}" for metric in metrics))
    return Table("lists", "What a user would be shown", columns, rows, _notes(results), best, second, rules(order))


def _notes(results: Results) -> str:
    """What was ranked, what counts, and where the deviations are."""
    liked, noun = results.plan.liked, results.plan.data.known
    strong = "" if liked <= 1 else f" with a strength of {exact(liked)} or more"
    counts = {"rating": f"rated {exact(liked)} or higher", "choice": f"chose{strong}"}.get(noun, "clicked")
    share = "Liked of rated: the share of relevant items among those of the first ten that are query rows."
    said = [
        f"All {results.plan.data.items:,} items but the user's own support rows are ranked. Relevant: items of query "
        f"rows that the user {counts}; what is not among the rows counts as not relevant, though a user might like it.",
        *([share] if any(metric.name == LIKED_SHARE for metric in results.plan.metrics) else []),
        "Means over users and seeds; results.json has all deviations.",
        *undefined(results, "list"),
    ]
    return " ".join(said)


def list_contents(results: Results) -> Table:
    """What the lists hold; described, and not ranked: more is not always better."""
    metrics = [*(m for m in results.plan.pooled if m.about == "contents"), *results.plan.about("contents")]
    order = [entry for entry in in_order(results) if any(_mean(results, m, entry.name) is not None for m in metrics)]
    rows = tuple((entry.label, *(_cell(results, metric, entry.name) for metric in metrics)) for entry in order)
    note = (
        "Of each user's first ten. Coverage: the share of all items that somebody is shown. Gini: 0 if all items are "
        "shown equally often, near 1 if a few are shown to everybody. Popularity: the share of training users who "
        "interacted with a shown item; novelty: −log2 of it. Diversity: 1 − the mean cosine of two shown items' "
        "fields. They are described and not judged: a random list would be the most novel."
    )
    columns = ("", *(metric.label for metric in metrics))
    return Table("list_contents", "What the lists hold", columns, rows, note, rules=rules(order))


def list_shots(results: Results) -> Table | None:
    """By the number of known ratings, by the first metric of lists."""
    metric = results.plan.list_headline
    if metric is None:
        return None
    found = results.shots[metric.name]
    title = f"{metric.short} of the list by the number of known {results.plan.data.known}s"
    note = "Only this many of a user's support rows are known; candidates and query rows are the same in all columns."
    made = by_entry(results, "list_shots", title, found.values, lambda name: found.means[name], note, metric)
    return made if any(value is not None for line in found.means.values() for value in line) else None


def shot_tests(results: Results) -> list[Table]:
    """The best method against the best baseline with as many known ratings, user by user; none without one."""
    tests = results.shot_tests
    followed = results.plan.about("list")[:FOLLOWED]
    return [
        _against(results, metric)
        for metric in followed
        if any(test.baseline is not None for test in tests.get(metric.name, ()))
    ]


def _against(results: Results, metric: MetricFacts) -> Table:
    label, places, tests = results.plan.labels, metric.digits, results.shot_tests.get(metric.name, ())
    rows = tuple(
        (
            test.value,
            NOTHING if test.baseline is None else label[test.baseline],
            number(test.baseline_mean, places),
            NOTHING if test.method is None else label[test.method],
            number(test.method_mean, places),
            number(test.ratio, 2),
            NOTHING if test.paired is None else interval(test.paired.interval, places),
            _agree(test),
        )
        for test in tests
    )
    title = f"{metric.short} of the list: the best method against the best baseline"
    note = (
        "Both are the best with as many known rows, by the mean; chosen and tested on the same users, so read "
        "intervals close to 0 with care. 95 %: bootstrap over users of the difference."
    )
    columns = ("known", "best baseline", "its value", "best method", "value", "ratio", "difference, 95 %", "seeds")
    return Table(f"{AGAINST}{metric.name}", title, columns, rows, note)


def _agree(test: ShotTest) -> str:
    """Whether all seeds have the same sign."""
    seeds = () if test.paired is None else test.paired.by_seed
    if not seeds:
        return NOTHING
    agree = all(value < 0 for value in seeds) or all(value > 0 for value in seeds)
    return "only one" if len(seeds) == 1 else "agree" if agree else "disagree"


def _mean(results: Results, metric: MetricFacts, name: str) -> float | None:
    if metric.name in results.table:
        return results.mean(name, metric.name)
    return results.pooled[metric.name][name].mean


def _cell(results: Results, metric: MetricFacts, name: str, deviation: bool = False) -> str:
    if deviation:
        found = results.summary(name, metric.name)
        return spread(found.mean, found.deviation, metric.digits)
    return number(_mean(results, metric, name), metric.digits)
