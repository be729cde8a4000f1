"""Concurrent requests adapted together: one thread owns the model's work and takes all that waits, in small batches.

While a batch is computed, requests gather for the next one; that alone fills batches under load. Only if others are
already under way (announced, but not here yet) does the thread wait for them, and never longer than `wait` seconds.
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
from paml.newcomers import Newcomer
from paml.predictor import User

T = TypeVar("T")
MOST = 32
WAIT = 0.001
MOST_ROWS = 16_384  # of a batch's support set, padding included: 32 users of 512 ratings


@dataclass(frozen=True)
class _Job:
    """A user to adapt (or one adapted before), what is wanted of them, and who waits for it."""

    newcomer: Newcomer | User
    finish: Callable[[User], Any]
    score: bool
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[tuple[User, Any]]"

    def deliver(self, user: User) -> None:
        """Compute what is wanted; an error is this job's alone."""
        try:
            answer = self.finish(user)
        except Exception as error:  # noqa: BLE001 - handed to the waiting request, which raises it
            self.fail(error)
        else:
            self._call(self.future.set_result, (user, answer))

    def fail(self, error: BaseException) -> None:
        """Raise an error in the request that waits."""
        self._call(self.future.set_exception, error)

    def _call(self, settle: Callable[[Any], None], value: object) -> None:
        def settle_if_wanted() -> None:
            if not self.future.done():  # the caller may have gone
                settle(value)

        self.loop.call_soon_threadsafe(settle_if_wanted)


class Batcher:
    """Runs all work on the model in one thread, users to adapt in batches of at most `most`.

    `adapt_many` adapts newcomers and, if told so, scores all items for them.
    """

    def __init__(
        self,
        adapt_many: Callable[[Sequence[Newcomer], bool], Sequence[User]],
        most: int = MOST,
        wait: float = WAIT,
        observe: Callable[[int], object] = lambda size: None,
    ) -> None:
        self._adapt_many, self._most, self._wait, self._observe = adapt_many, most, wait, observe
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._coming = 0  # changed by the event loop alone, read by the thread
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

    async def run(
        self, newcomer: Newcomer | User, finish: Callable[[User], T], *, score: bool = True
    ) -> tuple[User, T]:
        """Adapt a newcomer, or take an adapted user, and compute what is wanted of them in the model's thread.

        With `score` all items are scored for the whole batch at once.
        """
        loop = asyncio.get_running_loop()
        job = _Job(newcomer, finish, score, loop, loop.create_future())
        self._queue.put(job)
        user, answer = await job.future
        return user, answer

    def close(self) -> None:
        """Finish what was asked for, then stop."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            jobs, closing = self._gather(first)
            self._serve(jobs)
            if closing:
                return

    def _gather(self, first: _Job) -> tuple[list[_Job], bool]:
        """All jobs that wait, and those that arrive within the wait if some are under way."""
        jobs: list[_Job] = [first]
        until = time.monotonic() + self._wait
        while len(jobs) < self._most:
            left = until - time.monotonic()
            try:
                job = self._queue.get(timeout=left) if self._coming > 0 and left > 0 else self._queue.get_nowait()
            except queue.Empty:
                if self._coming > 0 and left > 0:
                    continue
                break
            if job is None:
                return jobs, True
            jobs.append(job)
        return jobs, False

    def _serve(self, jobs: list[_Job]) -> None:
        for job in jobs:
            if isinstance(job.newcomer, User):
                job.deliver(job.newcomer)
        for together in _alike([job for job in jobs if isinstance(job.newcomer, Newcomer)]):
            self._observe(len(together))
            for job, user in zip(together, self._adapt(together), strict=True):
                if isinstance(user, User):
                    job.deliver(user)
                else:
                    job.fail(user)

    def _adapt(self, jobs: list[_Job]) -> Sequence[User | Exception]:
        """One engine call for all; if somebody's data is wrong, one call each, so that only theirs fails."""
        newcomers = [job.newcomer for job in jobs if isinstance(job.newcomer, Newcomer)]
        try:
            return self._adapt_many(newcomers, any(job.score for job in jobs))
        except PamlError as error:
            if len(newcomers) == 1:
                return [error]
        except Exception as error:  # noqa: BLE001 - every waiting request must get an answer
            return [error] * len(newcomers)
        return [self._adapt([job])[0] for job in jobs]


def _alike(jobs: list[_Job]) -> list[list[_Job]]:
    """The jobs by number of ratings, in batches whose rows, padded to the longest, are not too many.

    So a user with thousands of ratings makes nobody else's small problem a large one.
    """
    batches: list[list[_Job]] = []
    for job in sorted(jobs, key=_rows):
        if batches and (len(batches[-1]) + 1) * _rows(job) <= MOST_ROWS:
            batches[-1].append(job)
        else:
            batches.append([job])
    return batches


def _rows(job: _Job) -> int:
    return len(job.newcomer.ratings) if isinstance(job.newcomer, Newcomer) else 0
