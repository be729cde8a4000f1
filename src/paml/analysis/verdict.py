"""The verdict of a comparison in a few plain sentences, all of them computed from its results.

A difference is called sure if p < 0.05 after Holm's correction and every seed has the same sign.
"""

from typing import Literal

from paml.analysis.comparisons import SIGNIFICANT, Paired, improves
from paml.analysis.fairness import MARGIN, GroupGap
from paml.analysis.format import amount, count, interval, listing, number, p_words, percent, spread, upper
from paml.analysis.rates import not_personal
from paml.analysis.results import Results

Sureness = Literal["sure", "seeds disagree", "not significant", "unknown"]
Judgement = Literal["equal", "different", "small", "undecided", "unknown"]
WITHIN = f"{100 * MARGIN:g} %"


def verdict(results: Results) -> list[str]:
    """What is best, by how much, for whom, whether it is real, and what is missing; without measured times."""
    if not any(results.summary(name).rows for name in results.plan.names()):
        return ["No test user was scored, so nothing can be concluded.", *_missing(results)]
    return [
        *_missing(results),
        *_best(results),
        *_nothing_sure(results),
        *_losers(results),
        *_among_methods(results),
        *not_personal(results.rates, {name: results.plan.labels[name] for name in results.plan.names("method")}),
        *_minor_users(results),
        *_shots(results),
        *_reference(results),
        *undefined(results),
        *_one_seed(results),
    ]


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


def paired_of(results: Results, name: str) -> Paired | None:
    """The paired test of an entry against the best baseline, by the headline metric."""
    return next((line for line in _paired(results) if line.method == name), None)


def undefined(results: Results) -> list[str]:
    """Which metrics are undefined for how many users, by the entry for which each is undefined most often."""
    alike: dict[str, list[str]] = {}
    for metric in results.plan.metrics:
        summaries = [results.summary(name, metric.name) for name in results.plan.names()]
        worst = max(summaries, key=lambda one: one.undefined, default=None)
        if worst is not None and worst.undefined:
            several = worst.seeds > 1
            unit = count(worst.rows, "row" if several else "test user") + (" (a user in a seed)" if several else "")
            alike.setdefault(f"undefined for {worst.undefined:,} of {unit}", []).append(metric.label)
    said = [f"{listing(names)} {'is' if len(names) == 1 else 'are'} {where}" for where, names in alike.items()]
    return [f"{'; '.join(said)}; these are excluded."] if said else []


def _paired(results: Results) -> tuple[Paired, ...]:
    """By the headline metric."""
    return results.paired[results.plan.headline.name]


def _value(results: Results, name: str) -> str:
    found = results.summary(name)
    return spread(found.mean, found.deviation, results.plan.headline.digits)


def _leader(results: Results) -> str | None:
    """The best entry that is not a reference: a baseline, unless a method is better."""
    method, baseline = results.best.method, results.best.baseline
    if method is None or baseline is None:
        return method or baseline
    own, other = results.mean(method), results.mean(baseline)
    assert own is not None  # the best entries are those that have one
    assert other is not None
    return method if improves(results.plan.headline.better, own - other) else baseline


def _best(results: Results) -> list[str]:
    """The best entry that is not a reference, then the best method against the best baseline."""
    method, baseline = results.best.method, results.best.baseline
    label, metric = results.plan.labels, results.plan.headline.label
    if method is None or baseline is None:
        kind, name = ("baseline", baseline) if method is None else ("method", method)
        other = "method" if method is None else "baseline"
        if name is None:
            return ["No method and no baseline has a result."]
        best = f"{upper(label[name])} is the best {kind}, {metric} {_value(results, name)}"
        return [f"{best}; there is no {other} to compare with."]
    if _leader(results) == method:
        first = f"{upper(label[method])} is best: {metric} {_value(results, method)}."
        names = "It", f"the best baseline, {label[baseline]} ({_value(results, baseline)})"
    else:
        first = f"{upper(label[baseline])}, a baseline, is best: {metric} {_value(results, baseline)}."
        names = f"The best method, {label[method]} ({_value(results, method)}),", "that"
    return [first, _difference(results, method, *names)]


