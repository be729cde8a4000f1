"""What a caller may use: size and time of a body, requests per second, requests and bodies at once, time in line."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.types import Message, Receive

from paml.serve.problems import RETRY_SECONDS, Problem, unavailable

CALLERS = 10_000  # remembered at most: the longest silent one is forgotten, as its bucket is full again anyway
BURST_SECONDS = 2.0


@dataclass(frozen=True)
class Limits:
    """All limits that are not part of the request schemas."""

    body_bytes: int = 1_000_000
    body_seconds: float = 20.0
    per_second: float = 100.0
    """Requests of one key or, without keys, of one address; 0 for any number. Twice as many may come at once."""
    health_per_second: float = 500.0
    """Requests of one address to /healthz, whatever else it sends: monitoring must go on."""
    at_once: int = 512
    """Requests under way; further ones are turned away, so that a burst cannot fill the memory."""
    share: float = 0.75
    """Of the requests under way, what one key or address may have."""
    bodies: int = 256
    """Bodies that are waited for; these do not count as requests under way."""
    bodies_per_address: int = 64
    connections: int = 512
    """Connections of one address."""
    max_wait: float = 2.0
    """Seconds that an answer may be expected to take; a request that would wait longer is refused at once. 0: any."""


class RateLimiter:
    """A token bucket for every caller."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._capacity = max(1.0, per_second * BURST_SECONDS)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller -> tokens, when counted

    def admit(self, caller: str) -> None:
        """Take a token, or refuse with the time after which there is one."""
        if not self._per_second:
            return
        now = self._clock()
        tokens, counted = self._buckets.pop(caller, (self._capacity, now))
        tokens = min(self._capacity, tokens + (now - counted) * self._per_second)
        admitted = tokens >= 1
        self._buckets[caller] = (tokens - 1 if admitted else tokens, now)
        if len(self._buckets) > CALLERS:
            self._buckets.popitem(last=False)
        if not admitted:
            wait = max(1, math.ceil((1 - tokens) / self._per_second))
            detail = f"more than {self._per_second:g} requests per second; try again in {wait} s"
            raise Problem(429, detail, headers={"Retry-After": str(wait)})


class AtOnce:
    """How many of something are under way, in all and by caller."""

    def __init__(self, what: str, most: int, per_caller: int) -> None:
        self._what, self._most, self._per_caller = what, most, max(1, per_caller)
        self._by_caller: dict[str, int] = {}
        self.count = 0

    @contextmanager
    def one(self, caller: str) -> Iterator[None]:
        """Count one more while the block runs, or refuse it."""
        if self.count >= self._most:
            raise unavailable(f"too many {self._what} at once", kind="overloaded")
        own = self._by_caller.get(caller, 0)
        if own >= self._per_caller:
            detail = f"more than {self._per_caller} {self._what} at once with one key or from one address"
            raise Problem(429, detail, kind="too-many-at-once", headers={"Retry-After": str(RETRY_SECONDS)})
        self.count += 1
        self._by_caller[caller] = own + 1
        try:
            yield
        finally:
            self.count -= 1
            if self._by_caller[caller] == 1:
                del self._by_caller[caller]
            else:
                self._by_caller[caller] -= 1


async def read_body(receive: Receive, declared: int | None, limits: Limits) -> bytes:
    """The whole body, counted while it arrives, so that a chunked one cannot be larger than it says."""
    if declared is not None and declared > limits.body_bytes:
        raise _too_large(declared, limits)
    try:
        async with asyncio.timeout(limits.body_seconds):
            return await _collect(receive, limits)
    except TimeoutError:
        detail = f"the body did not arrive within {limits.body_seconds:g} s"
        raise Problem(408, detail, headers={"Connection": "close"}) from None


async def _collect(receive: Receive, limits: Limits) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Problem(400, "the body ended too early")
        part = message.get("body", b"")
        size += len(part)
        if size > limits.body_bytes:
            raise _too_large(size, limits)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(size: int, limits: Limits) -> Problem:
    return Problem(
        413,
        f"the body has {size:,} bytes or more; at most {limits.body_bytes:,} are read",
        field="body",
        value=size,
        expected=f"at most {limits.body_bytes} bytes",
    )


def replayed(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    """A receive that returns a body already read, then whatever follows it (such as the caller disconnecting)."""
    pending = True

    async def next_message() -> Message:
        nonlocal pending
        if pending:
            pending = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return next_message
