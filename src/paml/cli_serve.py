"""The commands that use a trained run: parse, call, render."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from paml.errors import SettingsError

serve_app = typer.Typer()

RunArgument = Annotated[Path, typer.Argument(help="A run made by `paml train`.", metavar="RUN")]


@serve_app.command("serve")
def serve(
    path: RunArgument,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; any but this machine's own needs a key.")
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
    batch: Annotated[int, typer.Option("--batch", help="Users adapted together at most.", min=1, max=1024)] = 32,
    threads: Annotated[int, typer.Option("--threads", help="Threads to use; 0 for one per core.", min=0)] = 0,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option("--log-level", help="What to log; `warning` leaves out single requests."),
    ] = "info",
    new_key: Annotated[
        str | None, typer.Option("--new-key", help="Make a key, print it once, and exit.", metavar="NAME")
    ] = None,
    revoke_key: Annotated[
        str | None, typer.Option("--revoke-key", help="End a key's validity, and exit.", metavar="NAME")
    ] = None,
    list_keys: Annotated[bool, typer.Option("--list-keys", help="List the keys' names, and exit.")] = False,
) -> None:
    """Serve a trained run over HTTP: users and their ratings in a store, recommendations out, and a page to try it."""
    try:
        from paml.serve.limits import Limits
        from paml.serve.server import Address, Options, open_store, serve as serve_run
    except ModuleNotFoundError as error:
        raise SettingsError(f"{error.name} is not installed", remedy="pip install 'paml[serve]'") from None
    if new_key is not None or revoke_key is not None or list_keys:
        opened = open_store(path, store)
        try:
            if new_key is not None:
                typer.echo(opened.add_key(new_key))
            if revoke_key is not None and not opened.revoke_key(revoke_key):
                raise SettingsError(f"there is no key named '{revoke_key}'", remedy="--list-keys shows them")
            for key in opened.keys() if list_keys else ():
                typer.echo(f"{key.created.isoformat()}  {key.name}")
        finally:
            opened.close()
        return
    address = Address(host, port, tuple(name or ()))
    serve_run(path, Options(address, store, Limits(per_second=rate), batch, threads, log_level))
