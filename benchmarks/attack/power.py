"""Power loss: after any moment of a training or a preparation, what was not synced may be lost; the rest must go on.

One training and one preparation are recorded: at every `fsync` of a file its content, at every `fsync` of a folder the
names in it, and the names after every rename, new folder and removal. A loss of power after any of these events leaves,
of each file, the content that was synced last (an empty file if none was) and, of each folder, the names that were
synced last or, as a disk may have written them all the same, those it had at that moment. Such a disk is laid out and
used: a training is resumed in it and must end with the same bytes, and a data set is either not there or complete.
"""

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paml
from benchmarks.attack.cases import arguments
from benchmarks.attack.kills import CHOICE, SETTINGS, files

NAMES = tuple[dict[str, int], dict[str, int]]
"""The files of a folder and the folders in it, by name; each is a number (its inode), which stays if it is renamed."""


class Recorder:
    """Keeps what is synced below a folder, by replacing the functions of `os` that sync and rename."""

    def __init__(self, root: Path, disk: Path) -> None:
        self._root, self._disk = root.resolve(), disk
        self._kept: dict[int, int] = {}
        """Files and folders whose descriptor is kept open, so that no other one gets their number."""
        self._events = (disk / "events.jsonl").open("w")
        self._saved = 0
        self._note("synced", self._root)

    def install(self) -> None:
        """Replace the functions."""
        sync = os.fsync

        def fsync(descriptor: int) -> None:
            sync(descriptor)
            self._synced(Path(f"/proc/self/fd/{int(descriptor)}").readlink(), descriptor)

        os.fsync = fsync  # type: ignore[assignment]
        for name in ("rename", "replace", "mkdir", "unlink", "remove", "rmdir"):
            setattr(os, name, self._following(getattr(os, name)))

    def _following(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            result = function(*given, **more)
            for path in given[:2]:
                if isinstance(path, str | os.PathLike):
                    parent = Path(path).absolute().parent
                    if "dir_fd" not in more and parent.is_relative_to(self._root) and parent.is_dir():
                        self._note("now", parent)
            return result

        return call

    def _synced(self, path: Path, descriptor: int) -> None:
        if not path.is_relative_to(self._root):
            return
        if path.is_dir():
            self._note("synced", path)
            return
        inode = self._keep(descriptor)
        self._saved += 1
        shutil.copyfile(path, self._disk / f"content-{self._saved}")
        self._write({"kind": "content", "inode": inode, "content": self._saved})

    def _note(self, kind: str, folder: Path) -> None:
        names: NAMES = ({}, {})
        for entry in os.scandir(folder):
            names[entry.is_dir(follow_symlinks=False)][entry.name] = entry.inode()
        descriptor = os.open(folder, os.O_RDONLY)
        self._write({"kind": kind, "folder": self._keep(descriptor), "files": names[0], "folders": names[1]})
        os.close(descriptor)

    def _keep(self, descriptor: int) -> int:
        inode = os.fstat(descriptor).st_ino
        if inode not in self._kept:
            self._kept[inode] = os.dup(descriptor)
        return inode

    def _write(self, event: dict[str, Any]) -> None:
        self._events.write(json.dumps(event) + "\n")
        self._events.flush()


def record(root: str, disk: str, arguments: str) -> None:
    """In a process of its own: a command of paml, recorded."""
    import paml.training.loop as loop
    from paml.cli import main

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    loop.CHECKPOINT_BATCHES = 4
    Recorder(Path(root), Path(disk)).install()
    sys.argv = ["paml", *json.loads(arguments)]
    main()


def recorded(root: Path, disk: Path, *command: object) -> list[dict[str, Any]]:
    """The events of a command that writes below `root`."""
    root.mkdir()
    disk.mkdir()
    text = "import sys; from benchmarks.attack.power import record; record(*sys.argv[1:])"
    given = [str(root), str(disk), json.dumps([str(part) for part in command])]
    subprocess.run([sys.executable, "-c", text, *given], check=True, capture_output=True)
    return [json.loads(line) for line in (disk / "events.jsonl").read_text().splitlines()]


def after_power_loss(events: list[dict[str, Any]], disk: Path, target: Path, rng: random.Random) -> None:
    """Lay out what is left on the disk after these events."""
    contents: dict[int, int] = {}
    synced: dict[int, NAMES] = {}
    now: dict[int, NAMES] = {}
    for event in events:
        if event["kind"] == "content":
            contents[event["inode"]] = event["content"]
            continue
        names = event["files"], event["folders"]
        now[event["folder"]] = names
        if event["kind"] == "synced":
            synced[event["folder"]] = names

    def lay_out(place: int, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        nothing: NAMES = ({}, {})
        durable, seen = synced.get(place, nothing), now.get(place, nothing)
        chosen, folders = durable if rng.random() < 0.5 else seen
        for name, inode in chosen.items():
            if inode in contents:
                shutil.copyfile(disk / f"content-{contents[inode]}", folder / name)
            else:
                (folder / name).touch()
        for name, inode in folders.items():
            lay_out(inode, folder / name)

    lay_out(events[0]["folder"], target)


def moment(events: list[dict[str, Any]], number: int, rng: random.Random) -> int:
    """When power is lost: at any event, and every other time at one of the last, when little is left to be synced."""
    return rng.randint(max(1, len(events) - 6), len(events)) if number % 2 else rng.randint(1, len(events))


def trainings(folder: Path, count: int, rng: random.Random) -> Counter[str]:
    """Trainings resumed after a loss at random events."""
    data = paml.prepare("synthetic", out=folder / "data", users=400, items=80).path
    command = ["train", data, "--method", "at_paml", "--threads", "1", *SETTINGS, *CHOICE]
    events = recorded(folder / "root", folder / "disk", *command, "--out", folder / "root" / "run")
    whole, found = files(folder / "root" / "run"), Counter[str]()
    from importlib import import_module

    loop, cli = import_module("paml.training.loop"), import_module("benchmarks.attack.cases")
    loop.CHECKPOINT_BATCHES = 4
    for number in range(count):
        target = folder / f"loss-{number}"
        at = moment(events, number, rng)
        after_power_loss(events[:at], folder / "disk", target, rng)
        kind, text = cli.command(*command, "--out", target / "run", "--resume")
        have = files(target / "run") if kind == "same" else {}
        differing = [name for name in whole | have if whole.get(name) != have.get(name)]
        found["equal" if not differing else f"lost after event {at}: {kind} {differing[:5]} {text[:300]}"] += 1
        shutil.rmtree(target)
    return found


def preparations(folder: Path, count: int, rng: random.Random) -> Counter[str]:
    """Data sets that were being prepared: not there, or complete; and a new preparation works either way."""
    folder.mkdir()
    settings = ["data", "prepare", "synthetic", "users=60", "items=20"]
    events = recorded(folder / "root", folder / "disk", *settings, "--out", folder / "root" / "data")
    found = Counter[str]()
    for number in range(count):
        target = folder / f"loss-{number}"
        at = moment(events, number, rng)
        after_power_loss(events[:at], folder / "disk", target, rng)
        path = target / "data"
        if path.exists():
            try:
                paml.open_data(path).verify()
                found["complete"] += 1
            except paml.PamlError as error:
                found[f"lost after event {at}: {error}"] += 1
        else:
            paml.prepare("synthetic", out=path, users=60, items=20).verify()
            left = [other.name for other in target.iterdir() if other != path]
            found["not there, prepared anew" if not left else f"left behind: {left}"] += 1
        shutil.rmtree(target)
    return found


def main() -> None:
    """Lose power `--count` times in a training, and as often in a preparation."""
    given = arguments(20)
    rng, started = random.Random(given.seed), time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        told = trainings(Path(name), given.count, rng), preparations(Path(name) / "more", given.count, rng)
    seconds = time.perf_counter() - started
    print(f"power loss, seed {given.seed}: trainings {dict(told[0])}; preparations {dict(told[1])}; {seconds:.0f} s")
    sys.exit(any(not kind.startswith(("equal", "complete", "not there")) for kind in told[0] + told[1]))


if __name__ == "__main__":
    main()
