"""Who is next, and how long it will take: entries that wait are taken in turn between callers, by what they cost.

A cost is in units of about one user with few ratings; `Pace` measures how many seconds a unit takes at present.
"""

import heapq
import math
import time
from typing import Generic, TypeVar

from paml.serve.problems import Problem, unavailable

T = TypeVar("T")
MEMORY = 0.95  # what an earlier measurement still counts after the next one
TINY = 1e-9  # what is left of a sum of costs when all were taken away again
MAX_RETRY = 60  # seconds that a caller is told to wait at most


class Turns(Generic[T]):
    """A line in which callers have equal shares: who has many entries waits for them, and not everybody else.

    Start-time fair queueing: an entry's tag is what its caller has been given before it, but at least what the entry
    that was taken last had; the smallest tag goes first.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, float, T]] = []  # tag, number, caller, cost, entry
        self._number = 0
        self._now = 0.0
        self._end: dict[str, float] = {}  # caller -> tag of what they add next
        self._waiting: dict[str, float] = {}  # caller -> cost of what waits

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, caller: str, cost: float, entry: T) -> None:
        """Line up."""
        tag = max(self._now, self._end.get(caller, 0.0))
        self._number += 1
        heapq.heappush(self._heap, (tag, self._number, caller, cost, entry))
        self._end[caller] = tag + cost
        self._waiting[caller] = self._waiting.get(caller, 0.0) + cost

    def take(self) -> tuple[float, T]:
        """The next entry, and its cost."""
        tag, _, caller, cost, entry = heapq.heappop(self._heap)
        self._now = tag
        self._waiting[caller] -= cost
        if self._waiting[caller] < TINY:
            del self._waiting[caller]
        if not self._heap:  # everybody begins anew
            self._now, self._end, self._waiting = 0.0, {}, {}
        elif len(self._end) > 2 * len(self._waiting) + 100:
            self._end = {name: self._end[name] for name in self._waiting}
        return cost, entry

    def ahead(self, caller: str, cost: float) -> float:
        """What will be done before a new entry of this caller is finished, itself included."""
        own = self._waiting.get(caller, 0.0) + cost
        others = sum(min(waiting, own) for name, waiting in self._waiting.items() if name != caller)
        return own + others


class Pace:
    """Seconds per unit of cost, as measured lately; a single slow measurement says little."""

    def __init__(self, seconds: float = 0.005, weight: float = 50.0) -> None:
        self._seconds, self._cost = seconds * weight, weight

    def observe(self, seconds: float, cost: float) -> None:
        """Count what was done, and how long it took."""
        self._seconds = MEMORY * self._seconds + seconds
        self._cost = MEMORY * self._cost + cost

    @property
    def seconds(self) -> float:
        """Of one unit."""
        return self._seconds / self._cost


class Refusals:
    """Answers to requests that would wait too long: said at once, and with a time at which there will be room.

    Those times are spread as those who are refused could be served, so that they do not all come back together.
    """

    def __init__(self, max_wait: float) -> None:
        """`max_wait`: seconds that an answer may be expected to take; 0 for any."""
        self.max_wait = max_wait
        self._promised = 0.0  # until when there is no room for further ones

    def check(self, expected: float, seconds: float) -> None:
        """Refuse a request that is expected to wait so long; `seconds` is what it takes to serve it alone."""
        if 0 < self.max_wait < expected:
            now = time.monotonic()
            self._promised = min(max(self._promised, now) + seconds, now + MAX_RETRY)
            raise too_busy(expected, self.max_wait, self._promised - now + expected - self.max_wait)


def too_busy(expected: float, max_wait: float, again: float = 1.0) -> Problem:
    """The answer to a request that would wait, or has waited, for too long."""
    seconds = max(1, min(MAX_RETRY, math.ceil(again)))
    detail = f"the answer would take about {expected:.1f} s, more than {max_wait:g} s; try again in {seconds} s"
    return unavailable(detail, kind="overloaded", seconds=seconds)
