"""What the paper printed (`quoted.py`), beside what a comparison found.

Sentences on the differences say what the numbers show, and nothing about their causes.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from paml.analysis.format import count, listing, number, percent
from paml.analysis.plan import Plan
from paml.analysis.quoted import (
    ABLATION,
    COMPARISON,
    COSTS,
    FAILURE,
    FOOTNOTES,
    MAJOR_SHARES,
    PRINTED,
    USERS,
    Line,
    Printed,
    printed,
)
from paml.analysis.results import Paper, PaperRow, Results

CLICK_SOURCES = ("taobao", "synthetic")
"""Where the paper's clicks are mentioned: their public counterpart, and the embedded data made in their proportions."""
_CLICKS = (
    "The paper shows its click results in figures only. Its text names AUCs of 0.5882 and 0.5806 for its two methods "
    "(not which is whose) and 0.5796 for the best of the others, but not whether these are means over users or pooled "
    "over all rows, and NELs of −0.5382, −0.5426 and −0.5080: negative, although by its definition they are positive, "
    "as ours are.",
    "Its production data is not this data set, so its numbers are not shown beside ours.",
)


def papers_costs(plan: Plan) -> dict[str, tuple[str, str]]:
    """Entry -> time and memory that the paper names for MovieLens-1M; only beside its own settings."""
    same = plan.data.source == "ml-1m" and plan.recipe == "paper" and not plan.settings
    return {name: cost for name, cost in COSTS.items() if name in plan.names("method")} if same else {}


def beside_paper(results: Results) -> Paper | None:
    """The `paper` part of a comparison's results; None where the paper has nothing on the data."""
    source = results.plan.data.source
    if source in CLICK_SOURCES and results.plan.data.target == "click":
        return Paper(source=source, rows=(), footnotes={}, differences=(), notes=_CLICKS)
    entries = _entries(results.plan)
    rows = [_row(line, entries, results) for line in printed(source)] if results.plan.headline.name == "mse" else []
    if not rows:
        return None
    if source == "ml-1m":
        rows += _ours_only(results, set(entries.values()))
    said = tuple(_differences(results, rows))
    footnotes = {table: tuple(notes) for table, notes in FOOTNOTES.get(source, {}).items()}
    footnotes[FAILURE] = (*footnotes.get(FAILURE, ()), *_failure_case(rows))
    return Paper(source=source, rows=tuple(rows), footnotes=footnotes, differences=said, notes=())


def _entries(plan: Plan) -> dict[Line, str]:
    """Which entry of ours corresponds to a line of the paper; a variant does if it changes that setting alone."""
    found: dict[Line, str] = {(name, None): name for name in plan.names("method")}
    if "reg_paml" in plan.names("method"):
        found["reg_paml", ("gamma", plan.gamma)] = "reg_paml"
    for entry in plan.entries:
        for setting in ("gamma", "outer_rate"):
            if entry.kind == "variant" and entry.method is not None and set(entry.settings) == {setting}:
                found.setdefault((entry.method, (setting, float(entry.settings[setting]))), entry.name)
    lines = {(line.method, line.changed) for line in printed("ml-1m")}
    return {line: name for line, name in found.items() if line in lines}


def _row(line: Printed, entries: dict[Line, str], results: Results) -> PaperRow:
    entry = entries.get((line.method, line.changed))
    ours, deviation = None, None
    if entry is not None and line.metric == "p_value":
        ours = results.groups[entry].test.p_value
    elif entry is not None:
        found = results.summary(entry, line.metric, line.group)
        ours, deviation = found.mean, found.deviation
    return PaperRow(
        table=line.table,
        method=entry or line.name,
        label=line.label,
        metric=line.metric,
        group=line.group,
        ours=ours,
        deviation=deviation,
        star=entry is not None and _star(results, line.table, line.metric, entry),
        paper=line.value,
        paper_deviation=line.deviation,
        paper_star=line.star,
    )


def _star(results: Results, table: str, metric: str, entry: str) -> bool:
    """By the paper's test: in its ablation against PAML, in its comparison against the best of its baselines."""
    tests = {COMPARISON: results.improvements, ABLATION: results.against_paml}.get(table, {})
    found = tests.get(metric, {}).get(entry)
    return found is not None and found.star


def _ours_only(results: Results, matched: set[str]) -> Iterator[PaperRow]:
    """Variants that the paper does not have, below its ablation."""
    for entry in results.plan.entries:
        if entry.kind == "variant" and entry.name not in matched:
            for metric in PRINTED:
                found = results.summary(entry.name, metric)
                yield PaperRow(
                    table=ABLATION,
                    method=entry.name,
                    label=entry.label,
                    metric=metric,
                    group="all",
                    ours=found.mean,
                    deviation=found.deviation,
                    star=_star(results, ABLATION, metric, entry.name),
                    paper=None,
                    paper_deviation=None,
                )


def _differences(results: Results, rows: Sequence[PaperRow]) -> list[str]:
    """What the numbers show: recipe, lines side by side, a constant, the best baseline, the groups' sizes."""
    errors = [row for row in rows if row.metric == "mse" and row.group == "all"]
    compared = [row for row in errors if row.table == COMPARISON]
    return [
        *_recipe(results.plan),
        *_side_by_side(compared),
        *_ranking(results, [row for row in rows if row.table == COMPARISON]),
        *_constant(results, compared),
        *_baseline(results, errors),
        *_users(results.plan),
        *_share(results),
    ]


