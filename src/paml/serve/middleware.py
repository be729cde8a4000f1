"""Checks around every request: who may call, from where, how much and how often, and the headers of every answer.

The outermost layer, so that nothing is parsed, looked up or computed for a request that is refused.
"""

import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paml.errors import PamlError
from paml.serve.access import Access, bearer, is_open, refuse_proxied
from paml.serve.current import caller, chosen_id, network_of, request_id
from paml.serve.limits import AtOnce, Limits, RateLimiter, read_body, replayed
from paml.serve.problems import Problem, of_error, unavailable
from paml.serve.telemetry import Metrics, log_error

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
WRITES = frozenset({"POST", "PUT", "DELETE", "PATCH"})
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
SENT = {name.lower().encode(): value.encode() for name, value in HEADERS.items()}
KEY_NAME = "paml.key"  # where a request's scope says which key opened it
LENGTH_DIGITS = 20  # of a body's length; more digits make it no smaller
HOST = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]*)(?::\d*)?")  # a name or an address, perhaps with a port
ESCAPED = re.compile("%(2[fF]|25)")


def routed_path(raw: bytes) -> str:
    """A path to route by: decoded, except for slashes and percent signs inside segments, which `segment` decodes.

    So an id may hold a slash, and text that is not UTF-8 is refused instead of becoming another id.
    """
    try:
        return unquote_to_bytes(re.sub(rb"%(2[fF]|25)", rb"%25\1", raw)).decode()
    except UnicodeDecodeError:
        raise Problem(400, "the path is not UTF-8", field="path", expected="percent-encoded UTF-8") from None


def segment(text: str) -> str:
    """What a part of a routed path means."""
    return ESCAPED.sub(lambda found: "%" if found[1] == "25" else "/", text)