def _difference(results: Results, method: str, subject: str, against: str) -> str:
    """By how much a method differs from the best baseline, and whether that is sure."""
    paired = paired_of(results, method)
    if paired is None or paired.difference is None:
        return f"{subject} has no user in common with {against}, so they cannot be compared."
    places = results.plan.headline.digits
    base = results.mean(paired.reference)
    share = f" ({percent(abs(paired.difference / base))})" if base else ""
    side = "lower" if paired.difference < 0 else "higher"
    size = f"{number(abs(paired.difference), places)}{share} {side} than" if paired.difference else "equal to"
    family = len(_paired(results))
    p = p_words(paired.holm_p) + (f" after Holm's correction for {family} comparisons" if family > 1 else "")
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


def _nothing_sure(results: Results) -> list[str]:
    lines = _paired(results)
    found = {sureness(line) for line in lines}
    if not lines or "sure" in found:
        return []
    baseline = results.plan.labels[lines[0].reference]
    if found == {"unknown"}:
        return [f"Whether any method differs from the best baseline, {baseline}, cannot be tested."]
    how = "surely" if "seeds disagree" in found else "significantly"
    return [f"No method differs {how} from the best baseline, {baseline}."]


def _losers(results: Results) -> list[str]:
    """By the means; whoever loses to a baseline loses to the best one."""
    label, losses, best = results.plan.labels, results.loses_to, results.best.baseline
    scored = [name for name in losses if results.mean(name) is not None]
    losing = [name for name in scored if losses[name]]
    if not scored or best is None:
        return []
    if not losing:
        return ["No method loses to a baseline." if len(scored) > 1 else "It loses to no baseline."]
    every = len(losing) == len(scored) > 1
    who = ("both" if len(losing) == 2 else f"all {len(losing)}") + " methods" if every else None
    said = (
        f"{who or listing([label[name] for name in losing])} {'loses' if len(losing) == 1 else 'lose'} to {label[best]}"
    )
    further: dict[int, list[str]] = {}
    for name in losing:
        further.setdefault(len(losses[name]) - 1, []).append(label[name])
    clauses = [f"{listing(names)} to {n} more" for n, names in sorted(further.items()) if n]
    return [f"By the means, {said}{'; ' if clauses else ''}{', '.join(clauses)}."]


def _among_methods(results: Results) -> list[str]:
    """Which methods cannot be told from each other; variants are left to the table."""
    label, methods = results.plan.labels, set(results.plan.names("method"))
    lines = [line for line in results.pairs if {line.reference, line.method} <= methods]
    if len(lines) < 2:
        return []
    doubtful = [line for line in lines if sureness(line) != "sure"]
    if not doubtful:
        return [f"All {len(lines)} pairs of methods differ surely."]
    pairs = [f"{label[line.reference]} and {label[line.method]}" for line in doubtful]
    same = [f"{label[line.reference]} and {label[line.method]}" for line in doubtful if line.identical]
    known = f" {listing(same)} have the same value for every user." if same else ""
    if len(doubtful) == len(lines):
        return [f"No two methods differ surely from each other.{known}"]
    sure = f"{len(lines) - len(doubtful)} of {len(lines)} pairs of methods differ surely"
    return [f"{sure}; not so {'; '.join(_few(pairs))}.{known}"]


def _few(names: list[str]) -> list[str]:
    return names if len(names) <= 4 else [*names[:3], f"and {len(names) - 3} more pairs"]


def _minor_users(results: Results) -> list[str]:
    """The gap of the best method (or baseline), whether it is shown to be small or real; the baseline's beside it."""
    name = results.best.method or results.best.baseline
    if name is None:
        return []
    places, label = results.plan.headline.digits, results.plan.labels[name]
    gap, against = results.groups[name].gap, results.groups[name].gap_against_baseline
    for group, users_of in (("major", gap.major_users), ("minor", gap.minor_users)):
        if not users_of:
            return [f"There are no {group} users among the test users, so nothing can be said about a gap."]
    if gap.difference is None:
        return []
    better = improves(results.plan.headline.better, gap.difference)
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
        said += _gap_against(results, against)
    return said


