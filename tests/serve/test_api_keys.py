"""Keys: shown once, kept as digests, rotated and revoked."""

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from paml.errors import InputError, SettingsError
from paml.serve.store.store import Store


def test_a_key_opens_until_it_is_revoked(store: Store) -> None:
    assert store.keys() == []
    assert store.check_key("") is None
    old = store.add_key("old")
    new = store.add_key("new 🔑")
    assert len({old, new}) == 2
    assert (store.check_key(old), store.check_key(new)) == ("old", "new 🔑")
    known = store.keys()
    assert {key.name for key in known} == {"old", "new 🔑"}
    assert all(timedelta(0) <= datetime.now(UTC) - key.created < timedelta(minutes=5) for key in known)
    assert store.revoke_key("old")
    assert not store.revoke_key("old")
    assert not store.revoke_key("a\0b")
    assert (store.check_key(old), store.check_key(new)) == (None, "new 🔑")
    again = store.add_key("old")
    assert again != old
    assert store.check_key(old) is None


def test_secrets_are_long_and_only_their_digest_is_kept(store: Store, url: str, tmp_path: Path) -> None:
    secret = store.add_key("page")
    assert secret.startswith("paml_")
    assert len(secret) == len("paml_") + 43  # 256 bits in base 64
    engine = create_engine(url)
    with engine.connect() as connection:
        row = connection.execute(text("SELECT * FROM paml_keys")).one()
    engine.dispose()
    assert row.digest == hashlib.sha256(secret.encode()).hexdigest()
    assert secret not in str(row)
    assert not any(secret.encode() in file.read_bytes() for file in tmp_path.iterdir())


@pytest.mark.parametrize(
    "change", [str.lower, str.upper, lambda s: s[:-1], lambda s: s + "x", lambda s: s + "\0", hash]
)
def test_what_is_only_near_a_key_is_refused(store: Store, change: object) -> None:
    secret = store.add_key("page")
    assert store.check_key(str(change(secret))) is None  # type: ignore[operator]
    assert store.check_key(hashlib.sha256(secret.encode()).hexdigest()) is None


@pytest.mark.parametrize("secret", ["é", "\ud83e", "\0", "x" * 1_000_000, "' OR 1=1 --"])
def test_any_text_may_be_tried(store: Store, secret: str) -> None:
    store.add_key("page")
    assert store.check_key(secret) is None


def test_names_of_keys_are_their_own(store: Store) -> None:
    secret = store.add_key("page")
    with pytest.raises(SettingsError, match="a key named 'page' already; choose another name, or revoke"):
        store.add_key("page")
    assert store.check_key(secret) == "page"
    for name in ("", "a\0b", "x" * 300):
        with pytest.raises(InputError, match="the key name"):
            store.add_key(name)


def test_a_key_of_another_worker_is_known_at_once(store: Store, url: str) -> None:
    other = Store.open(url)
    secret = other.add_key("page")
    assert store.check_key(secret) == "page"
    other.revoke_key("page")
    assert store.check_key(secret) is None
    other.close()
