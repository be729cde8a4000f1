"""Open files and sockets: how many the process may have, and how many of them connections may use."""

from typing import NamedTuple

WANTED = 8192  # more than one process can serve
RESERVED = 128  # for the store, the log, the model's files and whatever else the process opens
FALLBACK = 256  # where a system does not say
MAX_AT_ONCE = 64  # a turn of the event loop that accepts more keeps requests under way waiting


class Room(NamedTuple):
    """What there is room for."""

    connections: int
    at_once: int
    """Connections that are accepted in one turn of the event loop, before any of them is counted; as many again may be
    open before those that make room for them are closed."""


def room() -> Room:
    """Room for connections, after the limit was raised as far as the system allows without asking."""
    return divided(_raised())


def divided(limit: int) -> Room:
    """A limit shared out: some for the process itself, some for connections that are being accepted, the rest."""
    at_once = max(1, min(MAX_AT_ONCE, limit // 8))
    reserved = min(RESERVED, limit // 4)
    return Room(max(1, min(WANTED, limit - 2 * at_once - reserved)), at_once)


def _raised() -> int:
    try:
        import resource
    except ImportError:  # Windows: sockets are not limited like this
        return FALLBACK
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED + RESERVED + 1024
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        except (OSError, ValueError):  # macOS has a further limit
            return soft
        return allowed
    return soft