def _gap_against(results: Results, against: GroupGap) -> list[str]:
    """How far the method is from the best baseline in each group."""
    baseline, places, p = results.best.baseline, results.plan.headline.digits, against.welch_p
    if baseline is None or against.minor is None or against.major is None or against.difference is None:
        return []
    sure = "not tested" if p is None else p_words(p) + ("" if p < SIGNIFICANT else ", not significant")
    minor, major, apart = (_signed(value, places) for value in (against.minor, against.major, against.difference))
    changes = f"minor users change by {minor} and major users by {major} (difference {apart}, {sure})"
    return [f"Against {results.plan.labels[baseline]}, {changes}."]


def _signed(value: float, places: int) -> str:
    return ("+" if value > 0 else "") + number(value, places)


def _shots(results: Results) -> list[str]:
    """The number of known ratings from which the best method beats every baseline with as many."""
    method, means, better = results.best.method, results.shots.means, results.plan.headline.better
    baselines = results.plan.names("baseline")
    if method is None or not baselines:
        return []
    ahead = []
    for k, value in enumerate(results.shots.values):
        own, others = means[method][k], [mean for name in baselines if (mean := means[name][k]) is not None]
        if others and own is not None:
            ahead.append((value, all(improves(better, own - mean) for mean in others)))
    if not ahead:
        return []
    noun, label = results.plan.data.known, results.plan.labels[method]
    lost = [k for k, (_, beats) in enumerate(ahead) if not beats]
    if not lost:
        return [f"{upper(label)} beats every baseline at every number of known {noun}s that was tried (by the means)."]
    if lost[-1] == len(ahead) - 1:
        some = [value for value, beats in ahead if beats]
        where = f"only with {listing(some)} known {noun}s" if some else f"at no number of known {noun}s that was tried"
        return [f"{upper(label)} beats every baseline {where} (by the means)."]
    first = ahead[lost[-1] + 1][0]
    since = f"only with all {noun}s known" if first == "all" else f"from {count(int(first), f'known {noun}')} on"
    return [f"{upper(label)} beats every baseline {since} (by the means)."]


def costs(results: Results) -> list[str]:
    """What the best method and the best baseline took, in a sentence; different in every measurement."""
    said: list[str] = []
    for name in (results.best.method, results.best.baseline):
        if name is None:
            continue
        cost = results.cost[name]
        parts = [] if cost.fit_seconds is None else [f"{amount(cost.fit_seconds)} s to fit"]
        if cost.adapt_ms is not None:
            parts.append(f"{amount(cost.adapt_ms)} ms" + ("" if said else " to adapt to a user and score"))
        if parts:
            said.append(f"{results.plan.labels[name]} takes {listing(parts)}")
    return [f"{upper('; '.join(said))}."] if said else []


def _reference(results: Results) -> list[str]:
    """How far a reference, which knows more, is from the best entry."""
    places, name = results.plan.headline.digits, _leader(results)
    own = None if name is None else results.mean(name)
    if name is None or own is None:
        return []
    said = []
    for entry in results.plan.entries:
        mean = results.mean(entry.name)
        if entry.kind == "reference" and mean is not None:
            share = f" ({percent(abs((mean - own) / own))})" if own else ""
            side = "lower" if mean < own else "higher"
            said.append(
                f"The reference, {entry.label}, fitted again with the test users' known rows, has "
                f"{number(mean, places)}: {number(abs(mean - own), places)}{share} {side} than "
                f"{results.plan.labels[name]}."
            )
    return said


def _missing(results: Results) -> list[str]:
    """What is not finished, and what failed; an entry that failed with any seed is excluded altogether."""
    missing, label = results.missing, results.plan.labels
    if not missing:
        return []
    cells = len(results.plan.entries) * len(results.plan.seeds)
    names = listing([f"{label[cell.method]} with seed {cell.seed}" for cell in missing], 3)
    are = "is" if len(missing) == 1 else "are"
    seeds = [str(seed) for seed in results.seeds]
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {listing(seeds, 9)}"
    said = [
        f"Preliminary: {len(missing)} of {count(cells, 'cell')} {are} not finished ({names}); numbers are from {which}."
    ]
    said += [
        f"{upper(label[cell.method])} failed with seed {cell.seed} and is excluded: {cell.reason}."
        for cell in results.failed
    ]
    return said


def _one_seed(results: Results) -> list[str]:
    one = len(results.plan.seeds) == 1
    return ["There is only one seed, so nothing is known about what another training would change."] if one else []
