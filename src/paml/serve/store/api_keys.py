"""Keys that open the service: the secret is shown once, its SHA-256 is kept, several are valid at once.

A secret of 256 random bits needs no slow hash: it cannot be guessed, only stolen. To rotate: add a key, move the
clients to it, revoke the old one. A scope says what a key opens, and each scope includes those before it: `read` asks
and changes nothing, `write` also stores and deletes users, `admin` also reads the audit log.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

from sqlalchemy import Connection, Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from paml.errors import SettingsError
from paml.serve.store.schema import keys, state

Scope = Literal["read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

_ALL = select(keys)
PREFIX = "paml_"  # so that scanners for leaked keys find it


@dataclass(frozen=True)
class Key:
    """What is known about a key, without its secret."""

    name: str
    created: datetime
    scope: Scope = "write"
    expires: datetime | None = None

    def opens(self, needed: Scope) -> bool:
        """Whether the key's scope includes another."""
        return SCOPES.index(self.scope) >= SCOPES.index(needed)

    def has_expired(self) -> bool:
        """Whether its time is over."""
        return self.expires is not None and self.expires <= datetime.now(UTC)


def add(connection: Connection, name: str, scope: Scope = "write", lifetime: timedelta | None = None) -> str:
    """Make a key and return its secret, which nobody can show again; from now on the store asks for keys."""
    secret, now = PREFIX + secrets.token_urlsafe(32), datetime.now(UTC)
    try:
        expires = None if lifetime is None else (now + lifetime).isoformat(timespec="seconds")
    except OverflowError:
        raise SettingsError("the key would expire after the year 9999", remedy="give fewer days") from None
    values = {"name": name, "digest": digest_of(secret), "created": now.isoformat(timespec="seconds")}
    try:
        connection.execute(insert(keys).values(**values, scope=scope, expires=expires))
    except IntegrityError:
        raise SettingsError(
            f"there is a key named '{name}' already", remedy="choose another name, or revoke that one first"
        ) from None
    connection.execute(update(state).values(keyed=1))
    return secret


def listed(connection: Connection) -> list[Key]:
    """All keys that were not revoked, the oldest first; some may have expired."""
    rows = connection.execute(_ALL.order_by(keys.c.created, keys.c.name))
    return [_key(row) for row in rows]


def revoke(connection: Connection, name: str) -> bool:
    """End a key's validity at once; False if there is none of that name."""
    return connection.execute(delete(keys).where(keys.c.name == name)).rowcount > 0


def check(connection: Connection, secret: str) -> Key | None:
    """The valid key with this secret; all keys are compared, each in constant time."""
    digest = digest_of(secret)
    found = None
    for row in connection.execute(_ALL):
        if hmac.compare_digest(row.digest, digest):
            found = _key(row)
    return None if found is None or found.has_expired() else found


def digest_of(secret: str) -> str:
    """SHA-256 of a secret, hexadecimal; any text has one."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _key(row: Row[Any]) -> Key:
    # A scope that this version does not know opens as little as possible.
    scope: Scope = row.scope if row.scope in SCOPES else "read"
    expires = None if row.expires is None else datetime.fromisoformat(row.expires)
    return Key(row.name, datetime.fromisoformat(row.created), scope, expires)
