"""Keys that open the service: the secret is shown once, its SHA-256 is kept, several are valid at once.

A secret of 256 random bits needs no slow hash: it cannot be guessed, only stolen. To rotate: add a key, move the
clients to it, revoke the old one.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError

from paml.errors import SettingsError
from paml.serve.store.schema import keys

_ALL = select(keys.c.name, keys.c.digest)
PREFIX = "paml_"  # so that scanners for leaked keys find it


@dataclass(frozen=True)
class Key:
    """What is known about a key, without its secret."""

    name: str
    created: datetime


def add(connection: Connection, name: str) -> str:
    """Make a key and return its secret, which nobody can show again."""
    secret = PREFIX + secrets.token_urlsafe(32)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        connection.execute(insert(keys).values(name=name, digest=digest_of(secret), created=created))
    except IntegrityError:
        raise SettingsError(
            f"there is a key named '{name}' already", remedy="choose another name, or revoke that one first"
        ) from None
    return secret


def listed(connection: Connection) -> list[Key]:
    """All valid keys, the oldest first."""
    rows = connection.execute(select(keys.c.name, keys.c.created).order_by(keys.c.created, keys.c.name))
    return [Key(row.name, datetime.fromisoformat(row.created)) for row in rows]


def revoke(connection: Connection, name: str) -> bool:
    """End a key's validity at once; False if there is none of that name."""
    return connection.execute(delete(keys).where(keys.c.name == name)).rowcount > 0


def check(connection: Connection, secret: str) -> str | None:
    """The name of the key with this secret; all keys are compared, each in constant time."""
    digest = digest_of(secret)
    found = None
    for row in connection.execute(_ALL):
        if hmac.compare_digest(row.digest, digest):
            found = row.name
    return found


def digest_of(secret: str) -> str:
    """SHA-256 of a secret, hexadecimal; any text has one."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
