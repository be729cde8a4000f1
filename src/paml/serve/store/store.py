"""Users, their profiles and ratings, and the keys of the service, in SQLite or PostgreSQL.

A write is on disk when its call returns. Every change of a user gives them a new `version`, which no state of this user
had before, not even before they were deleted and came back: what was computed for a version is valid for as long as the
user has it. Threads and processes may share a store. Whoever changes something is named in the audit log (`by`, a key).
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Self

from sqlalchemy import Connection, bindparam, delete, exists, func, inspect, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from paml.errors import FormatError, InputError, StoreUnavailable, TooManyRatings, TooManyUsers, UnknownUser
from paml.recommend.requests import Rating
from paml.serve.store import api_keys, audit as audit_log
from paml.serve.store.database import Database
from paml.serve.store.migrations import migrate
from paml.serve.store.schema import (
    BACKUP,
    counter,
    keys as keys_table,
    ratings as ratings_table,
    schema,
    state,
    users,
    versions,
)
from paml.serve.store.tidying import Tidier
from paml.serve.store.values import MAX_ID, as_json, check_name, check_text, rating_row, shown, storable

MAX_RATINGS = 5000
MAX_USERS = 1_000_000
PRUNE_SECONDS = 3600.0  # between removals of old entries of the audit log
PROBE_SECONDS = 1.0  # for which a write that succeeded shows that writing works

# Built once: building a query takes longer than a database needs to answer it.
_OF_USER = ratings_table.c.number == bindparam("number")
_USER = select(users).where(users.c.id == bindparam("user"))
_VERSION = select(users.c.version).where(users.c.id == bindparam("user"))
_COUNT = select(func.count()).select_from(ratings_table).where(_OF_USER)
_REMOVE = delete(ratings_table).where(_OF_USER, ratings_table.c.item == bindparam("item"))
_ONE_MORE = update(state).values(users=state.c.users + 1).returning(state.c.users)
_ONE_LESS = update(state).values(users=state.c.users - 1)
# Either would be enough; a process of an older version makes keys and does not say so in the state.
_KEYED = select(or_(state.c.keyed == 1, exists(select(keys_table.c.name))))
_PROBE = update(state).values(probes=state.c.probes + 1)
_RAISE = update(counter).values(value=counter.c.value + 1).returning(counter.c.value)
_RATINGS = (
    select(ratings_table.c.item, ratings_table.c.value, ratings_table.c.context)
    .where(_OF_USER)
    .order_by(ratings_table.c.version, ratings_table.c.item)
)


@dataclass(frozen=True)
class StoredUser:
    """A user at one moment; the ratings in the order in which they were given."""

    profile: dict[str, Any]
    ratings: tuple[Rating, ...]
    version: int


class Change(NamedTuple):
    """What a user has after a write."""

    version: int
    ratings: int
    """How many the user has, as of the transaction that wrote."""


class Written(NamedTuple):
    """A user as a write left them."""

    created: bool
    user: StoredUser


class Deleted(NamedTuple):
    """A user who is gone for everybody who asks."""

    remains: bool
    """Whether bytes of them are still in SQLite's log, because somebody reads an older state; they go as soon as that
    ends. PostgreSQL keeps bytes in its own way: docs/serve.md says until when."""


class Store:
    """Users, ratings and keys; every method is one transaction, and raises `StoreUnavailable` if the database fails."""

    def __init__(self, database: Database, *, max_ratings: int = MAX_RATINGS, max_users: int = MAX_USERS) -> None:
        self._database = database
        self._max_ratings, self._max_users = max_ratings, max_users
        self._tidier = Tidier(database.tidy, database.tidy_pause)
        self._prune_at = 0.0
        sequence = database.kind == "postgresql"
        insert = postgresql.insert if sequence else sqlite.insert
        self._draw = select(versions.next_value()) if sequence else _RAISE
        # In PostgreSQL drawn only once the user's row is locked, so that the versions of a user only increase.
        version = versions.next_value() if sequence else bindparam("drawn")
        of_user = users.c.id == bindparam("user")
        self._change_user = (
            update(users).where(of_user).values(version=version).returning(users.c.number, users.c.version)
        )
        new = insert(users)
        self._put_user = new.on_conflict_do_update(index_elements=["id"], set_={"profile": new.excluded.profile})
        row = insert(ratings_table)
        values = {name: row.excluded[name] for name in ("value", "context", "version")}
        self._put_ratings = row.on_conflict_do_update(index_elements=["number", "item"], set_=values)

    @classmethod
    def open(cls, url: str, *, max_ratings: int = MAX_RATINGS, max_users: int = MAX_USERS, create: bool = True) -> Self:
        """Open, create or migrate the store at `sqlite:///FILE` or `postgresql://...`; no newer version and no backup.

        `max_users` is how many users it may hold; 0 for any number. With `create=False`, a file must exist.
        """
        database = Database(url, create=create)
        try:
            with database.writing() as connection:
                _refuse_backup(connection, database.where)
                migrate(connection, database.where)
        except BaseException:
            database.close()
            raise
        opened = cls(database, max_ratings=max_ratings, max_users=max_users)
        opened._tidier.ask()  # a process that was killed may have left deleted rows in a log
        return opened

    @property
    def where(self) -> str:
        """The database's address, without a password."""
        return self._database.where

    @property
    def writable(self) -> bool:
        """Whether the last attempt to write succeeded."""
        return self._database.writable

    def ping(self) -> None:
        """Ask the database for something small; `StoreUnavailable` if it does not answer."""
        with self._database.glancing() as connection:
            connection.execute(select(schema.c.version)).one()

    def probe(self) -> None:
        """Write something small, unless the last write was just now and succeeded; `StoreUnavailable` if that fails."""
        written = self._database.written
        if not self.writable or written is None or time.monotonic() - written > PROBE_SECONDS:
            with self._database.writing() as connection:
                connection.execute(_PROBE)

    def close(self) -> None:
        """Give the connections back."""
        self._tidier.close()
        self._database.close()

    def count(self) -> int:
        """How many users there are."""
        with self._database.glancing() as connection:
            return int(connection.execute(select(state.c.users)).scalar_one())

    def put_user(self, user: str, profile: Mapping[str, Any], by: str = audit_log.NOBODY) -> Written:
        """Create a user or replace their profile; the user as this write left them, whatever others do next."""
        check_text(user, "user", MAX_ID)
        text = as_json(profile, "profile")
        with self._changing(by, "put user") as connection:
            drawn = connection.execute(self._draw).scalar_one()
            connection.execute(self._put_user, {"number": drawn, "id": user, "profile": text, "version": drawn})
            number, version = self._change(connection, user)  # drawn again: the row is ours, and versions only increase
            created = bool(number == drawn)
            rated = () if created else _rated(connection, number)
            if created:  # last, so that nobody who holds this row waits for a user
                count = connection.execute(_ONE_MORE).scalar_one()
                if self._max_users and count > self._max_users:
                    raise TooManyUsers(self._max_users)
        return Written(created, StoredUser(json.loads(text), rated, version))

    def user(self, user: str) -> StoredUser | None:
        """Profile, ratings and version as of one moment; None if there is no such user."""
        if not storable(user):
            return None
        with self._database.reading() as connection:
            found = connection.execute(_USER, {"user": user}).one_or_none()
            if found is None:
                return None
            rated = _rated(connection, found.number)
        return StoredUser(json.loads(found.profile), rated, found.version)

    def version(self, user: str) -> int | None:
        """The user's version alone, for callers who have the rest; None if there is no such user."""
        if not storable(user):
            return None
        with self._database.glancing() as connection:
            found: int | None = connection.scalar(_VERSION, {"user": user})
        return found

    def add_ratings(self, user: str, ratings: Iterable[Rating], by: str = audit_log.NOBODY) -> Change:
        """Add ratings, all or none; one of an item that was rated before replaces it."""
        rows = [rating_row(rating) for rating in ratings]
        if len({row["item"] for row in rows}) < len(rows):
            raise InputError(
                "the same item is rated twice in one call", field="ratings", value=len(rows), expected="each item once"
            )
        with self._changing(by, "add ratings") as connection:
            number, version = self._change(connection, user)
            if rows:
                given = [{"number": number, "version": version, **row} for row in rows]
                connection.execute(self._put_ratings, given)
            count = connection.execute(_COUNT, {"number": number}).scalar_one()
            if count > self._max_ratings:
                raise TooManyRatings(count, self._max_ratings)
        return Change(version, count)

    def remove_rating(self, user: str, item: str, by: str = audit_log.NOBODY) -> bool:
        """Remove a rating; False if the item was not rated."""
        if not storable(item):
            return False
        with self._database.writing() as connection:
            number, _ = self._change(connection, user)
            if removed := connection.execute(_REMOVE, {"number": number, "item": item}).rowcount > 0:
                audit_log.record(connection, by, "remove rating")
        return removed

    def delete_user(self, user: str, by: str = audit_log.NOBODY) -> Deleted | None:
        """Remove a user and all their ratings, also from a file's free pages; None if there is no such user."""
        if not storable(user):
            return None
        with self._database.writing() as connection:
            if not connection.execute(delete(users).where(users.c.id == user)).rowcount:
                return None
            connection.execute(_ONE_LESS)
            audit_log.record(connection, by, "delete user")
        try:
            cleared = self._database.clear_log()
        except StoreUnavailable:  # the user is deleted, whatever happens to the log
            cleared = False
        if not cleared:
            self._tidier.ask()
        return Deleted(remains=cleared is False)

    def add_key(
        self, name: str, scope: api_keys.Scope = "write", lifetime: timedelta | None = None, by: str = audit_log.NOBODY
    ) -> str:
        """Make a key; its secret is returned once and kept nowhere."""
        check_name(name)
        with self._changing(by, "new key", name) as connection:
            return api_keys.add(connection, name, scope, lifetime)

    def has_had_keys(self) -> bool:
        """Whether there is or was a key: from the first one on, nobody gets in without one."""
        with self._database.glancing() as connection:
            return bool(connection.execute(_KEYED).scalar_one())

    def keys(self) -> list[api_keys.Key]:
        """All keys that were not revoked, the oldest first; some may have expired."""
        with self._database.glancing() as connection:
            return api_keys.listed(connection)

    def revoke_key(self, name: str, by: str = audit_log.NOBODY) -> bool:
        """End a key's validity at once; False if there is none of that name."""
        if not storable(name):
            return False
        with self._database.writing() as connection:
            if gone := api_keys.revoke(connection, name):
                audit_log.record(connection, by, "revoke key", name)
        return gone

    def check_key(self, secret: str) -> api_keys.Key | None:
        """The valid key with this secret, or None."""
        with self._database.glancing() as connection:
            return api_keys.check(connection, secret)

    def audit(self, limit: int = 100) -> list[audit_log.Entry]:
        """Who changed what and when: the last entries, the newest first."""
        with self._database.glancing() as connection:
            return audit_log.newest(connection, limit)

    @contextmanager
    def _changing(self, by: str, what: audit_log.What, about: str = "") -> Iterator[Connection]:
        """A writing transaction with its entry in the audit log; now and then, old entries are removed after it."""
        with self._database.writing() as connection:
            yield connection
            audit_log.record(connection, by, what, about)
        if time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + PRUNE_SECONDS
            with suppress(StoreUnavailable), self._database.writing() as connection:
                audit_log.prune(connection)

    def _change(self, connection: Connection, user: str) -> tuple[int, int]:
        """Give the user a new version, which makes other writers of this user wait; their number and version."""
        found = None
        if storable(user):
            drawn = {"drawn": connection.execute(_RAISE).scalar_one()} if self._draw is _RAISE else {}
            found = connection.execute(self._change_user, {"user": user, **drawn}).one_or_none()
        if found is None:
            raise UnknownUser(f"there is no user {shown(user)}", remedy="create them first")
        return found.number, found.version


def _refuse_backup(connection: Connection, where: str) -> None:
    """A backup that somebody writes into is none any more."""
    if inspect(connection).has_table(BACKUP):
        remedy = "make a store of it with 'paml store restore FILE STORE'"
        raise FormatError("is a backup, not a store", where=where, remedy=remedy)


def _rated(connection: Connection, number: int) -> tuple[Rating, ...]:
    """A user's ratings. Most have no context, and parsing JSON takes most of the time here."""
    rows = connection.execute(_RATINGS, {"number": number}).all()
    return tuple(Rating(item, value, json.loads(text) if text != "{}" else {}) for item, value, text in rows)
