"""Sentences and judgements that the verdict makes of any metric: errors and lists alike.

A difference is called sure if p < 0.05 after Holm's correction and every seed has the same sign.
"""

from typing import Literal

from paml.analysis.comparisons import SIGNIFICANT, Paired, improves
from paml.analysis.entries import LEARNED
from paml.analysis.fairness import MARGIN, GroupGap
from paml.analysis.format import count, interval, listing, number, p_words, percent, signed, spread, upper
from paml.analysis.plan import MetricFacts, Plan
from paml.analysis.results import Best, Groups, Results

Sureness = Literal["sure", "seeds disagree", "not significant", "unknown"]
Judgement = Literal["equal", "different", "small", "undecided", "unknown"]
WITHIN = f"{100 * MARGIN:g} %"


def sureness(paired: Paired) -> Sureness:
    """Whether a difference method - reference may be relied upon."""
    p, seeds = paired.holm_p, paired.by_seed
    if paired.difference is None or p is None:
        return "unknown"
    if p >= SIGNIFICANT:
        return "not significant"
    agree = all(value < 0 for value in seeds) or all(value > 0 for value in seeds)
    return "sure" if agree else "seeds disagree"


def judgement(gap: GroupGap) -> Judgement:
    """A gap between groups: shown to be within the margin, shown to differ, both (small), or neither."""
    if gap.welch_p is None and gap.equivalence_p is None:
        return "unknown"
    equal = gap.equivalence_p is not None and gap.equivalence_p < SIGNIFICANT
    different = gap.welch_p is not None and gap.welch_p < SIGNIFICANT
    return "small" if equal and different else "equal" if equal else "different" if different else "undecided"


def value(results: Results, name: str, metric: MetricFacts | None = None) -> str:
    """An entry's mean ± deviation, by the headline metric unless another is named."""
    shown = metric or results.plan.headline
    found = results.summary(name, shown.name)
    return spread(found.mean, found.deviation, shown.digits)


def leader(results: Results, best: Best, metric: MetricFacts) -> str | None:
    """The best entry that is not a reference: a baseline, unless a method is better."""
    method, baseline = best.method, best.baseline
    if method is None or baseline is None:
        return method or baseline
    own, other = results.mean(method, metric.name), results.mean(baseline, metric.name)
    assert own is not None  # the best entries are those that have one
    assert other is not None
    return method if improves(metric.better, own - other) else baseline


def compared_with(plan: Plan) -> str:
    """What paired tests compare methods with: where there is no baseline, a method that is one in the paper."""
    return "the best baseline" if plan.names("baseline") else "the best of the paper's baselines"


def difference(results: Results, metric: MetricFacts, method: str, subject: str, against: str) -> str:
    """By how much a method differs from the best baseline, and whether that is sure."""
    family = results.paired[metric.name]
    paired = next((line for line in family if line.method == method), None)
    if paired is None or paired.difference is None:
        return f"{subject} has no user in common with {against}, so they cannot be compared."
    places = metric.digits
    base = results.mean(paired.reference, metric.name)
    share = f" ({percent(abs(paired.difference / base))})" if base else ""
    side = "lower" if paired.difference < 0 else "higher"
    size = f"{number(abs(paired.difference), places)}{share} {side} than" if paired.difference else "equal to"
    several = f" after Holm's correction for {len(family)} comparisons" if len(family) > 1 else ""
    p = p_words(paired.holm_p) + several
    seeds = len(paired.by_seed)
    agreeing = f"{'both' if seeds == 2 else f'all {seeds}'} seeds agree" if seeds > 1 else "in the only common seed"
    ending = {
        "sure": f"{p}, {agreeing}",
        "seeds disagree": f"{p}, but the seeds disagree in sign: not sure",
        "not significant": f"{p}: not significant",
        "unknown": "which cannot be tested",
    }[sureness(paired)]
    known = f"95 % interval {interval(paired.interval, places)}, " if paired.interval else ""
    return f"{subject} is, user by user, {size} {against}; {count(paired.users, 'user')}, {known}{ending}."


