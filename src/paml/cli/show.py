"""What commands show on a terminal: tables of settings, rules, descriptions, evaluations and comparisons."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from paml.errors import shortened
from paml.terminal import printable

if TYPE_CHECKING:
    from paml.analysis.results import Results
    from paml.data.dataset import Dataset, RuleRecord
    from paml.experiments.tuning.search import SearchResult
    from paml.recommend.explain import Reason
    from paml.recommend.user import Recommendation, User
    from paml.report.render import Form
    from paml.settings import Settings
    from paml.training.run import Run


WIDE = 10_000
"""Columns of an output that is no terminal: a file or a pipe, where nothing is cut or wrapped."""


def standard_output() -> Console:
    """Standard output; text is shown as it is, and lines to copy are not wrapped."""
    console = Console(emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = WIDE
    return console


def _new_table(texts: Sequence[str], numbers: Sequence[str] = (), **style: Any) -> Table:
    """A table of columns with texts, then with numbers; what is too wide for a terminal is folded, and never cut."""
    columns = [Column(name, overflow="fold") for name in texts]
    return Table(*columns, *(Column(name, justify="right", overflow="fold") for name in numbers), **style)


def render_comparison(console: Console, results: Results, form: Form, only: set[str] | None = None) -> None:
    """The verdict in sentences, then the tables."""
    from paml.analysis.verdict import costs
    from paml.report.render import render
    from paml.report.tables import all_tables

    for sentence in [*results.verdict, *costs(results)]:
        console.print(printable(sentence), markup=False)
    console.print()
    for table in all_tables(results):
        if only is None or table.name in only:
            text = "\n".join(map(printable, render(table, form).split("\n")))  # groups may be named by values
            console.print(text, markup=False, soft_wrap=True)
            console.print()


def render_training(console: Console, run: Run) -> None:
    """How a training ended."""
    from paml.training.recipe import recipe_label

    settings = run.settings
    title = f"{settings.method}, recipe {recipe_label(settings.recipe_name)}, seed {settings.seed}"
    table = _new_table(("", ""), title=title, title_justify="left", show_header=False)
    for name, value in _compared(settings.summary).items():
        table.add_row(name.replace("_", " "), f"{value:.4f}" if isinstance(value, float) else str(value))
    console.print(table)
    console.print(f"next: paml evaluate {run.path}", markup=False, soft_wrap=True)


def _compared(summary: dict[str, Any]) -> dict[str, Any]:
    """How training ended; without validation users no epoch is the best, and the last one's weights are kept."""
    if summary.get("best_validation") is not None:
        return summary
    kept = {name: value for name, value in summary.items() if "best" not in name and name != "merged_validation"}
    why = {"validation": "no users, so the last epoch is kept"} if kept.get("epochs") else {}
    return {"epochs": kept.pop("epochs", 0), **why, **kept}


def render_evaluation(console: Console, result: dict[str, Any]) -> None:
    """All, major and minor users side by side: errors on query rows, then the lists of all items."""
    from paml.analysis.format import exact
    from paml.evaluation.metrics import METRIC_REGISTRY, Metric

    values = {
        name: value for name, value in result.items() if isinstance(value, dict) and name not in ("undefined", "by")
    }
    known = METRIC_REGISTRY.all()
    lists = [name for name in values if name in known and not isinstance(known[name], Metric)]
    rows = [name for name in values if name in known and name not in lists]
    title = f"{result['method']}, recipe {result['recipe']}, seed {result['seed']}, {result['split']} users"
    console.print(_by_group(title, {name: value for name, value in values.items() if name not in lists}))
    p_value = result["p_value"]
    console.print(f"p-value, major against minor: {'undefined' if p_value is None else f'{p_value:.3f}'}")
    relevant = "what was chosen" if result["liked"] == 1 and not rows else f"{exact(result['liked'])} or higher"
    title = f"What a user would be shown, of all items (relevant: {relevant})"
    console.print(_by_group(title, {name: values[name] for name in lists}))
    by = result["ordered_by"]
    console.print(f"Lists are ordered by {'what is predicted' if by == 'rating' else by}.")
    if result["by"]:
        console.print(
            _by_group("ndcg10 of lists ordered by", {by: line["ndcg10"] for by, line in result["by"].items()})
        )
    for name, count in result["undefined"].items():
        if count:
            console.print(f"{name} is undefined for {count:,} users, who are excluded from its mean")


