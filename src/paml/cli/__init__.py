"""The command line: parse, call, render. Exit codes: 0 done, 1 a PamlError in one line, 2 invalid usage.

data     sources and prepared data sets
train    training, evaluation and search of one method
compare  comparisons, their reports, and the demonstration
serve    a trained run in use
store    the users of a service: backups, checks, the audit log
show     what commands show on a terminal
options  shared by several commands

Modules import what they need when a command runs: `paml --help` does not wait for PyTorch.
"""

import codecs
import signal
import sys
import warnings
from io import TextIOWrapper
from typing import Annotated, TextIO

import typer
from rich.console import Console

from paml.cli.compare import compare_app
from paml.cli.data import data_app
from paml.cli.options import Commands
from paml.cli.serve import serve_app
from paml.cli.store import store_app
from paml.cli.train import train_app
from paml.errors import PamlError

app = typer.Typer(
    name="paml",
    help="Cold-start recommendation: good after a handful of ratings, for unusual users as much as for typical ones.",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data")
app.add_typer(store_app, name="store")
for group in (train_app, compare_app, serve_app):
    app.add_typer(group)


PLAIN = dict(zip("−–—─━│┃┌┐└┘├┤…±×·↓↑→█■′’‘´“”", "-----||++++++.~x.v^>##''''\"\"", strict=True))
"""Our own signs in ASCII, one for one: columns stay columns, and -0.041 stays a number."""


def main() -> None:
    """Entry point: errors that are the input's fault become one line and exit code 1."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))  # so that nothing half-written stays
    warnings.showwarning = _show_warning
    _escape_what_is_lacking()
    try:
        app()
    except PamlError as error:
        _fail(" ".join([str(error), *getattr(error, "__notes__", ())]))
    except OSError as error:
        _fail(f"{error.filename or 'file system'}: {error.strerror or error}; check name, space and permissions")
    except _polars_errors() as error:
        _fail(f"a table cannot be read or written ({str(error).splitlines()[0]}); check the files and the disk")


def _escape_what_is_lacking() -> None:
    r"""Signs of ours that an output's encoding lacks become plain ones; other characters are written out (`\u6620`)."""
    codecs.register_error("paml", _without_lacking)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="paml")


def _without_lacking(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    plain = (PLAIN.get(one) or one.encode("ascii", "backslashreplace").decode("ascii") for one in lacking)
    return "".join(plain), error.end


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning in a line; where in the code it arose helps only those who wrote it."""
    if category.__name__ == "PluginWarning":
        _print_error(f"warning: {message}")
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))


def _polars_errors() -> tuple[type[BaseException], ...]:
    """What Polars raises, if the command has loaded it."""
    polars = sys.modules.get("polars")
    return () if polars is None else (polars.exceptions.PolarsError, polars.exceptions.PanicException)


def _fail(message: str) -> None:
    _print_error(f"error: {message}")
    sys.exit(1)


def _print_error(message: str) -> None:
    from paml.terminal import printable

    text = printable(message)  # it may repeat what a file or somebody else has written
    Console(stderr=True, soft_wrap=True, highlight=False, emoji=False).print(text, markup=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"paml {version('paml')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
