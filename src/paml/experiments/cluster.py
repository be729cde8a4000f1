"""Tasks on a Dask cluster, which may be many machines: the same interface as that of processes here (`workers.py`).

Workers read and write files: they must see the same folders under the same names. Dask begins a task again whose worker
is lost, and gives it up after some losses. A task that is under way cannot be ended from outside; it looks at a file in
the comparison's folder from time to time, and ends when that is gone or belongs to somebody else.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from paml.errors import PamlError, SettingsError
from paml.experiments.workers import Outcome, WorkerDied
from paml.files import write_text
from paml.progress import Progress, Step

TOKEN = ".cluster"  # noqa: S105 - the name of the file that says whose tasks may go on
CONNECT_SECONDS = 30
LOOK_SECONDS = 1.0
"""Between two looks at the file."""


def load_distributed() -> Any:
    """Dask's distributed scheduler, which is imported only where it is needed."""
    try:
        import distributed
    except ImportError:
        raise SettingsError("Dask is not installed", remedy="pip install 'paml[dask]'", argument="dask") from None
    return distributed


class Cluster:
    """The workers of a Dask scheduler, for the duration of a `with` block; leaving it ends what is under way."""

    def __init__(self, address: str, folder: Path, visible: Sequence[Path], threads: int) -> None:
        self._dask, self._address, self._threads = load_distributed(), address, threads
        self._visible, self._file, self._token = visible, folder / TOKEN, secrets.token_hex(8)
        self._client: Any = None
        self._futures: dict[Any, Any] = {}

    def __enter__(self) -> Self:
        try:
            self._dask.comm.get_address_host(self._address)  # a client would go on trying to reach what is no address
            self._client = self._dask.Client(self._address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            what = f"no Dask scheduler answers ({str(error).partition(chr(10))[0][:200]})"
            remedy = "give the address that dask scheduler prints, such as tcp://HOST:8786"
            raise SettingsError(what, where=self._address, remedy=remedy, argument="dask") from None
        try:
            write_text(self._file, self._token)
            self._check_workers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.unlink(missing_ok=True)
        self._client.cancel(list(self._futures.values()))
        self._client.close()

    def _check_workers(self) -> None:
        """Every worker does one task at a time, has this version, and sees the files."""
        if not self._client.nthreads():
            remedy = "start some with `dask worker`, each with one thread"
            raise SettingsError("the Dask cluster has no workers", where=self._address, remedy=remedy, argument="dask")
        for worker, threads in self._client.nthreads().items():
            if threads != 1:
                remedy = "start more workers, each with one thread"
                raise SettingsError(f"does {threads} tasks at once", where=worker, remedy=remedy, argument="dask")
        paths = [str(path) for path in (*self._visible, self._file)]
        try:
            answers = self._client.run(what_is_wrong, version("paml"), paths, str(self._file), self._token)
        except ImportError as error:
            remedy = "install the same version of paml for all workers"
            raise SettingsError(f"a worker cannot import paml ({error})", remedy=remedy, argument="dask") from None
        for worker, wrong in answers.items():
            if wrong is not None:
                remedy = "give workers this version, and a file system that all share, under the same names"
                raise SettingsError(f"a worker cannot be used: {wrong}", where=worker, remedy=remedy, argument="dask")

    @property
    def count(self) -> int:
        """Workers at this moment."""
        return max(len(self._client.nthreads()), 1)

    @property
    def is_free(self) -> bool:
        """Whether another task can begin at once."""
        return len(self._futures) < self.count

    @property
    def at_work(self) -> list[tuple[Any, str]]:
        """The tasks under way, as `Workers.at_work`; notes are not sent."""
        return [(key, "") for key in self._futures]

    def begin(self, key: Any, function: Callable[..., Any], *arguments: Any) -> None:
        """Give a task to the scheduler."""
        task = (run_task, str(self._file), self._token, self._threads, function, arguments)
        self._futures[key] = self._client.submit(*task, pure=False)

    def ended(self) -> list[Outcome]:
        """Wait until a task ends; those that have ended since."""
        with self._client.as_current():
            self._dask.wait(list(self._futures.values()), return_when="FIRST_COMPLETED")
        done = {key: future for key, future in self._futures.items() if future.done()}
        for key in done:
            del self._futures[key]
        return [self._outcome(key, future) for key, future in done.items()]

    def _outcome(self, key: Any, future: Any) -> Outcome:
        if future.cancelled():
            remedy = "start the same command again when the scheduler is back"
            raise PamlError("the Dask scheduler was lost", where=self._address, remedy=remedy)
        error = future.exception()
        if isinstance(error, self._dask.KilledWorker):
            error = WorkerDied("the Dask workers that did it were lost, perhaps for lack of memory")
        return Outcome(key, future.result() if error is None else None, error)


def what_is_wrong(wanted: str, paths: Sequence[str], file: str, token: str) -> str | None:
    """Why this process cannot work for the one that asks; None if it can."""
    if version("paml") != wanted:
        return f"it has paml {version('paml')}, not {wanted}"
    for path in paths:
        if not Path(path).exists():
            return f"it does not see {path}"
    return None if Path(file).read_text(encoding="utf-8") == token else f"it sees another {file}"


def run_task(file: str, token: str, threads: int, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """A task on a worker."""
    import torch

    torch.set_num_threads(threads)
    return function(*arguments, _UntilStopped(Path(file), token))


class _UntilStopped(Progress):
    """A task's progress, which ends the task when nobody waits for it any more."""

    def __init__(self, file: Path, token: str) -> None:
        self._file, self._token, self._looked = file, token, time.monotonic()

    def look(self) -> None:
        """Raise PamlError if the command that gave the task has ended."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        if not self._file.exists() or self._file.read_text(encoding="utf-8") != self._token:
            raise PamlError("the command that began this was stopped", remedy="the same command goes on")

    @contextmanager
    def step(self, title: str, total: int | None = None, *, in_bytes: bool = False) -> Iterator[Step]:
        """Look now and then."""
        yield _LookingStep(self)


class _LookingStep(Step):
    def __init__(self, progress: _UntilStopped) -> None:
        self._progress = progress

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._progress.look()
