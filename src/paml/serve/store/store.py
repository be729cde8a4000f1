"""Users, their profiles and ratings, and the keys of the service, in SQLite or PostgreSQL.

A write is on disk when its call returns. Every change of a user gives them a new `version`, which no state of this user
had before, not even before they were deleted and came back: what was computed for a version is valid for as long as the
user has it. Threads and processes may share a store.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from sqlalchemy import Connection, bindparam, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from paml.errors import InputError, TooManyRatings, UnknownUser, shortened
from paml.recommend.requests import Rating
from paml.serve.store import api_keys as keys
from paml.serve.store.database import Database
from paml.serve.store.migrations import migrate
from paml.serve.store.schema import counter, ratings as ratings_table, schema, users, versions

MAX_RATINGS = 5000
MAX_ID = 200  # characters; PostgreSQL's indexes hold at most some 2,700 bytes
MAX_ITEM = 500
MAX_JSON = 100_000


# Built once: building a query takes longer than a database needs to answer it.
_OF_USER = ratings_table.c.number == bindparam("number")
_USER = select(users).where(users.c.id == bindparam("user"))
_VERSION = select(users.c.version).where(users.c.id == bindparam("user"))
_COUNT = select(func.count()).select_from(ratings_table).where(_OF_USER)
_REMOVE = delete(ratings_table).where(_OF_USER, ratings_table.c.item == bindparam("item"))
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


class Store:
    """Users, ratings and keys; every method is one transaction, and raises `StoreUnavailable` if the database fails."""

    def __init__(self, database: Database, *, max_ratings: int = MAX_RATINGS) -> None:
        self._database = database
        self._max_ratings = max_ratings
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
    def open(cls, url: str, *, max_ratings: int = MAX_RATINGS) -> Self:
        """Open, create or migrate the store at `sqlite:///FILE` or `postgresql://...`; a newer version is refused."""
        database = Database(url)
        try:
            with database.writing() as connection:
                migrate(connection, database.where)
        except BaseException:
            database.close()
            raise
        return cls(database, max_ratings=max_ratings)

    def ping(self) -> None:
        """Ask the database for something small; `StoreUnavailable` if it does not answer."""
        with self._database.glancing() as connection:
            connection.execute(select(schema.c.version)).one()

    def close(self) -> None:
        """Give the connections back."""
        self._database.close()

    def put_user(self, user: str, profile: Mapping[str, Any]) -> bool:
        """Create a user or replace their profile; True if they are new."""
        _check_text(user, "user", MAX_ID)
        text = _json(profile, "profile")
        with self._database.writing() as connection:
            drawn = connection.execute(self._draw).scalar_one()
            connection.execute(self._put_user, {"number": drawn, "id": user, "profile": text, "version": drawn})
            number, _ = self._change(connection, user)  # drawn again now that the row is ours: versions only increase
        return bool(number == drawn)

    def user(self, user: str) -> StoredUser | None:
        """Profile, ratings and version as of one moment; None if there is no such user."""
        if not _storable(user):
            return None
        with self._database.reading() as connection:
            found = connection.execute(_USER, {"user": user}).one_or_none()
            if found is None:
                return None
            rows = connection.execute(_RATINGS, {"number": found.number}).all()
        # Most ratings have no context, and parsing JSON takes most of the time here.
        rated = tuple(Rating(item, value, json.loads(text) if text != "{}" else {}) for item, value, text in rows)
        return StoredUser(json.loads(found.profile), rated, found.version)

    def version(self, user: str) -> int | None:
        """The user's version alone, for callers who have the rest; None if there is no such user."""
        if not _storable(user):
            return None
        with self._database.glancing() as connection:
            found: int | None = connection.scalar(_VERSION, {"user": user})
        return found

    def add_ratings(self, user: str, ratings: Iterable[Rating]) -> Change:
        """Add ratings, all or none; one of an item that was rated before replaces it."""
        rows = [_row(rating) for rating in ratings]
        if len({row["item"] for row in rows}) < len(rows):
            raise InputError(
                "the same item is rated twice in one call", field="ratings", value=len(rows), expected="each item once"
            )
        with self._database.writing() as connection:
            number, version = self._change(connection, user)
            if rows:
                given = [{"number": number, "version": version, **row} for row in rows]
                connection.execute(self._put_ratings, given)
            count = connection.execute(_COUNT, {"number": number}).scalar_one()
            if count > self._max_ratings:
                raise TooManyRatings(count, self._max_ratings)
        return Change(version, count)

    def remove_rating(self, user: str, item: str) -> bool:
        """Remove a rating; False if the item was not rated."""
        if not _storable(item):
            return False
        with self._database.writing() as connection:
            number, _ = self._change(connection, user)
            removed = connection.execute(_REMOVE, {"number": number, "item": item}).rowcount
        return removed > 0

    def delete_user(self, user: str) -> bool:
        """Remove a user and all their ratings, also from a file's free pages; False if there is no such user."""
        if not _storable(user):
            return False
        with self._database.writing() as connection:
            gone = connection.execute(delete(users).where(users.c.id == user)).rowcount > 0
        if gone:
            self._database.forget()
        return gone

    def add_key(self, name: str) -> str:
        """Make a key; its secret is returned once and kept nowhere."""
        _check_text(name, "key name", MAX_ID)
        with self._database.writing() as connection:
            return keys.add(connection, name)

    def keys(self) -> list[keys.Key]:
        """All valid keys, the oldest first."""
        with self._database.glancing() as connection:
            return keys.listed(connection)

    def revoke_key(self, name: str) -> bool:
        """End a key's validity at once; False if there is none of that name."""
        if not _storable(name):
            return False
        with self._database.writing() as connection:
            return keys.revoke(connection, name)

    def check_key(self, secret: str) -> str | None:
        """The name of the key with this secret, or None."""
        with self._database.glancing() as connection:
            return keys.check(connection, secret)

    def _change(self, connection: Connection, user: str) -> tuple[int, int]:
        """Give the user a new version, which makes other writers of this user wait; their number and version."""
        found = None
        if _storable(user):
            drawn = {"drawn": connection.execute(_RAISE).scalar_one()} if self._draw is _RAISE else {}
            found = connection.execute(self._change_user, {"user": user, **drawn}).one_or_none()
        if found is None:
            raise UnknownUser(f"there is no user {_shown(user)}", remedy="create them first")
        return found.number, found.version


