"""The request that is being served: its id and who sent it, known wherever it is worked on."""

import ipaddress
import random
import re
from contextvars import ContextVar
from functools import lru_cache

SANE_ID = re.compile("[A-Za-z0-9._-]{1,64}")

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""In the answer, in problem documents and in the log."""
caller: ContextVar[str] = ContextVar("caller", default="nobody")
"""Whose share the request counts for: `key NAME` or `address NETWORK`."""


def chosen_id(given: str | None) -> str:
    """The sender's own id, if it is short and plain, so that it can be logged; otherwise a new one.

    It tells requests apart and guards nothing. Asking the system for random bytes lets go of the interpreter, and to
    get it back from the model's thread may take as long as half the rest of a request.
    """
    if given is not None and SANE_ID.fullmatch(given):
        return given
    return f"{random.getrandbits(64):016x}"  # seeded anew in every worker


@lru_cache(1024)  # asked for every request
def network_of(host: str) -> str:
    """Who counts as one address: a single one of IPv4, a /64 of IPv6, as one household has all of these."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host or "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)
