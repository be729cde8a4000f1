"""Files of our own: readable by others, on disk in time, regular, bounded; folders of killed processes are removed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import numpy as np
import polars as pl
import pytest
import torch

from paml.errors import FormatError, PamlError
from paml.files import (
    Listed,
    check_all_listed,
    exists,
    listed,
    new_folder,
    open_regular,
    read_bounded,
    read_json,
    read_listed,
    replacing,
    write_table,
    write_text,
)
from paml.locks import hold, take_turns
from paml.training import checkpoint

Write = Callable[[Path], None]
WRITERS: dict[str, Write] = {
    "text": lambda path: write_text(path, "x"),
    "table": lambda path: write_table(path, pl.DataFrame({"a": [1]})),
    "checkpoint": lambda path: checkpoint.save(path, {"a": torch.zeros(3)}, {}),
}


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("name", WRITERS)
def test_who_may_read_a_file_is_decided_by_the_umask(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / "file")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    with new_folder(tmp_path / "folder") as folder:
        WRITERS[name](folder / "file")
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced and renamed, in order."""
    done: list[str] = []
    sync, replace, rename = os.fsync, os.replace, os.rename

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        done.append(f"sync {path.name}{'/' if path.is_dir() else ''}")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append(f"rename {Path(b).name}"), replace(a, b)))
    monkeypatch.setattr(os, "rename", lambda a, b: (done.append(f"rename {Path(b).name}"), rename(a, b)))
    return done


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_synced_then_renamed_then_its_folder_is_synced(
    name: str, tmp_path: Path, recorded: list[str]
) -> None:
    WRITERS[name](tmp_path / "file")
    assert recorded == ["sync .file.partial", "rename file", f"sync {tmp_path.name}/"]


def test_a_folder_is_synced_with_all_in_it_before_it_appears(tmp_path: Path, recorded: list[str]) -> None:
    with new_folder(tmp_path / "new" / "data") as folder:
        (folder / "arrays").mkdir()
        np.save(folder / "arrays" / "a.npy", np.zeros(3))
        (folder / "b").write_text("b")
    assert recorded[:5] == ["sync a.npy", "sync arrays/", "sync b", "sync .data.partial/", "rename data"]
    assert set(recorded[5:]) == {"sync new/", f"sync {tmp_path.name}/"}


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "zero", "folder"):
        with pytest.raises(FormatError, match=f"{name}: is not a regular file; again"):
            open_regular(tmp_path / name, "again")
        with pytest.raises(FormatError, match="is not a regular file"):
            read_json(tmp_path / name, "again")


def test_what_is_read_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(100))
    assert len(read_bounded(file, "again", 100)) == 100
    with pytest.raises(FormatError, match="has 100 bytes, at most 99 are expected"):
        read_bounded(file, "again", 99)
    os.truncate(file, 1 << 40)
    with pytest.raises(FormatError, match="at most 67,108,864 are expected"):
        read_json(file, "again")


@pytest.mark.parametrize("text", ['"\\ud800"', "1" + "0" * 10_000, "[" * 100_000, "NaN,"])
def test_text_that_json_cannot_hold_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text('{"a": %s}' % text)  # noqa: UP031
    with pytest.raises(FormatError, match="is not JSON"):
        read_json(tmp_path / "file", "again")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_forbidden_file_is_not_a_missing_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("{}")
    file.chmod(0)
    os.seteuid(65534)
    try:
        for read in (lambda: read_json(file, "again"), lambda: exists(file / "x", "again")):
            with pytest.raises(FormatError, match=r"may not be read by this user \(permission denied\); let it read"):
                read()
    finally:
        os.seteuid(0)


def test_a_changed_file_is_not_the_one_that_was_listed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    expected = listed(file)
    assert expected.size == 3
    assert read_listed(file, expected, "again") == b"abc"
    check_all_listed(tmp_path, {"file": expected}, "again")
    file.write_bytes(b"abd")
    for read in (read_listed, lambda path, one, remedy: check_all_listed(path.parent, {path.name: one}, remedy)):
        with pytest.raises(FormatError, match=r"file: differs from what was written \(its SHA-256\); again"):
            read(file, expected, "again")
        with pytest.raises(FormatError, match="has 3 bytes where 4 were written"):
            read(file, Listed(size=4, sha256=expected.sha256), "again")


