"""Keys never fail open: whoever may be public asks for one, no key left means nobody gets in, and scopes hold."""

import logging
import sqlite3
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

import paml
from paml.serve import access
from paml.serve.access import needed
from paml.serve.server import Address, say_where
from paml.serve.store.store import Store
from paml.serve.telemetry import TroubleLog
from serve.inside import serving
from waiting import PATIENCE, wait_until


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'users.sqlite'}"


def with_key(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


PUBLIC = [Address("0.0.0.0"), Address(names=("recommend.example",)), Address("::")]


@pytest.mark.parametrize("address", PUBLIC, ids=str)
@pytest.mark.parametrize("keys", ["never", "revoked", "expired"])
def test_a_public_service_without_a_valid_key_does_not_start(
    trained: paml.Run, url: str, address: Address, keys: str
) -> None:
    store = Store.open(url)
    if keys != "never":
        store.add_key("phone", lifetime=timedelta(seconds=-1) if keys == "expired" else None)
    if keys == "revoked":
        store.revoke_key("phone")
    store.close()
    with pytest.raises(paml.PamlError, match="no valid key: nobody could get in; make a key first"):
        serving(trained, url, address).__enter__()


def test_after_the_last_key_nobody_gets_in_not_even_on_loopback(trained: paml.Run, url: str) -> None:
    store = Store.open(url)
    secret = store.add_key("phone")
    with serving(trained, url) as client:
        assert client.get("/v1/model").status_code == 401
        assert client.get("/v1/model", headers=with_key(secret)).status_code == 200
        store.revoke_key("phone")
        wait_until(lambda: client.get("/v1/model", headers=with_key(secret)).status_code == 401)
    with pytest.raises(paml.PamlError, match="the store has had keys, and the store has no valid key"):
        serving(trained, url).__enter__()
    store.close()


def test_a_name_needs_a_key_in_every_request(trained: paml.Run, url: str) -> None:
    store = Store.open(url)
    secret = store.add_key("phone")
    store.close()
    with serving(trained, url, Address(names=("recommend.example",))) as client:
        for host in ("recommend.example", "localhost"):
            assert client.get("/v1/model", headers={"Host": host}).status_code == 401
            assert client.get("/v1/model", headers={"Host": host, **with_key(secret)}).status_code == 200


def test_the_first_key_is_asked_for_without_a_restart(trained: paml.Run, url: str) -> None:
    with serving(trained, url) as client:
        assert client.get("/v1/model").status_code == 200
        store = Store.open(url)
        secret = store.add_key("phone")
        store.close()
        wait_until(lambda: client.get("/v1/model").status_code == 401)
        assert client.get("/v1/model", headers=with_key(secret)).status_code == 200


@pytest.mark.parametrize("header", access.PROXIED)
def test_a_service_without_keys_refuses_what_came_through_a_proxy(trained: paml.Run, url: str, header: str) -> None:
    with serving(trained, url) as client:
        refused = client.get("/v1/model", headers={header: "203.0.113.7"})
        assert refused.status_code == 401
        assert "through a proxy" in refused.json()["detail"]
        assert client.put("/v1/users/ann", json={"profile": {}}, headers={header: "x"}).status_code == 401
        assert client.get("/readyz", headers={header: "x"}).status_code == 200
        assert client.get("/v1/users/ann").status_code == 404


def test_scopes_hold_on_every_route(trained: paml.Run, url: str) -> None:
    item = trained.predictor.catalogue.ids[0]
    store = Store.open(url)
    secrets = {
        "read": store.add_key("reader", "read"),
        "write": store.add_key("writer"),
        "admin": store.add_key("boss", "admin"),
    }
    store.close()
    asks = [
        ("GET", "/v1/model", None),
        ("GET", "/v1/items", None),
        ("GET", "/metrics", None),
        ("POST", "/v1/recommend", {}),
    ]
    asks += [
        ("GET", f"/v1/users/ann{end}", None)
        for end in ("", "/recommendations", f"/predictions?item={item}", "/next-question")
    ]
    changes = [
        ("PUT", "/v1/users/ann", {"profile": {}}),
        ("POST", "/v1/users/ann/ratings", {"ratings": [{"item": item, "value": 3}]}),
        ("DELETE", f"/v1/users/ann/ratings/{item}", None),
        ("DELETE", "/v1/users/ann", None),
    ]
    with serving(trained, url) as client:

        def status(scope: str, call: tuple[str, str, object]) -> int:
            return client.request(call[0], call[1], json=call[2], headers=with_key(secrets[scope])).status_code

        for scope in ("write", "admin"):
            assert [status(scope, call) for call in changes] == [201, 200, 204, 204]
        assert status("write", changes[0]) == 201
        for scope in secrets:
            assert {status(scope, call) for call in asks} == {200}
        assert {status("read", call) for call in changes} == {403}
        assert [status(scope, ("GET", "/v1/audit", None)) for scope in secrets] == [403, 403, 200]
        for ending in ("%0A", "%0a", "%0A%0A", "%0D%0A", "%00", "/"):  # what a pattern may take for the same path
            assert {status(scope, ("GET", f"/v1/audit{ending}", None)) for scope in ("read", "write")} <= {403, 404}
        refused = client.put("/v1/users/bob", json={"profile": {}}, headers=with_key(secrets["read"])).json()
        assert (refused["type"], refused["expected"]) == ("urn:paml:scope", "a key with the scope 'write'")
        assert status("read", ("GET", "/v1/users/bob", None)) == 404
        log = client.get("/v1/audit?limit=4", headers=with_key(secrets["admin"])).json()["entries"]
        assert [(entry["who"], entry["what"]) for entry in log] == [
            ("writer", "put user"),
            ("boss", "delete user"),
            ("boss", "remove rating"),
            ("boss", "add ratings"),
        ]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST", "TRACE", "NONSENSE"])
def test_an_unknown_path_or_method_needs_more_than_reading(method: str) -> None:
    assert needed(method, "/v1/anything") == "write"
    assert needed(method, "/v1/audit") == "admin"


def test_a_full_store_says_so(trained: paml.Run, url: str) -> None:
    with serving(trained, url, max_users=1) as client:
        assert client.put("/v1/users/ann", json={"profile": {}}).status_code == 201
        refused = client.put("/v1/users/bob", json={"profile": {}})
        assert refused.status_code == 507
        assert refused.json()["type"] == "urn:paml:too-many-users"
        assert "holds 1 users; delete some" in refused.json()["detail"]
        assert client.put("/v1/users/ann", json={"profile": {}}).status_code == 200


def test_putting_beside_deleting_is_never_told_that_there_is_no_such_user(trained: paml.Run, url: str) -> None:
    with serving(trained, url) as client:
        service_store = Store.open(url)
        stop = threading.Event()

        def delete() -> None:
            while not stop.is_set():
                service_store.delete_user("ann")

        deleter = threading.Thread(target=delete)
        deleter.start()
        answers = [client.put("/v1/users/ann", json={"profile": {}}) for _ in range(60)]
        stop.set()
        deleter.join()
        service_store.close()
    assert {answer.status_code for answer in answers} <= {200, 201}
    assert all(answer.json()["id"] == "ann" for answer in answers)


def test_what_a_deletion_leaves_behind_is_said_and_goes_when_the_reader_has_ended(
    trained: paml.Run, url: str, tmp_path: Path
) -> None:
    def traces() -> bool:
        return any(b"ann-the-user" in file.read_bytes() for file in tmp_path.iterdir())

    with serving(trained, url) as client:
        client.put("/v1/users/ann-the-user", json={"profile": {}})
        with closing(sqlite3.connect(tmp_path / "users.sqlite", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT id FROM paml_users").fetchall()
            gone = client.delete("/v1/users/ann-the-user")
            assert gone.status_code == 202
            assert gone.json()["status"] == "deleted"
            assert "until those who read" in gone.json()["remains"]
            assert client.get("/v1/users/ann-the-user").status_code == 404
            assert traces()
        wait_until(lambda: not traces(), "the log was not emptied")
        client.put("/v1/users/ann-the-user", json={"profile": {}})
        assert client.delete("/v1/users/ann-the-user").status_code == 204
        assert not traces()


def test_a_killed_process_leaves_no_deleted_rows_for_long(tmp_path: Path, url: str) -> None:
    """Its log is emptied by the next one that opens the store."""
    store = Store.open(url)
    with closing(sqlite3.connect(tmp_path / "users.sqlite")) as other:  # so that closing does not empty the log
        other.execute("SELECT * FROM paml_users").fetchall()
        store.put_user("ann-the-user", {})
        with store._database.writing() as connection:
            connection.exec_driver_sql("DELETE FROM paml_users")
        store.close()
        assert any(b"ann-the-user" in file.read_bytes() for file in tmp_path.iterdir())
        again = Store.open(url)
        wait_until(lambda: not any(b"ann-the-user" in file.read_bytes() for file in tmp_path.iterdir()))
        again.close()


def test_a_store_that_cannot_be_written_is_not_ready_and_the_log_says_why(
    trained: paml.Run, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("paml.serve.store.database.PATIENCE", 0.2)
    monkeypatch.setattr("paml.serve.store.store.PROBE_SECONDS", PATIENCE)  # a write that succeeded is no proof later
    with (
        serving(trained, url) as client,
        closing(sqlite3.connect(tmp_path / "users.sqlite", isolation_level=None)) as other,
    ):
        client.put("/v1/users/ann", json={"profile": {}})
        assert client.get("/readyz").json() == {"status": "ok"}
        other.execute("BEGIN IMMEDIATE")
        assert client.put("/v1/users/ann", json={"profile": {}}).status_code == 503
        for _ in range(3):
            refused = client.get("/readyz")
            assert (refused.status_code, refused.json()["type"]) == (503, "urn:paml:store-not-writable")
            assert "locked" not in refused.text, "what a database says is for the log"
        assert client.get("/v1/users/ann").status_code == 200, "reading goes on"
        assert "paml_store_writable 0.0" in client.get("/metrics").text
        logged = [record.getMessage() for record in caplog.records if record.name == "paml.error"]
        assert len(logged) == 1, "four failures within a moment are one line"
        assert "users.sqlite: the database is not available (database is locked)" in logged[0]
        other.execute("ROLLBACK")
        assert client.get("/readyz").status_code == 200
        assert "paml_store_writable 1.0" in client.get("/metrics").text


def test_reasons_are_logged_now_and_then_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = TroubleLog(lambda: now)

    def said() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    with caplog.at_level(logging.WARNING, "paml.error"):
        log.answered()
        for _ in range(1000):
            log.failed("disk full")
        log.failed("locked")
        assert said() == ["disk full", "locked"]
        now = 11.0
        log.failed("disk full")
        assert said() == ["disk full (999 more times since it was logged)"]
        log.answered()
        assert said() == [], "not yet: it may only be one call that succeeded"
        now = 22.0
        log.answered()
        log.answered()
        assert said() == ["the store answers again"]


def test_without_the_store_an_open_service_stays_as_it_was(trained: paml.Run, url: str, tmp_path: Path) -> None:
    with serving(trained, url) as client:
        (tmp_path / "users.sqlite").rename(tmp_path / "elsewhere")
        wait_until(lambda: client.get("/readyz").status_code == 503)
        assert client.post("/v1/recommend", json={}).status_code == 200


def test_a_new_runs_own_store_says_that_it_has_no_users(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store.open(url)
    with caplog.at_level(logging.INFO, "paml"):
        for chosen, users in ((False, 0), (True, 0), (False, 1)):
            if users:
                store.put_user("ann", {})
            caplog.clear()
            say_where(store, chosen=chosen)
            assert f"{users} users in {url}" in caplog.text
            assert ("its store, sqlite:///OTHER-RUN/users.sqlite" in caplog.text) == (not chosen and not users)
    store.close()


def test_a_key_made_by_an_older_process_is_asked_for(url: str, tmp_path: Path) -> None:
    store = Store.open(url)
    with closing(sqlite3.connect(tmp_path / "users.sqlite")) as older, older:
        older.execute("INSERT INTO paml_keys (name, digest, created) VALUES ('old', 'x', '2026-01-01T00:00:00+00:00')")
    assert store.has_had_keys()
    store.close()
