r"""A disk that loses its power, from what strace recorded: what was synced stays, of the rest any part may be lost.

`record` runs a program under strace and returns its calls in order. `Disk` follows them: a file's bytes are durable
once the file was synced after they were written, and a name once its folder was. `images` then writes what might be
left at some moment: of each write that was not durable any of its sectors of 512 bytes, of the changes of names any
number in their order. So nothing is assumed about the order in which a file system writes what was not synced.
Memory maps are not followed: SQLite maps only the file `-shm`, which it makes anew.
"""

import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
CALLS = "openat,open,pwrite64,write,ftruncate,fsync,fdatasync,unlink,unlinkat,rename,renameat,renameat2,link,linkat"
LINE = re.compile(r"^(\d+) +(.*)$")
CALL = re.compile(r"^(\w+)\((.*)\) += +(-?\d+)")
UNFINISHED = re.compile(r"^(\w+)\((.*?)(?:,? )?<unfinished \.\.\.>$")
RESUMED = re.compile(r"^<\.\.\. \w+ resumed>(.*)\) += +(-?\d+)")
TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
OPENED = re.compile(r"^\d+<((?:\\x[0-9a-f]{2})*)>")


@dataclass(frozen=True)
class Event:
    """The beginning or the end of a call."""

    number: int
    """Of the call: its beginning and its end share it."""
    name: str
    arguments: str
    ended: bool
    failed: bool = False

    @property
    def path(self) -> str:
        """The file behind the descriptor."""
        found = OPENED.match(self.arguments)
        return _bytes(found[1]).decode() if found else ""

    @property
    def texts(self) -> list[bytes]:
        """The call's texts: what was written, or names."""
        return [_bytes(found) for found in TEXT.findall(self.arguments)]

    @property
    def last(self) -> int:
        """The last number among the arguments: an offset or a length."""
        return int(self.arguments.rpartition(",")[2])


def record(command: list[str], trace: Path) -> list[Event]:
    """Run a program under strace; LookupError if that is not possible here."""
    strace = shutil.which("strace")
    if strace is None:
        raise LookupError("strace is not installed")
    options = ["-f", "-y", "-xx", "-s", "10000000", "--seccomp-bpf", "-o", str(trace), "-e", f"trace={CALLS}"]
    done = subprocess.run([strace, *options, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        error = LookupError if "ptrace" in done.stderr else RuntimeError
        raise error(done.stderr[-2000:])
    return list(_events(trace.read_text().splitlines()))


def _events(lines: list[str]) -> Iterator[Event]:
    under_way: dict[str, tuple[int, str, str]] = {}
    for number, line in enumerate(lines):
        found = LINE.match(line)
        if found is None:
            continue
        process, rest = found.groups()
        if whole := CALL.match(rest):
            yield Event(number, whole[1], whole[2], ended=False)
            yield Event(number, whole[1], whole[2], ended=True, failed=int(whole[3]) < 0)
        elif begun := UNFINISHED.match(rest):
            under_way[process] = (number, begun[1], begun[2])
            yield Event(number, begun[1], begun[2], ended=False)
        elif ended := RESUMED.match(rest):
            begun_at, name, arguments = under_way.pop(process)
            yield Event(begun_at, name, arguments + ended[1], ended=True, failed=int(ended[2]) < 0)


def _bytes(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


@dataclass
class Change:
    """Bytes at an offset, or a new length (`content` is None), which may not be durable yet."""

    number: int
    offset: int
    content: bytes | None
    done: bool = False

    def apply(self, to: bytearray, rng: random.Random | None = None, share: float = 1.0) -> None:
        """Change a file; of bytes only a share of the sectors, if there is a generator."""
        if self.content is None:
            if rng is None or rng.random() < share:
                del to[self.offset :]
                to.extend(bytes(self.offset - len(to)))
            return
        at = self.offset
        while at < self.offset + len(self.content):
            end = min((at // SECTOR + 1) * SECTOR, self.offset + len(self.content))
            if rng is None or rng.random() < share:
                to.extend(bytes(max(0, end - len(to))))
                to[at:end] = self.content[at - self.offset : end - self.offset]
            at = end


@dataclass
class File:
    """What is durable, and what is not yet."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)

    def left(self, rng: random.Random, share: float) -> bytes:
        """What might be left of it."""
        content = bytearray(self.durable)
        for change in self.pending:
            change.apply(content, rng, share)
        return bytes(content)


class Disk:
    """The files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._names: dict[str, File] = {}  # as the program sees them
        self._durable: dict[str, File] = {}
        self._changes: list[dict[str, File]] = []  # all names after each change that is not durable yet
        self._syncing: dict[int, tuple[File, list[Change]]] = {}

    def follow(self, event: Event) -> None:
        """Take one event into account."""
        if event.name in ("write", "pwrite64", "ftruncate"):
            self._write(event)
        elif event.name in ("fsync", "fdatasync"):
            self._sync(event)
        elif event.ended and not event.failed:
            self._rename(event)

    def left(self, target: Path, rng: random.Random) -> None:
        """Write what might be left into an empty folder."""
        names = rng.choice([self._durable, *self._changes])
        share = rng.choice([0.0, 0.5, 0.9, 1.0])
        for path, file in names.items():
            if not path.endswith("-shm"):  # in memory alone
                (target / Path(path).name).write_bytes(file.left(rng, share))

    def _write(self, event: Event) -> None:
        file = self._names.get(event.path)
        if file is None:
            return
        if not event.ended:
            if event.name == "write":
                raise NotImplementedError(f"write without an offset to {event.path}")
            content = None if event.name == "ftruncate" else event.texts[-1]
            file.pending.append(Change(event.number, event.last, content))
            return
        for change in file.pending:
            if change.number == event.number:
                change.done = True

    def _sync(self, event: Event) -> None:
        if event.path == self._folder:
            if event.ended and not event.failed:
                self._durable, self._changes = dict(self._names), []
            return
        file = self._names.get(event.path)
        if not event.ended:
            if file is not None:  # only what was written before the call began is sure to be synced
                self._syncing[event.number] = (file, [change for change in file.pending if change.done])
            return
        file, changes = self._syncing.pop(event.number, (None, []))
        if file is not None and not event.failed:
            for change in changes:
                change.apply(file.durable)
                file.pending.remove(change)

    def _rename(self, event: Event) -> None:
        paths = [text.decode() for text in event.texts]
        if not all(Path(path).parent == Path(self._folder) for path in paths):
            return
        before = dict(self._names)
        if event.name in ("open", "openat"):
            if "O_CREAT" in event.arguments:
                self._names.setdefault(paths[0], File())
        elif event.name.startswith("unlink"):
            self._names.pop(paths[0], None)
        elif event.name.startswith("link"):
            self._names[paths[1]] = self._names[paths[0]]
        elif event.name.startswith("rename"):
            self._names[paths[1]] = self._names.pop(paths[0])
        if self._names != before:
            self._changes.append(dict(self._names))