def test_equal_tensors_are_equal_files_whatever_their_order(tmp_path: Path) -> None:
    tensors = {f"t{k}": torch.full((k,), k, dtype=dtype) for k, dtype in enumerate(checkpoint.TYPES)}
    values = {"b": 1, "a": [1, 2.5, "x"]}
    checkpoint.save(tmp_path / "a", tensors, values)
    checkpoint.save(tmp_path / "b", dict(reversed(tensors.items())), dict(reversed(values.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    found = checkpoint.load(tmp_path / "a")
    assert found.values == values
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in tensors.items())
    assert all(found.tensors[name].dtype == tensor.dtype for name, tensor in tensors.items())


KILLED = "import os, sys; from pathlib import Path; from paml.files import new_folder\n"
KILLED += "with new_folder(Path(sys.argv[1])) as folder: (folder / 'half').touch(); os.kill(os.getpid(), 9)"


def test_what_a_killed_process_left_behind_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "data"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [file.name for file in sorted(tmp_path.iterdir())] == [".data.lock", ".data.partial"]
    with new_folder(path) as folder:
        assert not list(folder.iterdir())
    assert list(tmp_path.iterdir()) == [path]


def test_two_processes_do_not_write_the_same_folder(tmp_path: Path) -> None:
    path = tmp_path / "data"
    message = rf"data: is in use: process {os.getpid()} on .* is writing it since 20.*; wait for it, or end it"
    with new_folder(path), pytest.raises(PamlError, match=message), new_folder(path):
        pass
    assert list(tmp_path.iterdir()) == [path]


HOLDER = "import sys, time; from pathlib import Path; from paml.locks import hold\n"
HOLDER += "with hold(Path(sys.argv[1]), Path('it'), 'at work'): print('held', flush=True); time.sleep(600)"


def test_a_lock_says_who_holds_it_and_is_free_when_the_holder_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    try:
        with (
            pytest.raises(PamlError, match=f"it: is in use: process {process.pid} on .* at work"),
            hold(lock, Path("it"), "x"),
        ):
            pass
    finally:
        process.kill()
        process.communicate()
    with hold(lock, Path("it"), "at work"):
        assert f"process {os.getpid()}" in lock.read_text()
    assert not lock.exists()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_lock_is_neither_followed_nor_written(kind: str, tmp_path: Path) -> None:
    lock, target = tmp_path / ".lock", tmp_path / "target"
    {"link": lambda: lock.symlink_to(target), "pipe": lambda: os.mkfifo(lock), "folder": lock.mkdir}[kind]()
    with (
        pytest.raises(PamlError, match=r"\.lock: is not a regular file, as a lock is; remove it"),
        hold(lock, lock, "x"),
    ):
        pass
    assert os.path.lexists(lock)
    assert not target.exists()


def test_two_who_write_the_same_file_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as first:
        first.write(b"first")
        second = Thread(target=write_text, args=(path, "second"))
        second.start()
        second.join(0.2)
        first.write(b", whole")
        first.flush()
        assert not path.exists()
    second.join(60)
    assert path.read_text() == "second"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_errors_name_the_file_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path, error in ((tmp_path / "missing" / "file", FileNotFoundError), (tmp_path / "folder", IsADirectoryError)):
        with pytest.raises(error) as raised:
            write_text(path, "text")
        assert raised.value.filename == str(path)
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


def test_what_a_killed_process_has_begun_is_not_written_to(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("other")
    (tmp_path / ".file.partial").hardlink_to(other)
    write_text(tmp_path / "file", "text")
    assert ((tmp_path / "file").read_text(), other.read_text()) == ("text", "other")


WAITER = """
import sys
from pathlib import Path
import polars  # whose handler of Ctrl-C lets calls that wait begin again
from paml.locks import take_turns
print("begun", flush=True)
with take_turns(Path(sys.argv[1])):
    pass
"""


def test_ctrl_c_ends_who_waits_for_a_turn(tmp_path: Path) -> None:
    with take_turns(tmp_path / ".lock"):
        process = subprocess.Popen(
            [sys.executable, "-c", WAITER, str(tmp_path / ".lock")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in error
