"""Connections: how many there may be, and for how long one may be silent.

uvicorn's protocol closes a connection that is silent after an answer, but waits forever for the first request, and for
the rest of one that was begun. Here a connection without a complete request head is closed in time; so is one that does
not read its answer. Connections of one address are bounded, all together by the descriptors that the process may have,
of which it keeps some for itself. Where there is no room, the one that has been silent for longest makes room: whoever
opens many and says nothing drives out his own.
"""

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from paml.serve.current import chosen_id, network_of
from paml.serve.problems import MEDIA_TYPE, Problem, unavailable
from paml.serve.telemetry import Metrics

HEAD_SECONDS = 10.0  # for a complete request head, from its first byte or the connection's beginning
NEW_SECONDS = 3.0  # in which a new connection is not the first to make room: its request may be on its way
WRITE_SECONDS = 30.0  # for which a sender may leave its answer unread
CLOSING_SECONDS = 5.0  # for a connection that is being closed to take the rest of its answer


class Connections:
    """All connections of a server; for one event loop."""

    def __init__(self, most: int, per_address: int, metrics: Metrics) -> None:
        """`most`: at once; `per_address`: of one address, of which one never has more than three quarters of all."""
        self._most, self._per_address = most, max(1, min(per_address, 3 * most // 4))
        self._metrics = metrics
        self._of: dict[str, _OfAddress] = {}
        self._count = 0

    def admit(self, connection: "Connection") -> bool:
        """Count a new connection, and make room for it if there is none; False if that is not possible."""
        address = connection.address
        own = self._of.get(address)
        if own is not None and own.count >= self._per_address and not self._make_room(own):
            return False
        if self._count >= self._most and not self._make_room(max(self._of.values(), key=lambda one: one.count)):
            return False
        own = self._of.setdefault(address, _OfAddress())
        own.count += 1
        own.new[connection] = connection.loop.time()
        self._counted(1)
        return True

    def is_busy(self, connection: "Connection") -> None:
        """Its request has begun."""
        self._of[connection.address].forget(connection)

    def is_idle(self, connection: "Connection") -> None:
        """Its request was answered, and no other has begun."""
        own = self._of[connection.address]
        own.forget(connection)
        own.idle[connection] = connection.loop.time()

    def remove(self, connection: "Connection") -> None:
        """It has ended, or is about to."""
        own = self._of[connection.address]
        own.forget(connection)
        own.count -= 1
        if not own.count:
            del self._of[connection.address]
        self._counted(-1)

    def _make_room(self, of: "_OfAddress") -> bool:
        """Close the longest silent one of an address; before all others one that has not sent a request for a while."""
        new, idle = next(iter(of.new.items()), None), next(iter(of.idle), None)
        if new is not None and (idle is None or new[0].loop.time() - new[1] > NEW_SECONDS):
            new[0].end("no-room")
        elif idle is not None:
            idle.end("no-room")
        return new is not None or idle is not None

    def ended(self, reason: str) -> None:
        """Count a connection that the server closed."""
        self._metrics.connections_closed.labels(reason).inc()

    def _counted(self, change: int) -> None:
        self._count += change
        self._metrics.connections.set(self._count)


class _OfAddress:
    """Connections of one address; the silent ones in the order in which they fell silent, with the time."""

    def __init__(self) -> None:
        self.count = 0
        self.new: dict[Connection, float] = {}
        self.idle: dict[Connection, float] = {}

    def forget(self, connection: "Connection") -> None:
        """It is not silent."""
        self.new.pop(connection, None)
        self.idle.pop(connection, None)


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1, with deadlines."""

    def __init__(self, connections: Connections, **settings: Any) -> None:
        super().__init__(**settings)
        self._connections = connections
        self._is_counted = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.address = "unknown"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Let a connection in, or turn it away."""
        super().connection_made(transport)
        self.address = network_of(self.client[0] if self.client else "")
        self._is_counted = self._connections.admit(self)
        if self._is_counted:
            self._set("head", HEAD_SECONDS)
            return
        self._connections.ended("too-many")
        self._say(unavailable("too many connections", kind="too-many-connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up."""
        for name in [*self._timers]:
            self._unset(name)
        self._uncount()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; from its first byte, a request head has so many seconds."""
        super().data_received(data)
        if self._is_busy:
            self._unset("head")
            if self._is_counted:
                self._connections.is_busy(self)
        elif not self.transport.is_closing() and "head" not in self._timers:
            self._set("head", HEAD_SECONDS)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of the answer to be read."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._set("closing", CLOSING_SECONDS)
        elif not self._is_busy and self._is_counted:
            self._connections.is_idle(self)

    def shutdown(self) -> None:
        """Close as soon as the request under way, if any, is answered."""
        super().shutdown()
        if self.transport.is_closing():
            self._set("closing", CLOSING_SECONDS)

    def pause_writing(self) -> None:
        """The other side reads slowly: not for too long."""
        super().pause_writing()
        self._set("writing", WRITE_SECONDS)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        self._unset("writing")

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came after the last answer."""
        self.end("idle")

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, if an answer is possible still."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self._is_busy:
            self._say(Problem(400, "this is not HTTP/1.1", kind="not-http"))
        else:
            self.end("not-http")

    def end(self, reason: str) -> None:
        """Close: what was answered is sent still, but not waited for forever."""
        if not self.transport.is_closing():
            self._connections.ended(reason)
            self.transport.close()
            self._set("closing", CLOSING_SECONDS)
        self._uncount()

    @property
    def _is_busy(self) -> bool:
        """Whether a request is being served."""
        return self.cycle is not None and not self.cycle.response_complete

    def _say(self, problem: Problem) -> None:
        """Send a problem without an application, and close."""
        number = chosen_id(None)
        body = json.dumps({**problem.document(), "request_id": number}).encode()
        headers = {
            "Content-Type": MEDIA_TYPE,
            "Content-Length": str(len(body)),
            "X-Request-ID": number,
            **(problem.headers or {}),
            "Connection": "close",
        }
        reason = "Bad Request" if problem.status_code == 400 else "Service Unavailable"
        lines = [f"HTTP/1.1 {problem.status_code} {reason}", *(f"{name}: {text}" for name, text in headers.items())]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.end("refused")

    def _uncount(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._connections.remove(self)

    def _set(self, name: str, seconds: float) -> None:
        self._unset(name)
        self._timers[name] = self.loop.call_later(seconds, self._late, name)

    def _unset(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _late(self, name: str) -> None:
        self._timers.pop(name, None)
        if name == "head":
            self.end("silent")
        else:
            self._connections.ended("not-read")
            self.transport.abort()
