"""Concurrent requests adapted together: the event loop gathers, one thread owns the model's work, in small batches.

While a batch is computed, requests gather for the next one. It is handed over when nothing more arrives from one turn
of the event loop to the next; only if others are under way (announced, but not here yet) does it wait for them, and
never longer than `wait` seconds. So one request alone does not wait, and many are adapted by one call of the engine.
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
from paml.serve.problems import unavailable

T = TypeVar("T")
MAX_BATCH = 32
WAIT = 0.0015
MAX_ROWS = 16_384  # of a batch's support set, padding included: 32 users of 512 ratings
PAUSE = 0.0003  # between checks whether announced requests have arrived
POST_SECONDS = 0.002  # answers that are ready do not wait longer for the rest of their batch


@dataclass(frozen=True)
class _Job:
    """A user to adapt (or one adapted before), what to compute for them, and the future that gets it."""

    new_user: NewUser | User
    finish: Callable[[User], Any]
    score: bool
    future: "asyncio.Future[tuple[User, Any]]"


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
    ) -> None:
        self._adapt_many, self._max_users, self._wait, self._observe = adapt_many, max_users, wait, observe
        self._queue: queue.SimpleQueue[tuple[list[_Job], asyncio.AbstractEventLoop] | None] = queue.SimpleQueue()
        # Used by the event loop only:
        self._pending: list[_Job] = []
        self._coming = 0
        self._busy = False  # gathering, or the thread has a batch
        self._thread = threading.Thread(target=self._work, name="paml-model", daemon=True)
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

    async def run(self, new_user: NewUser | User, finish: Callable[[User], T], *, score: bool = True) -> tuple[User, T]:
        """Adapt a new user, or take an adapted one, and compute `finish(user)` in the model's thread.

        With `score` all items are scored for the whole batch at once.
        """
        self.check_alive()
        loop = asyncio.get_running_loop()
        job = _Job(new_user, finish, score, loop.create_future())
        self._pending.append(job)
        if not self._busy:
            self._gather(loop)
        user, answer = await job.future
        return user, answer

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
            jobs, self._pending = self._pending[: self._max_users], self._pending[self._max_users :]
            self._queue.put((jobs, loop))

        look(0)

    def _settle(self, outcomes: list[Outcome], loop: asyncio.AbstractEventLoop, last: bool) -> None:
        """Hand answers to those who wait; after a batch's last ones, gather the next."""
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
            loop.call_soon_threadsafe(self._settle, ready, loop, True)

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
