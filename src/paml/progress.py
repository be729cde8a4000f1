"""Progress of long work.

Commands show bars on a terminal, lines elsewhere. The library shows bars on a terminal and in notebooks and is silent
elsewhere; `progress=False`, or PAML_PROGRESS=0 in the environment, turns them off, `progress=True` shows lines, too.
Warnings are no progress: they are said in any case.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress as RichProgress,
    TextColumn,
    TimeRemainingColumn,
)

from paml.errors import SettingsError, shortened
from paml.terminal import printable

OFF = {"0", "off", "no", "false"}


class Step:
    """One piece of work under way; `advance` is cheap enough for inner loops over chunks or batches."""

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Count `amount` more units as done; `note` is the current state (a metric, a speed)."""


class Progress:
    """Silent but for warnings; the base class of the others."""

    @contextmanager
    def step(self, title: str, total: int | None = None, *, in_bytes: bool = False) -> Iterator[Step]:
        """Announce a step of `total` units (None: unknown) for the duration of a `with` block; bytes show as MB."""
        yield Step()

    def say(self, text: str) -> None:
        """Tell something that must not be overlooked, also where nobody watches the progress."""
        print(printable(text), file=sys.stderr, flush=True)


SILENT = Progress()


class Inside(Progress):
    """The progress of a part (one training of many), shown as a note on the whole."""

    def __init__(self, outer: Step, title: str) -> None:
        self._outer, self._title = outer, title

    @contextmanager
    def step(self, title: str, total: int | None = None, *, in_bytes: bool = False) -> Iterator[Step]:
        """Pass notes on."""
        yield _InsideStep(self._outer, self._title)


class _InsideStep(Step):
    def __init__(self, outer: Step, prefix: str) -> None:
        self._outer, self._prefix = outer, prefix

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._outer.advance(0, f"{self._prefix} · {note}" if note else self._prefix)


class _BarStep(Step):
    def __init__(self, bars: RichProgress, title: str, total: int | None) -> None:
        self._bars, self._note = bars, ""
        self._task = bars.add_task(title, total=total, note="")

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._note = note or self._note
        self._bars.update(self._task, advance=amount, note=self._note)


class BarProgress(Progress):
    """Bars on standard error, for people who watch."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(printable(text), style="bold red", markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def step(self, title: str, total: int | None = None, *, in_bytes: bool = False) -> Iterator[Step]:
        """Show a bar, removed when the step is done."""
        count = DownloadColumn() if in_bytes else MofNCompleteColumn()
        columns = (TextColumn("{task.description}"), BarColumn(), count)
        with RichProgress(
            *columns, TextColumn("{task.fields[note]}"), TimeRemainingColumn(), console=self._console, transient=True
        ) as bars:
            yield _BarStep(bars, title, total)


class _LineStep(Step):
    """A line at most every ten seconds, so that a log stays readable."""

    EVERY_SECONDS = 10.0

    def __init__(self, title: str, total: int | None, *, in_bytes: bool) -> None:
        self._title, self._total, self._done, self._last = title, total, 0, time.monotonic()
        self._in_bytes = in_bytes

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._done += amount
        now = time.monotonic()
        if now - self._last >= self.EVERY_SECONDS:
            self._last = now
            done = (
                f"{self._count(self._done)} of {self._count(self._total)}" if self._total else self._count(self._done)
            )
            print(f"{self._title}: {done} {note}".rstrip(), file=sys.stderr, flush=True)

    def _count(self, units: int) -> str:
        return f"{units / 1e6:.1f} MB" if self._in_bytes else str(units)


class LineProgress(Progress):
    """Log lines on standard error, for files and pipes."""

    @contextmanager
    def step(self, title: str, total: int | None = None, *, in_bytes: bool = False) -> Iterator[Step]:
        """Print a line now and then, and at the end one with the time taken."""
        started = time.monotonic()
        yield _LineStep(title, total, in_bytes=in_bytes)
        print(f"{title}: done in {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)


class _NotebookStep(Step):
    """A bar that is drawn anew a few times a second: every drawing is a message to the notebook."""

    EVERY_SECONDS = 0.2

    def __init__(self, title: str, total: int | None, *, in_bytes: bool) -> None:
        from IPython.display import display

        self._title, self._total, self._in_bytes = title, total, in_bytes
        self._done, self._note, self._last = 0, "", time.monotonic()
        self._place: Any = display(self._drawn(), raw=True, display_id=True)

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._done, self._note = self._done + amount, note or self._note
        now = time.monotonic()
        if now - self._last >= self.EVERY_SECONDS:
            self._last = now
            self._place.update(self._drawn(), raw=True)

    def remove(self) -> None:
        """Leave nothing behind."""
        self._place.update({"text/plain": "", "text/html": ""}, raw=True)

    def _drawn(self) -> dict[str, str]:
        unit = 1e6 if self._in_bytes else 1
        done, total = (f"{number / unit:,.0f}" for number in (self._done, self._total or 0))
        count = f"{done} of {total}" if self._total else done
        count += " MB" if self._in_bytes else ""
        state = f'value="{self._done}" max="{self._total}"' if self._total else ""
        line = escape(f"{count} {printable(self._note)}".strip())
        return {
            "text/plain": f"{self._title}: {count} {self._note}".strip(),
            "text/html": f"<div>{escape(self._title)} <progress {state}></progress> {line}</div>",
        }


class NotebookProgress(Progress):
    """Bars in the output of a cell; nothing but IPython is needed."""

    def say(self, text: str) -> None:
        """A line that stays."""
        from IPython.display import display

        shown = printable(text)
        display({"text/plain": shown, "text/html": f"<div><strong>{escape(shown)}</strong></div>"}, raw=True)

    @contextmanager
    def step(self, title: str, total: int | None = None, *, in_bytes: bool = False) -> Iterator[Step]:
        """Show a bar, removed when the step is done."""
        bar = _NotebookStep(title, total, in_bytes=in_bytes)
        try:
            yield bar
        finally:
            bar.remove()


def for_terminal() -> Progress:
    """Bars if standard error is a terminal, else lines; nothing if PAML_PROGRESS is 0."""
    if _is_turned_off():
        return SILENT
    console = Console(stderr=True)
    return BarProgress(console) if console.is_terminal else LineProgress()


def chosen(progress: Progress | bool | None) -> Progress:
    """What a library function was given as `progress`: None is bars for whoever watches, unless PAML_PROGRESS is 0."""
    if isinstance(progress, Progress):
        return progress
    if progress is not None and not isinstance(progress, bool):
        raise SettingsError(f"progress is {shortened(repr(progress))}", remedy="expected True, False or None")
    if progress is None and _is_turned_off():
        return SILENT
    console = Console(stderr=True)
    if progress is not False and console.is_jupyter:
        return NotebookProgress()
    if progress is not False and console.is_terminal:
        return BarProgress(console)
    return LineProgress() if progress else SILENT


def _is_turned_off() -> bool:
    return os.environ.get("PAML_PROGRESS", "").strip().lower() in OFF
