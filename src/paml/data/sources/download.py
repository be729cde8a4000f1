"""Official archives downloaded once into a cache folder: resumed after a broken connection, checked, never incomplete.

A download grows as `NAME.part` and gets its final name only when size and checksum are correct. Next to it,
`NAME.part.tag` keeps the server's tag for this version of the file, so that parts of two versions are never mixed, and
`.NAME.lock` lets one process write at a time; the operating system releases it when that process ends for any reason.
"""

import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from ssl import SSLCertVerificationError
from urllib.error import HTTPError, URLError
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

import platformdirs
from filelock import FileLock, Timeout

from paml.errors import DataError
from paml.files import write_text
from paml.progress import SILENT, Progress, Step

HOME_VARIABLE = "PAML_DATA_HOME"
BLOCK = 1 << 16  # bytes read at once: the most that a broken connection can lose
PASSING = {408, 429, 500, 502, 503, 504}  # status codes of errors that may be temporary


@dataclass(frozen=True)
class Archive:
    """A file that its publisher offers for download, and how to recognise it."""

    name: str
    """File name in the cache folder, for example `ml-1m.zip`."""
    url: str
    size: int | None
    """Bytes; None if the publisher changes the file from time to time."""
    md5: str | None
    page: str
    """Web page of the data set, with its terms of use."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server: seconds without a byte, and the pause before each further attempt."""

    timeout: float = 30.0
    pauses: tuple[float, ...] = (1.0, 2.0, 4.0)


PATIENCE = Patience()


def data_home() -> Path:
    """The folder of downloaded archives: PAML_DATA_HOME if set, otherwise the platform's cache folder."""
    given = os.environ.get(HOME_VARIABLE)
    return Path(given).expanduser() if given else platformdirs.user_cache_path("paml", appauthor=False)


def fetch(
    archive: Archive, progress: Progress = SILENT, home: Path | None = None, patience: Patience = PATIENCE
) -> Path:
    """The verified archive in `home`, downloaded if it is not there yet.

    An existing file is checked every time: 260 MB take about a second, and a model trained on a damaged file would be
    wrong without any warning. A file that fails the check is an error and is kept: it may be the user's own.
    """
    home = data_home() if home is None else home
    target = home / archive.name
    if not target.exists():
        try:
            home.mkdir(parents=True, exist_ok=True)
            with _alone(home, archive, progress):
                if not target.exists():  # another process may have fetched it in the meantime
                    with progress.step(f"downloading {archive.name}", archive.size, in_bytes=True) as step:
                        return _Download(archive, target, step).run(patience)
        except OSError as error:
            raise DataError(
                f"cannot be written ({error.strerror or error})",
                where=home,
                remedy=f"set {HOME_VARIABLE} to another folder",
            ) from None
    try:
        problem = _problem(target, archive)
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
    if problem:
        raise DataError(problem, where=target, remedy="remove it, or give the right file", argument="path")
    return target