class Guard:
    """Checks host, origin, key, rate and body; adds security headers; counts, times and logs every request."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        limits: Limits,
        hosts: Collection[str] | None,
        access: Access,
        methods_of: Callable[[Scope], set[str]] | None = None,
        check_line: Callable[[Scope], None] | None = None,
    ) -> None:
        """`hosts`: accepted host names, None for any; `access`: who may do what.

        `methods_of`: the methods that a request's path takes, so that nothing is read for one that it does not take.
        `check_line`: refuses a request that would wait for too long, also before its body is read.
        """
        self._methods_of, self._check_line = methods_of, check_line
        self._app, self._metrics, self._limits = app, metrics, limits
        self._hosts, self._access = hosts, access
        self._rates, self._health_rates = RateLimiter(limits.per_second), RateLimiter(limits.health_per_second)
        self._under_way = AtOnce("requests", limits.at_once, int(limits.share * limits.at_once))
        self._bodies = AtOnce("bodies that are waited for", limits.bodies, limits.bodies_per_address)
        self.stopping = False
        """Set when the service was told to stop: answers close their connections, and it is not ready any more."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (or the application's start and end)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id.set(chosen_id(Headers(scope=scope).get("x-request-id")))
        answer = _Answer(self, send)
        try:
            await self._serve(scope, receive, answer)
        except Problem as problem:
            await problem.response()(scope, receive, answer)
        except PamlError as error:  # the store does not answer whether a key is valid
            await of_error(error).response()(scope, receive, answer)
        except Exception as error:  # noqa: BLE001 - the last resort: logged without what the user sent, and answered
            log_error(error, _route(scope))
            if not answer.begun:
                await Problem(500, "something is wrong with the service, not with the request").response()(
                    scope, receive, answer
                )
        finally:
            method = scope["method"] if scope["method"] in METHODS else "OTHER"
            self._metrics.answered(_route(scope), method, answer.status, time.perf_counter() - started)

    async def _serve(self, scope: Scope, receive: Receive, answer: Send) -> None:
        """Let a request in and answer it, or raise the problem with it.

        While its body is waited for, a request counts with these and not with those under way: whoever sends none
        takes no place from others.
        """
        headers = Headers(scope=scope)
        scope["path"] = routed_path(scope["raw_path"])
        self._check_site(scope, headers)
        address = f"address {network_of(scope['client'][0] if scope.get('client') else '')}"
        if scope["path"] == "/healthz":  # said even if there is no room for anything else
            self._health_rates.admit(address)
            self._check_method(scope)
            await self._app(scope, replayed(b"", receive), answer)
            return
        if self.stopping and scope["path"] == "/readyz":
            raise unavailable("the service is stopping", kind="stopping")
        with self._counted(self._count(scope, headers, address)):
            await self._check_key(scope, headers)
        self._check_method(scope)
        if self._check_line is not None:
            self._check_line(scope)
        inner = await self._with_body(scope, receive, headers, address)
        with self._counted(caller.get()):
            await self._app(scope, inner, answer)

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        caller.set(name)
        try:
            with self._under_way.one(name):
                self._metrics.under_way.set(self._under_way.count)
                yield
        finally:
            self._metrics.under_way.set(self._under_way.count)

    async def _with_body(self, scope: Scope, receive: Receive, headers: Headers, address: str) -> Receive:
        """The request with its body read; that of a method which has none is not waited for, whatever the head says."""
        if scope["method"] not in WITH_BODY:
            return replayed(b"", receive)
        _check_type(headers)
        length = headers.get("content-length", "")[:LENGTH_DIGITS]
        declared = int(length) if length.isdecimal() else None
        with self._bodies.one(address):
            return replayed(await read_body(receive, declared, self._limits), receive)

    def _check_site(self, scope: Scope, headers: Headers) -> None:
        """Refuse names that are not ours (DNS rebinding), and writes that another site's page sends."""
        host = headers.get("host", "")
        named = HOST.fullmatch(host.lower())
        if self._hosts is not None and (named is None or named[1] not in self._hosts):
            raise Problem(
                421, "the service is not known by this host name", field="Host", value=host, expected="one of its own"
            )
        origin = headers.get("origin")
        if scope["method"] in WRITES and origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise Problem(403, "a page of another site may not write here", field="Origin", value=origin, expected=host)

    def _check_method(self, scope: Scope) -> None:
        """Refuse what no route takes, and name all methods that the path does take."""
        if self._methods_of is None:
            return
        methods = self._methods_of(scope)
        if not methods:
            raise Problem(404, "there is nothing at this path")
        if scope["method"] not in methods:
            allowed = ", ".join(sorted(methods))
            raise Problem(405, f"this path takes {allowed}", headers={"Allow": allowed})

    def _count(self, scope: Scope, headers: Headers, address: str) -> str:
        """Count the request for its caller, whose name is returned, or refuse it: before the store is asked.

        It counts for the key if that was valid before, otherwise for the address: whoever guesses keys is slowed down,
        and burdens neither the store nor those who have a key.
        """
        known = None if is_open(scope["path"]) else self._access.remembered(bearer(headers))
        found = address if known is None else f"key {known.name}"
        self._rates.admit(found)
        return found

    async def _check_key(self, scope: Scope, headers: Headers) -> None:
        """Ask for a key where one is needed; from now on the request is that key's."""
        if is_open(scope["path"]):
            return
        if not await self._access.needs_key():
            refuse_proxied(headers)
            return
        name = await self._access.check(bearer(headers), scope["method"], scope["path"])
        scope[KEY_NAME] = name
        caller.set(f"key {name}")


class _Answer:
    """Sends an answer, with the headers that all answers have."""

    def __init__(self, guard: Guard, send: Send) -> None:
        self._guard, self._send = guard, send
        self.status, self.begun = 500, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.begun = message["status"], True
            given = dict(message["headers"])
            own = {**SENT, b"x-request-id": (request_id.get() or "").encode()}
            if self._guard.stopping:
                own[b"connection"] = b"close"
            message["headers"] = [*{b"cache-control": b"no-store", **given, **own}.items()]
        await self._send(message)


def _check_type(headers: Headers) -> None:
    """Only JSON is read: a form that another site's page sends is not."""
    given = headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(
            415,
            f"the body is '{kind[:50] or 'of no named type'}'; send 'Content-Type: application/json'",
            field="Content-Type",
            value=given,
            expected="application/json",
        )


def _route(scope: Scope) -> str:
    """The pattern that matched, never the path itself, which holds ids."""
    return str(getattr(scope.get("route"), "path", "unmatched"))
