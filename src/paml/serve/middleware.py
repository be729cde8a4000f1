"""Checks around every request: who may call, from where, how much and how often, and the headers of every answer.

The outermost layer, so that nothing is parsed, looked up or computed for a request that is refused.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Collection
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paml.errors import PamlError
from paml.serve.limits import Limits, RateLimiter, read_body, replayed
from paml.serve.problems import Problem, of_error, unavailable
from paml.serve.store.api_keys import digest_of
from paml.serve.telemetry import Metrics, log_error

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
OPEN = frozenset({"/", "/healthz", "/readyz", "/openapi.json", "/favicon.ico"})
"""Paths that need no key: the page, which asks for the key, and what says nothing about users."""

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
KEY_SECONDS = 1.0  # for which a valid key is not looked up again; a revoked one works no longer than that
KEYS_REMEMBERED = 1000
HOST = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]*)(?::\d*)?")  # a name or an address, perhaps with a port
ESCAPED = re.compile("%(2[fF]|25)")

KeyCheck = Callable[[str], Awaitable[str | None]]


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
        check_key: KeyCheck | None,
    ) -> None:
        """`hosts`: accepted host names, None for any; `check_key`: secret -> the key's name, None to ask for no key."""
        self._app, self._metrics, self._limits = app, metrics, limits
        self._hosts, self._check_key = hosts, check_key
        self._rates = RateLimiter(limits.per_second)
        self._keys: dict[str, tuple[str, float]] = {}  # digest of a valid key -> its name, until when
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (or the application's start and end)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500
        sent = False

        async def answer(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status, sent = message["status"], True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if "Cache-Control" not in headers:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        self._under_way += 1
        self._metrics.under_way.set(self._under_way)
        try:
            inner = await self._admit(scope, receive)
            await self._app(scope, inner, answer)
        except Problem as problem:
            await problem.response()(scope, receive, answer)
        except PamlError as error:  # the store does not answer whether a key is valid
            await of_error(error).response()(scope, receive, answer)
        except Exception as error:  # noqa: BLE001 - the last resort: logged without what the user sent, and answered
            log_error(error, _route(scope))
            if not sent:
                await Problem(500, "something is wrong with the service, not with the request").response()(
                    scope, receive, answer
                )
        finally:
            self._under_way -= 1
            self._metrics.under_way.set(self._under_way)
            method = scope["method"] if scope["method"] in METHODS else "OTHER"
            self._metrics.answered(_route(scope), method, status, time.perf_counter() - started)

    async def _admit(self, scope: Scope, receive: Receive) -> Receive:
        """Let a request in, its body read, or raise the problem with it."""
        headers = Headers(scope=scope)
        scope["path"] = routed_path(scope["raw_path"])
        self._check_site(scope, headers)
        if scope["path"] != "/healthz":
            if self._under_way > self._limits.at_once:
                raise unavailable("too many requests at once", kind="overloaded")
            await self._check_caller(scope, headers)
        length = headers.get("content-length", "0")
        if length == "0" and "transfer-encoding" not in headers and scope["method"] not in WITH_BODY:
            return receive
        if scope["method"] in WITH_BODY:
            _check_type(headers)
        return replayed(await read_body(receive, int(length) if length.isdigit() else None, self._limits), receive)

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

    async def _check_caller(self, scope: Scope, headers: Headers) -> None:
        """Count the request, then ask for a key where one is needed.

        It counts for the key if that was valid before, otherwise for the address, and before the store is asked:
        whoever guesses keys is slowed down, and burdens neither the store nor those who have a key.
        """
        address, path = f"address {scope['client'][0] if scope.get('client') else 'unknown'}", scope["path"]
        if self._check_key is None or path in OPEN or path.startswith("/static/"):
            self._rates.admit(address)
            return
        secret = _bearer(headers)
        digest = digest_of(secret or "")  # secrets themselves are not kept
        name, until = self._keys.get(digest, (None, 0.0))
        self._rates.admit(address if name is None else f"key {name}")
        if secret is None:
            raise _no_key("no-key", "no key was given")
        now = asyncio.get_running_loop().time()
        if now < until:
            return
        name = await self._check_key(secret)
        self._keys.pop(digest, None)
        if name is None:
            raise _no_key("wrong-key", "the key is not valid")
        if len(self._keys) >= KEYS_REMEMBERED:
            self._keys.clear()
        self._keys[digest] = (name, now + KEY_SECONDS)


def _no_key(kind: str, what: str) -> Problem:
    challenge = {"WWW-Authenticate": 'Bearer realm="paml"'}
    return Problem(401, f"{what}; send 'Authorization: Bearer KEY'", kind=kind, headers=challenge)


def _bearer(headers: Headers) -> str | None:
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" and secret.strip() else None


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