def _row(rating: Rating) -> dict[str, Any]:
    _check_text(rating.item, "item", MAX_ITEM)
    if not math.isfinite(rating.value):
        what = f"the rating of item {_shown(rating.item)} is {rating.value}"
        raise InputError(what, field="value", value=rating.value, expected="a finite number")
    return {"item": rating.item, "value": float(rating.value), "context": _json(rating.context, "context")}


def _json(values: Mapping[str, Any], what: str) -> str:
    try:
        text = json.dumps(dict(values), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:  # a half of a surrogate pair is a ValueError as well
        shown = ascii(dict(values))
        raise InputError(
            f"the {what} is not JSON ({error})", field=what, value=shown, expected="plain values"
        ) from None
    if len(text) > MAX_JSON:
        expected = f"at most {MAX_JSON:,} characters as JSON"
        raise InputError(f"the {what} is too long", field=what, value=text, expected=expected)
    return text


def _check_text(text: str, field: str, max_length: int) -> None:
    """Refuse what one of the databases could not store, so that moving from one to the other loses nothing."""
    if not 0 < len(text) <= max_length:
        expected = f"1 to {max_length} characters"
        raise InputError(
            f"the {field} has {len(text):,} characters", field=field, value=_shown(text), expected=expected
        )
    if not _storable(text):
        what = f"the {field} {_shown(text)} holds a NUL character or half of a surrogate pair"
        raise InputError(what, field=field, value=_shown(text), expected="any other Unicode text")


def _storable(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _shown(text: str) -> str:
    """Text for a message: any message can be written, whatever the text holds."""
    return f"'{shortened(text).encode('utf-8', 'backslashreplace').decode()}'"
