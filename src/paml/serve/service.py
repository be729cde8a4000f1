"""What the service does, apart from HTTP: stored users in, adapted users and answers out.

Store calls run in threads, because a database may be slow; all work on the model runs in the batcher's thread.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from paml.errors import PamlError, StoreUnavailable, UnknownUser
from paml.recommend.predictor import Predictor
from paml.recommend.preference import By
from paml.recommend.requests import NewUser
from paml.recommend.user import User, as_answer
from paml.serve.batcher import Batcher
from paml.serve.cache import UserCache
from paml.serve.store.store import Store, StoredUser
from paml.serve.telemetry import Metrics

T = TypeVar("T")
STORE_THREADS = 16  # as many as the store keeps connections


class Service:
    """A predictor and a store, joined: a requested user is read, adapted or found in the cache, and answered."""

    def __init__(self, predictor: Predictor, store: Store, batch: int = 32) -> None:
        self.predictor, self.metrics = predictor, Metrics()
        self._store = store
        self._cache = UserCache()
        self._forgotten = 0  # deletions so far
        self._threads = ThreadPoolExecutor(STORE_THREADS, "paml-store")
        self._batcher = Batcher(self._adapt, max_users=batch, observe=self.metrics.batch.observe)

    async def stored(self, call: Callable[[Store], T]) -> T:
        """The answer of the store."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call, self._store)
        except StoreUnavailable:
            self.metrics.store_errors.inc()
            raise

    async def check_ready(self) -> None:
        """Refuse if the model's thread has ended or the store does not answer."""
        self._batcher.check_alive()
        await self.stored(lambda store: store.ping())

    async def of_new_user(self, new_user: NewUser, finish: Callable[[User], T]) -> T:
        """The answer for a user who is not stored."""
        _, answer = await self._batcher.run(new_user, finish)
        return answer

    async def of_stored(self, name: str, finish: Callable[[User], T]) -> T:
        """The answer for a stored user, as of the newest version that was acknowledged before the request."""
        kept = self._cache.kept(name)
        if kept is not None:
            answers = await self.stored(lambda store: _answers(store, name, kept, finish))
            if answers:
                self._cache.touch(name)
                self.metrics.cache_hit.inc()
                return answers[0]
        self.metrics.cache_miss.inc()
        return (await self.read_and(name, finish))[1]

    async def read_and(self, name: str, finish: Callable[[User], T], *, score: bool = True) -> tuple[StoredUser, T]:
        """A stored user, and the answer for them; without `score` no items are scored in advance."""
        forgotten = self._forgotten
        with self._batcher.coming() as arrive:
            found = await self.stored(lambda store: store.user(name))
            arrive()
        if found is None:
            self._cache.drop(name)
            raise UnknownUser("there is no such user", remedy="create them first")
        user = self._cache.get(name, found.version)
        adapted, answer = await self._batcher.run(user or self.new_user_of(found), finish, score=score)
        if user is None and self._forgotten == forgotten:  # otherwise this user may have been deleted meanwhile
            self._cache.put(name, found.version, adapted)
            self.metrics.cached.set(len(self._cache))
            self.metrics.cached_bytes.set(self._cache.size)
        return found, answer

    def forget(self, name: str) -> None:
        """Drop what was computed for a user who was deleted."""
        self._forgotten += 1
        self._cache.drop(name)

    def new_user_of(self, found: StoredUser) -> NewUser:
        """A stored user to adapt, without what the current model does not know (it may be newer than the ratings)."""
        new_user = NewUser(found.profile, found.ratings)
        if self._usable(new_user):
            return new_user
        profile = {name: value for name, value in found.profile.items() if self._usable(NewUser({name: value}))}
        known = [rating for rating in found.ratings if rating.item in self.predictor.catalogue]
        if self._usable(NewUser({}, known)):  # the usual case: items come and go; one by one is slow
            return NewUser(profile, known)
        return NewUser(profile, [rating for rating in known if self._usable(NewUser({}, [rating]))])

    def check(self, new_user: NewUser) -> None:
        """Refuse a profile or ratings that the model cannot use, before they are stored."""
        self.predictor.batch([new_user])

    def title(self, item: str) -> str | None:
        """An item's title, None if the current model does not know it."""
        catalogue = self.predictor.catalogue
        return catalogue.titles[catalogue.row(item)] if item in catalogue else None

    def has_keys(self) -> bool:
        """Whether there is a key."""
        return bool(self._store.keys())

    async def key_name(self, secret: str) -> str | None:
        """The name of the key with this secret."""
        return await self.stored(lambda store: store.check_key(secret))

    def close(self) -> None:
        """Finish what is under way."""
        self._batcher.close()
        self._threads.shutdown()
        self._store.close()

    def _adapt(self, new_users: Sequence[NewUser], score: bool) -> list[User]:
        return self.predictor.adapt_many(new_users, score=score)

    def _usable(self, new_user: NewUser) -> bool:
        try:
            self.check(new_user)
        except PamlError:
            return False
        return True


def _answers(store: Store, name: str, kept: tuple[int, User], finish: Callable[[User], T]) -> list[T]:
    """The answer for an adapted user, if what is stored has not changed since; read and answered in one thread.

    So a cached user does not wait for users who are being adapted.
    """
    version, user = kept
    return [finish(user)] if store.version(name) == version else []


def recommendations(
    user: User, n: int, why: int, among: Sequence[str] | None, *, exclude_seen: bool, by: By | None
) -> dict[str, Any]:
    """The best items with their reasons, as they are sent."""
    found = user.recommend(n, exclude_seen=exclude_seen, among=among, by=by)
    reasons = user.reasons([entry.item for entry in found], why, by=by) if why and found else [[] for _ in found]
    return as_answer(user, found, reasons)
