"""The command line: parse, call, render. Exit codes: 0 done, 1 a PamlError in one line, 2 wrong usage."""

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import torch
import typer
from rich.console import Console
from rich.table import Table

import paml
from paml.data.inspect import inspect_files, refuse_existing
from paml.data.prepared import RuleRecord
from paml.data.protocol import Protocol
from paml.data.sources import SOURCES
from paml.demo import run_demo
from paml.errors import PamlError, SettingsError
from paml.methods import METHODS
from paml.progress import for_terminal
from paml.recipe import recipe_names
from paml.settings import Settings, parse_assignments

app = typer.Typer(
    name="paml",
    help="Cold-start recommendation: good after a handful of ratings, for unusual users as much as for typical ones.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Prepare and look at data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")


def main() -> None:
    """Entry point: errors that are the input's fault become one line and exit code 1."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))  # so that nothing half-written stays
    try:
        app()
    except PamlError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or 'file system'}: {error.strerror or error}; check space and permissions")
    except pl.exceptions.PolarsError as error:
        _fail(f"a table cannot be read or written ({str(error).splitlines()[0]}); check the files and the disk")


def _fail(message: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False, emoji=False).print(f"error: {message}", markup=False)
    sys.exit(1)


def _console() -> Console:
    """Standard output; text is shown as it is, and lines to copy are not wrapped."""
    return Console(emoji=False, highlight=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paml {paml.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@data_app.command("list")
def list_sources(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """List the sources that can be prepared, with their settings, and the settings of the protocol."""
    if as_json:
        sources = {s.name: {"summary": s.summary, "settings": _settings_of(s.settings)} for s in SOURCES.values()}
        _print_json({"sources": sources, "protocol": _settings_of(Protocol)})
        return
    console = _console()
    for source in SOURCES.values():
        path = "fetched, or --from PATH" if source.archive else "needs --from PATH" if source.takes else ""
        console.print(f"[bold]{source.name}[/bold]  {source.summary}  [dim]{path}[/dim]", soft_wrap=True)
        console.print(_settings_table(source.settings))
    console.print("[bold]protocol[/bold]  settings of every source")
    console.print(_settings_table(Protocol))


@data_app.command("inspect")
def inspect(
    files: Annotated[list[Path], typer.Argument(help="One to three tables: interactions, users, items, in any order.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Schema file to write; printed if not given.", metavar="FILE")
    ] = None,
) -> None:
    """Guess the schema of your own tables, with the reason for every guess."""
    if out is not None:
        refuse_existing(out)
    found = inspect_files(files, None if out is None else out.parent)
    for gap in found.gaps:
        typer.echo(f"warning: {gap}", err=True)
    if out is None:
        typer.echo(found.text, nl=False)
        return
    found.write(out)
    steps = f"read {out}, then: paml data prepare tables --schema {out}"
    _console().print(f"next: {steps}", markup=False, soft_wrap=True)


@data_app.command("prepare")
def prepare(
    source: Annotated[str, typer.Argument(help="Name of the source; `paml data list` shows them.", metavar="SOURCE")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="Settings of the source and of the protocol, such as users=500 seed=1.", metavar="key=value"
        ),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option("--from", help="Folder or archive to read; else the official one is fetched.", metavar="PATH"),
    ] = None,
    extra: Annotated[
        Path | None,
        typer.Option("--extra", help="Further file: movies_extrainfos.dat for ml-1m, or a zip of it.", metavar="PATH"),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option("--schema", help="Schema file of the source tables; files beside it, or --from.", metavar="FILE"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write; paml-data/SOURCE if not given.", metavar="DIR")
    ] = None,
    skip_bad_lines: Annotated[
        bool, typer.Option("--skip-bad-lines", help="Count lines that cannot be read and go on, instead of stopping.")
    ] = False,
) -> None:
    """Turn raw tables into a prepared data set by the paper's protocol."""
    values = parse_assignments(settings or [])
    data = paml.prepare(
        source,
        path,
        out,
        extra=extra,
        schema=schema,
        skip_bad_lines=skip_bad_lines,
        progress=for_terminal(),
        settings=values,
    )
    console = _console()
    console.print(_rules_table(data.manifest.rules))
    if data.manifest.source.bad_lines:
        console.print(f"skipped {data.manifest.source.bad_lines:,} bad lines")
    if data.manifest.source.repeated:
        console.print(f"left out {data.manifest.source.repeated:,} earlier ratings of the same item by the same user")
    if data.manifest.source.strangers:
        console.print(f"{data.manifest.source.strangers:,} users have no profile: all their fields are unknown")
    for note in data.manifest.notes:
        console.print(note, markup=False, soft_wrap=True)
    summary = f"{data.path}: {data.manifest.users:,} users, {data.manifest.interactions:,} interactions"
    console.print(summary, markup=False, soft_wrap=True)
    console.print(f"next: paml data describe {data.path}", markup=False, soft_wrap=True)


