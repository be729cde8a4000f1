"""Calls in threads: what waits for a database or takes a moment, off the event loop, taken in turn between callers."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from paml.serve.current import caller
from paml.serve.turns import Pace, Refusals, Turns, too_busy

T = TypeVar("T")


class Threads:
    """At most `count` calls at once; further ones line up, unless the line is too long; for one event loop."""

    def __init__(self, count: int, name: str, max_wait: float = 0.0) -> None:
        """`max_wait`: seconds that a call may be expected to wait in line; 0 for any time."""
        self._free, self._max_wait = count, max_wait
        self._refusals = Refusals(max_wait)
        self._executor = ThreadPoolExecutor(count, name)
        self._line: Turns[asyncio.Future[None]] = Turns()
        self._pace = Pace()
        self._counted = 0.0  # since when a call has been waiting, or when the last one ended

    async def run(self, call: Callable[[], T]) -> T:
        """The result of the call."""
        await self._turn()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
        finally:
            self._next()

    def expected_wait(self) -> float:
        """Seconds until a further call of the same caller would have ended."""
        return self._line.ahead(caller.get(), 1.0) * self._pace.seconds if self._line else 0.0

    def close(self) -> None:
        """Finish what is under way."""
        self._executor.shutdown()

    async def _turn(self) -> None:
        if self._free:
            self._free -= 1
            return
        self._refusals.check(self.expected_wait(), self._pace.seconds)
        if not self._line:
            self._counted = time.monotonic()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.add(caller.get(), 1.0, turn)
        try:
            async with asyncio.timeout(2 * self._max_wait or None):
                await turn
        except (TimeoutError, asyncio.CancelledError) as error:
            if turn.done() and not turn.cancelled():  # it was given a thread at the same moment
                self._next()
            if isinstance(error, TimeoutError):
                raise too_busy(2 * self._max_wait, self._max_wait) from None
            raise

    def _next(self) -> None:
        """Give a thread that is free now to the next in line."""
        if self._line:
            now = time.monotonic()
            self._pace.observe(now - self._counted, 1.0)
            self._counted = now
        while self._line:
            _, turn = self._line.take()
            if not turn.done():  # otherwise its request has gone
                turn.set_result(None)
                return
        self._free += 1