def _failure_case(rows: Sequence[PaperRow]) -> list[str]:
    """Whether ours fails, too: whether the larger outer rate makes the error larger."""
    errors = {row.label: row.ours for row in rows if (row.table, row.metric, row.group) == (FAILURE, "mse", "all")}
    usual, failing = errors.values() if errors else (None, None)
    if usual is None or failing is None:
        return []
    how = "fails, too" if failing > usual else "does not fail"
    return [f"With that outer rate our AT-PAML {how}: MSE {number(failing)}, and {number(usual)} with its usual one."]


def _recipe(plan: Plan) -> list[str]:
    changed = [f"{name}={value}" for name, value in plan.settings.items()]
    if plan.recipe == "paper" and not changed:
        return []
    which = f"recipe '{plan.recipe}'" + (f" with {', '.join(changed)}" if changed else "")
    return [f"Our methods were trained with {which}, not with the paper's settings, which are recipe 'paper'."]


def _side_by_side(rows: Sequence[PaperRow]) -> list[str]:
    """Near: no further apart than the sum of both deviations."""
    words: dict[str, list[str]] = {"below": [], "above": [], "near": []}
    for row in rows:
        side = _side(row)
        if side is not None:
            words[side].append(f"{row.label} ({number(row.ours)} against {number(row.paper)})")
    said = [f"{side} the paper's for {listing(lines)}" for side, lines in words.items() if side != "near" and lines]
    if words["near"]:
        said.append(f"within both deviations of the paper's for {listing(words['near'])}")
    return [f"Our MSE lies {'; '.join(said)}."] if said else []


def _side(row: PaperRow) -> Literal["below", "above", "near"] | None:
    """Where ours lies, seen from the paper's; None where there is no pair."""
    if row.ours is None or row.paper is None:
        return None
    apart = row.ours - row.paper
    reach = (row.paper_deviation or 0.0) + (row.deviation or 0.0)
    return "near" if abs(apart) <= reach else "below" if apart < 0 else "above"


def _ranking(results: Results, rows: Sequence[PaperRow]) -> list[str]:
    """Where our ranking is worse than the paper's, although our error is smaller."""
    lower = {row.label for row in rows if row.metric == "mse" and _side(row) == "below"}
    said, who = [], set()
    for metric in ("ndcg3", "ndcg5"):
        worse = [row for row in rows if row.metric == metric and row.label in lower and _side(row) == "below"]
        chance = results.chance.get(metric)
        if worse:
            who |= {row.label for row in worse}
            values = f"{_range([row.ours for row in worse])} against {_range([row.paper for row in worse])}"
            by_chance = "" if chance is None else f", by chance {number(chance.mean)}"
            said.append(f"{results.plan.metric(metric).label} {values}{by_chance}")
    if not said:
        return []
    names = [row.label for row in rows if row.metric == "mse" and row.label in who]
    return [
        f"For {listing(names)} our ranking is worse than the paper's, although our MSE is lower ({'; '.join(said)}). "
        "We rank query rows only, with equal predictions in random order; the paper does not say which rows it ranks, "
        "nor how it orders equal predictions."
    ]


def _range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    low, high = number(min(known)), number(max(known))
    return low if low == high else f"{low} to {high}"


def _constant(results: Results, rows: Sequence[PaperRow]) -> list[str]:
    constant = results.mean("training_mean", "mse") if "training_mean" in results.plan.names() else None
    if constant is None:
        return []
    theirs = {row.label: row.paper for row in rows if row.paper is not None}
    worse = [label for label, value in theirs.items() if value > constant]
    best = min(theirs, key=lambda label: theirs[label])
    apart = theirs[best] - constant
    side = "above" if apart > 0 else "below"
    many = "all" if len(worse) == len(rows) else str(len(worse)) if worse else "none"
    return [
        f"Our training mean, one prediction for everybody, has an MSE of {number(constant)}: {many} of the paper's "
        f"{count(len(rows), 'method')} {'is' if len(worse) == 1 else 'are'} worse, and its best, {best} "
        f"({number(theirs[best])}), lies {number(abs(apart))} ({percent(abs(apart) / constant)}) {side} it."
    ]


def _baseline(results: Results, rows: Sequence[PaperRow]) -> list[str]:
    name = results.best.baseline
    own = None if name is None else results.mean(name, "mse")
    if name is None or own is None:
        return []
    lowest = min(row.paper for row in rows if row.paper is not None)
    side = "below every" if own < lowest else "not below the lowest"
    return [
        f"Our best baseline, {results.plan.labels[name]} ({number(own)}), lies {side} MSE that the paper prints for "
        f"this data set ({number(lowest)}); the paper compares with MeLU, Meta-SGD and transfer learning, and with no "
        "such predictor."
    ]


def _users(plan: Plan) -> list[str]:
    """Only where the numbers of users differ: then the users themselves do."""
    paper = USERS.get(plan.data.source, plan.data.users)
    return [] if plan.data.users == paper else [f"We have {plan.data.users:,} users, and the paper {paper:,}."]


def _share(results: Results) -> list[str]:
    """By the entry with the most test users; others may be unfinished."""
    share = MAJOR_SHARES.get(results.plan.data.source)
    largest = max(results.table["mse"].values(), key=lambda groups: groups["all"].users, default=None)
    if share is None or largest is None or not largest["all"].users:
        return []
    own = largest["major"].users / largest["all"].users
    return [f"Major users are {100 * own:.0f} % of our test users, and {100 * share:.0f} % of the paper's users."]
