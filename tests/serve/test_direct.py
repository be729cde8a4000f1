"""Without FastAPI's layers, answers are what they are with them, byte by byte."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import paml
from paml.serve.access import Access
from paml.serve.limits import Limits
from paml.serve.middleware import Guard
from paml.serve.routes import create_app, methods_of
from paml.serve.server import Options, create_guarded
from paml.serve.service import Service
from paml.serve.store.store import Store
from serve.inside import Inside

HEADERS = {"Content-Type": "application/json", "X-Request-ID": "mine"}
PATH = "/v1/recommend"


@pytest.fixture
def both(trained: paml.Run, tmp_path: Path) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Clients of the service as it is, and of one that leaves everything to FastAPI."""
    service = Service(trained.predictor, Store.open(f"sqlite:///{tmp_path / 'users.sqlite'}"))
    app, limits = create_app(trained, service), Limits(per_second=0)
    layered = Guard(app, service.metrics, limits, None, Access(service, always=False), methods_of(app))
    guards = (create_guarded(trained, service, Options(limits=limits)), layered)
    direct, other = (httpx.Client(transport=Inside(guard), base_url="http://localhost") for guard in guards)
    try:
        with direct, other:
            yield direct, other
    finally:
        service.close()


def _bodies(run: paml.Run) -> list[bytes]:
    first, second = run.predictor.catalogue.ids[:2]
    high, profile = run.predictor.target.high, {field.name: field.values[0] for field in run.predictor.fields}
    rating: dict[str, Any] = {"item": first, "value": high}
    right = {"profile": profile, "ratings": [rating, {"item": second, "value": high, "context": {}}], "n": 3}
    plain = json.dumps(right)
    values: list[Any] = [
        right,
        {},
        {"ratings": [rating], "n": 4.0, "why": 1, "exclude_seen": False, "by": "rating"},
        {"ratings": [rating], "among": [first, second]},
        {"ratings": [rating, rating]},
        {"ratings": [{"item": "no such item", "value": high}]},
        {"ratings": [{**rating, "value": "5"}]},
        {"ratings": [{**rating, "value": True}]},
        {"ratings": [{**rating, "value": float("nan")}]},
        {"ratings": [{**rating, "value": 10**400}]},
        {"ratings": [{**rating, "more": 1}]},
        {"profile": {"no such field": 1}},
        {"profile": {run.predictor.fields[0].name: "never seen"}},
        {"profile": {"x": 2**60}},
        {"n": 0},
        {"n": 2.5},
        {"n": True},
        {"exclude_seen": 1},
        {"by": "luck"},
        {"among": "318"},
        {"ratings": [{"item": "\ud800", "value": high}]},
        [],
        None,
    ]
    return [
        *(json.dumps(value).encode() for value in values),
        plain.encode("utf-16"),
        plain.encode("utf-8-sig"),
        plain[:-1].encode(),
        plain.encode() + b" \n",
        plain.encode() + b"}",
        b"",
        b"\xff\xfe",
        b"[" * 50_000,
        b'{"n": 01}',
        b'{"n": 3, "n": 2}',
        b'{"ratings": [{"item": "1", "item": ' + json.dumps(first).encode() + b', "value": 0, "value": 1e0}]}',
        b'{"profile": {"a\x00": 1}}',
    ]


def test_every_body_is_answered_as_by_fastapi(trained: paml.Run, both: tuple[httpx.Client, httpx.Client]) -> None:
    statuses = []
    for body in _bodies(trained):
        direct, layered = (client.post(PATH, content=body, headers=HEADERS) for client in both)
        assert (direct.status_code, direct.content) == (layered.status_code, layered.content), body[:100]
        assert sorted(direct.headers.items()) == sorted(layered.headers.items())
        statuses.append(direct.status_code)
    assert {200, 400, 422} == set(statuses)


def test_other_methods_and_paths_are_the_applications(both: tuple[httpx.Client, httpx.Client]) -> None:
    for method, path in (("GET", PATH), ("PUT", PATH), ("POST", "/v1/model"), ("GET", "/v1/model"), ("GET", "/")):
        direct, layered = (client.request(method, path, headers=HEADERS) for client in both)
        assert (direct.status_code, direct.content) == (layered.status_code, layered.content)


def test_a_fault_of_ours_is_said_and_counted_for_the_route(
    trained: paml.Run, both: tuple[httpx.Client, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(Service, "of_new_user", fail)
    direct, layered = (client.post(PATH, content=b"{}", headers=HEADERS) for client in both)
    assert direct.status_code == layered.status_code == 500
    assert direct.content == layered.content
    assert "secret" not in direct.text
    assert f'route="{PATH}",status="500"' in both[0].get("/metrics").text
