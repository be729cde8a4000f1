"""Working folders for the examples, one per document, with what they need."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import paml
from docs.examples import BLOCKS, Block
from realdata import real_file
from smalltables import write_tables
from waiting import wait_until

ADDRESS = "http://127.0.0.1:8000"


class Session:
    """A document's examples, run in order in one folder: files, Python names and a server are shared."""

    def __init__(self, folder: Path, world: paml.Dataset, run: paml.Run, stack: contextlib.ExitStack) -> None:
        self._folder, self._world, self._run, self._stack = folder, world, run, stack
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._done: set[str] = set()
        self._registered: list[tuple[str, str, object]] = []
        self._address = ADDRESS
        self._programs = folder.parent / "bin"
        self._programs.mkdir()
        curl = shutil.which("curl") or "curl"
        self._program("paml", f'exec "{sys.executable}" -m paml "$@"')
        self._program("python", f'exec "{sys.executable}" "$@"')
        self._program("curl", f'exec "{curl}" --silent --show-error --fail "$@"')  # a refusal is an error

    def run_up_to(self, last: Block) -> None:
        """Run a block, after the blocks before it that have not been run; slow ones only before a slow one."""
        for block in BLOCKS:
            if block.document == last.document and block.line <= last.line and str(block) not in self._done:
                if not block.is_run or ("slow" in block.directives and "slow" not in last.directives):
                    continue
                self._done.add(str(block))
                self._run_one(block)

    def _run_one(self, block: Block) -> None:
        for name in block.needs:
            self._provide(name)
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "python":
            with contextlib.chdir(self._folder):
                code = compile("\n" * (block.line - 1) + block.text, block.document, "exec")
                for entry in self._registered:
                    paml.register(*entry)
                try:
                    exec(code, self._names)
                finally:
                    self._registered = _forget_registered()
        else:
            self._shell(block)

    def _shell(self, block: Block) -> None:
        text = block.text.replace(ADDRESS, self._address)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self._folder,
            env={**os.environ, "PATH": f"{self._programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"

    def _provide(self, name: str) -> None:
        """Put what a block needs into the folder, unless it is there."""
        makers: dict[str, Callable[[], object]] = {
            "ML": lambda: (self._folder / "ML").symlink_to(self._world.path),
            "run": lambda: shutil.copytree(self._run.path, self._folder / "run"),
            "schema.toml": lambda: write_tables(self._folder),
            "server": self._serve,
            "in-vehicle-coupon-recommendation.csv": self._unpack_coupons,
            **dict.fromkeys(["ratings.csv", "users.csv", "items.csv"], self._write_tables),
        }
        if not (self._folder / name).exists():
            makers.get(name, lambda: (self._folder / name).symlink_to(real_file(name)))()

    def _write_tables(self) -> None:
        write_tables(self._folder, users=60, items=30)
        (self._folder / "schema.toml").unlink()
        (self._folder / "movies.csv").rename(self._folder / "items.csv")

    def _unpack_coupons(self) -> None:
        with zipfile.ZipFile(real_file("in-vehicle-coupon.zip")) as archive:
            archive.extractall(self._folder)

    def _serve(self) -> None:
        """Start `paml serve run`, and wait until it says where."""
        log = self._folder.parent / "server.log"
        command = [sys.executable, "-m", "paml", "serve", "run", "--port", "0"]
        with log.open("wb") as out:
            server = self._stack.enter_context(subprocess.Popen(command, cwd=self._folder, stdout=out, stderr=out))
        self._stack.callback(server.terminate)
        told = r"serving at (http://\S+:\d+)"
        wait_until(lambda: re.search(told, log.read_text()) or server.poll() is not None)
        found = re.search(told, log.read_text())
        assert found, log.read_text()
        self._address = found[1]

    def _program(self, name: str, text: str) -> None:
        path = self._programs / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)


def _forget_registered() -> list[tuple[str, str, object]]:
    """What a document's examples registered is not there for other documents; returns it for the next of its own."""
    found = []
    for kind, (module, name) in paml.REGISTRIES.items():
        registry = getattr(import_module(module), name)
        for entry, value in registry.all().items():
            origin = registry.origin(entry)
            if origin is not None and not origin.version:
                registry.forget(entry)
                found.append((kind, entry, value))
    return found[::-1]  # methods, which come first, name rates and solvers


@pytest.fixture(scope="module")
def session_of(
    world: paml.Dataset, run: paml.Run, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Block], Session]]:
    """The session of a block's document."""
    sessions: dict[str, Session] = {}
    with contextlib.ExitStack() as stack:

        def find(block: Block) -> Session:
            if block.document not in sessions:
                folder = tmp_path_factory.mktemp(Path(block.document).stem) / "work"
                folder.mkdir()
                sessions[block.document] = Session(folder, world, run, stack)
            return sessions[block.document]

        yield find