@contextmanager
def _alone(home: Path, archive: Archive, progress: Progress) -> Iterator[None]:
    """One process at a time; progress shows the waiting. The lock file stays: removing it would race with a waiter."""
    lock = FileLock(home / f".{archive.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        with progress.step(f"waiting for another download of {archive.name}"):
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _problem(path: Path, archive: Archive) -> str | None:
    """What is wrong with a file that should be the archive; the size is checked first, as it costs nothing."""
    size = path.stat().st_size
    if archive.size is not None and size != archive.size:
        return f"has {size:,} bytes where {archive.size:,} are expected"
    if archive.md5 is not None:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found != archive.md5.lower():
            return f"has the MD5 {found} where {archive.md5} is expected"
    return None


class _BrokenError(Exception):
    """A failed attempt that is worth repeating."""


class _Download:
    """A download in progress: its part on disk, and how much of it the progress has shown."""

    def __init__(self, archive: Archive, target: Path, step: Step) -> None:
        self._archive, self._target, self._step = archive, target, step
        self._part = target.with_name(f"{target.name}.part")
        self._tag = target.with_name(f"{target.name}.part.tag")
        self._shown = 0

    def run(self, patience: Patience) -> Path:
        """Try until the part is complete, check it, and give it its final name."""
        for attempt, pause in enumerate((*patience.pauses, None), start=2):
            try:
                self._attempt(patience.timeout)
                break
            except _BrokenError as broken:
                if pause is None:
                    raise self._failed(str(broken)) from None
                self._step.advance(0, note=f"attempt {attempt}: {broken}")
                time.sleep(pause)
        problem = _problem(self._part, self._archive)
        if problem:
            self._forget()
            raise self._error(f"what was downloaded {problem}")
        self._part.replace(self._target)
        self._tag.unlink(missing_ok=True)
        return self._target

    def _attempt(self, timeout: float) -> None:
        """Request the missing bytes and append them; all bytes if the file changed or the server cannot send ranges."""
        have = self._part.stat().st_size if self._part.exists() else 0
        self._show(have)
        if have and have == self._archive.size:
            return
        headers = {"User-Agent": "paml"}
        tag = self._tag.read_text(encoding="utf-8") if self._tag.exists() else ""
        if have and (tag or self._archive.md5):  # without either, a mixture of two versions would not be noticed
            headers |= {"Range": f"bytes={have}-"} | ({"If-Range": tag} if tag else {})
        response = self._open(Request(self._archive.url, headers=headers), have, timeout)  # noqa: S310 (see _opener)
        if response is None:
            return
        with response:
            partial = response.status == HTTPStatus.PARTIAL_CONTENT
            if partial and not (response.headers["Content-Range"] or "").startswith(f"bytes {have}-"):
                self._forget()
                raise _BrokenError("the server sent a different part than requested")
            expected = self._archive.size
            total = None if response.length is None else response.length + (have if partial else 0)
            if expected is not None and total is not None and total != expected:  # perhaps a login page: keep the part
                raise self._failed(f"the server offers {total:,} bytes where {expected:,} are expected")
            if not partial:
                self._begin(response)
            self._receive(response, total or expected)

    def _open(self, request: Request, have: int, timeout: float) -> HTTPResponse | None:
        """The server's response, or None if it says that nothing is missing."""
        try:
            response: HTTPResponse = _opener().open(request, timeout=timeout)
            return response
        except HTTPError as error:
            with error:
                if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    whole = re.fullmatch(r"bytes \*/(\d+)", error.headers["Content-Range"] or "")
                    if whole and int(whole[1]) == have:
                        return None
                    self._forget()  # longer than the server's file: a part of something else
                    raise _BrokenError("the part on disk does not belong to this file") from None
                reason = f"the server says {error.code} {error.reason}"
                raise (_BrokenError(reason) if error.code in PASSING else self._failed(reason)) from None
        except URLError as error:
            if isinstance(error.reason, SSLCertVerificationError):
                raise self._failed(f"the server's certificate is not valid: {error.reason.verify_message}") from None
            if isinstance(error.reason, OSError):
                raise _BrokenError(_reason(error.reason)) from None
            raise self._failed(str(error.reason)) from None  # not an address that can be requested
        except (OSError, HTTPException) as error:
            raise _BrokenError(_reason(error)) from None

    def _receive(self, response: HTTPResponse, total: int | None) -> None:
        """Append the body; a connection that ends too early looks like the end, so the length is compared."""
        with self._part.open("ab") as part:
            for block in _blocks(response):
                part.write(block)
                self._show(self._shown + len(block))
        if total is not None and self._shown < total:
            raise _BrokenError(f"the connection ended after {self._shown:,} of {total:,} bytes")

    def _begin(self, response: HTTPResponse) -> None:
        """Start from the beginning; the tag is written before the first byte that it belongs to."""
        self._part.write_bytes(b"")
        self._show(0)
        strong = response.headers["ETag"] or ""
        tag = response.headers["Last-Modified"] if not strong or strong.startswith("W/") else strong
        if tag:
            write_text(self._tag, tag)
        else:
            self._tag.unlink(missing_ok=True)

    def _forget(self) -> None:
        self._part.unlink(missing_ok=True)
        self._tag.unlink(missing_ok=True)

    def _show(self, size: int) -> None:
        """Set the progress to `size` bytes: forwards, or backwards if a download starts again."""
        self._step.advance(size - self._shown)
        self._shown = size

    def _failed(self, reason: str) -> DataError:
        return self._error(f"cannot be downloaded ({reason})")

    def _error(self, what: str) -> DataError:
        archive = self._archive
        remedy = f"download {archive.url} by hand (see {archive.page}) and give the file"
        return DataError(what, where=archive.name, remedy=remedy, argument="path")


def _opener() -> OpenerDirector:
    """Supports only http and https, also after redirects; urllib's default would also read local files and ftp."""
    opener = OpenerDirector()
    for handler in (
        ProxyHandler(),
        HTTPHandler(),
        HTTPSHandler(),
        HTTPRedirectHandler(),
        HTTPErrorProcessor(),
        HTTPDefaultErrorHandler(),
        UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _blocks(response: HTTPResponse) -> Iterator[bytes]:
    """The body in blocks; only errors of the connection are caught here, not those of the disk."""
    try:
        while block := response.read(BLOCK):
            yield block
    except (OSError, HTTPException) as error:
        raise _BrokenError(_reason(error)) from None


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the server does not answer"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
