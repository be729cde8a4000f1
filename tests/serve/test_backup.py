"""Backup, restore and check: what was acknowledged comes back, nothing is mixed, and nothing damaged is accepted."""

import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from commands import run
from paml.errors import FormatError, PamlError
from paml.recommend.requests import Rating
from paml.serve.store.backup import back_up
from paml.serve.store.checking import check
from paml.serve.store.database import Database, file_url
from paml.serve.store.migrations import STEPS, migrate
from paml.serve.store.restoring import LEAP, restore
from paml.serve.store.store import Store, StoredUser
from serve.conftest import NewUrl
from serve.test_store import IDS, values_of
from waiting import PATIENCE, wait_until


def fill(url: str) -> dict[str, StoredUser | None]:
    """A store with all that is difficult about texts, and what it holds."""
    store = Store.open(url)
    for place, name in enumerate(IDS):
        store.put_user(name, {"name": name, "number": place})
        store.add_ratings(name, [Rating(item, place / 3, {"hour": item}) for item in IDS[: place + 1]])
    store.add_key("phone")
    held = {name: store.user(name) for name in IDS}
    store.close()
    return held


def held(url: str, names: Iterable[str] = IDS) -> dict[str, StoredUser | None]:
    store = Store.open(url)
    found = {name: store.user(name) for name in names}
    store.close()
    return found


def test_a_backup_brings_everything_back(new_url: NewUrl, tmp_path: Path) -> None:
    url, copy = new_url(), tmp_path / "backup.sqlite"
    before = fill(url)
    report = back_up(url, copy)
    assert (report.users, report.ratings, report.keys, report.faults) == (len(IDS), 78, 1, [])
    assert [file.name for file in tmp_path.glob("*backup*")] == ["backup.sqlite"], "one file, nothing beside it"
    assert copy.stat().st_mode & 0o777 == 0o600
    for target in (new_url(), file_url(tmp_path / "elsewhere.sqlite")):  # also from one kind to the other
        done = restore(copy, target)
        assert (done.kept, done.own_keys) == (None, False)
        assert held(target) == before
        assert not check(target).faults
        store = Store.open(target)
        known = store.keys()
        assert [key.name for key in known] == ["phone"]
        assert store.has_had_keys()
        assert store.audit(1)[0].what == "restore"
        assert store.count() == len(IDS)
        store.close()
    assert check(file_url(copy)).is_backup


