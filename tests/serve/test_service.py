"""The service as a process: what HTTP answers is what the library answers, and what was said is kept."""

import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from click.testing import Result
from typer.testing import CliRunner

import paml
from paml.cli import app
from paml.recommend.requests import Rating
from paml.recommend.user import User
from paml.serve.server import Address, Options, serve
from paml.serve.store.store import Store
from serve.serving import Server, head
from waiting import PATIENCE, wait_until

JSON = {"Content-Type": "application/json"}


def some_ratings(run: paml.Run, count: int, first: int = 0) -> list[dict[str, Any]]:
    ids = run.predictor.catalogue.ids
    return [{"item": ids[(first + 3 * k) % len(ids)], "value": 1 + (first + k) % 5} for k in range(count)]


def adapted(run: paml.Run, profile: dict[str, Any], ratings: list[dict[str, Any]]) -> User:
    return run.adapt(profile, [Rating(rating["item"], rating["value"]) for rating in ratings])


def create(client: httpx.Client, name: str, profile: dict[str, Any], ratings: list[dict[str, Any]]) -> str:
    path = f"/v1/users/{quote(name, safe='')}"
    assert client.put(path, json={"profile": profile}).status_code == 201
    if ratings:
        assert client.post(f"{path}/ratings", json={"ratings": ratings}).json() == {"id": name, "ratings": len(ratings)}
    return path


def profile_of(run: paml.Run) -> dict[str, Any]:
    return {field.name: field.values[0] for field in run.predictor.fields if field.values}


@pytest.mark.parametrize("count", [0, 1, 7])
def test_answers_equal_the_librarys(client: httpx.Client, trained: paml.Run, count: int) -> None:
    profile, ratings = profile_of(trained), some_ratings(trained, count)
    path = create(client, f"equal {count}", profile, ratings)
    user = adapted(trained, profile, ratings)

    found = client.get(f"{path}/recommendations", params={"n": 5, "why": 2}).json()
    wanted = user.recommend(5)
    assert [entry["item"] for entry in found["items"]] == [entry.item for entry in wanted]
    assert [entry["title"] for entry in found["items"]] == [entry.title for entry in wanted]
    assert [entry["score"] for entry in found["items"]] == pytest.approx([entry.score for entry in wanted], abs=1e-5)
    assert found["user"] == f"equal {count}"
    assert found["rate"] == pytest.approx(user.rate, abs=1e-6)
    assert found["group"] == user.group
    for entry in found["items"]:
        reasons = user.why(entry["item"], n=2)
        assert [reason["item"] for reason in entry["because"]] == [reason.item for reason in reasons]
        effects = [reason.effect for reason in reasons]
        assert [reason["effect"] for reason in entry["because"]] == pytest.approx(effects, abs=1e-4)

    items = trained.predictor.catalogue.ids[-5:][::-1]
    predictions = client.get(f"{path}/predictions", params={"item": items}).json()["predictions"]
    assert [entry["item"] for entry in predictions] == items
    assert [entry["score"] for entry in predictions] == pytest.approx(user.predict(items).tolist(), abs=1e-5)

    asked = client.get(f"{path}/next-question", params={"skip": items}).json()
    question = user.next_question(exclude=items)
    assert (asked["item"], asked["title"]) == (question.item, question.title)
    assert asked["gain"] == pytest.approx(question.gain, rel=1e-3, abs=1e-6)

    rates = client.get(f"{path}/rate-profile").json()
    wanted = user.rate_profile()
    assert rates["percentile"] == pytest.approx(wanted.percentile, abs=0.1)
    assert rates["major"] == list(wanted.major)
    assert rates["similar"] == wanted.similar

    unstored = client.post("/v1/recommend", json={"profile": profile, "ratings": ratings, "n": 5, "why": 2}).json()
    assert "user" not in unstored
    assert [entry["item"] for entry in unstored["items"]] == [entry["item"] for entry in found["items"]]


def test_recommendations_among_some_items(client: httpx.Client, trained: paml.Run) -> None:
    ratings = some_ratings(trained, 2)
    path = create(client, "among", {}, ratings)
    items = [rating["item"] for rating in ratings] + trained.predictor.catalogue.ids[10:13]
    query = {"among": items, "n": 100}
    unseen = client.get(f"{path}/recommendations", params=query).json()["items"]
    assert {entry["item"] for entry in unseen} == set(items[2:])
    every = client.get(f"{path}/recommendations", params={**query, "exclude_seen": False}).json()["items"]
    assert {entry["item"] for entry in every} == set(items)


