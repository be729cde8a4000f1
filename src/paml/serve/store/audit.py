"""The audit log: which key changed what and when, written by the transaction that makes the change.

So there is no change without an entry and no entry without a change. Entries name keys and kinds of changes, never
users, items or values: a log that outlives a deleted user says nothing about them.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from sqlalchemy import Connection, delete, insert, select

from paml.serve.store.schema import audit

DAYS = 90  # for which entries are kept
NOBODY = "-"  # a caller without a key: the service on the loopback address, or a command

What = Literal["put user", "delete user", "add ratings", "remove rating", "new key", "revoke key", "restore"]


@dataclass(frozen=True)
class Entry:
    """One change."""

    moment: datetime
    who: str
    what: str
    about: str
    """The name of the key that was made or revoked; empty for changes of users."""


_ADD = insert(audit)
_NEWEST = select(audit).order_by(audit.c.moment.desc())


def record(connection: Connection, who: str, what: What, about: str = "") -> None:
    """Write an entry into the caller's transaction."""
    connection.execute(_ADD, {"moment": _text(datetime.now(UTC)), "who": who, "what": what, "about": about})


def newest(connection: Connection, limit: int) -> list[Entry]:
    """The last entries, the newest first."""
    rows = connection.execute(_NEWEST.limit(limit))
    return [Entry(datetime.fromisoformat(row.moment), row.who, row.what, row.about) for row in rows]


def prune(connection: Connection) -> int:
    """Remove what is too old; how many entries."""
    oldest = _text(datetime.now(UTC) - timedelta(days=DAYS))
    return connection.execute(delete(audit).where(audit.c.moment < oldest)).rowcount


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")  # always of the same length, so that texts sort as times do