@data_app.command("describe")
def describe(
    folder: Annotated[Path, typer.Argument(help="A prepared data set.", metavar="DIR")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read everything and compare it with its checksums first.")
    ] = False,
) -> None:
    """Show sizes, splits, the target's histogram, rows per user, common values, and major and minor users."""
    data = paml.open_data(folder)
    if verify:
        data.verify()
    facts = paml.describe(data)
    if as_json:
        _print_json(facts)
    else:
        _render_description(_console(), facts)


@app.command("train")
def train(
    folder: Annotated[Path, typer.Argument(help="A prepared data set.", metavar="DIR")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="Settings that replace the recipe's, such as epochs=5 gamma=0.01.", metavar="key=value"),
    ] = None,
    method: Annotated[str, typer.Option("--method", help="One of: " + ", ".join(METHODS) + ".")] = "reg_paml",
    recipe: Annotated[str, typer.Option("--recipe", help="One of: " + ", ".join(recipe_names()) + ".")] = "default",
    seed: Annotated[int, typer.Option("--seed", help="Seed of weights and episodes.", min=0, max=2**63 - 1)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder of the run; paml-runs/SOURCE-METHOD-RECIPE-SEED if not given.", metavar="RUN"
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a training that was interrupted.")] = False,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, or cuda.")] = "auto",
    threads: Annotated[int, typer.Option("--threads", help="Threads to use; 0 for one per core.", min=0)] = 0,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="Folder for TensorBoard logs.", metavar="DIR")
    ] = None,
) -> None:
    """Train a method on a prepared data set."""
    if threads:
        torch.set_num_threads(threads)
    run = paml.train(
        folder,
        method,
        recipe,
        seed=seed,
        out=out,
        resume=resume,
        device=device,
        tensorboard=tensorboard,
        progress=for_terminal(),
        settings=parse_assignments(settings or []),
    )
    console = _console()
    table = Table(title=f"{method}, recipe {recipe}, seed {seed}", title_justify="left", show_header=False)
    for name, value in run.settings.summary.items():
        table.add_row(name.replace("_", " "), f"{value:.4f}" if isinstance(value, float) else str(value))
    console.print(table)
    console.print(f"next: paml evaluate {run.path}", markup=False, soft_wrap=True)


@app.command("evaluate")
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run made by `paml train`.", metavar="RUN")],
    data: Annotated[
        Path | None, typer.Option("--data", help="The data set it was trained on, if it was moved.", metavar="DIR")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Users to evaluate: validation or test.")] = "test",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Adapt to every test user and score all, major and minor users; RUN/rows.parquet gets one row per user."""
    if split not in ("validation", "test"):
        raise SettingsError(f"split '{split}'", remedy="expected validation or test")
    result = paml.evaluate(run, data, split)  # type: ignore[arg-type]
    if as_json:
        _print_json(result)
    else:
        _render_evaluation(_console(), result)


@app.command("demo")
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for what the demonstration writes.", metavar="DIR")] = Path(
        "paml-demo"
    ),
) -> None:
    """Prepare the embedded data set and show what simple predictors reach on it."""
    result = run_demo(out, for_terminal())
    console = _console()
    facts = paml.describe(result.data)
    _render_description(console, facts)
    table = Table(title="Mean squared error on test users (lower is better)", title_justify="left")
    table.add_column("predictor")
    table.add_column("MSE", justify="right")
    for name, mse in result.mse.items():
        table.add_row(name, f"{mse:.3f}")
    table.add_row("best reachable (the ratings' own noise)", f"{facts['source']['facts']['best_mse']:.3f}", style="dim")
    console.print(table)
    console.print(f"next: paml train {result.data.path} --method reg_paml", markup=False, soft_wrap=True)


def _render_evaluation(console: Console, result: dict[str, Any]) -> None:
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


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False))


def _settings_of(settings: type[Settings]) -> dict[str, dict[str, Any]]:
    defaults = settings().model_dump(mode="json")
    return {
        name: {"default": defaults[name], "description": field.description}
        for name, field in settings.model_fields.items()
    }


def _settings_table(settings: type[Settings]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, entry in _settings_of(settings).items():
        table.add_row(f"  {name}={entry['default']}", f"[dim]{entry['description']}[/dim]")
    return table


def _rules_table(rules: tuple[RuleRecord, ...]) -> Table:
    table = Table(title="Users", title_justify="left")
    table.add_column("rule")
    table.add_column("kept", justify="right")
    table.add_column("dropped", justify="right")
    for rule in rules:
        table.add_row(rule.rule, f"{rule.kept:,}", f"{rule.dropped:,}")
    return table


def _render_description(console: Console, facts: dict[str, Any]) -> None:
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
