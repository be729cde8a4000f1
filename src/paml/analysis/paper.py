"""What the paper printed, beside what a comparison found: quoted as it is, with footnotes where it contradicts itself.

Sentences on the differences say what the numbers show, and nothing about their causes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paml.analysis.format import count, listing, number, percent
from paml.analysis.plan import Plan
from paml.analysis.results import Paper, PaperRow, Results

PRINTED = ("mse", "ndcg3", "ndcg5")
"""The metrics that the paper prints."""
PAPER_BASELINES = ("melu", "meta_sgd", "transfer")
"""The methods that the paper compares its own with."""
_NAMES = {
    "melu": "MeLU",
    "meta_sgd": "Meta-SGD",
    "transfer": "transfer learning",
    "paml": "PAML",
    "at_paml": "AT-PAML",
    "reg_paml": "REG-PAML",
}
COMPARISON, ABLATION, GROUPS, ABLATION_GROUPS = "comparison", "ablation", "groups", "ablation_groups"


@dataclass(frozen=True)
class Printed:
    """A number printed in the paper."""

    table: str
    method: str
    gamma: float | None
    """Only for lines of REG-PAML with a given gamma."""
    metric: str
    """`p_value` is that of major against minor users."""
    group: str
    value: float
    deviation: float | None

    @property
    def name(self) -> str:
        """The line's name where no entry of ours corresponds to it."""
        return self.method if self.gamma is None else f"{self.method} gamma={self.gamma:g}"

    @property
    def label(self) -> str:
        """The line's name in tables."""
        return _NAMES[self.method] + ("" if self.gamma is None else f" gamma={self.gamma:g}")


