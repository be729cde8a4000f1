"""Adapted users, kept for the next request: bounded, and never stale because the store's version is part of the key."""

from collections import OrderedDict
from dataclasses import dataclass

from paml.recommend.user import User


@dataclass(frozen=True)
class _Entry:
    version: int
    user: User
    size: int


class UserCache:
    """The most recently used users, bounded in number and bytes; for one thread (the event loop's) only."""

    def __init__(self, entries: int = 10_000, size: int = 256_000_000) -> None:
        self._max_entries, self._max_bytes = entries, size
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def kept(self, name: str) -> tuple[int, User] | None:
        """The cached version, whatever is stored now, and the user as adapted for it."""
        entry = self._entries.get(name)
        return None if entry is None else (entry.version, entry.user)

    def touch(self, name: str) -> None:
        """Count a use."""
        if name in self._entries:
            self._entries.move_to_end(name)

    def get(self, name: str, version: int) -> User | None:
        """The user as adapted for exactly this version of what is stored."""
        entry = self._entries.get(name)
        if entry is None or entry.version != version:
            return None
        self.touch(name)
        return entry.user

    def put(self, name: str, version: int, user: User) -> None:
        """Keep a user in place of an older version; the least recently used make room."""
        old = self._entries.get(name)
        if old is not None and old.version > version:  # a slow request must not replace a later one's result
            return
        self.drop(name)
        size = user.nbytes
        if size > self._max_bytes:
            return
        self._entries[name] = _Entry(version, user, size)
        self.size += size
        while self.size > self._max_bytes or len(self._entries) > self._max_entries:
            self.drop(next(iter(self._entries)))

    def drop(self, name: str) -> None:
        """Forget a user."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self.size -= entry.size
