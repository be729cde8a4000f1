"""Concurrent requests adapted together: the event loop gathers, one thread owns the model's work, in small batches.

While a batch is computed, requests gather for the next one. It is handed over when nothing more arrives from one turn
of the event loop to the next; only if others are under way (announced, but not here yet) does it wait for them, and
never longer than `wait` seconds. So one request alone does not wait, and many are adapted by one call of the engine.
Callers take turns; a request that would wait for more than `max_wait` seconds is refused at once. Where a whole batch
waits already, the thread takes it by itself: then the event loop is busy enough.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from paml.errors import PamlError
from paml.recommend.requests import NewUser
from paml.recommend.user import User
from paml.serve.current import caller
from paml.serve.problems import unavailable
from paml.serve.turns import Pace, Refusals, Turns, too_busy

T = TypeVar("T")
MAX_BATCH = 32
WAIT = 0.0015
MAX_ROWS = 16_384  # of a batch's support set, padding included: 32 users of 512 ratings
COST_PER_USER = 1.5  # a batch of users who cost more is smaller, so that the next one does not wait long
PAUSE = 0.0003  # between checks whether announced requests have arrived
POST_SECONDS = 0.002  # answers that are ready do not wait longer for the rest of their batch


@dataclass
class _Job:
    """A user to adapt (or one adapted before), what to compute for them, and the future that gets it."""

    new_user: NewUser | User
    finish: Callable[[User], Any]
    score: bool
    future: "asyncio.Future[tuple[User, Any]]"
    taken: bool = False
    """Whether it was handed to the thread."""


Outcome = tuple[_Job, User | None, Any]
"""A job, the adapted user and the answer; or None and the error."""


class Batcher:
    """Runs all work on the model in one thread, users to adapt in batches of at most `max_users`; for one event loop.

    `adapt_many` adapts new users and, on request, scores all items for them.
    """

    def __init__(
        self,
        adapt_many: Callable[[Sequence[NewUser], bool], Sequence[User]],
        max_users: int = MAX_BATCH,
        wait: float = WAIT,
        observe: Callable[[int], object] = lambda size: None,
        max_wait: float = 0.0,
        name: str = "paml-model",
    ) -> None:
        """`wait`: seconds for others to join a batch; `max_wait`: that a job may be expected to take, 0 for any."""
        self._max_wait, self._refusals = max_wait, Refusals(max_wait)
        self._adapt_many, self._max_users, self._wait, self._observe = adapt_many, max_users, wait, observe
        self._queue: queue.SimpleQueue[tuple[list[_Job], asyncio.AbstractEventLoop] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # the line is the event loop's and the thread's
        self._pending: Turns[_Job] = Turns()
        self._pace = Pace()
        self._handed = 0.0, 0.0  # cost of what the thread has, and since when
        # Used by the event loop only:
        self._coming = 0
        self._busy = False  # gathering, or the thread has a batch
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @contextmanager
    def coming(self) -> Iterator[Callable[[], None]]:
        """Announce a request that will probably need the model; the yielded function says that it is here."""
        self._coming += 1
        arrived = False

        def arrive() -> None:
            nonlocal arrived
            if not arrived:
                arrived = True
                self._coming -= 1

        try:
            yield arrive
        finally:
            arrive()

    async def run(
        self, new_user: NewUser | User, finish: Callable[[User], T], *, score: bool = True, cost: float = 1.0
    ) -> tuple[User, T]:
        """Adapt a new user, or take an adapted one, and compute `finish(user)` in the model's thread.

        With `score` all items are scored for the whole batch at once; `cost` is 1 for a user with few ratings.
        """
        self.check_alive()
        self.check_line(cost)
        loop = asyncio.get_running_loop()
        job = _Job(new_user, finish, score, loop.create_future())
        with self._lock:
            self._pending.add(caller.get(), cost, job)
        if not self._busy:
            self._gather(loop)
        if not self._max_wait:
            return await job.future
        late = loop.call_later(2 * self._max_wait, self._expire, job)  # if what was expected was wrong
        try:
            return await job.future
        finally:
            late.cancel()

    def check_line(self, cost: float = 1.0) -> None:
        """Refuse a job that would wait for too long; nobody is refused where nobody waits."""
        if self._pending:
            self._refusals.check(self.expected_wait(cost), cost * self._pace.seconds)

    def expected_wait(self, cost: float = 1.0) -> float:
        """Seconds until a further job of the same caller would be done."""
        running, since = self._handed
        left = max(0.0, running * self._pace.seconds - (time.monotonic() - since)) if self._busy else 0.0
        with self._lock:
            ahead = self._pending.ahead(caller.get(), cost)
        return left + ahead * self._pace.seconds

    def _expire(self, job: _Job) -> None:
        if not job.taken and not job.future.done():
            job.future.set_exception(too_busy(2 * self._max_wait, self._max_wait))

    def check_alive(self) -> None:
        """Refuse requests if the model's thread has ended, instead of waiting for it forever."""
        if not self._thread.is_alive():
            raise unavailable("the model's thread has ended; the service must be restarted", kind="model-unavailable")

    def close(self) -> None:
        """Finish what the thread has, then stop."""
        self._queue.put(None)
        self._thread.join()

    def _gather(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand over what is pending as soon as nothing more arrives."""
        self._busy = True
        until = time.monotonic() + self._wait

        def look(seen: int) -> None:
            count = len(self._pending)
            if count < self._max_users and time.monotonic() < until:
                if count > seen:  # let everything that is ready to run have its turn
                    loop.call_soon(look, count)
                    return
                if self._coming:
                    loop.call_later(PAUSE, look, count)
                    return
            self._hand_over(loop)

        look(0)

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        jobs = self._next()
        if jobs:
            self._queue.put((jobs, loop))
        else:
            self._busy = False

    def _next(self) -> list[_Job]:
        """As many jobs as are done at once, of those whose requests are still there."""
        jobs: list[_Job] = []
        total = 0.0
        with self._lock:
            while self._pending and len(jobs) < self._max_users and total < COST_PER_USER * self._max_users:
                cost, job = self._pending.take()
                if not job.future.done():
                    job.taken = True
                    jobs.append(job)
                    total += cost
        self._handed = total, time.monotonic()
        return jobs

    def _settle(self, outcomes: list[Outcome], loop: asyncio.AbstractEventLoop, last: bool) -> None:
        """Hand answers to those who wait; after the thread's last ones, gather the next batch."""
        for job, user, answer in outcomes:
            if job.future.done():  # the caller has gone
                continue
            if user is None:
                job.future.set_exception(answer)
            else:
                job.future.set_result((user, answer))
        if last:
            self._busy = False
            if self._pending:
                self._gather(loop)

    def _work(self) -> None:
        while (batch := self._queue.get()) is not None:
            jobs, loop = batch
            while jobs:
                ready = self._serve(jobs, loop)
                cost, since = self._handed
                self._pace.observe(time.monotonic() - since, cost)
                jobs = self._next() if len(self._pending) >= self._max_users else []
                loop.call_soon_threadsafe(self._settle, ready, loop, not jobs)

    def _serve(self, jobs: list[_Job], loop: asyncio.AbstractEventLoop) -> list[Outcome]:
        """Compute the answers, and post those that are ready early; the rest is returned."""
        ready: list[Outcome] = []
        posted = time.monotonic()
        try:
            for outcome in self._outcomes(jobs):
                if ready and time.monotonic() - posted > POST_SECONDS:
                    loop.call_soon_threadsafe(self._settle, ready, loop, False)
                    ready, posted = [], time.monotonic()
                ready.append(outcome)
        except Exception as error:  # noqa: BLE001 - our fault: raised for all who have no answer yet
            ready += [(job, None, error) for job in jobs]
        return ready

    def _outcomes(self, jobs: list[_Job]) -> Iterator[Outcome]:
        for job in jobs:
            if isinstance(job.new_user, User):
                yield _finished(job, job.new_user)
        for together in _alike([job for job in jobs if isinstance(job.new_user, NewUser)]):
            self._observe(len(together))
            for job, user in zip(together, self._adapt(together), strict=True):
                yield _finished(job, user) if isinstance(user, User) else (job, None, user)

    def _adapt(self, jobs: list[_Job]) -> Sequence[User | Exception]:
        """One engine call for all; if a user's data is invalid, one call each, so that only that user's fails."""
        new_users = [job.new_user for job in jobs if isinstance(job.new_user, NewUser)]
        try:
            return self._adapt_many(new_users, any(job.score for job in jobs))
        except PamlError as error:
            if len(new_users) == 1:
                return [error]
        except Exception as error:  # noqa: BLE001 - every waiting request must get an answer
            return [error] * len(new_users)
        return [self._adapt([job])[0] for job in jobs]


def _finished(job: _Job, user: User) -> Outcome:
    """A job's answer for its user; an error is this job's alone."""
    try:
        return job, user, job.finish(user)
    except Exception as error:  # noqa: BLE001 - handed to the waiting request, which raises it
        return job, None, error


def _alike(jobs: list[_Job]) -> list[list[_Job]]:
    """The jobs by number of ratings, in batches whose rows, padded to the longest, are not too many.

    So a user with thousands of ratings does not make anybody else's small problem a large one.
    """
    batches: list[list[_Job]] = []
    for job in sorted(jobs, key=_rows):
        if batches and (len(batches[-1]) + 1) * _rows(job) <= MAX_ROWS:
            batches[-1].append(job)
        else:
            batches.append([job])
    return batches


def _rows(job: _Job) -> int:
    return len(job.new_user.ratings) if isinstance(job.new_user, NewUser) else 0
