"""What commands share: options, help that is completed when it is shown, errors that name an option."""

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from paml.errors import PamlError, shortened
from paml.terminal import UNPRINTABLE

if TYPE_CHECKING:
    from pydantic import BaseModel

MethodOption = Annotated[str, typer.Option("--method", help="One of: {methods}.")]
RecipeOption = Annotated[
    str, typer.Option("--recipe", help="One of: {recipes}; or a recipe file of your own, FILE.toml.")
]
LikedOption = Annotated[
    float | None,
    typer.Option(
        "--liked",
        help="Lowest rating of an item that belongs on a user's list; three quarters of the scale if not given.",
    ),
]
ThreadsOption = Annotated[int, typer.Option("--threads", help="Threads to use; 0 for one per core.", min=0)]
JobThreadsOption = Annotated[
    int,
    typer.Option("--threads", help="Threads to use; 0 for one per core or, with several jobs, one for each.", min=0),
]
JobsOption = Annotated[int, typer.Option("--jobs", help="Processes of this machine to use at once.", min=1)]


def _methods() -> Iterable[str]:
    from paml.methods.registry import METHOD_REGISTRY

    return METHOD_REGISTRY.all()


def _recipes() -> Iterable[str]:
    from paml.training.recipe import recipe_names

    return recipe_names()


NAMES: dict[str, Callable[[], Iterable[str]]] = {"{methods}": _methods, "{recipes}": _recipes}


class NamingCommand(TyperCommand):
    """A command whose help names methods or recipes: they are imported when this help is shown, and not before."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Replace the placeholders by the names, and show the help."""
        for parameter in self.params:
            text = getattr(parameter, "help", None) or ""
            for place, names in NAMES.items():
                if place in text:
                    parameter.help = text = text.replace(place, ", ".join(names()))  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


class Commands(TyperGroup):
    """Commands whose errors name the option at fault: library messages only know the library's arguments."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; if an error is about an argument, the command's option for it is added as a note."""
        try:
            return super().invoke(ctx)
        except PamlError as error:
            for parameter in self.commands[ctx.invoked_subcommand].params:
                if parameter.name == error.argument and parameter.param_type_name == "option":
                    error.add_note(f"({parameter.opts[0]})")
            again = getattr(error, "again", None)
            if again is not None and not isinstance(self.commands[ctx.invoked_subcommand], Commands):
                options = [
                    part for name, value in again.options.items() for part in (f"--{name}", shortened(value, 200))
                ]
                error.add_note(f"({shlex.join(['paml', *(shortened(word, 200) for word in again.words), *options])})")
            raise


@contextmanager
def interruptible(how_to_go_on: str) -> Iterator[None]:
    """If a command is stopped, by Ctrl-C or by the system, say how to go on; its exit code stays that of the signal."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stopped:
        code = 130 if isinstance(stopped, KeyboardInterrupt) else stopped.code
        if not isinstance(code, int) or code <= 128:
            raise
        typer.echo(f"\nstopped; {how_to_go_on}", err=True)
        raise SystemExit(code) from None


def same_command(*more: str) -> str:
    """The command as it was typed, with further options unless it has them."""
    return shlex.join(["paml", *sys.argv[1:], *(option for option in more if option not in sys.argv)])


def use_threads(threads: int) -> None:
    """Let PyTorch use this many threads; 0 leaves it one per core."""
    import torch

    if threads:
        torch.set_num_threads(threads)


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on standard output, which escapes what its encoding may lack."""
    is_unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
    text = json.dumps(value, ensure_ascii=not is_unicode)  # a terminal would obey some characters above 127
    typer.echo(UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def print_model(model: "BaseModel") -> None:
    """The same of a model; numbers that are not finite are null."""
    print_json(json.loads(model.model_dump_json()))
