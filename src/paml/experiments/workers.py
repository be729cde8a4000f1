"""Tasks on several processes of this machine, one at a time each; a task whose process dies is done again.

A task is a function of a module, its arguments, and a progress that the function gets as its last argument. Processes
are spawned, not forked: PyTorch's threads do not survive a fork. They end with the process that started them, however
that ends; Ctrl-C reaches only the latter, which then ends them.
"""

import contextlib
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Self

from paml.errors import PamlError, SettingsError
from paml.progress import Progress, Step

MAX_TRIES = 3
"""How often a task is begun whose process dies: one that needs more memory than there is would go on for ever."""
NOTE_SECONDS = 0.5  # between two notes of a worker
GRACE_SECONDS = 10.0  # for a worker to end by itself, so that it leaves nothing half-written
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS", "LK_NUM_THREADS")
"""What libraries read when they are loaded."""


def check_jobs(jobs: int, threads: int) -> None:
    """Raise SettingsError if there are to be fewer than one process, or thread of each."""
    for name, value in (("jobs", jobs), ("threads_per_job", threads)):
        if value < 1:
            raise SettingsError(f"{name} is {value}", remedy="at least one is needed", argument=name)


class WorkerDied(PamlError):  # noqa: N818, as in a sentence: "worker died"
    """A task was given up, because every process that did it has died."""


@dataclass(frozen=True)
class Outcome:
    """A task that ended: its key, and what the function returned or raised."""

    key: Any
    value: Any
    error: Exception | None

    def result(self) -> Any:
        """What the function returned; what it raised is raised."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True)
class _Task:
    key: Any
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection
    task: _Task | None = None
    tries: int = 0
    note: str = ""
    is_ready: bool = False


class Workers:
    """A fixed number of processes, for the duration of a `with` block; leaving it ends them, whatever they do."""

    def __init__(self, count: int, threads: int) -> None:
        self.count, self._threads = count, threads
        self._workers: list[_Worker] = []
        self._failed_starts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.terminate()
        until = time.monotonic() + GRACE_SECONDS
        for worker in self._workers:
            worker.process.join(max(until - time.monotonic(), 0.0))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()
            worker.process.close()
        self._workers = []

    @property
    def is_free(self) -> bool:
        """Whether another task can begin at once."""
        return len(self._workers) < self.count or any(worker.task is None for worker in self._workers)

    @property
    def at_work(self) -> list[tuple[Any, str]]:
        """The tasks under way: key, and last note."""
        return [(worker.task.key, worker.note) for worker in self._workers if worker.task is not None]

    def begin(self, key: Any, function: Callable[..., Any], *arguments: Any) -> None:
        """Give a task to a process that is free."""
        worker = next((worker for worker in self._workers if worker.task is None), None)
        self._give(worker or self._start(), _Task(key, function, arguments), 1)

    def ended(self) -> list[Outcome]:
        """Wait until something happens, a note or an end; the tasks that have ended since."""
        ready = wait([worker.connection for worker in self._workers])
        heard = [worker for worker in self._workers if worker.connection in ready]
        return [outcome for worker in heard for outcome in self._read(worker)]

    def _start(self) -> _Worker:
        here, there = get_context("spawn").Pipe()
        process = get_context("spawn").Process(target=_work, args=(there, self._threads), daemon=True)
        with _environment(self._threads), _without_interrupts():
            process.start()
        there.close()  # so that the end of the process is the end of the pipe
        worker = _Worker(process, here)
        self._workers.append(worker)
        return worker

    def _give(self, worker: _Worker, task: _Task, tries: int) -> None:
        worker.task, worker.tries, worker.note = task, tries, ""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has just died, which `ended` will see
            worker.connection.send((task.function, task.arguments))

    def _read(self, worker: _Worker) -> Iterator[Outcome]:
        """Everything that a worker has sent; if it is dead, another one takes its task."""
        try:
            while worker.connection.poll():
                kind, value = worker.connection.recv()
                if kind == "ready":
                    worker.is_ready, self._failed_starts = True, 0
                elif kind == "note":
                    worker.note = value
                else:
                    assert worker.task is not None
                    task, worker.task = worker.task, None
                    yield Outcome(task.key, value, None) if kind == "done" else Outcome(task.key, None, value)
        except (EOFError, ConnectionResetError):
            yield from self._replace(worker)

    def _replace(self, worker: _Worker) -> Iterator[Outcome]:
        worker.process.join()
        how = _how_it_ended(worker.process.exitcode)
        self._workers.remove(worker)
        worker.connection.close()
        worker.process.close()
        if not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts >= MAX_TRIES:
                remedy = "in a script, call it below: if __name__ == '__main__':"
                raise SettingsError(f"no further process can be started ({how})", remedy=remedy, argument="jobs")
        if worker.task is None:
            return
        tries = worker.tries + worker.is_ready
        if tries <= MAX_TRIES:
            self._give(self._start(), worker.task, tries)
            return
        what = f"its process died {MAX_TRIES} times ({how}), perhaps for lack of memory"
        remedy = "use fewer jobs"
        yield Outcome(worker.task.key, None, WorkerDied(what, remedy=remedy, argument="jobs"))


def _how_it_ended(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}"


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """So many threads for what a new process loads."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process that is started now never sees Ctrl-C, which a terminal sends to all; ours comes when this ends."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(connection: Connection, threads: int) -> None:
    """A worker's life: tasks, until there are no more."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that nothing half-written stays
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    connection.send(("ready", None))
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = ("done", function(*arguments, _Notes(connection)))
        except Exception as error:  # noqa: BLE001 - raised again in the process that gave the task
            answer = ("failed", _portable(error))
        connection.send(answer)


def _end_with_parent() -> None:
    """End at once when the parent is gone: whoever goes on with its work must not meet us."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _portable(error: Exception) -> Exception:
    """An error that can be sent, with its traceback as a note unless it is one that users cause."""
    if not isinstance(error, PamlError):
        error.add_note("in a worker process:\n" + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - whatever an exception's class does
        return PamlError(str(error)) if isinstance(error, PamlError) else RuntimeError("\n".join(error.__notes__))
    return error


class _Notes(Progress):
    """A task's progress: its notes are sent to the parent, now and then."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @contextmanager
    def step(self, title: str, total: int | None = None, *, in_bytes: bool = False) -> Iterator[Step]:
        """Send notes on."""
        yield _NoteStep(self._connection)


class _NoteStep(Step):
    def __init__(self, connection: Connection) -> None:
        self._connection, self._last = connection, 0.0

    def advance(self, amount: int = 1, note: str = "") -> None:
        now = time.monotonic()
        if note and now - self._last >= NOTE_SECONDS:
            self._last = now
            self._connection.send(("note", note))
