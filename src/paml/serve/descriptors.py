"""Open files and sockets: how many the process may have, and how many of them connections may use."""

from typing import NamedTuple

WANTED = 8192  # more than one process can serve
RESERVED = 128  # for the store, the log, the model's files and whatever else the process opens
FALLBACK = 256  # where a system does not say


class Room(NamedTuple):
    """What there is room for."""

    connections: int
    backlog: int
    """Connections that may wait to be accepted: all of them may be accepted at once, before any is counted, and as many
    again before those that make room for them are closed."""


def room() -> Room:
    """Room for connections, after the limit was raised as far as the system allows without asking."""
    return divided(_raised())


def divided(limit: int) -> Room:
    """A limit shared out: some for the process itself, some for connections that are being accepted, the rest."""
    backlog = max(1, min(512, limit // 8))
    reserved = min(RESERVED, limit // 4)
    return Room(max(1, min(WANTED, limit - 2 * backlog - reserved)), backlog)


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