def group_gap(results: Results, metric: MetricFacts, name: str, groups: Groups, baseline: str | None) -> list[str]:
    """How minor and major users fare with an entry, whether the gap is small or real; the baseline's beside it."""
    places, label = metric.digits, results.plan.labels[name]
    gap, against = groups.gap, groups.gap_against_baseline
    for group, users_of in (("major", gap.major_users), ("minor", gap.minor_users)):
        if not users_of:
            return [f"There are no {group} users among the test users, so nothing can be said about a gap."]
    if gap.difference is None:
        return []
    better = improves(metric.better, gap.difference)
    fare = "the same" if gap.difference == 0 else "better" if better else "worse"
    users = f"minor users ({gap.minor_users:,} of {gap.minor_users + gap.major_users:,} users)"
    means = f"{number(gap.minor, places)} against {number(gap.major, places)}"
    known = f"gap {number(gap.difference, places)}"
    known += f", 95 % interval {interval(gap.interval, places)}" if gap.interval else ""
    ending = {
        "equal": f"the groups are shown to be equal within {WITHIN}",
        "small": f"a real gap ({p_words(gap.welch_p)}), but shown to be below {WITHIN}",
        "different": f"the groups differ significantly ({p_words(gap.welch_p)})",
        "undecided": f"neither a difference nor equality within {WITHIN} is shown",
        "unknown": "too few users for a test",
    }[judgement(gap)]
    said = [f"With {label}, {users} fare {fare} than major users: {means} ({known}); {ending}."]
    if fare == "the same":
        said = [f"With {label}, {users} fare the same as major users: {means}; {ending}."]
    if against is not None:
        said += _gap_against(results, metric, against, baseline)
    return said


def _gap_against(results: Results, metric: MetricFacts, against: GroupGap, baseline: str | None) -> list[str]:
    """How far the method is from the best baseline in each group."""
    places, p = metric.digits, against.welch_p
    if baseline is None or against.minor is None or against.major is None or against.difference is None:
        return []
    tested = len(results.plan.names(*LEARNED))  # a difference of differences for each, and none is corrected for that
    chance = f", not corrected for {tested} entries" if tested > 1 else ""
    sure = "not tested" if p is None else p_words(p) + (chance if p < SIGNIFICANT else ", not significant")
    minor, major, apart = (signed(value, places) for value in (against.minor, against.major, against.difference))
    changes = f"minor users change by {minor} and major users by {major} (difference {apart}, {sure})"
    return [f"Against {results.plan.labels[baseline]}, {changes}."]


def beats_from(
    results: Results, metric: MetricFacts, method: str | None, verb: str = "beats every baseline"
) -> list[str]:
    """The number of known ratings from which a method beats every baseline with as many."""
    found, baselines = results.shots[metric.name], results.plan.names("baseline")
    if method is None or not baselines:
        return []
    ahead = []
    for k, known in enumerate(found.values):
        own, others = found.means[method][k], [mean for name in baselines if (mean := found.means[name][k]) is not None]
        if others and own is not None:
            ahead.append((known, all(improves(metric.better, own - mean) for mean in others)))
    if not ahead:
        return []
    noun, label = results.plan.data.known, results.plan.labels[method]
    lost = [k for k, (_, beats) in enumerate(ahead) if not beats]
    if not lost:
        return [f"{upper(label)} {verb} at every number of known {noun}s that was tried (by the means)."]
    if lost[-1] == len(ahead) - 1:
        some = [known for known, beats in ahead if beats]
        where = f"only with {listing(some)} known {noun}s" if some else f"at no number of known {noun}s that was tried"
        return [f"{upper(label)} {verb} {where} (by the means)."]
    first = ahead[lost[-1] + 1][0]
    since = f"only with all {noun}s known" if first == "all" else f"from {count(int(first), f'known {noun}')} on"
    return [f"{upper(label)} {verb} {since} (by the means)."]
