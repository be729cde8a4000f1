"""The commands that use a trained run: parse, call, render."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from paml.cli.options import print_json
from paml.cli.show import render_recommendations, standard_output
from paml.errors import SettingsError, shortened

if TYPE_CHECKING:
    from paml.serve.store.api_keys import Key

serve_app = typer.Typer()

RunArgument = Annotated[Path, typer.Argument(help="A run made by `paml train`.", metavar="RUN")]


@serve_app.command("recommend")
def recommend_command(
    path: RunArgument,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile", help="What is known about the user, such as age=25; repeatable.", metavar="FIELD=VALUE"
        ),
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option("--rate", help="A rating by the user, such as 318=5; repeatable.", metavar="ITEM=SCORE"),
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option("--context", help="The context the items will be shown in; repeatable.", metavar="FIELD=VALUE"),
    ] = None,
    number: Annotated[int, typer.Option("-n", help="How many items.", min=1)] = 10,
    why: Annotated[bool, typer.Option("--why", help="Add the ratings that moved each score most.")] = False,
    by: Annotated[
        str | None,
        typer.Option(
            "--by", help="What orders the list: preference, choice or rating; by default the first that is known."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Recommend items to a new user, given a profile and a few ratings."""
    from paml.recommend.preference import check_order
    from paml.recommend.requests import Rating
    from paml.recommend.user import as_answer
    from paml.settings import parse_assignments
    from paml.training.run import Run

    ratings = [Rating(*_rated(text)) for text in rate or ()]
    user = Run.load(path).adapt(parse_assignments(profile or []), ratings)
    where = parse_assignments(context or []) or None
    order = check_order(by, user.predictor.orders)
    found = user.recommend(number, context=where, by=order)
    reasons = user.reasons([entry.item for entry in found], context=where, by=order) if why else [[] for _ in found]
    if as_json:
        print_json(as_answer(user, found, reasons))
    else:
        render_recommendations(standard_output(), user, found, reasons, order)


def _rated(text: str) -> tuple[str, float]:
    """`318=5`: item and value; an id may contain an equals sign."""
    item, sign, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = None
    if not sign or not item or number is None:
        raise SettingsError(
            f"--rate '{shortened(text)}' is not a rating", remedy="write it as ITEM=SCORE, such as 318=5"
        )
    return item, number


@serve_app.command("serve")
def serve_command(
    path: RunArgument,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; all but the loopback address need a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0 for a free one.", min=0, max=65535)] = 8000,
    store: Annotated[
        str | None,
        typer.Option(
            "--store", help="sqlite:///FILE or postgresql://...; RUN/users.sqlite if not given.", metavar="URL"
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="A host name by which a proxy calls the service; repeatable.", metavar="NAME"),
    ] = None,
    rate: Annotated[
        float, typer.Option("--rate", help="Requests per second of one key or address; 0 for any number.", min=0)
    ] = 100,
    max_wait: Annotated[
        float,
        typer.Option(
            "--max-wait",
            help="Seconds that an answer may be expected to take; 503 at once if longer, 0 for any.",
            min=0,
        ),
    ] = 2,
    connections: Annotated[
        int, typer.Option("--connections", help="Open connections of one address at most.", min=1)
    ] = 512,
    drain: Annotated[
        float,
        typer.Option(
            "--drain", help="Seconds to go on after being told to stop, while /readyz says no.", min=0, max=600
        ),
    ] = 1,
    batch: Annotated[
        int, typer.Option("--batch", help="Adapt at most this many users together.", min=1, max=1024)
    ] = 32,
    threads: Annotated[
        int, typer.Option("--threads", help="Threads for the model's products; 0 for one per core.", min=0)
    ] = 1,
    workers: Annotated[
        int,
        typer.Option("--workers", help="Processes that serve, with one copy of the model in memory.", min=1, max=64),
    ] = 1,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option("--log-level", help="What to log; `warning` omits single requests."),
    ] = "info",
    max_users: Annotated[
        int, typer.Option("--max-users", help="Users that the store may hold; 0 for any number.", min=0)
    ] = 1_000_000,
    new_key: Annotated[
        str | None, typer.Option("--new-key", help="Make a key, print it once, and exit.", metavar="NAME")
    ] = None,
    scope: Annotated[
        Literal["read", "write", "admin"] | None,
        typer.Option(
            "--scope", help="What a new key opens: reading; storing, too (if not given); or also the audit log."
        ),
    ] = None,
    expires: Annotated[
        int | None,
        typer.Option(
            "--expires", help="Days after which a new key ends; never if not given.", min=1, max=36_500, metavar="DAYS"
        ),
    ] = None,
    revoke_key: Annotated[
        str | None, typer.Option("--revoke-key", help="End a key's validity, and exit.", metavar="NAME")
    ] = None,
    list_keys: Annotated[bool, typer.Option("--list-keys", help="List the keys, and exit.")] = False,
) -> None:
    """Serve a trained run over HTTP: users and their ratings in a store, recommendations out, and a page to try it."""
    try:
        from paml.serve.limits import Limits
        from paml.serve.server import Address, Options, open_store, serve
        from paml.serve.store.values import check_name
    except ModuleNotFoundError as error:
        raise SettingsError(f"{error.name} is not installed", remedy="pip install 'paml[serve]'") from None
    if new_key is None and (scope or expires):
        raise SettingsError("a scope and an end are given to a new key", remedy="name it", argument="new_key")
    asked = [new_key is not None, revoke_key is not None, list_keys]
    if sum(asked) > 1:
        raise SettingsError("--new-key, --revoke-key and --list-keys are commands of their own", remedy="give only one")
    if any(asked):
        if new_key is not None:
            check_name(new_key)
        opened = open_store(path, store, create=new_key is not None)
        try:
            if new_key is not None:
                typer.echo(
                    opened.add_key(new_key, scope or "write", None if expires is None else timedelta(days=expires))
                )
            if revoke_key is not None and not opened.revoke_key(revoke_key):
                raise SettingsError(f"there is no key named '{revoke_key}'", remedy="--list-keys shows them")
            for key in opened.keys() if list_keys else ():
                typer.echo(_key_line(key))
        finally:
            opened.close()
        return
    address = Address(host, port, tuple(name or ()))
    limits = Limits(per_second=rate, max_wait=max_wait, connections=connections)
    serve(path, Options(address, store, limits, batch, threads, log_level, max_users, drain, workers))


def _key_line(key: "Key") -> str:
    """`2026-11-17T10:00:00+00:00  write  until 2027-...  phone`; the name may have been made by an older version."""
    from paml.terminal import printable

    until = "no end" if key.expires is None else f"until {key.expires.isoformat()}"
    ended = " (over)" if key.has_expired() else ""
    return f"{key.created.isoformat()}  {key.scope:5}  {until}{ended}  {printable(key.name)}"
