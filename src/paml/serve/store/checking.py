"""Whether a store is whole: the database's own check, and whether its rows can be what paml has written."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, inspect, select, text

from paml.errors import FormatError, StoreUnavailable
from paml.serve.store.api_keys import SCOPES
from paml.serve.store.copying import digest, get_counter, tables
from paml.serve.store.database import Database
from paml.serve.store.migrations import STEPS, version_of
from paml.serve.store.schema import BACKUP, keys, ratings, state, users

SHOWN = 20  # faults of a kind
DIGEST = re.compile("[0-9a-f]{64}")


@dataclass
class Report:
    """What a store holds, and what is wrong with it."""

    version: int = 0
    users: int = 0
    ratings: int = 0
    keys: int = 0
    is_backup: bool = False
    faults: list[str] = field(default_factory=list)

    @property
    def is_old(self) -> bool:
        """Whether the next start of the service will migrate it."""
        return self.version < len(STEPS)


def check(url: str) -> Report:
    """Read everything in a store (or a backup) as of one moment; it may be in use meanwhile."""
    database = Database(url, create=False)
    try:
        with database.reading() as connection:
            return inspect_store(connection, database.where)
    except StoreUnavailable as error:
        if database.file is None or "lock" in error.what:
            raise
        raise FormatError(error.what, where=error.where, remedy="restore a backup") from None
    finally:
        database.close()


def inspect_store(connection: Connection, where: str) -> Report:
    """The report of one transaction."""
    report = Report()
    if connection.dialect.name == "sqlite":
        found = connection.exec_driver_sql(f"PRAGMA integrity_check({SHOWN})").scalars().all()
        report.faults += [f"the file is damaged: {line}" for line in found if line != "ok"]
        for row in connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(SHOWN):
            report.faults.append(f"a row of {row[0]} belongs to no user")
        if report.faults:
            return report  # what else it says cannot be trusted
    report.version = version_of(connection, where)
    for name in ("users", "ratings", "keys"):
        table = {"users": users, "ratings": ratings, "keys": keys}[name]
        setattr(report, name, connection.execute(select(func.count()).select_from(table)).scalar_one())
    for faults in (_of_users(connection), _of_ratings(connection), _of_keys(connection), _of_state(connection)):
        report.faults += [fault for _, fault in zip(range(SHOWN), faults, strict=False)]
    report.is_backup = inspect(connection).has_table(BACKUP)
    if report.is_backup:
        kept = connection.execute(text(f"SELECT digest FROM {BACKUP}")).scalars().all()  # noqa: S608 - a constant
        if kept != [digest(connection)]:
            report.faults.append("the backup does not hold what was written into it")
    return report


def _of_users(connection: Connection) -> Iterator[str]:
    last = get_counter(connection)
    for number, profile, version in connection.execute(select(users.c.number, users.c.profile, users.c.version)):
        if not _is_object(profile):
            yield f"the profile of user number {number} is not a JSON object"
        if not 0 < number <= version <= last:
            yield f"user number {number} has the version {version}, and the last one given was {last}"


def _of_ratings(connection: Connection) -> Iterator[str]:
    latest = select(users.c.number, users.c.version.label("latest")).subquery()
    columns = ratings.c.number, ratings.c.value, ratings.c.context, ratings.c.version, latest.c.latest
    rows = select(*columns).join(latest, latest.c.number == ratings.c.number)
    for number, value, context, version, newest in connection.execute(rows):
        if not isinstance(value, int | float) or not math.isfinite(value):
            yield f"a rating of user number {number} is not a number"
        if not _is_object(context):
            yield f"the context of a rating of user number {number} is not a JSON object"
        if not 0 < version <= newest:
            yield f"a rating of user number {number} has the version {version}, which is not one of theirs"


def _of_keys(connection: Connection) -> Iterator[str]:
    table = tables(connection)[keys.name]
    for row in connection.execute(select(table)).mappings():
        if not DIGEST.fullmatch(row["digest"]) or row.get("scope", "admin") not in SCOPES:
            yield f"the key '{row['name']}' cannot be one that paml has made"


def _of_state(connection: Connection) -> Iterator[str]:
    if state.name not in tables(connection):
        return
    found = connection.execute(select(state.c.users, state.c.keyed)).all()
    if len(found) != 1:
        yield f"the table {state.name} should hold one row, but holds {len(found)}"
        return
    there = connection.execute(select(func.count()).select_from(users)).scalar_one()
    if found[0].users != there:
        yield f"{found[0].users:,} users are counted, and there are {there:,}"
    if not found[0].keyed and connection.execute(select(keys.c.name)).first():
        yield "there are keys, and the store does not ask for one"


def _is_object(value: str) -> bool:
    try:
        return isinstance(json.loads(value), dict)
    except (ValueError, TypeError, RecursionError):
        return False