def _by_group(title: str, values: dict[str, dict[str, Any]]) -> Table:
    """Means of all, major and minor users."""
    groups = ("all", "major", "minor")
    table = _new_table([""], groups, title=title, title_justify="left")
    for name, value in values.items():
        form = ".5f" if name == "rate" else ".4f"
        cells = [value[group] for group in groups]
        table.add_row(name, *("–" if c is None else f"{c:,}" if isinstance(c, int) else f"{c:{form}}" for c in cells))
    return table


def _number_beside(name: str, value: float) -> str:
    """A predicted rating, or the chance of a choice."""
    return f"{value:.1%}" if name == "chance" else f"{value:.3f}"


def render_recommendations(
    console: Console, user: User, found: Sequence[Recommendation], reasons: Sequence[Sequence[Reason]], by: str
) -> None:
    """The items, best first, with what moved their scores; and the user's learning rate and group."""
    beside = [
        name for name in ("rating", "chance") if name != by and all(getattr(one, name) is not None for one in found)
    ]
    table = _new_table(("item", "title"), (by, *beside), show_edge=False)
    if any(reasons):
        table.add_column("because", overflow="fold")
    for entry, because in zip(found, reasons, strict=True):
        numbers = [f"{entry.score:.3f}", *(_number_beside(name, getattr(entry, name)) for name in beside)]
        lines = "\n".join(f"{reason.effect:+.3f}  {printable(reason.title)} ({reason.value:g})" for reason in because)
        names = (escape(printable(text)) for text in (entry.item, entry.title))
        table.add_row(*names, *numbers, *([escape(lines)] if lines else []))
    console.print(table)
    group = f", {user.group} user" if user.group else ", no profile"
    console.print(f"{user.predictor.rate_label} {user.rate:.4g}{group}")
    for name in user.unknown:
        value = printable(shortened(user.new_user.profile[name]))
        console.print(f"the model does not know {name} '{value}': it counts as not given", markup=False)


def render_search(console: Console, found: SearchResult, data: Path) -> None:
    """The best trial beside the start, its settings, and how to use them."""
    start, best = found.start, found.best
    title = f"{found.method} on {found.source}, seed {found.seed}"
    columns = (f"start ({found.recipe})", f"best (trial {best.trial})")
    table = _new_table([""], columns, title=title, title_justify="left")
    reached = ["diverged" if one.validation is None else f"{one.validation:.4f}" for one in (start, best)]
    table.add_row(f"validation {found.metric}", *reached, end_section=True)
    for name, value in best.settings.items():
        table.add_row(name, _setting(start.settings[name]), _setting(value))
    console.print(table)
    counts = ", ".join(f"{count} {state}" for state, count in found.trials.items() if count)
    console.print(f"{sum(found.trials.values())} trials ({counts}) in {found.seconds / 60:.1f} min")
    command = ["paml", "train", str(data), "--method", found.method, "--recipe", found.best_recipe]
    console.print(f"next: {shlex.join(command)}", markup=False, soft_wrap=True)