Line = tuple[str, float | None]
Value = tuple[float, float]
_COMPARISON: dict[str, dict[Line, tuple[Value, Value, Value]]] = {
    "ml-1m": {
        ("melu", None): ((1.451, 0.022), (0.793, 0.002), (0.800, 0.001)),
        ("meta_sgd", None): ((1.340, 0.054), (0.773, 0.007), (0.794, 0.007)),
        ("transfer", None): ((1.308, 0.016), (0.778, 0.001), (0.796, 0.002)),
        ("at_paml", None): ((1.322, 0.007), (0.788, 0.003), (0.806, 0.006)),
        ("reg_paml", None): ((1.210, 0.029), (0.779, 0.002), (0.803, 0.001)),
    },
    "bookcrossing": {
        ("melu", None): ((4.019, 0.101), (0.864, 0.002), (0.914, 0.002)),
        ("meta_sgd", None): ((5.197, 0.089), (0.867, 0.001), (0.921, 0.002)),
        ("transfer", None): ((4.522, 0.376), (0.862, 0.010), (0.919, 0.005)),
        ("at_paml", None): ((3.991, 0.114), (0.852, 0.001), (0.930, 0.002)),
        ("reg_paml", None): ((3.928, 0.176), (0.868, 0.001), (0.917, 0.001)),
    },
}
_ABLATION: dict[Line, tuple[Value, Value, Value]] = {
    ("reg_paml", 1e-5): ((1.509, 0.029), (0.773, 0.004), (0.799, 0.003)),
    ("reg_paml", 1e-4): ((1.227, 0.026), (0.779, 0.003), (0.803, 0.002)),
    ("reg_paml", 1e-3): ((1.210, 0.013), (0.791, 0.002), (0.814, 0.004)),
    ("reg_paml", 1e-2): ((1.191, 0.021), (0.777, 0.002), (0.803, 0.004)),
    ("paml", None): ((1.520, 0.034), (0.787, 0.001), (0.809, 0.004)),
    ("at_paml", None): ((1.322, 0.007), (0.788, 0.003), (0.806, 0.006)),
}
_GROUPS: dict[Line, tuple[Value, Value, float]] = {
    ("melu", None): ((1.413, 0.025), (1.506, 0.021), 0.071),
    ("meta_sgd", None): ((1.300, 0.059), (1.403, 0.045), 0.024),
    ("transfer", None): ((1.288, 0.016), (1.340, 0.013), 0.227),
    ("reg_paml", None): ((1.194, 0.019), (1.236, 0.011), 0.312),
    ("at_paml", None): ((1.284, 0.005), (1.382, 0.011), 0.018),
}
_ABLATION_GROUPS: dict[Line, tuple[Value, Value, float]] = {
    ("reg_paml", 1e-5): ((1.464, 0.032), (1.601, 0.021), 0.008),
    ("reg_paml", 1e-4): ((1.210, 0.026), (1.255, 0.024), 0.226),
    ("reg_paml", 1e-3): ((1.196, 0.019), (1.183, 0.024), 0.738),
    ("reg_paml", 1e-2): ((1.194, 0.014), (1.236, 0.011), 0.312),
    ("paml", None): ((1.471, 0.036), (1.569, 0.031), 0.038),
    ("at_paml", None): ((1.284, 0.005), (1.382, 0.011), 0.018),
}
MAJOR_SHARES = {"ml-1m": 0.648, "bookcrossing": 0.72, "taobao": 0.71}
CLICK_SOURCES = ("taobao", "synthetic")
"""Where the paper's clicks are mentioned: their public counterpart, and the embedded data made in their proportions."""
USERS = {"ml-1m": 4832, "bookcrossing": 7827}
_RANKING = (
    "The paper gives REG-PAML an nDCG@3 of 0.779 and an nDCG@5 of 0.803 in its comparison, but 0.791 and 0.814 in its "
    "ablation; the deviation of its MSE is 0.029 in the former and 0.013 in the latter."
)
_SWAPPED = (
    "The paper's lines for gamma 0.001 and 0.01 seem to be swapped: its comparison of groups gives REG-PAML (gamma "
    "0.001) the values 1.194 and 1.236, which its ablation gives to gamma 0.01."
)
_HIGHEST = (
    'The paper\'s text says that "AT-PAML has the highest p-value"; its table gives AT-PAML the lowest (0.018) and '
    "REG-PAML the highest (0.312)."
)
_MINOR = (
    "The paper's text says that AT-PAML outperforms all others for minor users; its table gives AT-PAML 1.382 and "
    "transfer learning 1.340."
)
_FAIR = "A large p-value does not show that groups are equal; the table of groups has a test that can."
_SECOND = "The paper marks two second-best MSEs: AT-PAML's 3.991 and MeLU's 4.019."
_READING = (
    "Which users the paper kept is not certain. By the letter of its rules everybody has one query row, hence an nDCG "
    "of 1; Book-Crossing prepared with reading=paper is the reading nearest to its numbers."
)
_FOOTNOTES: dict[str, dict[str, list[str]]] = {
    "ml-1m": {
        COMPARISON: [_RANKING],
        ABLATION: [_RANKING],
        GROUPS: [_HIGHEST, _MINOR, _FAIR],
        ABLATION_GROUPS: [_SWAPPED, _FAIR],
    },
    "bookcrossing": {COMPARISON: [_SECOND, _READING]},
}
_CLICKS = (
    "The paper shows its click results in figures only. Its text names AUCs of 0.5882 and 0.5806 for its two methods "
    "(not which is whose) and 0.5796 for the best of the others, but not whether these are means over users or pooled "
    "over all rows, and NELs of −0.5382, −0.5426 and −0.5080: negative, although by its definition they are positive, "
    "as ours are.",
    "Its production data is not this data set, so its numbers are not shown beside ours.",
)


def printed(source: str) -> Iterator[Printed]:
    """All numbers that the paper prints for a source, table by table."""
    tables = [(COMPARISON, _COMPARISON.get(source, {}))]
    groups: list[tuple[str, dict[Line, tuple[Value, Value, float]]]] = []
    if source == "ml-1m":
        tables.append((ABLATION, _ABLATION))
        groups = [(GROUPS, _GROUPS), (ABLATION_GROUPS, _ABLATION_GROUPS)]
    for table, lines in tables:
        for line, values in lines.items():
            for metric, (value, deviation) in zip(PRINTED, values, strict=True):
                yield Printed(table, *line, metric, "all", value, deviation)
    for table, by_group in groups:
        for line, (major, minor, p) in by_group.items():
            yield Printed(table, *line, "mse", "major", *major)
            yield Printed(table, *line, "mse", "minor", *minor)
            yield Printed(table, *line, "p_value", "all", p, None)


