"""The commands that train, evaluate and tune one method: parse, call, render."""

from pathlib import Path
from typing import Annotated

import typer

from paml.cli.options import (
    JobsOption,
    JobThreadsOption,
    LikedOption,
    MethodOption,
    NamingCommand,
    RecipeOption,
    ThreadsOption,
    interruptible,
    print_json,
    print_model,
    same_command,
    use_threads,
)
from paml.cli.show import render_evaluation, render_search, render_training, standard_output
from paml.errors import SettingsError

train_app = typer.Typer()


@train_app.command("train", cls=NamingCommand)
def train_command(
    folder: Annotated[Path, typer.Argument(help="A prepared data set.", metavar="DIR")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="Settings that replace the recipe's, such as epochs=5 gamma=0.01.", metavar="key=value"),
    ] = None,
    method: MethodOption = "ridge",
    recipe: RecipeOption = "tuned",
    seed: Annotated[int, typer.Option("--seed", help="Seed of weights and episodes.", min=0, max=2**63 - 1)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder of the run; paml-runs/SOURCE-METHOD-RECIPE-SEED if not given.", metavar="RUN"
        ),
    ] = None,
    reuse: Annotated[
        bool, typer.Option("--resume", help="Continue what was interrupted; if it has finished, show it.")
    ] = False,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, or cuda.")] = "auto",
    parallel: Annotated[
        str, typer.Option("--parallel", help="With torchrun: processes share users, or members.", metavar="WHAT")
    ] = "users",
    threads: ThreadsOption = 0,
    log: Annotated[
        list[str] | None,
        typer.Option(
            "--log", help="Also log to tensorboard:DIR, mlflow[:URI] or wandb[:PROJECT]; repeatable.", metavar="LOGGER"
        ),
    ] = None,
) -> None:
    """Train a method on a prepared data set."""
    from paml.progress import for_terminal
    from paml.settings import parse_assignments
    from paml.training.ranks import is_first_process
    from paml.training.train import train

    use_threads(threads)
    with interruptible(f"to go on: {same_command('--resume')}"):
        run = train(
            folder,
            method,
            recipe,
            seed=seed,
            out=out,
            reuse=reuse,
            device=device,
            parallel=parallel,
            log=log or (),
            progress=for_terminal(),
            settings=parse_assignments(settings or []),
        )
    if is_first_process():
        render_training(standard_output(), run)


@train_app.command("evaluate")
def evaluate_command(
    run: Annotated[Path, typer.Argument(help="A run made by `paml train`.", metavar="RUN")],
    data: Annotated[
        Path | None, typer.Option("--data", help="The data set it was trained on, if it was moved.", metavar="DIR")
    ] = None,
    split: Annotated[
        str, typer.Option("--split", help="Users to evaluate: validation, test, or known (with new items).")
    ] = "test",
    liked: LikedOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Adapt to every test user, score and rank for all, major and minor users; RUN/rows.parquet has a row per user."""
    from paml.experiments.evaluate import evaluate

    if split not in ("validation", "test", "known"):
        raise SettingsError(f"split '{split}'", remedy="expected validation, test or known")
    result = evaluate(run, data, split, liked=liked)  # type: ignore[arg-type]
    if as_json:
        print_json(result)
    else:
        render_evaluation(standard_output(), result)


@train_app.command("tune", cls=NamingCommand)
def tune_command(
    folder: Annotated[Path, typer.Argument(help="A prepared data set.", metavar="DIR")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Settings held fixed in all trials.", metavar="key=value")
    ] = None,
    method: MethodOption = "ridge",
    recipe: RecipeOption = "tuned",
    budget: Annotated[
        str, typer.Option("--budget", help="Trials (30), a time (90s, 20m, 1h), or both (30,20m).", metavar="BUDGET")
    ] = "30",
    seed: Annotated[int, typer.Option("--seed", help="Seed of search and trainings.", min=0, max=2**63 - 1)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder; a search in it continues. paml-tune/SOURCE-METHOD if not given.", metavar="OUT"
        ),
    ] = None,
    space: Annotated[
        Path | None, typer.Option("--space", help="TOML file of the settings to search.", metavar="FILE")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by", help="Metric that judges trials, such as ndcg10; the loss if not given.", metavar="METRIC"
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            help="Journal file, or URL of a database, of a search that several commands share.",
            metavar="URL",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    jobs: JobsOption = 1,
    threads: JobThreadsOption = 0,
) -> None:
    """Search for better settings of a method, judged by validation users, and write them as a recipe."""
    from paml.experiments.tuning.search import tune
    from paml.progress import for_terminal
    from paml.settings import parse_assignments

    use_threads(threads)
    with interruptible(f"the same command goes on: {same_command()}"):
        found = tune(
            folder,
            method,
            recipe,
            budget=budget,
            seed=seed,
            out=out,
            space=space,
            by=by,
            jobs=jobs,
            threads_per_job=threads or 1,
            storage=storage,
            progress=for_terminal(),
            settings=parse_assignments(settings or []),
        )
    if as_json:
        print_model(found)
    else:
        render_search(standard_output(), found, folder)
