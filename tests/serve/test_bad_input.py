"""Whatever is sent, the answer is a problem that names field, value and expectation, and the service goes on."""

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import polars as pl
import pytest

import paml
from paml.serve.server import Options, create_guarded
from paml.serve.service import Service
from paml.serve.store.store import MAX_RATINGS, Store
from serve.inside import serving as inside
from serve.serving import Server, head
from waiting import PATIENCE

JSON = {"Content-Type": "application/json"}
MANY = "x" * 1_000_000


@pytest.fixture(scope="module")
def known(trained: paml.Run) -> str:
    return trained.predictor.catalogue.ids[0]


@pytest.fixture(scope="module")
def path(server: Server) -> str:
    with server.client() as client:
        client.put("/v1/users/bad", json={"profile": {}})
    return "/v1/users/bad"


def refused(answer: httpx.Response, status: int = 422) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["status"] == status
    assert problem["type"].startswith("urn:paml:")
    assert problem["title"]
    assert problem["detail"]
    return problem


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e999", "6", "0", "-1", "1" + "0" * 400, '"5"', "true", "null", "[]"]
)
def test_invalid_ratings(client: httpx.Client, path: str, known: str, value: str) -> None:
    body = f'{{"ratings": [{{"item": {json.dumps(known)}, "value": {value}}}]}}'
    for answer in (
        client.post(f"{path}/ratings", content=body, headers=JSON),
        client.post("/v1/recommend", content=body, headers=JSON),
    ):
        problem = refused(answer)
        assert "value" in problem["field"]
        assert "value" in problem
        assert problem["expected"]
    assert client.get(path).json()["ratings"] == []


def test_unknown_items_and_fields(client: httpx.Client, path: str, known: str) -> None:
    for answer in (
        client.post(f"{path}/ratings", json={"ratings": [{"item": "nothing like it", "value": 3}]}),
        client.post("/v1/recommend", json={"ratings": [{"item": "nothing like it", "value": 3}]}),
        client.post("/v1/recommend", json={"among": ["nothing like it"]}),
        client.get(f"{path}/predictions", params={"item": [known, "nothing like it"]}),
        client.get(f"{path}/recommendations", params={"among": "nothing like it"}),
        client.get(f"{path}/next-question", params={"skip": "nothing like it"}),
    ):
        problem = refused(answer)
        assert problem["type"] == "urn:paml:unknown-item"
        assert problem["value"] == "nothing like it"
        assert "id" in problem["expected"]
    for answer in (
        client.put(path, json={"profile": {"gendre": "F"}}),
        client.post("/v1/recommend", json={"profile": {"gendre": "F"}}),
    ):
        problem = refused(answer)
        assert problem["type"] == "urn:paml:unknown-field"
        assert "did you mean 'gender'" in problem["detail"], "the nearest is named"
        assert (problem["field"], problem["value"]) == ("gendre", "F")
        assert "gender" in problem["expected"]
    extra = refused(client.put(path, json={"profile": {}, "ratings": []}))
    assert (extra["field"], extra["expected"]) == ("ratings", "no such field")
    assert refused(client.put(path, json={"profile": {"gender": {"deep": 1}}}))["field"] == "profile.gender"
    assert refused(client.put(path, json={"profile": {"gender": True}}))["value"] is True
    context = {"ratings": [{"item": known, "value": 3, "context": {"x": 1}}]}
    assert refused(client.post(f"{path}/ratings", json=context))["field"] == "x"


def test_a_value_unseen_in_training_is_unknown_and_not_an_error(client: httpx.Client, path: str) -> None:
    assert client.put(path, json={"profile": {"gender": "never seen", "age": 25}}).status_code == 200
    assert client.put(path, json={"profile": {"gender": None}}).status_code == 200


def test_the_same_item_twice_in_one_call(client: httpx.Client, path: str, known: str) -> None:
    twice = {"ratings": [{"item": known, "value": 3}, {"item": known, "value": 4}]}
    for answer in (client.post(f"{path}/ratings", json=twice), client.post("/v1/recommend", json=twice)):
        assert known in refused(answer)["detail"]
    assert client.get(path).json()["ratings"] == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"5",
        b"\xff\xfe",
        b"{}",
        b'{"ratings": {}}',
        b'{"ratings": []}',
        b'{"ratings": [5]}',
        b"[" * 100_000,
        b'{"ratings": [{"item": "\\ud800", "value": 3}]}',
        b'{"ratings": [{"item": "a\\u0000", "value": 3}]}',
        b'{"ratings": [{"item": "", "value": 3}]}',
        b'{"ratings": [{"item": 318, "value": 3}]}',
        b'{"ratings": ' + b"[" * 50_000,
    ],
    ids=lambda body: repr(body[:40]),
)
def test_bodies_that_are_not_requests(client: httpx.Client, path: str, body: bytes) -> None:
    answer = client.post(f"{path}/ratings", content=body, headers=JSON)
    refused(answer, 400 if answer.status_code == 400 else 422)


