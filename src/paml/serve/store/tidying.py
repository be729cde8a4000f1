"""Removes what deletions leave behind, in a thread of its own, until nothing is left or the store is closed."""

import threading
from collections.abc import Callable

CLOSE_SECONDS = 5.0


class Tidier:
    """Calls `tidy` some time after it was asked, and again until it succeeds; it sleeps while nobody asks."""

    def __init__(self, tidy: Callable[[], bool], pause: float) -> None:
        self._tidy, self._pause = tidy, pause
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._wanted = False

    def ask(self) -> None:
        """There is something to remove."""
        with self._lock:
            self._wanted = True
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._work, name="paml-tidy", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop, after what is under way, if that does not take long."""
        self._stop.set()
        thread = self._thread
        if thread is not None:
            thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        while not self._stop.wait(self._pause):
            with self._lock:
                self._wanted = False
            done = self._tidy()
            with self._lock:
                if done and not self._wanted:
                    self._thread = None
                    return
