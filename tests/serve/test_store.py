"""The store on both databases: what it keeps, what it refuses, who may write at the same time."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from paml.errors import InputError, TooManyRatings, UnknownUser
from paml.recommend.requests import Rating
from paml.serve.store.store import Store
from paml.serve.store.values import MAX_ID, MAX_ITEM
from serve.conftest import NewUrl

# Emoji beyond the basic plane, right to left, combining marks, quotes and SQL, white space, percent signs of drivers.
IDS = [
    "🦊",
    "👩‍👩‍👧",
    "مستخدم",
    "משתמש\u202e",
    "e\u0301",
    "é",
    "'; DROP TABLE paml_users; --",
    '"',
    " ",
    "a\nb",
    "%s%(x)s:y?",
    "../x",
]


def rated(**values: float) -> list[Rating]:
    return [Rating(item, value, {}) for item, value in values.items()]


def values_of(store: Store, user: str) -> dict[str, float]:
    found = store.user(user)
    assert found is not None
    return {rating.item: rating.value for rating in found.ratings}


def test_a_user_is_kept_as_they_were_given(store: Store) -> None:
    assert store.user("ann") is None
    assert store.version("ann") is None
    profile = {"age": "25", "zip": "0\0é🦊", "n": 3, "x": 0.1, "none": None, "tags": ["a", "b"]}
    assert store.put_user("ann", profile).created
    assert not store.put_user("ann", profile).created
    version, count = store.add_ratings("ann", [Rating("318", 5, {"hour": "7"}), Rating("10", 0.1, {})])
    assert count == 2
    found = store.user("ann")
    assert found is not None
    assert found.profile == profile
    assert found.ratings == (Rating("10", 0.1, {}), Rating("318", 5.0, {"hour": "7"}))
    assert found.version == version == store.version("ann")


def test_ratings_are_idempotent_per_item_and_keep_the_order_of_writing(store: Store) -> None:
    store.put_user("ann", {})
    store.add_ratings("ann", rated(a=1, b=2))
    store.add_ratings("ann", rated(c=3))
    store.add_ratings("ann", rated(a=4))
    assert store.add_ratings("ann", rated(a=4)).ratings == 3
    assert list(values_of(store, "ann").items()) == [("b", 2), ("c", 3), ("a", 4)]
    assert store.remove_rating("ann", "b")
    assert not store.remove_rating("ann", "b")
    assert values_of(store, "ann") == {"c": 3, "a": 4}


def test_users_do_not_touch_each_other(store: Store) -> None:
    for name in IDS:
        assert store.put_user(name, {"name": name}).created
    for name in IDS:
        store.add_ratings(name, [Rating(item, place, {name: item}) for place, item in enumerate(IDS)])
    for name in IDS:
        found = store.user(name)
        assert found is not None
        assert found.profile == {"name": name}
        assert set(values_of(store, name).items()) == {(item, place) for place, item in enumerate(IDS)}
    assert store.remove_rating(IDS[0], IDS[4])
    assert IDS[5] in values_of(store, IDS[0])  # é written in another way is another item
    assert store.delete_user(IDS[4])
    assert store.user(IDS[5]) is not None


@pytest.mark.parametrize("name", ["a\0b", "\0", "half \ud83e", "", "x" * (MAX_ID + 1), "x" * 1_000_000])
def test_ids_that_a_database_cannot_hold_are_refused(store: Store, name: str) -> None:
    with pytest.raises(InputError, match=r"NUL|expected") as error:
        store.put_user(name, {})
    assert len(str(error.value)) < 300
    str(error.value).encode()
    assert store.user(name) is None
    assert store.version(name) is None
    assert not store.delete_user(name)
    with pytest.raises(UnknownUser):
        store.add_ratings(name, rated(a=1))
    store.put_user("ann", {})
    if name != "x" * (MAX_ID + 1):
        with pytest.raises(InputError, match="the item"):
            store.add_ratings("ann", [Rating(name, 1, {})])
    assert not store.remove_rating("ann", name)


def test_the_longest_ids_fit(store: Store) -> None:
    user, item = (
        "🦊" * MAX_ID,
        "".join(chr(0x20000 + place) for place in range(MAX_ITEM)),
    )  # PostgreSQL cannot shorten it
    store.put_user(user, {})
    store.add_ratings(user, [Rating(item, 1, {})])
    assert values_of(store, user) == {item: 1}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_rating_that_is_not_a_number_is_refused(store: Store, value: float) -> None:
    store.put_user("ann", {})
    with pytest.raises(InputError, match="'b' is"):
        store.add_ratings("ann", rated(a=1, b=value))
    assert values_of(store, "ann") == {}


@pytest.mark.parametrize("profile", [{"a": float("nan")}, {"a": object()}, {"a": "\ud83e"}, {"a": "x" * 200_000}])
def test_a_profile_that_is_not_json_is_refused(store: Store, profile: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="the profile"):
        store.put_user("ann", profile)
    assert store.user("ann") is None


def test_the_same_item_twice_is_refused(store: Store) -> None:
    store.put_user("ann", {})
    with pytest.raises(InputError, match="twice"):
        store.add_ratings("ann", [Rating("a", 1, {}), Rating("a", 2, {})])
    assert values_of(store, "ann") == {}


def test_unknown_users_are_named(store: Store) -> None:
    for call in (lambda: store.add_ratings("bob", rated(a=1)), lambda: store.remove_rating("bob", "a")):
        with pytest.raises(UnknownUser, match="no user 'bob'; create"):
            call()


def test_every_change_has_a_version_of_its_own_also_after_deletion(store: Store) -> None:
    seen = []
    for _ in range(3):
        store.put_user("ann", {"age": "25"})
        seen.append(store.version("ann"))
        store.put_user("ann", {"age": "35"})
        seen.append(store.version("ann"))
        seen.append(store.add_ratings("ann", rated(a=1)).version)
        store.put_user("bob", {})
        store.remove_rating("ann", "a")
        seen.append(store.version("ann"))
        assert store.delete_user("ann")
    assert None not in seen
    assert all(before < after for before, after in pairwise(seen))  # type: ignore[operator]


def test_a_deleted_user_is_gone(store: Store, url: str) -> None:
    store.put_user("ann", {"age": "25"})
    store.add_ratings("ann", rated(a=1, b=2))
    assert store.delete_user("ann")
    assert not store.delete_user("ann")
    assert store.user("ann") is None
    with pytest.raises(UnknownUser):
        store.add_ratings("ann", rated(a=1))
    assert store.put_user("ann", {}).created
    assert values_of(store, "ann") == {}
    engine = create_engine(url)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM paml_ratings")) == 0
    engine.dispose()


def test_a_deleted_user_leaves_no_byte_in_the_files_of_sqlite(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/s.db")
    for name in ("other", "ann-the-user"):
        store.put_user(name, {"secret": f"profile-of-{name}"})
        store.add_ratings(name, [Rating(f"item-of-{name}-{place}", place, {}) for place in range(300)])
    assert any(b"of-ann-the-user" in file.read_bytes() for file in tmp_path.iterdir())
    store.delete_user("ann-the-user")
    assert not any(b"ann-the-user" in file.read_bytes() for file in tmp_path.iterdir())
    assert len(values_of(store, "other")) == 300
    store.close()


def test_ratings_per_user_are_limited_all_or_none(url: str) -> None:
    store = Store.open(url, max_ratings=3)
    store.put_user("ann", {})
    version, _ = store.add_ratings("ann", rated(a=1, b=2))
    with pytest.raises(TooManyRatings, match="4 ratings of one user, at most 3 are kept; remove"):
        store.add_ratings("ann", rated(c=3, d=4))
    assert values_of(store, "ann") == {"a": 1, "b": 2}
    assert store.version("ann") == version
    store.add_ratings("ann", rated(b=5, c=3))
    assert values_of(store, "ann") == {"a": 1, "b": 5, "c": 3}
    store.close()


@pytest.mark.usefixtures("patient")
def test_concurrent_writers_do_not_exceed_the_limit(url: str) -> None:
    store = Store.open(url, max_ratings=10)
    store.put_user("ann", {})
    start = threading.Barrier(16)

    def write(place: int) -> bool:
        start.wait()
        try:
            store.add_ratings("ann", [Rating(f"{place}-{nth}", 1, {}) for nth in range(3)])
        except TooManyRatings:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        written = sum(pool.map(write, range(16)))
    assert written == 3
    assert len(values_of(store, "ann")) == 9
    store.close()


@pytest.mark.usefixtures("patient")
def test_many_writers_and_readers_lose_nothing(store: Store, url: str) -> None:
    """32 threads over two stores, as two workers have them: overlapping items and users, in opposite orders."""
    other = Store.open(url)
    users = [f"user{number}" for number in range(4)]
    for user in users:
        store.put_user(user, {})
    start = threading.Barrier(32)
    acknowledged: list[tuple[str, int, str, float]] = []

    def work(place: int) -> None:
        mine = (store, other)[place % 2]
        start.wait()
        for nth, user in enumerate(users if place % 4 < 2 else reversed(users)):
            items = ["shared1", "shared2", f"own{place}"]
            value = float(1000 * place + nth)
            version, _ = mine.add_ratings(user, [Rating(item, value, {}) for item in items[:: -1 if place % 3 else 1]])
            acknowledged.extend((user, version, item, value) for item in items)
            seen = mine.user(user)
            assert seen is not None
            assert seen.version >= version
            assert any(rating.item == f"own{place}" and rating.value == value for rating in seen.ratings)
            mine.put_user(user, {"place": place})

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(work, range(32)))
    for user in users:
        mine = sorted(entry for entry in acknowledged if entry[0] == user)
        last = {item: value for _, _, item, value in mine}  # the highest version wins
        assert values_of(store, user) == last
        assert len(last) == 34
    versions = [(user, version) for user, version, item, _ in acknowledged if item == "shared1"]
    assert len(set(versions)) == len(versions) == 32 * 4
    other.close()


@pytest.mark.usefixtures("patient")
def test_a_version_belongs_to_one_state_while_others_write_and_delete(store: Store) -> None:
    """What the cache relies on: the same version, the same ratings, whoever reads it and whenever."""
    states: dict[int, object] = {}
    stop = threading.Event()
    lock = threading.Lock()

    def read() -> None:
        while not stop.wait(0.001):
            found = store.user("ann")
            if found is not None:
                with lock:
                    assert states.setdefault(found.version, (found.profile, found.ratings)) == (
                        found.profile,
                        found.ratings,
                    )

    def write(place: int) -> None:
        for nth in range(25):
            store.put_user("ann", {"place": place, "nth": nth})
            try:
                version, _ = store.add_ratings("ann", rated(**{f"i{place}": nth}))
                now = store.version("ann")
                assert now is None or now >= version
            except UnknownUser:
                continue
            if nth % 5 == place:
                store.delete_user("ann")

    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        writers = [pool.submit(write, place) for place in range(4)]
        wait(writers)
        stop.set()
        for reader in [*readers, *writers]:
            reader.result()
    assert len(states) > 10


@pytest.mark.usefixtures("patient")
def test_creating_at_the_same_time_creates_once(new_url: NewUrl) -> None:
    """Also the tables: four workers open an empty database together."""
    url = new_url()
    start = threading.Barrier(8)

    def create(place: int) -> tuple[Store, bool]:
        start.wait()
        store = Store.open(url)
        return store, store.put_user("ann", {"place": place}).created

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(create, range(8)))
    assert sum(created for _, created in made) == 1
    for store, _ in made:
        store.close()


def test_a_store_is_found_again(url: str) -> None:
    first = Store.open(url)
    first.put_user("ann", {"age": "25"})
    first.add_ratings("ann", rated(a=1))
    first.close()
    second = Store.open(url)
    assert values_of(second, "ann") == {"a": 1}
    second.ping()
    second.close()