def test_a_users_life(client: httpx.Client, trained: paml.Run) -> None:
    ratings = some_ratings(trained, 3)
    path = create(client, "life", {}, ratings)
    found = client.get(path).json()
    titles = dict(zip(trained.predictor.catalogue.ids, trained.predictor.catalogue.titles, strict=True))
    wanted = [{**rating, "title": titles[rating["item"]], "context": {}} for rating in ratings]
    assert found["id"] == "life"
    assert sorted(found["ratings"], key=lambda r: r["item"]) == sorted(wanted, key=lambda r: r["item"])

    again = client.put(path, json={"profile": profile_of(trained)})
    assert again.status_code == 200
    assert again.json()["profile"] == profile_of(trained)
    assert len(again.json()["ratings"]) == 3, "a new profile keeps the ratings"

    changed = [{**ratings[0], "value": 3}, *some_ratings(trained, 1, first=50)]
    for _ in range(2):  # the same once more changes nothing
        assert client.post(f"{path}/ratings", json={"ratings": changed}).json()["ratings"] == 4
    assert client.delete(f"{path}/ratings/{ratings[1]['item']}").status_code == 204
    assert client.delete(f"{path}/ratings/{ratings[1]['item']}").status_code == 404
    values = {rating["item"]: rating["value"] for rating in client.get(path).json()["ratings"]}
    assert values == {
        ratings[0]["item"]: 3,
        ratings[2]["item"]: ratings[2]["value"],
        changed[1]["item"]: changed[1]["value"],
    }

    assert client.delete(path).status_code == 204
    for answer in (client.get(path), client.get(f"{path}/recommendations"), client.delete(path)):
        assert answer.status_code == 404
        assert answer.json()["type"] == "urn:paml:unknown-user"
    refused = client.post(f"{path}/ratings", json={"ratings": ratings})
    assert refused.status_code == 404
    assert "PUT /v1/users" in refused.json()["detail"], "it says how to create one"


def test_answers_are_never_stale(client: httpx.Client, trained: paml.Run) -> None:
    path = create(client, "fresh", {}, [])
    items = trained.predictor.catalogue.ids[:40]

    def check(profile: dict[str, Any], ratings: list[dict[str, Any]]) -> None:
        for _ in range(2):  # computed, then from the cache
            found = client.get(f"{path}/predictions", params={"item": items}).json()["predictions"]
            wanted = adapted(trained, profile, ratings).predict(items).tolist()
            assert [entry["score"] for entry in found] == pytest.approx(wanted, abs=1e-5)

    ratings = some_ratings(trained, 4)
    check({}, [])
    for count in range(1, 5):
        client.post(f"{path}/ratings", json={"ratings": [ratings[count - 1]]})
        check({}, ratings[:count])
    client.put(path, json={"profile": profile_of(trained)})
    check(profile_of(trained), ratings)
    client.delete(f"{path}/ratings/{ratings[0]['item']}")
    check(profile_of(trained), ratings[1:])
    client.delete(path)
    create(client, "fresh", {}, some_ratings(trained, 2, first=20))
    check({}, some_ratings(trained, 2, first=20))


def test_search_and_model(client: httpx.Client, trained: paml.Run) -> None:
    catalogue = trained.predictor.catalogue
    best = client.get("/v1/items", params={"limit": 3}).json()["items"]
    assert [entry["ratings"] for entry in best] == sorted((int(n) for n in catalogue.ratings_I), reverse=True)[:3]
    title = best[0]["title"]
    found = client.get("/v1/items", params={"q": title.upper()}).json()["items"]
    assert title in [entry["title"] for entry in found]
    model = client.get("/v1/model").json()
    assert model["method"] == "ridge"
    assert model["items"] == len(catalogue)
    assert model["target"] == {"kind": "rating", "low": 1, "high": 5, "step": 1}
    assert [field["name"] for field in model["fields"]] == [field.name for field in trained.predictor.fields]


