"""What commands show on a terminal: tables of settings, rules, descriptions, evaluations and comparisons."""

from typing import Any

from rich.console import Console
from rich.table import Table

from paml.data.prepared import RuleRecord
from paml.report.render import Form, render
from paml.report.tables import all_tables
from paml.settings import Settings
from paml.verdict import costs


def standard_output() -> Console:
    """Standard output; text is shown as it is, and lines to copy are not wrapped."""
    return Console(emoji=False, highlight=False)


def render_comparison(console: Console, results: dict[str, Any], form: Form, only: set[str] | None = None) -> None:
    """The verdict in sentences, then the tables."""
    for sentence in [*results["verdict"], *costs(results)]:
        console.print(sentence, markup=False)
    console.print()
    for table in all_tables(results):
        if only is None or table.name in only:
            console.print(render(table, form), markup=False, soft_wrap=True)
            console.print()


def render_evaluation(console: Console, result: dict[str, Any]) -> None:
    """All, major and minor users side by side."""
    title = f"{result['method']}, recipe {result['recipe']}, seed {result['seed']}, {result['split']} users"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for group in ("all", "major", "minor"):
        table.add_column(group, justify="right")
    for name, values in result.items():
        if isinstance(values, dict) and name != "undefined":
            cells = [values[group] for group in ("all", "major", "minor")]
            decimals = 5 if name == "rate" else 4
            table.add_row(
                name, *("–" if c is None else f"{c:,}" if isinstance(c, int) else f"{c:.{decimals}f}" for c in cells)
            )
    console.print(table)
    p_value = result["p_value"]
    console.print(f"p-value, major against minor: {'undefined' if p_value is None else f'{p_value:.3f}'}")
    for name, count in result["undefined"].items():
        if count:
            console.print(f"{name} is undefined for {count:,} users, who are left out of its mean")


def settings_of(settings: type[Settings]) -> dict[str, dict[str, Any]]:
    """Every setting with its default and description."""
    defaults = settings().model_dump(mode="json")
    return {
        name: {"default": defaults[name], "description": field.description}
        for name, field in settings.model_fields.items()
    }


def settings_table(settings: type[Settings]) -> Table:
    """Every setting with its default and description, as a table."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, entry in settings_of(settings).items():
        table.add_row(f"  {name}={entry['default']}", f"[dim]{entry['description']}[/dim]")
    return table


def rules_table(rules: tuple[RuleRecord, ...]) -> Table:
    """What each rule of the protocol kept and dropped."""
    table = Table(title="Users", title_justify="left")
    table.add_column("rule")
    table.add_column("kept", justify="right")
    table.add_column("dropped", justify="right")
    for rule in rules:
        table.add_row(rule.rule, f"{rule.kept:,}", f"{rule.dropped:,}")
    return table


def render_description(console: Console, facts: dict[str, Any]) -> None:
    """The description as tables."""
    sizes = Table(
        title=f"{facts['source']['name']} ({facts['target']['kind']})", title_justify="left", show_header=False
    )
    paper = facts["paper"] or {}
    sizes.add_row("users", _beside(f"{facts['users']:,}", paper.get("users"), ",d"))
    sizes.add_row("items", _beside(f"{facts['items']:,} ({facts['items_met']:,} met)", paper.get("items"), ",d"))
    sizes.add_row("interactions", f"{facts['interactions']:,}")
    sizes.add_row("train / validation / test", " / ".join(f"{count:,}" for count in facts["splits"].values()))
    groups = " / ".join(f"{share:.1%}" for share in facts["groups"].values())
    sizes.add_row("major / minor users", _beside(groups, paper.get("major"), ".0%"))
    quantiles = facts["rows_per_user"]
    sizes.add_row("interactions per user", ", ".join(f"{name} {value:g}" for name, value in quantiles.items()))
    for rule, dropped in facts["dropped"].items():
        sizes.add_row(f"dropped: not among '{rule}'", f"{dropped:,}")
    sizes.add_row("fingerprint", facts["fingerprint"][:16])
    console.print(sizes)
    histogram = Table(title="Targets", title_justify="left", show_header=False)
    most = max([*facts["histogram"].values(), 1])
    bar = "█" if console.encoding.lower().startswith("utf") else "#"
    for value, count in facts["histogram"].items():
        histogram.add_row(
            value, f"{count:,}", f"{count / max(facts['interactions'], 1):.1%}", bar * round(30 * count / most)
        )
    console.print(histogram)
    common = Table(
        title="Users with a common value, per field (paper, Tab. 1)", title_justify="left", show_header=False
    )
    for name, share in facts["common_shares"].items():
        common.add_row(name, _beside(f"{share:.1%}", paper.get("common_shares", {}).get(name), ".1%"))
    console.print(common)
    for note in facts["notes"]:
        console.print(note, markup=False, soft_wrap=True)


def _beside(found: str, printed: float | None, form: str) -> str:
    """What we found, and what the paper prints for it."""
    return found if printed is None else f"{found}  [dim]paper: {printed:{form}}[/dim]"
