"""The commands about a service's store: backups, checks, and who changed what."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paml.cli.options import Commands, print_json
from paml.errors import FormatError, SettingsError

if TYPE_CHECKING:
    from paml.serve.store.checking import Report

store_app = typer.Typer(help="Back up, restore and check the users of a service.", cls=Commands, no_args_is_help=True)

StoreArgument = Annotated[
    str,
    typer.Argument(
        help="sqlite:///FILE, postgresql://..., a file, or a run with a store in its folder.", metavar="STORE"
    ),
]


@store_app.command("backup")
def backup_command(
    store: StoreArgument,
    file: Annotated[Path, typer.Argument(help="File to write; it must not exist.", metavar="FILE")],
) -> None:
    """Write everything that a store holds into one file, also while the service runs."""
    _need_serving()
    from paml.serve.store.backup import back_up

    typer.echo(f"{file}: {_summary(back_up(_url(store), file))}")


@store_app.command("restore")
def restore_command(
    file: Annotated[Path, typer.Argument(help="A backup.", metavar="FILE")],
    store: StoreArgument,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the users of a store that is not empty; its keys stay.")
    ] = False,
) -> None:
    """Make a store what a backup holds; refused while a service has an SQLite store open."""
    _need_serving()
    from paml.serve.store.restoring import restore

    done = restore(file, _url(store), replace=replace)
    typer.echo(f"{store}: {_summary(done.report)}")
    if done.own_keys:
        typer.echo("keys and audit log are those that the store had before")
    if done.kept is not None:
        typer.echo(f"the store as it was: {done.kept}; remove it when it is no longer needed")


@store_app.command("check")
def check_command(
    store: StoreArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a sentence.")] = False,
) -> None:
    """Read everything in a store or a backup and say what is wrong with it, also while the service runs."""
    _need_serving()
    from paml.serve.store.checking import check

    url = _url(store)
    report = check(url)
    if as_json:
        print_json({**vars(report), "is_old": report.is_old})
    else:
        for fault in report.faults:
            typer.echo(_shown(fault))
        typer.echo(_summary(report))
    if report.faults:
        count = f"{len(report.faults)} fault{'s' if len(report.faults) > 1 else ''} found"
        raise FormatError(count, where=store, remedy="restore a backup")


@store_app.command("audit")
def audit_command(
    store: StoreArgument,
    number: Annotated[int, typer.Option("-n", help="How many entries, the newest first.", min=1)] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Show which key changed what and when."""
    _need_serving()
    from paml.serve.store.audit import newest
    from paml.serve.store.database import Database
    from paml.serve.store.migrations import version_of

    database = Database(_url(store), create=False)
    try:
        with database.reading() as connection:
            entries = newest(connection, number) if version_of(connection, database.where) > 1 else []
    finally:
        database.close()
    if as_json:
        print_json({"entries": [{**vars(entry), "moment": entry.moment.isoformat()} for entry in entries]})
        return
    for entry in entries:
        typer.echo(
            _shown(f"{entry.moment.isoformat(timespec='seconds')}  {entry.who}  {entry.what} {entry.about}".rstrip())
        )


def _need_serving() -> None:
    try:
        import sqlalchemy  # noqa: F401
    except ModuleNotFoundError as error:
        raise SettingsError(f"{error.name} is not installed", remedy="pip install 'paml[serve]'") from None


def _url(store: str) -> str:
    """The address of a store, however it was named."""
    from paml.serve.store.database import file_url

    if "://" in store:
        return store
    path = Path(store)
    return file_url(path / "users.sqlite" if path.is_dir() else path)


def _summary(report: "Report") -> str:
    held = f"{report.users:,} users, {report.ratings:,} ratings, {report.keys:,} keys"
    old = ", of an older version, which the service migrates when it starts" if report.is_old else ""
    return f"{held}{old}"


def _shown(text: str) -> str:
    from paml.terminal import printable

    return printable(text)
