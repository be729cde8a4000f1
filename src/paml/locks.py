"""One process at a time in a folder: a lock that the operating system releases when its holder ends for any reason.

The lock's file says who holds it, for those who come second, and is removed at the end.
"""

import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paml.errors import InUse, PamlError

try:
    import fcntl
except ImportError:  # not a POSIX system: nothing is locked
    fcntl = None  # type: ignore[assignment]

AGAIN_SECONDS = 0.05
NAME = ".lock"
"""The lock of a folder, in it."""


@contextmanager
def hold(file: Path, what: Path, doing: str) -> Iterator[None]:
    """Hold the lock `file` of `what`; if another process holds it, an error says which and since when."""
    descriptor = _acquire(file, what)
    holder = f"process {os.getpid()} on {socket.gethostname()} is {doing} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, holder.encode(), 0)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)  # before the lock is released: whoever opened this file sees that it is gone
        os.close(descriptor)


@contextmanager
def take_turns(file: Path) -> Iterator[None]:
    """Hold the lock `file` as soon as no other process does."""
    descriptor = new_and_locked(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)  # as above
        os.close(descriptor)


def new_and_locked(file: Path) -> int:
    """The descriptor of a new file, locked; waits for a process that has made it and is still at work.

    What a killed process has left behind is removed, and so is anything else that has the name but a folder.
    """
    if os.name != "posix":  # nothing is locked
        file.unlink(missing_ok=True)
        return os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    while True:
        if _is_foreign(file):
            file.unlink(missing_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            _wait_for(descriptor)
            found = os.fstat(descriptor)
            if os.path.samestat(found, file.stat(follow_symlinks=False)):
                if found.st_size == 0 and found.st_nlink == 1:
                    return descriptor
                file.unlink()  # with the lock: nobody else does
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _wait_for(descriptor: int) -> None:
    """Lock a file as soon as it is free, asked again and again: a call that waits might not hear Ctrl-C."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(AGAIN_SECONDS)
            continue
        except OSError:  # a file system without locks
            pass
        return


def _acquire(file: Path, what: Path) -> int:
    """The lock's descriptor: of the file that has the name now, not of one that its last holder has just removed."""
    while True:
        if _is_foreign(file):
            raise PamlError("is not a regular file, as a lock is", where=file, remedy="remove it")
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), file.stat(follow_symlinks=False)):
                return descriptor
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process is at work there"
            os.close(descriptor)
            raise InUse(f"is in use: {holder}", where=what, remedy="wait for it, or end it") from None
        except FileNotFoundError:
            pass
        except OSError:  # a file system without locks
            return descriptor
        os.close(descriptor)


def _is_foreign(file: Path) -> bool:
    """Whether something has the lock's name that no lock is: a link, a pipe, a folder."""
    try:
        return not stat.S_ISREG(file.lstat().st_mode)
    except FileNotFoundError:
        return False
