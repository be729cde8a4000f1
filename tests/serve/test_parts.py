"""The parts of the service that can be looked at alone: batches, the cache, rates, paths, problems."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Scope

import paml
from paml.errors import InputError
from paml.recommend.predictor import Predictor
from paml.recommend.requests import NewUser, Rating
from paml.recommend.user import User
from paml.serve.access import Access
from paml.serve.batcher import Batcher
from paml.serve.cache import UserCache
from paml.serve.limits import CALLERS, Limits, RateLimiter
from paml.serve.middleware import LOOPBACK, Guard, routed_path, segment
from paml.serve.problems import Problem, shown, unavailable
from paml.serve.service import Service, recommendations
from paml.serve.store.api_keys import Key
from paml.serve.store.store import StoredUser
from paml.serve.telemetry import Metrics
from waiting import PATIENCE


class NoKeys:
    """A store that never had a key."""

    async def key(self, secret: str) -> Key | None:
        return None

    async def has_had_keys(self) -> bool:
        return False


@pytest.fixture(scope="module")
def predictor(trained: paml.Run) -> Predictor:
    return trained.predictor


def new_users(predictor: Predictor, count: int) -> list[NewUser]:
    ids = predictor.catalogue.ids
    return [
        NewUser({}, [Rating(ids[k % len(ids)], 1.0 + k % 5), Rating(ids[(7 * k + 1) % len(ids)], 4.0)])
        for k in range(count)
    ]


def test_requests_that_wait_together_are_adapted_together(predictor: Predictor) -> None:
    sizes: list[int] = []
    entered, released = threading.Event(), threading.Event()

    def adapt(many: Sequence[NewUser], score: bool) -> list[User]:
        entered.set()
        released.wait(PATIENCE)
        return predictor.adapt_many(many, score=score)

    async def ask() -> list[tuple[User, list[float]]]:
        jobs = [asyncio.create_task(batcher.run(one, lambda user: user.scores().tolist())) for one in asked]
        await asyncio.to_thread(entered.wait, PATIENCE)
        released.set()
        return await asyncio.gather(*jobs)

    asked = new_users(predictor, 41)
    batcher = Batcher(adapt, observe=sizes.append)
    found = asyncio.run(ask())
    batcher.close()
    assert sum(sizes) == 41
    assert max(sizes) == 32, "at most this many at once"
    assert len(sizes) <= 4
    for one, (user, scores) in zip(asked, found, strict=True):
        assert user.new_user == one
        assert scores == pytest.approx(predictor.adapt_many([one])[0].scores().tolist(), abs=1e-5)


def test_one_invalid_new_user_fails_alone(predictor: Predictor) -> None:
    asked = new_users(predictor, 5)
    asked[2] = NewUser({}, [Rating("nothing like it", 3.0)])

    async def ask() -> list[object]:
        with batcher.coming():  # as if another were on its way: all five are gathered
            jobs = [batcher.run(one, lambda user: user.rate) for one in asked]
            return await asyncio.gather(*jobs, return_exceptions=True)

    batcher = Batcher(lambda many, score: predictor.adapt_many(many, score=score), wait=0.2)
    found = asyncio.run(ask())
    batcher.close()
    assert [isinstance(answer, InputError) for answer in found] == [False, False, True, False, False]


def test_an_error_in_the_answer_for_a_user_is_their_own(predictor: Predictor) -> None:
    async def ask() -> list[object]:
        good, bad = new_users(predictor, 2)
        jobs = [batcher.run(good, lambda user: user.rate), batcher.run(bad, lambda user: 1 / 0)]
        return await asyncio.gather(*jobs, return_exceptions=True)

    batcher = Batcher(lambda many, score: predictor.adapt_many(many, score=score))
    found = asyncio.run(ask())
    batcher.close()
    assert isinstance(found[0], tuple)
    assert isinstance(found[1], ZeroDivisionError)


def test_a_fault_of_the_thread_is_reported_and_the_thread_goes_on(predictor: Predictor) -> None:
    faults = [ZeroDivisionError()]

    def observe(size: int) -> None:
        if faults:
            raise faults.pop()

    async def ask() -> list[object]:
        jobs = [batcher.run(one, lambda user: user.rate) for one in new_users(predictor, 2)]
        return await asyncio.gather(*jobs, return_exceptions=True)

    batcher = Batcher(lambda many, score: predictor.adapt_many(many, score=score), observe=observe)
    assert [type(answer) for answer in asyncio.run(ask())] == [ZeroDivisionError] * 2
    assert [type(answer) for answer in asyncio.run(ask())] == [tuple] * 2
    batcher.close()


def test_without_the_models_thread_the_service_is_not_ready_and_nobody_waits(service: Service) -> None:
    async def ask() -> None:
        await service.check_ready()
        service._batcher.close()
        for refused in (service.check_ready(), service.of_new_user(NewUser(), lambda user: user.rate)):
            with pytest.raises(Problem) as problem:
                await refused
            assert problem.value.status_code == 503
            assert problem.value.headers == {"Retry-After": "2"}

    asyncio.run(ask())


def test_a_user_with_many_ratings_is_adapted_apart(predictor: Predictor) -> None:
    ids = predictor.catalogue.ids
    asked = [*new_users(predictor, 3), NewUser({}, [Rating(item, 3.0) for item in ids])]
    sizes: list[int] = []

    async def ask() -> None:
        with batcher.coming():
            await asyncio.gather(*(batcher.run(one, lambda user: user.rate) for one in asked))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paml.serve.batcher.MAX_ROWS", 2 * len(ids))
        batcher = Batcher(lambda many, score: predictor.adapt_many(many, score=score), wait=0.2, observe=sizes.append)
        asyncio.run(ask())
        batcher.close()
    assert sizes == [3, 1]


def test_nobody_waits_if_nobody_is_coming(predictor: Predictor) -> None:
    async def ask() -> float:
        started = time.perf_counter()
        await batcher.run(new_users(predictor, 1)[0], lambda user: user.rate, score=False)
        return time.perf_counter() - started

    batcher = Batcher(lambda many, score: predictor.adapt_many(many, score=score), wait=PATIENCE)
    assert asyncio.run(ask()) < PATIENCE / 2
    batcher.close()


def test_the_cache_knows_exactly_one_version(predictor: Predictor) -> None:
    first, second = predictor.adapt_many(new_users(predictor, 2))
    cache = UserCache()
    cache.put("a", 7, first)
    assert cache.get("a", 7) is first
    assert cache.get("a", 8) is None
    cache.put("a", 9, second)
    assert cache.get("a", 7) is None
    cache.put("a", 8, first)  # late, as of a slow request
    assert cache.get("a", 9) is second
    cache.drop("a")
    assert len(cache) == cache.size == 0


def test_the_cache_is_bounded_by_entries_and_bytes(predictor: Predictor) -> None:
    users = [predictor.adapt_many([one])[0] for one in new_users(predictor, 6)]
    few = UserCache(entries=3)
    for k, user in enumerate(users):
        few.put(str(k), 1, user)
        few.get("0", 1)
    assert [few.get(str(k), 1) is not None for k in range(6)] == [True, False, False, False, True, True]
    size = users[0].nbytes
    assert size > 4 * len(predictor.catalogue)
    small = UserCache(size=4 * size)
    for k, user in enumerate(users):
        small.put(str(k), 1, user)
    assert 1 <= len(small) <= 4
    assert small.size <= 4 * size
    tiny = UserCache(size=size - 1)
    tiny.put("a", 1, users[0])
    assert len(tiny) == tiny.size == 0


def test_rates_are_limited_per_caller_and_callers_are_forgotten() -> None:
    now = 0.0
    limiter = RateLimiter(5, lambda: now)
    for _ in range(10):
        limiter.admit("a")
    with pytest.raises(Problem) as refused:
        limiter.admit("a")
    assert refused.value.status_code == 429
    assert refused.value.headers == {"Retry-After": "1"}
    limiter.admit("b")
    now = 1.0
    for _ in range(5):
        limiter.admit("a")
    with pytest.raises(Problem):
        limiter.admit("a")
    for k in range(CALLERS + 10):
        limiter.admit(f"caller {k}")
    assert len(limiter._buckets) == CALLERS
    for _ in range(1000):
        RateLimiter(0).admit("a")


def test_guessing_keys_burdens_neither_the_store_nor_those_who_have_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paml.serve.access.KEY_SECONDS", PATIENCE)
    asked: list[str] = []

    class Keys(NoKeys):
        async def key(self, secret: str) -> Key | None:
            asked.append(secret)
            return Key("phone", datetime.now(UTC)) if secret == "valid" else None

    async def ask() -> None:
        guard = Guard(PlainTextResponse("in"), Metrics(), Limits(per_second=5), None, Access(Keys(), always=True))
        guard._rates = RateLimiter(5, clock=lambda: 0.0)  # no second passes, however slow the machine is
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://paml") as client:

            async def status(secret: str) -> int:
                return (await client.get("/v1/model", headers={"Authorization": f"Bearer {secret}"})).status_code

            assert await status("valid") == 200
            guesses = await asyncio.gather(*(status(f"guess {k}") for k in range(100)))
            assert set(guesses) == {401, 429}
            assert len(asked) <= 11, "no more guesses reach the store than may come at once"
            assert await status("valid") == 200
            assert asked.count("valid") == 1, "a valid key is not looked up again so soon"

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        *(("Host", host, 200) for host in ("localhost", "LocalHost:8000", "[::1]", "[::1]:80", "localhost:")),
        *(
            ("Host", host, 421)
            for host in ("", "]", "a]", "[", "[::1", "[::1]evil.example", "a@localhost", "localhost/x")
        ),
        *(("Origin", origin, 403) for origin in ("", "null", "http://[", "http://]", "http://evil.example", "\xff")),
        ("Origin", "http://localhost", 200),
    ],
)
def test_hosts_and_origins_however_written(header: str, value: str, status: int) -> None:
    async def ask() -> int:
        guard = Guard(PlainTextResponse("in"), Metrics(), Limits(), LOOPBACK, Access(NoKeys(), always=False))
        headers = {"Host": b"localhost", "Content-Type": b"application/json", header: value.encode("latin-1")}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://localhost") as client:
            return (await client.put("/v1/model", content=b"{}", headers=headers)).status_code

    assert asyncio.run(ask()) == status


@pytest.mark.parametrize(("share", "status"), [(1.0, 503), (0.75, 429)], ids=["all", "a caller's share"])
def test_too_many_at_once_are_turned_away_before_the_store_is_asked(share: float, status: int) -> None:
    asked: list[str] = []
    entered = asyncio.Event()

    class Keys(NoKeys):
        async def key(self, secret: str) -> Key | None:
            asked.append(secret)
            await entered.wait()
            return None

    limits = Limits(per_second=0, at_once=3 if share == 1 else 4, share=share)

    async def ask() -> list[int]:
        guard = Guard(PlainTextResponse("in"), Metrics(), limits, None, Access(Keys(), always=True))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://paml") as client:
            calls = [client.get("/v1/model", headers={"Authorization": "Bearer x"}) for _ in range(10)]
            tasks = [asyncio.create_task(call) for call in calls]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert (await client.get("/healthz")).status_code == 200
            entered.set()
            return [(await task).status_code for task in tasks]

    assert sorted(asyncio.run(ask())) == [401] * 3 + [status] * 7
    assert len(asked) == 3


def test_whether_keys_are_needed_is_asked_again_if_it_was_too_busy_to_be_asked() -> None:
    answers = [unavailable("too busy", kind="overloaded"), True]

    class Keys(NoKeys):
        async def has_had_keys(self) -> bool:
            answer = answers.pop(0)
            if isinstance(answer, Problem):
                raise answer
            return answer

    async def ask() -> list[int]:
        guard = Guard(PlainTextResponse("in"), Metrics(), Limits(), None, Access(Keys(), always=False))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://paml") as client:
            return [(await client.get("/v1/model")).status_code for _ in range(3)]

    assert asyncio.run(ask()) == [503, 401, 401], "nobody gets in before the answer is known"


def test_health_has_its_own_generous_limit() -> None:
    async def ask() -> None:
        limits = Limits(per_second=2, health_per_second=5)
        guard = Guard(PlainTextResponse("in"), Metrics(), limits, None, Access(NoKeys(), always=False))
        guard._rates, guard._health_rates = RateLimiter(2, lambda: 0.0), RateLimiter(5, lambda: 0.0)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://paml") as client:
            others = [(await client.get("/v1/model")).status_code for _ in range(6)]
            assert others == [200] * 4 + [429] * 2
            health = [(await client.get("/healthz")).status_code for _ in range(12)]
            assert health == [200] * 10 + [429] * 2, "monitoring goes on, within limits"

    asyncio.run(ask())


def test_what_would_wait_too_long_is_refused_before_its_body_is_read() -> None:
    read: list[bytes] = []

    async def body() -> AsyncIterator[bytes]:
        read.append(b"{}")
        yield b"{}"

    def refuse(scope: Scope) -> None:
        raise unavailable("too busy", kind="overloaded")

    async def ask() -> httpx.Response:
        access = Access(NoKeys(), always=False)
        guard = Guard(PlainTextResponse("in"), Metrics(), Limits(), None, access, check_line=refuse)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://paml") as client:
            return await client.post("/v1/recommend", content=body(), headers={"Content-Type": "application/json"})

    assert asyncio.run(ask()).json()["type"] == "urn:paml:overloaded"
    assert not read


@pytest.mark.parametrize("name", ["anna", "a/b", "50%", "%2F", "a%252Fb", "אבג/", "🎬🍿", "a b?c#d"])
def test_ids_of_any_characters_pass_through_a_path(name: str) -> None:
    from urllib.parse import quote

    routed = routed_path(f"/v1/users/{quote(name, safe='')}/ratings".encode())
    start, end = "/v1/users/", "/ratings"
    assert routed.startswith(start)
    inside = routed.removeprefix(start).removesuffix(end)
    assert "/" not in inside
    assert segment(inside) == name


def test_a_path_that_is_not_text_is_refused() -> None:
    with pytest.raises(Problem, match="UTF-8"):
        routed_path(b"/v1/users/%ff%fe")


@pytest.mark.parametrize(
    "value", [None, True, 3, 2.5, float("nan"), float("inf"), 10**400, "x" * 9999, "\ud800", [1], {"a": 1}]
)
def test_any_invalid_value_can_be_repeated_as_json(value: object) -> None:
    problem = Problem(422, "invalid", field="f", value=value)
    body = bytes(problem.response().body)
    assert len(body) < 1000
    assert json.loads(body)["field"] == "f"
    json.dumps(shown(value), allow_nan=False)


def test_metrics_say_nothing_about_users() -> None:
    metrics = Metrics()
    metrics.answered("/v1/users/{user_id}", "GET", 200, 0.003)
    text = metrics.text().decode()
    assert 'paml_requests_total{method="GET",route="/v1/users/{user_id}",status="200"} 1.0' in text
    assert "_created" not in text


def test_what_a_newer_model_does_not_know_is_ignored(predictor: Predictor, service: Service) -> None:
    known = predictor.catalogue.ids[0]
    field = predictor.fields[0]
    ratings = (Rating(known, 4.0, {}), Rating("gone", 4.0, {}), Rating(predictor.catalogue.ids[1], 99.0, {}))
    stored = StoredUser({field.name: field.values[0], "gone": "x"}, ratings, 1)
    new_user = service.new_user_of(stored)
    assert dict(new_user.profile) == {field.name: field.values[0]}
    assert [rating.item for rating in new_user.ratings] == [known]
    (user,) = predictor.adapt_many([new_user])
    unknown = recommendations(user, 3, 0, None, exclude_seen=True, by=None)["unknown"]
    assert unknown == service.unknown(dict(stored.profile)) == ["gone"], "every answer says the same"
    assert service.title("gone") is None
