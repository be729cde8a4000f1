"""The commands that compare methods and write reports: parse, call, render."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from paml.cli.options import (
    JobsOption,
    JobThreadsOption,
    LikedOption,
    NamingCommand,
    RecipeOption,
    interruptible,
    print_model,
    same_command,
    use_threads,
)
from paml.cli.show import render_comparison, standard_output
from paml.errors import TrainingError

if TYPE_CHECKING:
    from paml.analysis.results import Results

compare_app = typer.Typer()

Form = Literal["text", "markdown", "latex"]
FormOption = Annotated[Form, typer.Option("--format", help="Of the tables: text, markdown or latex.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print results and costs as JSON instead of tables.")]


@compare_app.command("compare", cls=NamingCommand)
def compare_command(
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
        typer.Option("--methods", help="Methods, separated by commas; all (of recipe paper, its six), or none."),
    ] = "all",
    baselines: Annotated[
        str, typer.Option("--baselines", help="Baselines, separated by commas; all, or none.")
    ] = "all",
    variant: Annotated[
        list[str] | None,
        typer.Option("--variant", help="A method with other settings, such as 'reg_paml gamma=0.01'; repeatable."),
    ] = None,
    ablation: Annotated[
        bool,
        typer.Option("--ablation", help="Add the paper's ablation of gamma, its failure case, and two more variants."),
    ] = False,
    seeds: Annotated[int, typer.Option("--seeds", help="Trials, each with its own weights and users.", min=1)] = 3,
    same_split: Annotated[
        bool, typer.Option("--same-split", help="Keep the data set's own split of users in all trials.")
    ] = False,
    recipe: RecipeOption = "tuned",
    group_by: Annotated[
        str | None, typer.Option("--group-by", help="A user field whose values are also compared.", metavar="FIELD")
    ] = None,
    liked: LikedOption = None,
    form: FormOption = "text",
    as_json: JsonOption = False,
    jobs: JobsOption = 1,
    dask: Annotated[
        str | None,
        typer.Option("--dask", help="Dask scheduler whose workers to use, such as tcp://HOST:8786.", metavar="ADDRESS"),
    ] = None,
    threads: JobThreadsOption = 0,
) -> None:
    """Compare methods and baselines over several trials: tables, tests, figures and a report."""
    from paml.experiments.compare import ABLATION, compare
    from paml.progress import for_terminal
    from paml.settings import parse_assignments

    use_threads(threads)
    with interruptible(f"the same command goes on: {same_command()}"):
        results = compare(
            folder,
            _chosen(methods),
            seeds,
            recipe,
            out=out,
            baselines=_chosen(baselines),
            variants=[*(variant or []), *(ABLATION if ablation else ())],
            same_split=same_split,
            group_by=group_by,
            liked=liked,
            jobs=jobs,
            threads_per_job=threads or 1,
            dask=dask,
            progress=for_terminal(),
            settings=parse_assignments(settings or []),
        )
    _print_comparison(out, results, form, as_json=as_json)
    for cell in results.failed:
        what = f"{cell.method} with seed {cell.seed} failed: {cell.reason}"
        raise TrainingError(what, remedy="lower its rates, or leave it out", argument="methods")


@compare_app.command("report")
def report_command(
    folder: Annotated[Path, typer.Argument(help="A comparison, finished or not.", metavar="OUT")],
    form: FormOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Rebuild results and report of a comparison from its finished cells."""
    from paml.report.refresh import refresh

    _print_comparison(folder, refresh(folder), form, as_json=as_json)


@compare_app.command("demo")
def demo_command(
    clicks: Annotated[bool, typer.Option("--clicks", help="On the embedded clicks, instead of the ratings.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder to write; paml-demo, or paml-demo-clicks, if not given.", metavar="DIR"),
    ] = None,
) -> None:
    """Compare every method and baseline on the embedded data set, and write a report."""
    from paml.baselines import find_baseline
    from paml.data.describe import describe
    from paml.experiments.demo import run_demo
    from paml.progress import for_terminal

    folder = out or Path("paml-demo-clicks" if clicks else "paml-demo")
    with interruptible(f"the same command goes on: {same_command()}"):
        result = run_demo(folder, "click" if clicks else "rating", for_terminal())
    console = standard_output()
    render_comparison(console, result.results, "text", {"comparison", "lists", "list_orders"})
    target, metric = ("clicks", "NEL") if clicks else ("ratings", "MSE")
    best = describe(result.data)["source"]["facts"][f"best_{metric.lower()}"]
    low = f"no predictor can have a lower {metric} than {best:.3f}"
    console.print(f"The {target}' own noise: {low} (seed 0's test users).")
    if result.left_out:
        extras = ",".join(sorted({find_baseline(name).extra for name in result.left_out}))
        missing = f"Not installed, so excluded: {', '.join(result.left_out)} (pip install 'paml[{extras}]')."
        console.print(missing, markup=False)
    console.print(f"report: {result.folder / 'report.html'}", markup=False, soft_wrap=True)
    console.print("next, with your own data: paml data inspect ratings.csv users.csv items.csv", soft_wrap=True)


def _chosen(text: str) -> list[str] | None:
    """Names separated by commas; None for all."""
    if text == "all":
        return None
    return [] if text == "none" else [name.strip() for name in text.split(",") if name.strip()]


def _print_comparison(folder: Path, results: "Results", form: Form, *, as_json: bool) -> None:
    if as_json:
        print_model(results)
        return
    console = standard_output()
    render_comparison(console, results, form)
    console.print(f"report: {folder / 'report.html'}", markup=False, soft_wrap=True)
