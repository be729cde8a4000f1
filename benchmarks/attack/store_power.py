"""Take the power away under an SQLite store: nothing acknowledged is lost, and a restoration is whole or has not begun.

python -m benchmarks.attack.store_power --count 20 --seed 0 [--scenario writing|restoring] [--without-sync]

A program writes under strace; then, for so many moments at random, the files are made as a disk might have them after
a power loss at that moment (benchmarks/attack/disk.py), and opened. `--without-sync` turns SQLite's syncing off, to
show that the simulation finds what it should find: then writes are lost, and the exit code is 1.
"""

import argparse
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import event

from benchmarks.attack.disk import Disk, Event, record
from paml.errors import PamlError
from paml.recommend.requests import Rating
from paml.serve.store import database
from paml.serve.store.backup import back_up
from paml.serve.store.checking import check
from paml.serve.store.database import file_url
from paml.serve.store.restoring import restore
from paml.serve.store.store import Store

USERS = ("ann", "bob", "eve")
STEPS = 40  # of each user
ROUND = 17  # of these, one deletes the user and one brings them back
MOMENTS = 20  # per recording
Values = dict[str, float] | None


def step(store: Store, user: str, number: int) -> None:
    """The user's next transaction."""
    if number % ROUND == 0:
        store.put_user(user, {})
    elif number % ROUND == ROUND - 1:
        store.delete_user(user)
    else:
        store.add_ratings(user, [Rating("last", number), Rating(f"item{number % 7}", number)])


def after(number: int) -> Values:
    """A user's ratings after a step: the same steps, in memory."""
    values: Values = None
    for done in range(number + 1):
        if done % ROUND == 0:
            values = {}
        elif done % ROUND == ROUND - 1:
            values = None
        else:
            values = {**(values or {}), "last": float(done), f"item{done % 7}": float(done)}
    return values


def write(folder: Path, scenario: str, sync: bool) -> None:
    """The program that is recorded; it says what it begins and what was acknowledged."""
    database.WAL = (*database.WAL, "wal_autocheckpoint=8")  # the log is moved to the file often
    url = file_url(folder / "users.sqlite")
    store = Store.open(url)
    if not sync:
        store.close()
        event.listen(store._database._engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous=OFF"))

    def work(user: str, first: int, last: int) -> None:
        for number in range(first, last):
            print(f"begin {user} {number}", flush=True)
            step(store, user, number)
            print(f"done {user} {number}", flush=True)

    def together(first: int, last: int) -> None:
        threads = [threading.Thread(target=work, args=(user, first, last)) for user in USERS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    if scenario == "writing":
        together(0, STEPS)
        return  # and the process ends without closing anything
    together(0, 5)
    back_up(url, folder.parent / f"{folder.name}.backup")
    together(5, 10)
    store.close()
    print("begin restore 4", flush=True)
    restore(folder.parent / f"{folder.name}.backup", url, replace=True)
    print("done restore 4", flush=True)


def said(event: Event) -> list[str] | None:
    """`begin ann 3`, if that is what the program wrote."""
    if event.name != "write" or not event.arguments.startswith("1<") or event.ended:
        return None
    words = event.texts[-1].decode().split()
    return words if len(words) == 3 else None


def moments(
    events: list[Event], count: int, rng: random.Random
) -> Iterator[tuple[int, dict[str, int], dict[str, int]]]:
    """Moments after the store was made, each with the last step of each user that was begun and acknowledged."""
    begun, done = dict.fromkeys((*USERS, "restore"), -1), dict.fromkeys((*USERS, "restore"), -1)
    known: list[tuple[int, dict[str, int], dict[str, int]]] = []
    for place, entry in enumerate(events):
        if words := said(entry):
            (begun if words[0] == "begin" else done)[words[1]] = int(words[2])
        if max(begun.values()) >= 0:
            known.append((place, dict(begun), dict(done)))
    restoring = [moment for moment in known if moment[1]["restore"] >= 0]
    yield from sorted(rng.sample(restoring or known, min(count, len(restoring or known))), key=lambda moment: moment[0])


def fault(folder: Path, begun: dict[str, int], done: dict[str, int]) -> str | None:
    """What is wrong with what is left."""
    url = file_url(folder / "users.sqlite")
    try:
        with closing(Store.open(url)) as store:
            found = {user: store.user(user) for user in USERS}
            store.add_ratings("new", []) if store.user("new") else store.put_user("new", {})
        faults = check(url).faults
    except PamlError as error:
        return str(error)
    values = {user: stored and {r.item: r.value for r in stored.ratings} for user, stored in found.items()}
    if begun["restore"] >= 0:  # all users as they were, or all as in the backup
        allowed = [4] if done["restore"] >= 0 else [4, 9]
        right = any(all(values[user] == after(number) for user in USERS) for number in allowed)
    else:
        right = all(
            any(values[user] == after(number) for number in range(done[user], begun[user] + 1)) for user in USERS
        )
    return faults[0] if faults else None if right else f"acknowledged {done}, begun {begun}, found {values}"


def attack(count: int, seed: int, scenario: str, sync: bool) -> list[str]:
    """Take the power away so many times; what is wrong."""
    rng, wrong, taken = random.Random(seed), [], 0
    while taken < count:
        with TemporaryDirectory(prefix="paml-power-") as name:
            root = Path(name).resolve()
            folder = root / "store"
            folder.mkdir()
            command = [sys.executable, "-m", "benchmarks.attack.store_power", "--write", str(folder)]
            command += ["--scenario", scenario, *([] if sync else ["--without-sync"])]
            events, disk, place = record(command, root / "trace"), Disk(folder), 0
            for at, begun, done in moments(events, min(MOMENTS, count - taken), rng):
                for entry in events[place : at + 1]:
                    disk.follow(entry)
                place, taken = at + 1, taken + 1
                left = root / f"left{taken}"
                left.mkdir()
                disk.left(left, rng)
                if found := fault(left, begun, done):
                    wrong.append(f"event {at} of {len(events)}: {found}")
    return wrong


def main(arguments: list[str] | None = None) -> int:
    """0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scenario", choices=("writing", "restoring"), default="writing")
    parser.add_argument("--without-sync", action="store_true")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.write:
        write(options.write, options.scenario, not options.without_sync)
        return 0
    started = time.monotonic()
    wrong = attack(options.count, options.seed, options.scenario, not options.without_sync)
    print(
        f"{options.scenario}, seed {options.seed}: power lost {options.count} times,"
        f" {len(wrong)} faults ({time.monotonic() - started:.0f} s)"
    )
    print(*wrong[:20], sep="\n", end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
