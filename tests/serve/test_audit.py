"""The audit log: every change has its entry, with the key and without the user."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import create_engine, text

from paml.errors import SettingsError, TooManyRatings, TooManyUsers, UnknownUser
from paml.recommend.requests import Rating
from paml.serve.store import audit
from paml.serve.store.store import Store


def test_every_change_is_recorded_by_key_and_without_the_user(store: Store, url: str) -> None:
    before = datetime.now(UTC)
    store.add_key("phone", by="root")
    store.put_user("secret-name", {"age": "secret-age"}, by="phone")
    store.add_ratings("secret-name", [Rating("secret-item", 5)], by="phone")
    store.remove_rating("secret-name", "secret-item", by="phone")
    store.delete_user("secret-name", by="page")
    store.revoke_key("phone")
    entries = store.audit()
    assert [(entry.who, entry.what, entry.about) for entry in reversed(entries)] == [
        ("root", "new key", "phone"),
        ("phone", "put user", ""),
        ("phone", "add ratings", ""),
        ("phone", "remove rating", ""),
        ("page", "delete user", ""),
        ("-", "revoke key", "phone"),
    ]
    assert all(before <= entry.moment <= datetime.now(UTC) for entry in entries)
    assert store.audit(2) == entries[:2]
    engine = create_engine(url)
    with engine.connect() as connection:
        assert "secret" not in str(connection.execute(text("SELECT * FROM paml_audit")).all())
    engine.dispose()


def test_what_changes_nothing_is_not_recorded(url: str) -> None:
    store = Store.open(url, max_ratings=1, max_users=1)
    store.put_user("ann", {})
    store.add_key("phone")
    recorded = store.audit()
    refusals = [
        (TooManyUsers, lambda: store.put_user("bob", {})),
        (TooManyRatings, lambda: store.add_ratings("ann", [Rating("a", 1), Rating("b", 1)])),
        (UnknownUser, lambda: store.add_ratings("eve", [])),
        (SettingsError, lambda: store.add_key("phone")),
    ]
    for error, call in refusals:
        with pytest.raises(error):
            call()
    assert not store.remove_rating("ann", "a")
    assert not store.delete_user("eve")
    assert not store.revoke_key("page")
    assert store.audit() == recorded
    store.close()


def test_old_entries_are_removed(store: Store, url: str) -> None:
    old = (datetime.now(UTC) - timedelta(days=audit.DAYS + 1)).isoformat(timespec="microseconds")
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO paml_audit VALUES (:old, '-', 'put user', '')"), {"old": old})
    engine.dispose()
    store.put_user("ann", {})
    assert len(store.audit()) == 1


def test_users_are_limited_and_deleting_makes_room(url: str) -> None:
    store = Store.open(url, max_users=2)
    store.put_user("ann", {})
    store.put_user("bob", {})
    with pytest.raises(TooManyUsers, match="the store is full: it holds 2 users; delete some, or raise the limit"):
        store.put_user("eve", {})
    assert store.user("eve") is None
    assert not store.put_user("ann", {"age": "25"}).created, "those who are there may change"
    assert store.count() == 2
    store.delete_user("bob")
    assert store.put_user("eve", {}).created
    assert store.count() == 2
    store.close()
    unlimited = Store.open(url, max_users=0)
    assert unlimited.put_user("bob", {}).created
    unlimited.close()