def test_a_backup_while_others_write_is_of_one_moment(new_url: NewUrl, tmp_path: Path) -> None:
    """Each write gives two items the same value: a copy of two moments would have two values."""
    url, stop = new_url(), threading.Event()
    store = Store.open(url)
    for name in ("a", "b"):
        store.put_user(name, {})

    def write(name: str) -> None:
        for value in count():
            if stop.is_set():
                return
            store.add_ratings(name, [Rating("left", value), Rating("right", value)])

    writers = [threading.Thread(target=write, args=(name,)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    for place in range(3):
        wait_until(lambda: values_of(store, "a") and values_of(store, "b"))
        least = {name: values_of(store, name)["left"] for name in ("a", "b")}  # acknowledged before
        back_up(url, tmp_path / f"{place}.sqlite")
        restore(tmp_path / f"{place}.sqlite", file_url(tmp_path / f"{place}-restored.sqlite"))
        copied = Store.open(file_url(tmp_path / f"{place}-restored.sqlite"))
        for name in ("a", "b"):
            values = values_of(copied, name)
            assert values["left"] == values["right"] >= least[name]
        copied.close()
    stop.set()
    for writer in writers:
        writer.join(PATIENCE)
    store.close()


def test_nothing_is_overwritten_by_chance(new_url: NewUrl, tmp_path: Path) -> None:
    url, copy = new_url(), tmp_path / "backup.sqlite"
    before = fill(url)
    back_up(url, copy)
    content = copy.read_bytes()
    with pytest.raises(PamlError, match=r"backup.sqlite: already exists; choose another"):
        back_up(url, copy)
    assert copy.read_bytes() == content
    store = Store.open(url)
    store.put_user("later", {})
    store.close()
    with pytest.raises(PamlError, match="the store is not empty; give another store, or allow"):
        restore(copy, url)
    assert held(url, ("later",))["later"] is not None
    assert held(url) == before
    assert not list(tmp_path.glob(".*")), "nothing half-done stays"


def test_replacing_keeps_who_may_get_in_and_never_gives_a_version_twice(new_url: NewUrl, tmp_path: Path) -> None:
    url, copy = new_url(), tmp_path / "backup.sqlite"
    before = fill(url)
    store = Store.open(url)
    stolen = store.add_key("stolen")
    back_up(url, copy)
    store.revoke_key("stolen")
    fresh = store.add_key("fresh")
    last = store.add_ratings(IDS[0], [Rating("new", 1)]).version
    store.put_user("later", {})
    recorded = store.audit()
    store.close()
    done = restore(copy, url, replace=True)
    assert done.own_keys
    assert held(url) == before
    store = Store.open(url)
    assert store.user("later") is None
    assert store.check_key(stolen) is None, "a key that was revoked does not come back"
    assert store.check_key(fresh) is not None
    assert store.audit()[1:] == recorded, "the audit log is not taken back"
    assert store.put_user("later", {}).user.version > last + LEAP
    store.close()
    if done.kept is not None:
        kept = Store.open(file_url(done.kept))
        assert kept.user("later") is not None
        kept.close()


def leave_a_log(file: Path) -> None:
    """What a killed process leaves: the file and its log as they are while the store is open."""
    store = Store.open(file_url(file))
    for name in ("ann", "bob"):
        store.put_user(name, {"of": "the crash"})
        store.add_ratings(name, [Rating(f"crash{place}", place) for place in range(200)])
    ends = ("", "-wal", "-shm")
    left = {end: Path(f"{file}{end}").read_bytes() for end in ends}
    store.close()
    for end in ends:
        Path(f"{file}{end}").write_bytes(left[end])


@pytest.mark.parametrize("state", ["whole", "file lost", "file damaged"])
def test_a_log_that_a_crash_has_left_is_never_applied_to_what_is_restored(tmp_path: Path, state: str) -> None:
    file, copy = tmp_path / "users.sqlite", tmp_path / "backup.sqlite"
    before = fill(file_url(file))
    back_up(file_url(file), copy)
    leave_a_log(file)
    assert (tmp_path / "users.sqlite-wal").stat().st_size > 10_000
    if state == "file lost":
        file.unlink()
    if state == "file damaged":
        file.write_bytes(b"no database" * 5000)
    done = restore(copy, file_url(file), replace=True)
    assert held(file_url(file)) == before
    assert not check(file_url(file)).faults
    store = Store.open(file_url(file))
    assert store.user("ann") is None
    store.close()
    if state == "whole":
        assert done.kept is not None
        kept = Store.open(file_url(done.kept))
        assert len(values_of(kept, "bob")) == 200, "what the crash left is kept, with its log"
        kept.close()


def test_a_store_in_use_is_not_replaced(tmp_path: Path) -> None:
    file, copy = tmp_path / "users.sqlite", tmp_path / "backup.sqlite"
    before = fill(file_url(file))
    back_up(file_url(file), copy)
    code = (
        "import sqlite3, sys\n"
        "service = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "service.execute('UPDATE paml_state SET probes = probes + 1')\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == "ready\n"
        for damaged in (False, True):
            if damaged:  # SQLite cannot say who has it open, and still it is not replaced
                with file.open("r+b") as opened:
                    opened.write(bytes(100))
            with pytest.raises(PamlError, match=r"the store is in use; stop the service first|locked"):
                restore(copy, file_url(file), replace=True)
        service.communicate()
    restore(copy, file_url(file), replace=True)
    assert held(file_url(file)) == before


def test_a_store_of_the_first_version_is_backed_up_as_it_is_and_restored_as_the_newest(
    new_url: NewUrl, tmp_path: Path
) -> None:
    url, copy = new_url(), tmp_path / "backup.sqlite"
    database = Database(url)
    with database.writing() as connection:
        migrate(connection, url, STEPS[:1])
        connection.execute(text("INSERT INTO paml_users VALUES (1, 'ann', '{}', 2)"))
        connection.execute(text("INSERT INTO paml_ratings VALUES (1, 'a', 5, '{}', 2)"))
        bump = "UPDATE paml_counter SET value = 2" if database.kind == "sqlite" else "SELECT setval('paml_versions', 2)"
        connection.execute(text(bump))
    database.close()
    assert back_up(url, copy).version == 1
    assert check(url).is_old
    restore(copy, file_url(tmp_path / "new.sqlite"))
    assert not check(file_url(tmp_path / "new.sqlite")).is_old
    store = Store.open(file_url(tmp_path / "new.sqlite"))
    assert values_of(store, "ann") == {"a": 5}
    store.close()


def test_no_changed_byte_of_a_backup_changes_what_is_restored(tmp_path: Path) -> None:
    """Either it is refused, or the byte was in a part of a page that is not used."""
    file, copy, target = (tmp_path / name for name in ("users.sqlite", "backup.sqlite", "restored.sqlite"))
    before = fill(file_url(file))
    back_up(file_url(file), copy)
    content, refused = copy.read_bytes(), 0
    used = [
        content.index(part) for part in (b'"number":3', b'{"hour":"', "مستخدم".encode(), b"put user", b"paml_users")
    ]
    for place in (*used, *range(37, len(content), len(content) // 8)):
        copy.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            restore(copy, file_url(target))
        except FormatError as error:
            assert "use another backup" in str(error)  # noqa: PT017 - not every byte is used
            refused += 1
        else:
            assert held(file_url(target)) == before
            target.unlink()
    assert refused >= len(used)
    for other in (b"", b"no database" * 1000, content[: len(content) // 2]):
        copy.write_bytes(other)
        with pytest.raises(FormatError, match=r"backup.sqlite: "):
            restore(copy, file_url(target))
    assert not target.exists()
    assert not list(tmp_path.glob(".*"))


FAULTS = [
    ("UPDATE paml_users SET profile = '[' WHERE number = (SELECT min(number) FROM paml_users)", "is not a JSON object"),
    ("UPDATE paml_ratings SET context = '3'", "context of a rating"),
    ("UPDATE paml_users SET version = 1000000", "the last one given was"),
    ("UPDATE paml_ratings SET version = 1000000", "not one of theirs"),
    ("UPDATE paml_keys SET digest = 'x'", "the key 'phone'"),
    ("UPDATE paml_state SET users = 7", "7 users are counted, and there are 12"),
    ("UPDATE paml_state SET keyed = 0", "does not ask for one"),
    ("DELETE FROM paml_state", "holds 0"),
]


@pytest.mark.parametrize(("change", "said"), FAULTS, ids=[said for _, said in FAULTS])
def test_check_finds_what_cannot_be(url: str, change: str, said: str) -> None:
    fill(url)
    assert check(url).faults == []
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(change))
    engine.dispose()
    assert any(said in fault for fault in check(url).faults)


def test_a_backup_is_not_served_and_stays_one(tmp_path: Path) -> None:
    back_up_of = tmp_path / "backup.sqlite"
    fill(url := file_url(tmp_path / "users.sqlite"))
    back_up(url, back_up_of)
    with pytest.raises(
        FormatError, match=r"backup\.sqlite.* is a backup, not a store; .*'paml store restore FILE STORE'"
    ):
        Store.open(file_url(back_up_of))
    report = check(file_url(back_up_of))
    assert (report.is_backup, report.faults) == (True, [])
    restore(back_up_of, file_url(tmp_path / "new.sqlite"))
    Store.open(file_url(tmp_path / "new.sqlite")).close()


def test_the_commands(tmp_path: Path) -> None:
    fill(file_url(tmp_path / "users.sqlite"))
    assert run("store", "check", tmp_path).stdout == "12 users, 78 ratings, 1 keys\n"
    done = run("store", "backup", "users.sqlite", "b.sqlite", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "b.sqlite: 12 users, 78 ratings, 1 keys\n")
    assert "--replace" in run("store", "restore", "b.sqlite", "users.sqlite", cwd=tmp_path).stderr
    done = run("store", "restore", "b.sqlite", "users.sqlite", "--replace", cwd=tmp_path)
    assert "keys and audit log are those that the store had before" in done.stdout
    assert "the store as it was: " in done.stdout
    assert run("store", "audit", "users.sqlite", "-n", "1", cwd=tmp_path).stdout.endswith("  -  restore\n")
    with closing(sqlite3.connect(tmp_path / "b.sqlite")) as plain, plain:
        plain.execute("UPDATE paml_keys SET name = 'evil\x1b[2J', digest = 'x'")
    broken = run("store", "check", "b.sqlite", cwd=tmp_path)
    assert broken.returncode == 1
    assert r"the key 'evil\x1b[2J' cannot be one" in broken.stdout
    assert "b.sqlite: 2 faults found; restore a backup" in broken.stderr
    assert '"faults": ["the key' in run("store", "check", "b.sqlite", "--json", cwd=tmp_path).stdout
    shutil.copy(tmp_path / "b.sqlite", tmp_path / "c.sqlite")
    for command in (["check", "nothing"], ["backup", "nothing", "x"], ["audit", "nothing"], ["restore", "no", "x"]):
        done = run("store", *command, cwd=tmp_path)
        assert (done.returncode, "there is no such" in done.stderr) == (1, True)
    assert not (tmp_path / "nothing").exists()
