"""The verdict of a comparison in a few plain sentences, all of them computed from its results.

A difference is called sure if p < 0.05 after Holm's correction and every seed has the same sign.
"""

from paml.analysis.comparisons import Paired
from paml.analysis.format import amount, count, listing, number, percent, upper
from paml.analysis.list_verdict import about_lists
from paml.analysis.plan import About
from paml.analysis.rates import not_personal
from paml.analysis.results import Results
from paml.analysis.sentences import beats_from, compared_with, difference, group_gap, leader, sureness, value


def verdict(results: Results) -> list[str]:
    """What is best, by how much, for whom, whether it is real, and what is missing; without measured times."""
    if not any(groups["all"].rows for table in results.table.values() for groups in table.values()):
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
        *about_lists(results),
        *_further_metrics(results),
        *_reference(results),
        *undefined(results, "rows"),
        *undefined(results, "list", only_first=True),
        *_one_seed(results),
    ]


def paired_of(results: Results, name: str) -> Paired | None:
    """The paired test of an entry against the best baseline, by the headline metric."""
    return next((line for line in _paired(results) if line.method == name), None)


def undefined(results: Results, about: About = "rows", *, only_first: bool = False) -> list[str]:
    """Which metrics are undefined for how many users, by the entry for which each is undefined most often."""
    alike: dict[str, list[str]] = {}
    for metric in results.plan.about(about)[: 1 if only_first else None]:
        summaries = [results.summary(name, metric.name) for name in results.plan.names()]
        worst = max(summaries, key=lambda one: one.undefined, default=None)
        if worst is not None and worst.undefined:
            several = worst.seeds > 1
            unit = count(worst.rows, "row" if several else "test user") + (" (a user in a seed)" if several else "")
            alike.setdefault(f"undefined for {worst.undefined:,} of {unit}", []).append(
                metric.label if only_first else metric.short
            )
    said = [f"{listing(names)} {'is' if len(names) == 1 else 'are'} {where}" for where, names in alike.items()]
    return [f"{'; '.join(said)}; these are excluded."] if said else []


def _paired(results: Results) -> tuple[Paired, ...]:
    """By the headline metric."""
    return results.paired[results.plan.headline.name]


def _best(results: Results) -> list[str]:
    """The best entry that is not a reference, then the best method against the best baseline."""
    method, baseline = results.best.method, results.best.baseline
    label, metric = results.plan.labels, results.plan.headline.label
    if method is None or baseline is None:
        kind, name = ("baseline", baseline) if method is None else ("method", method)
        other = "method" if method is None else "baseline"
        if name is None:
            return ["No method and no baseline has a result."]
        best = f"{upper(label[name])} is the best {kind}, {metric} {value(results, name)}"
        return [f"{best}; there is no {other} to compare with."]
    if leader(results, results.best, results.plan.headline) == method:
        first = f"{upper(label[method])} is best: {metric} {value(results, method)}."
        names = "It", f"the best baseline, {label[baseline]} ({value(results, baseline)})"
    else:
        first = f"{upper(label[baseline])}, a baseline, is best: {metric} {value(results, baseline)}."
        names = f"The best method, {label[method]} ({value(results, method)}),", "that"
    return [first, difference(results, results.plan.headline, method, *names)]


def _nothing_sure(results: Results) -> list[str]:
    lines = _paired(results)
    found = {sureness(line) for line in lines}
    if not lines or "sure" in found:
        return []
    against = f"{compared_with(results.plan)}, {results.plan.labels[lines[0].reference]}"
    if found == {"unknown"}:
        return [f"Whether any method differs from {against}, cannot be tested."]
    how = "surely" if "seeds disagree" in found else "significantly"
    return [f"No method differs {how} from {against}."]


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
    return group_gap(results, results.plan.headline, name, results.groups[name], results.best.baseline)


def _shots(results: Results) -> list[str]:
    """The number of known ratings from which the best method beats every baseline with as many."""
    return beats_from(results, results.plan.headline, results.best.method)


def _further_metrics(results: Results) -> list[str]:
    """The best method and the best baseline by each metric that somebody added."""
    said = []
    for metric in results.plan.metrics:
        if not metric.package or not metric.judged:
            continue
        found = []
        for kind in ("method", "baseline"):
            means = {name: results.mean(name, metric.name) for name in results.plan.names(kind)}
            known = {name: mean for name, mean in means.items() if mean is not None}
            if known:
                best = (min if metric.better == "lower" else max)(known, key=known.__getitem__)
                found.append(f"{results.plan.labels[best]} is the best {kind}, {number(known[best], metric.digits)}")
        if found:
            said.append(f"By {metric.label}, {'; '.join(found)}.")
    return said


def costs(results: Results) -> list[str]:
    """What the best method and the best baseline took, in a sentence; different in every measurement."""
    said: list[str] = []
    for name in (results.best.method, results.best.baseline):
        if name is None:
            continue
        cost = results.cost[name]
        what = "tune and fit" if name in results.plan.names("baseline") else "train"
        parts = [] if cost.fit_seconds is None else [f"{amount(cost.fit_seconds)} s to {what}"]
        if cost.adapt_ms is not None:
            parts.append(f"{amount(cost.adapt_ms)} ms" + ("" if said else " to adapt to a user and score"))
        if parts:
            said.append(f"{results.plan.labels[name]} takes {listing(parts)}")
    return [f"{upper('; '.join(said))}."] if said else []


def _reference(results: Results) -> list[str]:
    """How far a reference, which knows more, is from the best entry."""
    places, name = results.plan.headline.digits, leader(results, results.best, results.plan.headline)
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
