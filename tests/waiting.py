"""Waiting for what must happen, however busy the machine is: nothing here measures how fast it happens."""

import time
from collections.abc import Callable

PATIENCE = 300.0  # seconds: far more than anything needs, and less than pytest's own limit


def wait_until(condition: Callable[[], object], why: str = "it did not happen") -> None:
    """Look again and again until the condition holds."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"{why} within {PATIENCE:g} s"
        time.sleep(0.02)