def test_limits(client: httpx.Client, path: str, trained: paml.Run) -> None:
    ids = trained.predictor.catalogue.ids
    too_many = {"ratings": [{"item": str(k), "value": 3} for k in range(501)]}
    assert refused(client.post(f"{path}/ratings", json=too_many))["field"] == "ratings"
    for n in ("0", "101", "-1", "1e3", "x", "1" * 5000, "NaN"):
        assert refused(client.get(f"{path}/recommendations", params={"n": n}))["field"] == "n"
    assert refused(client.get(f"{path}/recommendations", params={"why": 6}))["field"] == "why"
    assert refused(client.get("/v1/items", params={"limit": 101}))["field"] == "limit"
    assert refused(client.get("/v1/items", params={"q": "x" * 201}))["field"] == "q"
    assert refused(client.get(f"{path}/predictions"))["field"] == "item"
    assert refused(client.post("/v1/recommend", json={"n": 10.5}))["field"] == "n"
    assert refused(client.post("/v1/recommend", json={"n": True}))["field"] == "n"
    named = "&".join(f"item={quote(ids[0])}" for _ in range(501))
    assert refused(client.get(f"{path}/predictions?{named}"))["field"] == "item"


def chunks(count: int) -> Iterator[bytes]:
    yield b'{"profile": {"gender": "'
    for _ in range(count):
        yield b"x" * 100_000
    yield b'"}}'


def test_large_bodies(server: Server, client: httpx.Client, path: str) -> None:
    body = b'{"profile": {"gender": "' + b"x" * 10_000_000 + b'"}}'
    assert refused(client.put(path, content=body, headers=JSON), 413)["expected"] == "at most 1000000 bytes"
    assert refused(client.put(path, content=chunks(100), headers=JSON), 413)["field"] == "body"
    assert refused(client.put(path, content=chunks(5), headers=JSON), 422)["field"] == "profile.gender"
    # A length that lies: less than is sent is all that is read, more than is sent ends with the connection.
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0), timeout=PATIENCE) as connection:
        connection.sendall(head("PUT", "/v1/users/bad", 999) + b"{")
    assert client.get("/healthz").status_code == 200


def test_ids(client: httpx.Client) -> None:
    for name in (
        "🎬🍿👩‍👩‍👧",
        "שלום עולם",
        "‮right to left",
        "a/b/../c",
        "%2F%25",
        "..",
        "'; DROP TABLE users; --",
        "é" * 200,
    ):
        path = "/v1/users/" + quote(name, safe="").replace(".", "%2E")
        assert client.put(path, json={"profile": {}}).status_code == 201, name
        assert client.get(path).json()["id"] == name
        assert client.get(f"{path}/recommendations").json()["user"] == name
        assert client.delete(path).status_code == 204
    for name, status in (("x" * 201, 422), ("a%00b", 422), ("a%0Ab", 422), ("%ff", 400), ("%ed%a0%80", 400)):
        refused(client.get(f"/v1/users/{name}"), status)
        refused(client.put(f"/v1/users/{name}", json={"profile": {}}), status)


def test_an_id_of_a_million_characters(server: Server, client: httpx.Client) -> None:
    port = httpx.URL(server.url).port or 0
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        try:
            connection.sendall(head("GET", f"/v1/users/{MANY}", 0))
            assert connection.recv(1000).startswith(b"HTTP/1.1 400")
        except ConnectionError:
            pass  # or the server closes before it has read all of it
    refused(client.put(f"/v1/users/{MANY[:50_000]}", json={}))
    assert client.get("/healthz").status_code == 200


def test_unknown_paths_and_methods(client: httpx.Client) -> None:
    refused(client.get("/v1/nothing"), 404)
    refused(client.get("/v1/users/"), 404)
    refused(client.get("/docs"), 404)
    allowed = client.patch("/v1/users/bad", json={})
    refused(allowed, 405)
    assert allowed.headers["allow"]
    refused(client.request("BREW", "/v1/model"), 405)


