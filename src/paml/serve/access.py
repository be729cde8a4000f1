"""Who may do what: whether a key is needed, whether one is valid, and what its scope opens.

A key is needed from everybody once the store has had one, and wherever others may connect. A service that needs none
answers this machine alone: what came through a proxy is refused, because a proxy makes the loopback address public.
"""

import asyncio
from typing import Protocol

from starlette.datastructures import Headers

from paml.errors import StoreUnavailable
from paml.serve.problems import Problem
from paml.serve.store.api_keys import Key, Scope, digest_of

KEY_SECONDS = 1.0  # for which a valid key is not looked up again; a revoked one works no longer than that
KEYS_REMEMBERED = 1000
OPEN = frozenset({"/", "/healthz", "/readyz", "/openapi.json", "/favicon.ico"})
"""Paths that need no key: the page, which asks for the key, and what says nothing about users."""
READS = frozenset({"GET", "HEAD", "OPTIONS"})
ASKS = frozenset({"/v1/recommend"})  # a POST that stores nothing
ADMIN = frozenset({"/v1/audit"})
PROXIED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")


class KeyStore(Protocol):
    """Where keys are looked up."""

    async def key(self, secret: str) -> Key | None:
        """The valid key with this secret."""

    async def has_had_keys(self) -> bool:
        """Whether there is or was a key."""


def is_open(path: str) -> bool:
    """Whether a path is served to everybody."""
    return path in OPEN or path.startswith("/static/")


def needed(method: str, path: str) -> Scope:
    """The scope that a request needs; the end of a route's pattern also matches before a line break."""
    if path.removesuffix("\n") in ADMIN:
        return "admin"
    return "read" if method in READS or path in ASKS else "write"


class Access:
    """Decides for each request; keys that were valid are remembered for a second."""

    def __init__(self, keys: KeyStore, *, always: bool) -> None:
        """`always`: a key is needed, whatever the store says."""
        self._store, self._needed = keys, always
        self._asked_until = 0.0
        self._keys: dict[str, tuple[Key, float]] = {}  # digest of a valid key -> the key, until when

    async def needs_key(self) -> bool:
        """Whether callers must have a key; asked again every second, until the first key was made."""
        now = _now()
        if not self._needed and now >= self._asked_until:
            self._asked_until = now + KEY_SECONDS
            try:
                self._needed = await self._store.has_had_keys()
            except StoreUnavailable:  # nobody makes a key meanwhile; what needs no store is answered as before
                pass
            except BaseException:  # too busy to be asked: somebody may make a key, so the next request asks again
                self._asked_until = 0.0
                raise
        return self._needed

    def remembered(self, secret: str | None) -> Key | None:
        """The key with this secret, if it was valid when it was looked up last."""
        return self._keys.get(digest_of(secret or ""), (None, 0.0))[0]

    async def check(self, secret: str | None, method: str, path: str) -> str:
        """The name of the key, or the problem with it: none, not valid, or not for this."""
        if secret is None:
            raise _no_key("no-key", "no key was given")
        key = await self._find(secret)
        if key is None:
            raise _no_key("wrong-key", "the key is not valid")
        if not key.opens(scope := needed(method, path)):
            detail = f"the key has the scope '{key.scope}', and this needs '{scope}'"
            raise Problem(403, detail, kind="scope", field="Authorization", expected=f"a key with the scope '{scope}'")
        return key.name

    async def _find(self, secret: str) -> Key | None:
        digest, now = digest_of(secret), _now()  # secrets themselves are not kept
        key, until = self._keys.get(digest, (None, 0.0))
        if key is not None and now < until and not key.has_expired():
            return key
        key = await self._store.key(secret)
        self._keys.pop(digest, None)
        if key is not None:
            if len(self._keys) >= KEYS_REMEMBERED:
                self._keys.clear()
            self._keys[digest] = (key, now + KEY_SECONDS)
        return key


def refuse_proxied(headers: Headers) -> None:
    """Refuse what came through a proxy, where no key is asked for."""
    if not set(headers.keys()).isdisjoint(PROXIED):
        raise _no_key("no-key", "the request came through a proxy, and the service has no key to ask for; make one")


def bearer(headers: Headers) -> str | None:
    """The secret that a request brings."""
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" and secret.strip() else None


def _no_key(kind: str, what: str) -> Problem:
    challenge = {"WWW-Authenticate": 'Bearer realm="paml"'}
    return Problem(401, f"{what}; send 'Authorization: Bearer KEY'", kind=kind, headers=challenge)


def _now() -> float:
    return asyncio.get_running_loop().time()