def _setting(value: Any) -> str:
    """A setting as people type it, numbers in four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def settings_of(settings: type[Settings]) -> dict[str, dict[str, Any]]:
    """Every setting with its default and description."""
    usual = settings()
    defaults = usual.model_dump(mode="json")  # some settings are not written where they have their default
    return {
        name: {"default": defaults.get(name, getattr(usual, name)), "description": field.description}
        for name, field in settings.model_fields.items()
    }


def settings_table(settings: type[Settings]) -> Table:
    """Every setting with its default and description, as a table."""
    table = _new_table(("", ""), box=None, pad_edge=False, show_header=False)
    for name, entry in settings_of(settings).items():
        table.add_row(f"  {name}={entry['default']}", f"[dim]{entry['description']}[/dim]")
    return table


def render_preparation(console: Console, data: Dataset) -> None:
    """What the rules kept, what was excluded, and the sizes of the result."""
    manifest = data.manifest
    console.print(_rules_table(manifest.rules))
    if manifest.source.bad_lines:
        console.print(f"skipped {manifest.source.bad_lines:,} bad lines")
    if manifest.source.repeated:
        console.print(f"excluded {manifest.source.repeated:,} earlier ratings of the same item by the same user")
    if manifest.source.users_without_profile:
        console.print(f"{manifest.source.users_without_profile:,} users have no profile: all their fields are unknown")
    for note in manifest.notes:
        if not note.startswith("warning: "):  # said while it was prepared
            console.print(printable(note), markup=False, soft_wrap=True)
    summary = f"{data.path}: {manifest.users:,} users, {manifest.interactions:,} interactions"
    console.print(printable(summary), markup=False, soft_wrap=True)
    console.print(f"next: paml data describe {data.path}", markup=False, soft_wrap=True)


def _rules_table(rules: tuple[RuleRecord, ...]) -> Table:
    """What each rule of the protocol kept and dropped."""
    table = _new_table(["rule"], ("kept", "dropped"), title="Users", title_justify="left")
    for rule in rules:
        table.add_row(rule.rule, f"{rule.kept:,}", f"{rule.dropped:,}")
    return table


def render_description(console: Console, facts: dict[str, Any]) -> None:
    """The description as tables."""
    title = f"{facts['source']['name']} ({facts['target']['kind']})"
    sizes = _new_table(("", ""), title=title, title_justify="left", show_header=False)
    paper = facts["paper"] or {}
    sizes.add_row("users", _beside(f"{facts['users']:,}", paper.get("users"), ",d"))
    sizes.add_row(
        "items",
        _beside(f"{facts['items']:,} ({facts['items_interacted']:,} with interactions)", paper.get("items"), ",d"),
    )
    sizes.add_row("interactions", f"{facts['interactions']:,}")
    sizes.add_row(" / ".join(facts["splits"]), " / ".join(f"{count:,}" for count in facts["splits"].values()))
    groups = " / ".join(f"{share:.1%}" for share in facts["groups"].values())
    sizes.add_row("major / minor users", _beside(groups, paper.get("major"), ".0%"))
    quantiles = facts["rows_per_user"]
    sizes.add_row("interactions per user", ", ".join(f"{name} {value:g}" for name, value in quantiles.items()))
    for rule, dropped in facts["dropped"].items():
        sizes.add_row(f"dropped: not among '{rule}'", f"{dropped:,}")
    sizes.add_row("fingerprint", facts["fingerprint"][:16])
    console.print(sizes)
    histogram = _new_table(4 * [""], title="Targets", title_justify="left", show_header=False)
    most = max([*facts["histogram"].values(), 1])
    bar = "█" if console.encoding.lower().startswith("utf") else "#"
    for value, count in facts["histogram"].items():
        histogram.add_row(
            value, f"{count:,}", f"{count / max(facts['interactions'], 1):.1%}", bar * round(30 * count / most)
        )
    console.print(histogram)
    title = "Users with a common value, per field (paper, Tab. 1)"
    common = _new_table(("", ""), title=title, title_justify="left", show_header=False)
    for name, share in facts["common_shares"].items():
        common.add_row(name, _beside(f"{share:.1%}", paper.get("common_shares", {}).get(name), ".1%"))
    console.print(common)
    for note in facts["notes"]:
        console.print(printable(note), markup=False, soft_wrap=True)


def _beside(found: str, printed: float | None, form: str) -> str:
    """What we found, and what the paper prints for it."""
    return found if printed is None else f"{found}  [dim]paper: {printed:{form}}[/dim]"
