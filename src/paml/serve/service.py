"""What the service does, apart from HTTP: stored users in, adapted users and answers out.

Store calls run in threads, because a database may be slow; so does the answer for a cached user, if it is no heavy one.
All other work on the model runs in two threads of its own: one adapts users in batches, the other does what is heavy.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from paml.errors import PamlError, StoreUnavailable, UnknownUser
from paml.recommend.predictor import Predictor
from paml.recommend.preference import By
from paml.recommend.requests import NewUser
from paml.recommend.user import User, as_answer
from paml.serve.batcher import Batcher
from paml.serve.cache import UserCache
from paml.serve.costs import HEAVY, Cost, adapting, listing
from paml.serve.problems import unavailable
from paml.serve.store.api_keys import Key
from paml.serve.store.store import Store, StoredUser, Written
from paml.serve.telemetry import Metrics, TroubleLog
from paml.serve.threads import Threads

T = TypeVar("T")
STORE_THREADS = 16  # as many as the store keeps connections
FEW = 50  # ratings that are checked in less time than it takes to call a thread


@dataclass(frozen=True, repr=False)
class UsablePart(NewUser):
    """What the current model can use of a stored user, and the stored fields that it does not know."""

    unknown: tuple[str, ...] = ()


class Service:
    """A predictor and a store, joined: a requested user is read, adapted or found in the cache, and answered."""

    def __init__(self, predictor: Predictor, store: Store, batch: int = 32, max_wait: float = 0.0) -> None:
        """`batch`: users adapted together; `max_wait`: seconds that an answer may be expected to take, 0 for any."""
        self.predictor, self.metrics = predictor, Metrics()
        if predictor.measured is not None:
            self.metrics.index_recall.set(predictor.measured.recall)
            self.metrics.index_candidates.set(predictor.measured.candidates)
        self.store = store
        self._cache = UserCache()
        self._forgotten = 0  # deletions so far
        self._trouble = TroubleLog()
        self._probing: asyncio.Future[None] | None = None
        self._threads = Threads(STORE_THREADS, "paml-store", max_wait)
        observe = self.metrics.batch.observe
        self._batcher = Batcher(self._adapt, max_users=batch, observe=observe, max_wait=max_wait)
        self._heavy = Batcher(self._adapt, max_users=1, observe=observe, max_wait=max_wait, name="paml-heavy")

    async def stored(self, call: Callable[[Store], T]) -> T:
        """The answer of the store; if it fails, the reason is logged, which callers are not told."""
        try:
            answer = await self._threads.run(lambda: call(self.store))
        except StoreUnavailable as error:
            self.metrics.store_errors.inc()
            self._trouble.failed(f"{error.where}: {error.what}")
            raise
        finally:
            self.metrics.store_writable.set(self.store.writable)
        if self.store.writable:
            self._trouble.answered()
        return answer

    async def apart(self, call: Callable[[], T]) -> T:
        """The result of something that takes a moment, off the event loop."""
        return await self._threads.run(call)

    async def check_ready(self) -> None:
        """Refuse if a thread of the model has ended, or the store does not answer or cannot be written."""
        self._batcher.check_alive()
        self._heavy.check_alive()
        await self.stored(lambda store: store.ping())
        if self._probing is None or self._probing.done():  # one at a time, however many ask
            self._probing = asyncio.ensure_future(self.stored(lambda store: store.probe()))
        try:
            await asyncio.shield(self._probing)
        except StoreUnavailable:
            detail = "the store answers, but cannot be written; the service's log says why"
            raise unavailable(detail, kind="store-not-writable") from None

    async def of_new_user(self, new_user: NewUser, finish: Callable[[User], T], cost: Cost = listing) -> T:
        """The answer for a user who is not stored; `cost` is that of `finish`."""
        _, answer = await self._run(new_user, finish, cost)
        return answer

    async def of_stored(self, name: str, finish: Callable[[User], T], cost: Cost = listing) -> T:
        """The answer for a stored user, as of the newest version that was acknowledged before the request."""
        kept = self._cache.kept(name)
        if kept is not None and cost(len(kept[1].new_user.ratings)) <= HEAVY:
            answers = await self.stored(lambda store: _answers(store, name, kept, finish))
            if answers:
                self._cache.touch(name)
                self.metrics.cache_hit.inc()
                return answers[0]
        if kept is None:
            self.check_line()  # before the store is asked in vain
        self.metrics.cache_miss.inc()
        return (await self.read_and(name, finish, cost))[1]

    def check_line(self) -> None:
        """Refuse a request that needs the model, if it would wait for too long."""
        self._batcher.check_line()

    async def read_and(
        self, name: str, finish: Callable[[User], T], cost: Cost = listing, *, score: bool = True
    ) -> tuple[StoredUser, T]:
        """A stored user, and the answer for them; without `score` no items are scored in advance."""
        forgotten = self._forgotten
        with self._batcher.coming() as arrive:
            found, new_user = await self.stored(lambda store: self._read(store, name))
            arrive()
        if found is None:
            self._cache.drop(name)
            raise UnknownUser("there is no such user", remedy="create them first")
        return found, await self._adapted((name, found, new_user), forgotten, finish, cost, score=score)

    async def of_written(
        self, name: str, write: Callable[[Store], Written], finish: Callable[[User], T]
    ) -> tuple[Written, T]:
        """What was written, and the answer for the user as that left them, even if they were deleted since.

        No items are scored.
        """

        def call(store: Store) -> tuple[Written, NewUser]:
            written = write(store)
            return written, self.new_user_of(written.user)

        forgotten = self._forgotten
        written, new_user = await self.stored(call)
        return written, await self._adapted((name, written.user, new_user), forgotten, finish, listing, score=False)

    async def _adapted(
        self,
        read: tuple[str, StoredUser, NewUser],
        forgotten: int,
        finish: Callable[[User], T],
        cost: Cost,
        *,
        score: bool,
    ) -> T:
        """Adapt to a user who was read after so many deletions, or find them in the cache; the answer."""
        name, found, new_user = read
        user = self._cache.get(name, found.version)
        adapted, answer = await self._run(user or new_user, finish, cost, score=score)
        if user is None and self._forgotten == forgotten:  # otherwise this user may have been deleted meanwhile
            self._cache.put(name, found.version, adapted)
            self.metrics.cached.set(len(self._cache))
            self.metrics.cached_bytes.set(self._cache.size)
        return answer

    async def _run(
        self, user: NewUser | User, finish: Callable[[User], T], cost: Cost, *, score: bool = True
    ) -> tuple[User, T]:
        """Work on the model, in the thread where it delays nobody who asks for less."""
        is_new = isinstance(user, NewUser)
        ratings = len(user.ratings if isinstance(user, NewUser) else user.new_user.ratings)
        total = cost(ratings) + (adapting(ratings) if is_new else 0.0)
        batcher = self._heavy if total > HEAVY else self._batcher
        return await batcher.run(user, finish, score=score, cost=total)

    def _read(self, store: Store, name: str) -> tuple[StoredUser | None, NewUser]:
        """A stored user, and what the model can use of them."""
        found = store.user(name)
        return found, NewUser() if found is None else self.new_user_of(found)

    def forget(self, name: str) -> None:
        """Drop what was computed for a user who was deleted."""
        self._forgotten += 1
        self._cache.drop(name)

    def new_user_of(self, found: StoredUser) -> NewUser:
        """A stored user to adapt, without what the current model does not know (it may be newer than the ratings)."""
        with suppress(PamlError):
            return self.predictor.encoding.checked(NewUser(found.profile, found.ratings))
        profile = {name: value for name, value in found.profile.items() if self._usable(NewUser({name: value}))}
        unknown = tuple(self.unknown(found.profile))
        known = [rating for rating in found.ratings if rating.item in self.predictor.catalogue]
        if self._usable(NewUser({}, known)):  # the usual case: items come and go; one by one is slow
            return UsablePart(profile, known, unknown)
        return UsablePart(profile, [rating for rating in known if self._usable(NewUser({}, [rating]))], unknown)

    def unknown(self, profile: dict[str, Any]) -> list[str]:
        """Fields of a stored profile that the current model cannot use, or whose values it does not know."""
        usable = {name: value for name, value in profile.items() if self._usable(NewUser({name: value}))}
        unknown = self.predictor.encoding.unknown(usable)
        return [name for name in profile if name not in usable or name in unknown]

    async def check(self, new_user: NewUser, items: Sequence[str] = ()) -> NewUser:
        """Refuse a profile, ratings or named items that the model cannot use, before anything is done.

        Returned is the new user, looked up, so that this is not done again when they are adapted. It is done off the
        event loop if there are many ratings, or an unknown id, for which the nearest is searched.
        """

        def look() -> NewUser:
            self.predictor.catalogue.rows(items)
            return self.predictor.encoding.checked(new_user)

        named = [*(rating.item for rating in new_user.ratings), *items]
        if len(new_user.ratings) <= FEW and all(item in self.predictor.catalogue for item in named):
            return look()
        return await self.apart(look)

    def search(self, text: str, limit: int) -> list[dict[str, Any]]:
        """Items of the catalogue, as they are sent."""
        return [vars(found) for found in self.predictor.catalogue.search(text, limit=limit)]

    def title(self, item: str) -> str | None:
        """An item's title, None if the current model does not know it."""
        catalogue = self.predictor.catalogue
        return catalogue.titles[catalogue.row(item)] if item in catalogue else None

    async def has_had_keys(self) -> bool:
        """Whether there is or was a key."""
        return await self.stored(lambda store: store.has_had_keys())

    async def key(self, secret: str) -> Key | None:
        """The valid key with this secret."""
        return await self.stored(lambda store: store.check_key(secret))

    def needs_key(self) -> bool:
        """Whether the store has had a key; asked before the service starts."""
        return self.store.has_had_keys()

    def has_valid_key(self) -> bool:
        """Whether there is a key that opens something now."""
        known = self.store.keys()
        return any(not key.has_expired() for key in known)

    def close(self) -> None:
        """Finish what is under way."""
        self._batcher.close()
        self._heavy.close()
        self._threads.close()
        self.store.close()

    def _adapt(self, new_users: Sequence[NewUser], score: bool) -> list[User]:
        return self.predictor.adapt_many(new_users, score=score)

    def _usable(self, new_user: NewUser) -> bool:
        try:
            self.predictor.encoding.encode(new_user)
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
    answer = as_answer(user, found, reasons)
    known = user.new_user
    return {**answer, "unknown": list(known.unknown)} if isinstance(known, UsablePart) else answer
