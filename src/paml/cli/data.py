"""The commands that make and show data sets: parse, call, render."""

import os
import stat
import sys
from pathlib import Path
from typing import Annotated

import typer

from paml.cli.options import Commands, interruptible, print_json, same_command
from paml.cli.show import (
    render_description,
    render_preparation,
    settings_of,
    settings_table,
    standard_output,
)
from paml.terminal import printable

data_app = typer.Typer(help="Prepare and look at data sets.", cls=Commands, no_args_is_help=True)


@data_app.command("list")
def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """List the sources that can be prepared, with their settings, and the settings of the protocol."""
    from paml.data.protocol import Protocol
    from paml.data.sources import SOURCE_REGISTRY

    if as_json:
        sources = {
            s.name: {
                "summary": s.summary,
                "settings": settings_of(s.settings),
                "protocol": dict(s.protocol(s.settings())),
            }
            for s in SOURCE_REGISTRY.all().values()
        }
        print_json({"sources": sources, "protocol": settings_of(Protocol)})
        return
    console = standard_output()
    for source in SOURCE_REGISTRY.all().values():
        path = "fetched, or --from PATH" if source.archive else "needs --from PATH" if source.takes else ""
        console.print(f"[bold]{source.name}[/bold]  {source.summary}  [dim]{path}[/dim]", soft_wrap=True)
        console.print(settings_table(source.settings))
        for name, value in source.protocol(source.settings()).items():
            console.print(f"  {name}={value}  [dim]of the protocol, with another default here[/dim]", soft_wrap=True)
    console.print("[bold]protocol[/bold]  settings of every source")
    console.print(settings_table(Protocol))


@data_app.command("inspect")
def inspect_command(
    files: Annotated[list[Path], typer.Argument(help="One to three tables: interactions, users, items, in any order.")],
    target: Annotated[
        str | None, typer.Option("--target", help="Column to predict, if several would fit.", metavar="COLUMN")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Schema file to write; printed if not given.", metavar="FILE")
    ] = None,
) -> None:
    """Guess the schema of your own tables, with the reason for every guess."""
    from paml.data.infer.render import inspect_files, refuse_existing

    if out is not None:
        refuse_existing(out)
    found = inspect_files(files, _folder_of_output() if out is None else out.parent, target=target)
    for problem in (*found.gaps, *found.doubts):
        typer.echo(printable(f"warning: {problem}"), err=True)
    if out is None:
        typer.echo(found.text, nl=False)
        return
    found.write(out)
    steps = f"read {out}, then: paml data prepare tables --schema {out}"
    standard_output().print(f"next: {steps}", markup=False, soft_wrap=True)


def _folder_of_output() -> Path:
    """Where the schema that is printed will lie, if the shell writes it to a file and the system tells which.

    Otherwise the root, so that all paths in the schema are absolute, and found wherever it is saved.
    """
    try:
        descriptor = sys.stdout.fileno()
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and path.is_file():
            return path.parent
    except (AttributeError, OSError, ValueError):  # closed, no such system, no real file
        pass
    return Path(Path.cwd().anchor)


@data_app.command("prepare")
def prepare_command(
    source: Annotated[str, typer.Argument(help="Name of the source; `paml data list` shows them.", metavar="SOURCE")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="Settings of the source and of the protocol, such as users=500 seed=1.", metavar="key=value"
        ),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Folder or archive to read; otherwise the official one is fetched.", metavar="PATH"
        ),
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
        bool, typer.Option("--skip-bad-lines", help="Skip and count lines that cannot be read, instead of stopping.")
    ] = False,
) -> None:
    """Turn raw tables into a prepared data set, following the paper's protocol."""
    from paml.data.prepare import prepare
    from paml.progress import for_terminal
    from paml.settings import parse_assignments

    with interruptible(f"nothing half-written was kept; to begin again: {same_command()}"):
        data = prepare(
            source,
            path,
            out,
            extra=extra,
            schema=schema,
            skip_bad_lines=skip_bad_lines,
            progress=for_terminal(),
            settings=parse_assignments(settings or []),
        )
    render_preparation(standard_output(), data)


@data_app.command("describe")
def describe_command(
    folder: Annotated[Path, typer.Argument(help="A prepared data set.", metavar="DIR")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read everything and compare it with its checksums first.")
    ] = False,
) -> None:
    """Show sizes, splits, the target's histogram, rows per user, common values, and major and minor users."""
    from paml.data.dataset import Dataset
    from paml.data.describe import describe

    data = Dataset.open(folder)
    if verify:
        data.verify()
    facts = describe(data)
    if as_json:
        print_json(facts)
    else:
        render_description(standard_output(), facts)
