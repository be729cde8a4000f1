"""Restore drills: a backup under load, a disaster, a restoration, and a comparison with what was acknowledged.

python -m benchmarks.attack.restores --count 20 --seed 0 --kind sqlite

Each drill: a process writes; meanwhile a backup is made; some time later the process is killed in the middle of its
writes, which leaves SQLite's log behind; then the store is lost in one of several ways; then the backup is restored.
Right is: every user is as after one of their writes, not before the last that was acknowledged before the backup and
not after the last that was begun when it was complete; nothing of later writes is there; a key that was revoked after
the backup stays revoked, if the store could still be read; the store is whole and takes writes. `--by-copying` copies
the backup over the file instead, as people do, to show that the drills find what that does.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.sharedctypes import SynchronizedArray
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import create_engine, text

from benchmarks.attack.postgres import postgres_cluster
from benchmarks.attack.store_power import Values, after, step
from paml.errors import PamlError
from paml.serve.store.backup import back_up
from paml.serve.store.checking import check
from paml.serve.store.database import Database, file_url
from paml.serve.store.restoring import restore
from paml.serve.store.store import Store

USERS = 4
ENDS = ("", "-wal", "-shm")
LOST = {  # what happens to the store after the process was killed
    "sqlite": (
        "crash",
        "removed",
        "damaged",
        "truncated",
        "older file under a newer log",
        "older log beside a newer file",
    ),
    "postgresql": ("crash", "rows deleted", "tables dropped"),
}
fork = multiprocessing.get_context("fork")


@dataclass
class Writer:
    """A process that writes until it is killed, and counts what it begins and what was acknowledged."""

    url: str

    def __post_init__(self) -> None:
        self._begun: SynchronizedArray[int] = fork.Array("q", [-1] * USERS)
        self._done: SynchronizedArray[int] = fork.Array("q", [-1] * USERS)
        self._process = fork.Process(target=self._work, daemon=True)
        self._process.start()

    def _work(self) -> None:
        store, number = Store.open(self.url), 0
        while True:
            for user in range(USERS):
                self._begun[user] = number
                step(store, f"user{user}", number)
                self._done[user] = number
            number += 1

    def done(self) -> list[int]:
        """The last step of each user that was acknowledged."""
        return list(self._done)

    def begun(self) -> list[int]:
        """The last step of each user that was begun."""
        return list(self._begun)

    def wait_for(self, more: int) -> None:
        """Until each user has had so many more steps."""
        wanted = [number + more for number in self.done()]
        until = time.monotonic() + 300
        while any(now < then for now, then in zip(self.done(), wanted, strict=True)):
            if not self._process.is_alive() or time.monotonic() > until:
                raise RuntimeError("the writer does not write")
            time.sleep(0.01)

    def kill(self) -> None:
        """In the middle of whatever it does."""
        self._process.kill()
        self._process.join()


def lose_file(file: Path, how: str, old: dict[str, bytes]) -> None:
    """A disaster of SQLite."""
    content = file.read_bytes()
    if how == "removed":
        file.unlink()  # and its log stays
    elif how == "damaged":
        file.write_bytes(os.urandom(2000) + content[2000:])
    elif how == "truncated":
        file.write_bytes(content[: len(content) // 3])
    elif how == "older file under a newer log":
        file.write_bytes(old[""])
    elif how == "older log beside a newer file":
        for end in ENDS[1:]:
            Path(f"{file}{end}").write_bytes(old[end])


def lose_rows(url: str, how: str) -> None:
    """A disaster of PostgreSQL."""
    engine = create_engine(url)
    with engine.begin() as connection:
        if how == "rows deleted":
            connection.execute(text("DELETE FROM paml_users"))
        elif how == "tables dropped":
            for name in ("ratings", "users", "keys", "state", "audit", "schema"):
                connection.execute(text(f"DROP TABLE paml_{name}"))
            connection.execute(text("DROP SEQUENCE paml_versions"))
    engine.dispose()


def drill(url: str, folder: Path, rng: random.Random, how: str, *, by_copying: bool = False) -> str | None:
    """One drill; what went wrong."""
    file = Database.file_of(url)
    store = Store.open(url)
    revoked = store.add_key("revoked")
    store.close()
    writer = Writer(url)
    try:
        writer.wait_for(rng.randint(1, 20))
        least = writer.done()
        back_up(url, folder / "backup.sqlite")
        most = writer.begun()
        old = {end: Path(f"{file}{end}").read_bytes() for end in ENDS} if file else {}
        writer.wait_for(rng.randint(1, 20))
        store = Store.open(url)
        store.revoke_key("revoked")
        store.close()
        writer.wait_for(1)
    finally:
        writer.kill()
    readable = how in ("crash", "rows deleted")
    if file is not None:
        lose_file(file, how, old)
    else:
        lose_rows(url, how)
    if by_copying:
        shutil.copy(folder / "backup.sqlite", file or "")
    else:
        restore(folder / "backup.sqlite", url, replace=True)
    faults = check(url).faults
    store = Store.open(url)
    try:
        found = [store.user(f"user{user}") for user in range(USERS)]
        for user, stored in enumerate(found):
            values: Values = stored and {rating.item: rating.value for rating in stored.ratings}
            if not any(values == after(number) for number in range(least[user], most[user] + 1)):
                faults.append(f"user{user}: between {after(least[user])} and {after(most[user])}, found {values}")
        if readable and store.check_key(revoked) is not None:
            faults.append("a revoked key is valid again")
        store.put_user("new", {})
    finally:
        store.close()
    return f"{how}: {faults[0]}" if faults else None


def main(arguments: list[str] | None = None) -> int:
    """0 if every drill went well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=tuple(LOST), default="sqlite")
    parser.add_argument("--by-copying", action="store_true")
    options = parser.parse_args(arguments)
    rng, wrong, started = random.Random(options.seed), [], time.monotonic()
    with ExitStack() as stack:
        cluster = stack.enter_context(postgres_cluster()) if options.kind == "postgresql" else None
        for number in range(options.count):
            with TemporaryDirectory(prefix="paml-drill-") as name:
                url = cluster.new_url() if cluster else file_url(Path(name) / "users.sqlite")
                try:
                    how = LOST[options.kind][number % len(LOST[options.kind])]
                    found = drill(url, Path(name), rng, how, by_copying=options.by_copying)
                except PamlError as error:
                    found = str(error)
                if found:
                    wrong.append(f"drill {number}: {found}")
    right = options.count - len(wrong)
    print(
        f"{options.kind}, seed {options.seed}: {right} of {options.count} drills right"
        f" ({time.monotonic() - started:.0f} s)"
    )
    print(*wrong[:20], sep="\n", end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
