"""Keys: shown once, kept as digests, rotated and revoked."""

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from paml.errors import InputError, SettingsError
from paml.serve.store.api_keys import SCOPES
from paml.serve.store.store import Store


def name_of(store: Store, secret: str) -> str | None:
    found = store.check_key(secret)
    return found and found.name


def test_a_key_opens_until_it_is_revoked(store: Store) -> None:
    assert store.keys() == []
    assert store.check_key("") is None
    old = store.add_key("old")
    new = store.add_key("new 🔑")
    assert len({old, new}) == 2
    assert (name_of(store, old), name_of(store, new)) == ("old", "new 🔑")
    known = store.keys()
    assert {key.name for key in known} == {"old", "new 🔑"}
    assert all(timedelta(0) <= datetime.now(UTC) - key.created < timedelta(minutes=5) for key in known)
    assert store.revoke_key("old")
    assert not store.revoke_key("old")
    assert not store.revoke_key("a\0b")
    assert (name_of(store, old), name_of(store, new)) == (None, "new 🔑")
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
    assert name_of(store, secret) == "page"
    for name in ("", "a\0b", "x" * 300, "\x1b[2J", "a\nb", "\u202egnp"):
        with pytest.raises(InputError, match="the key name"):
            store.add_key(name)


def test_a_key_of_another_worker_is_known_at_once(store: Store, url: str) -> None:
    other = Store.open(url)
    secret = other.add_key("page")
    assert name_of(store, secret) == "page"
    other.revoke_key("page")
    assert store.check_key(secret) is None
    other.close()


def test_scopes_include_each_other_and_the_default_cannot_read_the_audit_log(store: Store) -> None:
    opened = {scope: store.check_key(store.add_key(scope, scope)) for scope in SCOPES}
    for scope, key in opened.items():
        assert key is not None
        assert key.scope == scope
        assert [key.opens(other) for other in SCOPES] == [
            other in SCOPES[: SCOPES.index(scope) + 1] for other in SCOPES
        ]
    default = store.check_key(store.add_key("default"))
    assert default is not None
    assert default.scope == "write"


def test_a_key_expires(store: Store) -> None:
    lasting = store.add_key("lasting", lifetime=timedelta(hours=1))
    short = store.add_key("short", lifetime=timedelta(seconds=-1))
    assert (name_of(store, lasting), name_of(store, short)) == ("lasting", None)
    known = store.keys()
    assert {key.name: key.has_expired() for key in known} == {"lasting": False, "short": True}
    with pytest.raises(SettingsError, match="9999"):
        store.add_key("eternal", lifetime=timedelta(days=10_000_000))


def test_a_store_remembers_that_it_had_a_key(store: Store, url: str) -> None:
    assert not store.has_had_keys()
    store.add_key("page")
    store.revoke_key("page")
    again = Store.open(url)
    assert again.keys() == []
    assert again.has_had_keys()
    again.close()