def test_health_metrics_and_headers(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == client.get("/readyz").json() == {"status": "ok"}
    text = client.get("/metrics").text
    for name in ("paml_requests_total", "paml_request_seconds_bucket", "paml_batch_users_count", "paml_cache_total"):
        assert name in text
    for answer in (client.get("/"), client.get("/healthz"), client.get("/nothing"), client.put("/v1/users/x")):
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in answer.headers


def test_the_page_is_served_and_nothing_else(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert client.get("/", headers={"If-None-Match": page.headers["etag"]}).status_code == 304
    for name in ("..%2fapp.py", "%2e%2e%2fapp.py", "../app.py", "__init__.py", "%2fetc%2fpasswd", "index.html%00"):
        assert client.get(f"/static/{name}").status_code == 404


def test_logs_and_metrics_reveal_nothing_about_users(server: Server, client: httpx.Client, trained: paml.Run) -> None:
    rating = some_ratings(trained, 1)[0]
    path = create(client, "secret-name", {"gender": "F"}, [{**rating, "value": 4}])
    client.get(f"{path}/predictions", params={"item": "hidden-item"})
    client.post(f"{path}/ratings", json={"ratings": [{"item": rating["item"], "value": 98765}]})
    client.get("/v1/items", params={"q": "hidden-words"})
    client.put(path, content=b"{hidden-body", headers=JSON)
    assert "POST /v1/users/{user_id}/ratings 200" in server.log
    for text in (server.log, client.get("/metrics").text):
        for secret in ("secret-name", "hidden", "98765", "gender"):
            assert secret not in text


def test_names_that_are_not_ours_and_pages_of_others_are_refused(client: httpx.Client) -> None:
    assert client.get("/v1/model", headers={"Host": "evil.example"}).status_code == 421
    for name in ("localhost:8000", "127.0.0.1", "[::1]:80", "LOCALHOST"):
        assert client.get("/healthz", headers={"Host": name}).status_code == 200
    body = json.dumps({"profile": {}})
    foreign = {**JSON, "Origin": "https://evil.example"}
    assert client.put("/v1/users/cross", content=body, headers=foreign).status_code == 403
    own = {**JSON, "Origin": str(client.base_url).rstrip("/")}
    assert client.put("/v1/users/cross", content=body, headers=own).status_code == 201
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None):
        headers = {} if kind is None else {"Content-Type": kind}
        refused = client.post("/v1/recommend", content=b"{}", headers=headers)
        assert refused.status_code == 415
        assert refused.json()["expected"] == "application/json"
    charset = {"Content-Type": "application/json; charset=utf-8"}
    assert client.post("/v1/recommend", content=b"{}", headers=charset).status_code == 200


def test_keys_and_a_graceful_end(trained: paml.Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'users.sqlite'}"
    with pytest.raises(paml.PamlError, match="make a key first"):
        serve(trained.path, Options(Address("0.0.0.0", 0), url))
    store = Store.open(url)
    old = store.add_key("old")
    server = Server(trained.path, tmp_path / "log", "--store", url, "--rate", "10", host="0.0.0.0").ready()
    try:
        with server.client() as client:
            for path in ("/v1/model", "/v1/users/a", "/v1/items", "/metrics"):
                refused = client.get(path)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"].startswith("Bearer")
                assert (
                    client.get(path, headers={"Authorization": "Bearer invalid"}).json()["type"] == "urn:paml:wrong-key"
                )
            assert client.post("/v1/recommend", json={}).status_code == 401
            for path in ("/", "/healthz", "/readyz", "/openapi.json"):
                assert client.get(path).status_code == 200

            def answer(secret: str) -> int:
                return client.get("/v1/model", headers={"Authorization": f"Bearer {secret}"}).status_code

            assert answer(old) == 200
            new = store.add_key("new")
            assert answer(new) == answer(old) == 200, "both are valid while clients move"
            store.revoke_key("old")
            wait_until(lambda: answer(old) == 401)
            assert answer(new) == 200
            with ThreadPoolExecutor(8) as many:
                assert 429 in many.map(answer, [new] * 200)
            limited = client.get("/v1/model", headers={"Authorization": f"Bearer {new}"})
            if limited.status_code == 429:
                assert int(limited.headers["retry-after"]) >= 1
            assert client.get("/healthz").status_code == 200
        assert old not in server.log
        assert new not in server.log
        store.close()
        check_that_a_request_under_way_is_answered(server, new)
    finally:
        server.kill()


def check_that_a_request_under_way_is_answered(server: Server, key: str) -> None:
    body, ended, address = b'{"n": 3}', list[int](), ("127.0.0.1", httpx.URL(server.url).port or 0)

    def refused() -> bool:
        try:
            socket.create_connection(address, PATIENCE).close()
        except ConnectionError:
            return True
        return False

    with socket.create_connection(address, PATIENCE) as connection:
        time.sleep(1.1)  # the key may send again
        more = f"Authorization: Bearer {key}", "Expect: 100-continue"
        connection.sendall(head("POST", "/v1/recommend", len(body), *more))
        assert connection.recv(65536).startswith(b"HTTP/1.1 100"), "the head has arrived, the body is waited for"
        stopper = threading.Thread(target=lambda: ended.append(server.stop()))
        stopper.start()
        wait_until(refused, "the server did not stop listening")
        connection.sendall(body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    stopper.join()
    assert ended == [0]


def test_keys_are_managed_by_the_command(trained: paml.Run, tmp_path: Path) -> None:
    def run(*options: str) -> Result:
        return CliRunner().invoke(app, ["serve", str(trained.path), "--store", url, *options])

    url = f"sqlite:///{tmp_path / 'users.sqlite'}"
    secret = run("--new-key", "phone").stdout.strip()
    store = Store.open(url)
    assert (found := store.check_key(secret))
    assert (found.name, found.scope, found.expires) == ("phone", "write", None)
    assert re.search(r"  write  no end  phone$", run("--list-keys").stdout.strip())
    short = store.check_key(run("--new-key", "short", "--scope", "read", "--expires", "2").stdout.strip())
    assert short
    assert short.expires
    assert (short.scope, short.expires - short.created) == ("read", timedelta(days=2))
    assert f"  read   until {short.expires.isoformat()}  short" in run("--list-keys").stdout
    assert run("--revoke-key", "phone").exit_code == 0
    assert store.check_key(secret) is None
    for options in (("--revoke-key", "phone"), ("--list-keys",)):
        both = run("--new-key", "third", *options)
        assert (both.exit_code, both.stdout) == (1, ""), "nothing is done"
        assert "commands of their own; give only one" in str(both.exception)
    left = store.keys()
    assert [key.name for key in left] == ["short"]
    store.close()
    nameless = run("--scope", "read").exception
    assert isinstance(nameless, paml.PamlError)
    assert "given to a new key; name it" in str(nameless)
    again = run("--revoke-key", "phone").exception
    assert isinstance(again, paml.PamlError)
    assert "no key named 'phone'" in str(again)


@pytest.mark.parametrize("options", [["--list-keys"], ["--revoke-key", "phone"], ["--new-key", ""]], ids=" ".join)
def test_keys_that_cannot_be_managed_leave_no_store(options: list[str], trained: paml.Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'users.sqlite'}"
    done = CliRunner().invoke(app, ["serve", str(trained.path), "--store", url, *options])
    assert isinstance(done.exception, paml.PamlError)
    assert not list(tmp_path.iterdir())


def test_a_port_in_use_and_invalid_runs_are_refused_in_a_sentence(trained: paml.Run, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(paml.PamlError, match=rf"127\.0\.0\.1:{port}.*in use.*choose another port"):
            serve(trained.path, Options(Address(port=port)))
        second = Server(trained.path, tmp_path / "log", "--port", str(port))
        assert second.process.wait(PATIENCE) == 1
        assert second.log.count("\n") == 1, "one line, no traceback"
    free = Options(Address(port=0), f"sqlite:///{tmp_path / 'users.sqlite'}")
    with pytest.raises(paml.FormatError, match="no such run"):
        serve(tmp_path / "nothing", free)
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in trained.path.iterdir():
        if file.is_file() and file.name != "catalogue.parquet":
            (copy / file.name).write_bytes(file.read_bytes())
    with pytest.raises(paml.FormatError, match=r"catalogue\.parquet"):
        serve(copy, free)
    settings = json.loads((copy / "settings.json").read_text())
    (copy / "settings.json").write_text(json.dumps({**settings, "format": 99}))
    with pytest.raises(paml.FormatError, match="99"):
        serve(copy, free)