def beside_paper(results: Results) -> Paper | None:
    """The `paper` part of a comparison's results; None where the paper has nothing on the data."""
    source = results.plan.data.source
    if source in CLICK_SOURCES and results.plan.data.target == "click":
        return Paper(source=source, rows=(), footnotes={}, differences=(), notes=_CLICKS)
    entries = _entries(results.plan)
    rows = [_row(line, entries, results) for line in printed(source)] if results.plan.headline.name == "mse" else []
    if not rows:
        return None
    said = tuple(_differences(results, rows))
    return Paper(source=source, rows=tuple(rows), footnotes=_FOOTNOTES.get(source, {}), differences=said, notes=())


def _entries(plan: Plan) -> dict[Line, str]:
    """Which entry of ours corresponds to a line of the paper; a variant does if it changes gamma alone."""
    found: dict[Line, str] = {(name, None): name for name in plan.names("method")}
    if "reg_paml" in plan.names("method"):
        found["reg_paml", plan.gamma] = "reg_paml"
    for entry in plan.entries:
        if entry.kind == "variant" and entry.method == "reg_paml" and set(entry.settings) == {"gamma"}:
            found.setdefault(("reg_paml", float(entry.settings["gamma"])), entry.name)
    return found


def _row(line: Printed, entries: dict[Line, str], results: Results) -> PaperRow:
    entry = entries.get((line.method, line.gamma))
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
        paper=line.value,
        paper_deviation=line.deviation,
    )


def _differences(results: Results, rows: Sequence[PaperRow]) -> list[str]:
    """What the numbers show: recipe, lines side by side, a constant, the best baseline, the groups' sizes."""
    errors = [row for row in rows if row.metric == "mse" and row.group == "all"]
    compared = [row for row in errors if row.table == COMPARISON]
    return [
        *_recipe(results.plan),
        *_side_by_side(compared),
        *_constant(results, compared),
        *_baseline(results, errors),
        *_users(results.plan),
        *_share(results),
    ]


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
        if row.ours is not None:
            apart = row.ours - row.paper
            reach = (row.paper_deviation or 0.0) + (row.deviation or 0.0)
            side = "near" if abs(apart) <= reach else "below" if apart < 0 else "above"
            words[side].append(f"{row.label} ({number(row.ours)} against {number(row.paper)})")
    said = [f"{side} the paper's for {listing(lines)}" for side, lines in words.items() if side != "near" and lines]
    if words["near"]:
        said.append(f"within both deviations of the paper's for {listing(words['near'])}")
    return [f"Our MSE lies {'; '.join(said)}."] if said else []


def _constant(results: Results, rows: Sequence[PaperRow]) -> list[str]:
    constant = results.mean("training_mean", "mse") if "training_mean" in results.plan.names() else None
    if constant is None:
        return []
    worse = [row for row in rows if row.paper > constant]
    best = min(rows, key=lambda row: row.paper)
    apart = best.paper - constant
    side = "above" if apart > 0 else "below"
    many = "all" if len(worse) == len(rows) else str(len(worse)) if worse else "none"
    return [
        f"Our training mean, one prediction for everybody, has an MSE of {number(constant)}: {many} of the paper's "
        f"{count(len(rows), 'method')} {'is' if len(worse) == 1 else 'are'} worse, and its best, {best.label} "
        f"({number(best.paper)}), lies {number(abs(apart))} ({percent(abs(apart) / constant)}) {side} it."
    ]


def _baseline(results: Results, rows: Sequence[PaperRow]) -> list[str]:
    name = results.best.baseline
    own = None if name is None else results.mean(name, "mse")
    if name is None or own is None:
        return []
    lowest = min(row.paper for row in rows)
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