def test_words_to_search_for_may_be_anything(client: httpx.Client) -> None:
    for words in ("(", "\\", "%", "_", "' OR 1=1", "🎬", "‮", "\x00", "a" * 200, "[a-z]+", " "):
        assert client.get("/v1/items", params={"q": words}).status_code == 200


def test_too_many_ratings_of_one_user(trained: paml.Run, tmp_path: Path) -> None:
    # The catalogue of the test is small, so the store's limit is, too; the same application, without a process.
    service = Service(trained.predictor, Store.open(f"sqlite:///{tmp_path / 'users.sqlite'}", max_ratings=3))
    ratings = [{"item": item, "value": 3} for item in trained.predictor.catalogue.ids[:4]]

    async def ask() -> tuple[httpx.Response, httpx.Response]:
        transport = httpx.ASGITransport(create_guarded(trained, service, Options()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await client.put("/v1/users/eager", json={"profile": {}})
            await client.post("/v1/users/eager/ratings", json={"ratings": ratings[:2]})
            answer = await client.post("/v1/users/eager/ratings", json={"ratings": ratings[2:]})
            return answer, await client.get("/v1/users/eager")

    answer, user = asyncio.run(ask())
    service.close()
    problem = refused(answer)
    assert problem["type"] == "urn:paml:too-many-ratings"
    assert (problem["field"], problem["value"], problem["expected"]) == ("ratings", "4", "at most 3 of one user")
    assert [rating["item"] for rating in user.json()["ratings"]] == [rating["item"] for rating in ratings[:2]]
    assert MAX_RATINGS == 5000


def test_a_user_who_has_rated_everything(client: httpx.Client, trained: paml.Run) -> None:
    ids = trained.predictor.catalogue.ids
    client.put("/v1/users/eager", json={"profile": {}})
    every = {"ratings": [{"item": item, "value": 3} for item in ids]}
    assert client.post("/v1/users/eager/ratings", json=every).json()["ratings"] == len(ids)
    empty = client.get("/v1/users/eager/recommendations").json()
    assert empty["items"] == [], "everything is seen"
    asked = refused(client.get("/v1/users/eager/next-question"), 404)
    assert asked["type"] == "urn:paml:nothing-to-ask"


def test_all_items_that_are_recommended_can_be_named(tmp_path: Path) -> None:
    """Also one with an id as long as the store takes, such as an address."""
    long = "https://news.example/".ljust(500, "a")
    rows = [(f"u{k % 30}", long if k % 9 == 0 else f"i{k % 9}", 1 + k % 5) for k in range(270)]
    log = pl.DataFrame(rows, ["user_id", "item_id", "rating"], orient="row").unique(["user_id", "item_id"])
    target = {"kind": "rating", "low": 1, "high": 5}
    log_of = {"file": "log", "user": "user_id", "item": "item_id", "target": "rating"}
    data = paml.prepare(
        interactions=log, schema={"interactions": log_of, "target": target}, out=tmp_path / "data", min_interactions=3
    )
    run = paml.train(data, out=tmp_path / "run", epochs=1, ensemble_size=1)
    with inside(run, f"sqlite:///{tmp_path / 'users.sqlite'}") as client:
        client.put("/v1/users/anna", json={"profile": {}})
        asked = client.get("/v1/users/anna/next-question", params={"skip": long})
        assert (asked.status_code, asked.json()["item"] != long) == (200, True)
        rated = {"ratings": [{"item": long, "value": 5}]}
        assert client.post("/v1/users/anna/ratings", json=rated).json()["ratings"] == 1
        assert client.post("/v1/recommend", json=rated).status_code == 200
        assert client.get("/v1/users/anna/recommendations", params={"among": long}).status_code == 200
        assert client.get("/v1/users/anna/predictions", params={"item": long}).status_code == 200
        assert client.delete(f"/v1/users/anna/ratings/{quote(long, safe='')}").status_code == 204


@pytest.mark.parametrize("item", ["new\nline", "x" * 501, "\x7f"])
def test_items_that_no_request_can_name_are_not_served(
    trained: paml.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, item: str
) -> None:
    monkeypatch.setattr(trained.predictor.catalogue, "ids", ["1", item])
    with (
        pytest.raises(paml.DataError, match=r"no request can name the item '[^']+'; give all items ids of 1 to 500"),
        inside(trained, f"sqlite:///{tmp_path / 'users.sqlite'}"),
    ):
        pass
