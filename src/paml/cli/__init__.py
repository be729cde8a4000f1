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

import paml
from paml.analysis.results import Results
from paml.cli.serve import serve_app
from paml.cli.show import (
    render_comparison,
    render_description,
    render_evaluation,
    render_preparation,
    render_search,
    render_training,
    settings_of,
    settings_table,
    standard_output,
)
from paml.data.infer.render import inspect_files, refuse_existing
from paml.data.protocol import Protocol
from paml.data.sources import SOURCES
from paml.errors import PamlError, SettingsError, TrainingError
from paml.experiments.compare import ABLATION
from paml.experiments.demo import run_demo
from paml.methods.registry import METHODS
from paml.progress import for_terminal
from paml.report.refresh import refresh
from paml.report.render import Form
from paml.settings import parse_assignments
from paml.training.recipe import recipe_names

app = typer.Typer(
    name="paml",
    help="Cold-start recommendation: good after a handful of ratings, for unusual users as much as for typical ones.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Prepare and look at data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(serve_app)

RecipeOption = Annotated[
    str, typer.Option("--recipe", help=f"One of: {', '.join(recipe_names())}; or a recipe file of your own, FILE.toml.")
]
MethodOption = Annotated[str, typer.Option("--method", help="One of: " + ", ".join(METHODS) + ".")]
ThreadsOption = Annotated[int, typer.Option("--threads", help="Threads to use; 0 for one per core.", min=0)]


def main() -> None:
    """Entry point: errors that are the input's fault become one line and exit code 1."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))  # so that nothing half-written stays
    try:
        app()
    except PamlError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or 'file system'}: {error.strerror or error}; check name, space and permissions")
    except pl.exceptions.PolarsError as error:
        _fail(f"a table cannot be read or written ({str(error).splitlines()[0]}); check the files and the disk")


def _fail(message: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False, emoji=False).print(f"error: {message}", markup=False)
    sys.exit(1)


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
        sources = {s.name: {"summary": s.summary, "settings": settings_of(s.settings)} for s in SOURCES.values()}
        _print_json({"sources": sources, "protocol": settings_of(Protocol)})
        return
    console = standard_output()
    for source in SOURCES.values():
        path = "fetched, or --from PATH" if source.archive else "needs --from PATH" if source.takes else ""
        console.print(f"[bold]{source.name}[/bold]  {source.summary}  [dim]{path}[/dim]", soft_wrap=True)
        console.print(settings_table(source.settings))
    console.print("[bold]protocol[/bold]  settings of every source")
    console.print(settings_table(Protocol))


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
    standard_output().print(f"next: {steps}", markup=False, soft_wrap=True)


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
    render_preparation(standard_output(), data)


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
        render_description(standard_output(), facts)


@app.command("train")
def train(
    folder: Annotated[Path, typer.Argument(help="A prepared data set.", metavar="DIR")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="Settings that replace the recipe's, such as epochs=5 gamma=0.01.", metavar="key=value"),
    ] = None,
    method: MethodOption = "reg_paml",
    recipe: RecipeOption = "tuned",
    seed: Annotated[int, typer.Option("--seed", help="Seed of weights and episodes.", min=0, max=2**63 - 1)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder of the run; paml-runs/SOURCE-METHOD-RECIPE-SEED if not given.", metavar="RUN"
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a training that was interrupted.")] = False,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, or cuda.")] = "auto",
    threads: ThreadsOption = 0,
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
    render_training(standard_output(), run)


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
        render_evaluation(standard_output(), result)


@app.command("compare")
def compare(
    folder: Annotated[Path, typer.Argument(help="A prepared data set.", metavar="DIR")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="Settings that replace the recipe's, for all methods.", metavar="key=value"),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the comparison; an unfinished one is continued.", metavar="OUT")
    ] = Path("paml-comparison"),
    methods: Annotated[
        str,
        typer.Option("--methods", help="Methods, separated by commas; all (of recipe paper its six), or none."),
    ] = "all",
    baselines: Annotated[
        str, typer.Option("--baselines", help="Baselines, separated by commas; all, or none.")
    ] = "all",
    variant: Annotated[
        list[str] | None,
        typer.Option("--variant", help="A method with other settings, such as 'reg_paml gamma=0.01'; repeatable."),
    ] = None,
    ablation: Annotated[
        bool, typer.Option("--ablation", help="Add the paper's ablation of gamma and its failure case.")
    ] = False,
    seeds: Annotated[int, typer.Option("--seeds", help="Trials, each with its own weights and users.", min=1)] = 3,
    same_split: Annotated[
        bool, typer.Option("--same-split", help="Keep the data set's own split of users in all trials.")
    ] = False,
    recipe: RecipeOption = "tuned",
    group_by: Annotated[
        str | None, typer.Option("--group-by", help="A user field, whose values are compared, too.", metavar="FIELD")
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="Of the tables: text, markdown or latex.")] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="Print results and costs as JSON instead of tables.")] = False,
    threads: ThreadsOption = 0,
) -> None:
    """Compare methods and baselines over several trials: tables, tests, pictures, and a report."""
    if threads:
        torch.set_num_threads(threads)
    results = paml.compare(
        folder,
        _chosen(methods),
        seeds,
        recipe,
        out=out,
        baselines=_chosen(baselines),
        variants=[*(variant or []), *(ABLATION if ablation else ())],
        same_split=same_split,
        group_by=group_by,
        progress=for_terminal(),
        settings=parse_assignments(settings or []),
    )
    _print_comparison(out, results, form, as_json=as_json)
    for cell in results.failed:
        what = f"{cell.method} with seed {cell.seed} failed: {cell.reason}"
        raise TrainingError(what, remedy="lower its rates, or leave it out with --methods")


@app.command("tune")
def tune(
    folder: Annotated[Path, typer.Argument(help="A prepared data set.", metavar="DIR")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Settings held fixed in all trials.", metavar="key=value")
    ] = None,
    method: MethodOption = "reg_paml",
    recipe: RecipeOption = "tuned",
    budget: Annotated[
        str, typer.Option("--budget", help="Trials (30), a time (90s, 20m, 1h), or both (30,20m).", metavar="BUDGET")
    ] = "30",
    seed: Annotated[int, typer.Option("--seed", help="Seed of search and trainings.", min=0, max=2**63 - 1)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder; a search in it goes on. paml-tune/SOURCE-METHOD if not given.", metavar="OUT"
        ),
    ] = None,
    space: Annotated[
        Path | None, typer.Option("--space", help="TOML file of the settings to search.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    threads: ThreadsOption = 0,
) -> None:
    """Search better settings of a method, judged by validation users, and write them as a recipe."""
    if threads:
        torch.set_num_threads(threads)
    found = paml.tune(
        folder,
        method,
        recipe,
        budget=budget,
        seed=seed,
        out=out,
        space=space,
        progress=for_terminal(),
        settings=parse_assignments(settings or []),
    )
    if as_json:
        typer.echo(found.model_dump_json())
    else:
        render_search(standard_output(), found, folder)


@app.command("report")
def report(
    folder: Annotated[Path, typer.Argument(help="A comparison, finished or not.", metavar="OUT")],
    form: Annotated[Form, typer.Option("--format", help="Of the tables: text, markdown or latex.")] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="Print results and costs as JSON instead of tables.")] = False,
) -> None:
    """Make results and report of a comparison anew, from what is there."""
    _print_comparison(folder, refresh(folder), form, as_json=as_json)


@app.command("demo")
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for what the demonstration writes.", metavar="DIR")] = Path(
        "paml-demo"
    ),
) -> None:
    """Compare every method and baseline on the embedded data set, and write a report."""
    result = run_demo(out, for_terminal())
    console = standard_output()
    render_comparison(console, result.results, "text", {"comparison"})
    best = paml.describe(result.data)["source"]["facts"]["best_mse"]
    console.print(f"The ratings' own noise: no predictor can have a smaller MSE than {best:.3f} (seed 0's test users).")
    if result.left_out:
        console.print(f"Not installed, so left out: {', '.join(result.left_out)} (pip install 'paml[baselines]').")
    console.print(f"report: {result.folder / 'report.html'}", markup=False, soft_wrap=True)
    console.print("next, with your own data: paml data inspect ratings.csv users.csv items.csv", soft_wrap=True)


def _chosen(text: str) -> list[str] | None:
    """Names separated by commas; None for all."""
    if text == "all":
        return None
    return [] if text == "none" else [name.strip() for name in text.split(",") if name.strip()]


def _print_comparison(folder: Path, results: Results, form: Form, *, as_json: bool) -> None:
    if as_json:
        typer.echo(results.model_dump_json())
        return
    render_comparison(standard_output(), results, form)
    standard_output().print(f"report: {folder / 'report.html'}", markup=False, soft_wrap=True)


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False))
