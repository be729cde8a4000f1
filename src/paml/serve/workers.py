"""Several processes that serve one address: they share the port, the store and the model's memory.

The model is loaded once, before the processes are forked from this one, which then only watches them: one that dies is
replaced, and told to stop, it tells them. Each worker has its own event loop, threads, limits, line and cache. None of
them outlives the first process, because each reads from a pipe that ends with it.

What the first process has loaded must do its work without threads of its own, as a fork copies only one: torch and
FAISS run with one thread until then, and Polars is not used afterwards (catalogue.py).
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from paml.errors import PamlError, SettingsError

RESTART_SECONDS = 1.0  # a worker that lived for less is not replaced sooner
STOPS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("paml")


def supervise(count: int, work: Callable[[], None], ended: Callable[[int], object]) -> None:
    """Keep `count` processes at work until SIGTERM or SIGINT; `ended` is told the number of one that died."""
    if not hasattr(os, "fork"):
        raise SettingsError("several workers need a system that can fork", remedy="serve with one", argument="workers")
    watched = {*STOPS, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # an ignored signal cannot be waited for
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    alive = os.pipe()
    started: dict[int, float] = {}

    def start() -> None:
        number = os.fork()
        if not number:
            _work(work, alive, before)
        started[number] = time.monotonic()
        log.info("worker %d has started", number)

    try:
        for _ in range(count):
            start()
        while _told(watched, None if len(started) == count else RESTART_SECONDS) not in STOPS:
            for number, status in _ended(started):
                lived = time.monotonic() - started.pop(number)
                ended(number)
                log.error("worker %d has ended (%s); another one is started", number, _how(status))
                time.sleep(max(0.0, RESTART_SECONDS - lived))
            try:
                while len(started) < count:
                    start()
            except OSError as error:  # there is no memory, or no room for processes; the others go on
                log.error("no worker can be started now (%s); it is tried again", error.strerror)
    finally:
        _stop(started, watched)
        for end in alive:
            os.close(end)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(work: Callable[[], None], alive: tuple[int, int], mask: set[int | signal.Signals]) -> NoReturn:
    """Be a worker, and nothing else: whatever the first process would do at its end is not done here."""
    code = 1
    try:
        os.close(alive[1])
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        threading.Thread(target=_end_with, args=(alive[0],), name="paml-alive", daemon=True).start()
        work()
        code = 0
    except (SystemExit, KeyboardInterrupt):  # told to stop while it was starting
        code = 0
    except PamlError as error:
        log.error("%s", error)
    except BaseException:
        log.exception("a worker has failed")
    finally:
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)


def _end_with(pipe: int) -> None:
    """Stop when nobody holds the other end any more."""
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _told(watched: set[signal.Signals], seconds: float | None) -> int | None:
    """The next signal; None if there was none for so long."""
    if seconds is None:
        return signal.sigwait(watched)
    found = signal.sigtimedwait(watched, seconds)
    return None if found is None else found.si_signo


def _ended(started: dict[int, float]) -> list[tuple[int, int]]:
    """Workers that have ended, and how; signals of several may arrive as one."""
    found = [os.waitpid(number, os.WNOHANG) for number in started]
    return [(number, status) for number, status in found if number]


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _stop(started: dict[int, float], watched: set[signal.Signals]) -> None:
    """Tell all workers to stop, and wait; a further SIGINT is for them, too."""
    _tell(started, signal.SIGTERM)
    while started:
        for number, _ in _ended(started):
            del started[number]
        if started and signal.sigwait(watched) == signal.SIGINT:
            _tell(started, signal.SIGINT)


def _tell(started: dict[int, float], what: signal.Signals) -> None:
    for number in started:
        with suppress(ProcessLookupError):
            os.kill(number, what)
