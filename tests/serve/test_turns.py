"""Nobody waits for somebody else's many requests, nor for their heavy ones; and who would wait too long is told."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

import paml
from paml.recommend.predictor import Predictor
from paml.recommend.requests import NewUser, Rating
from paml.recommend.user import User
from paml.serve import costs
from paml.serve.batcher import Batcher
from paml.serve.current import caller
from paml.serve.problems import Problem
from paml.serve.server import Options, create_guarded
from paml.serve.service import STORE_THREADS, Service
from paml.serve.store.store import Store, Written
from paml.serve.threads import Threads
from paml.serve.turns import Pace, Refusals, Turns
from waiting import PATIENCE


def taken(turns: Turns[str]) -> list[str]:
    return [turns.take()[1] for _ in range(len(turns))]


def test_callers_take_turns() -> None:
    turns: Turns[str] = Turns()
    for k in range(4):
        turns.add("many", 1.0, f"m{k}")
    assert turns.take() == (1.0, "m0")
    turns.add("one", 1.0, "o0")
    turns.add("two", 1.0, "t0")
    turns.add("two", 1.0, "t1")
    assert taken(turns) == ["o0", "t0", "m1", "t1", "m2", "m3"]


def test_who_asks_for_more_waits_longer() -> None:
    turns: Turns[str] = Turns()
    for k in range(3):
        turns.add("dear", 10.0, f"d{k}")
    turns.take()
    for k in range(3):
        turns.add("cheap", 1.0, f"c{k}")
    assert taken(turns) == ["c0", "c1", "c2", "d1", "d2"]


def test_what_is_ahead_is_own_and_as_much_of_others() -> None:
    turns: Turns[str] = Turns()
    for k in range(100):
        turns.add("many", 1.0, f"m{k}")
    assert turns.ahead("many", 1.0) == 101
    assert turns.ahead("one", 1.0) == 2
    turns.add("one", 1.0, "o0")
    turns.add("one", 1.0, "o1")
    assert turns.ahead("one", 1.0) == 6
    assert len(taken(turns)) == 102
    assert turns.ahead("one", 1.0) == 1


def test_callers_who_have_gone_are_forgotten() -> None:
    turns: Turns[str] = Turns()
    turns.add("stays", 1e9, "first")
    turns.add("stays", 1e9, "second")
    for k in range(5000):
        turns.add(f"caller {k}", 1.0, "x")
        turns.take()
    assert len(turns._end) < 500
    assert len(turns._waiting) <= 2


def test_the_pace_follows_what_is_measured_and_not_one_slow_start() -> None:
    pace = Pace(seconds=0.01)
    pace.observe(1.0, 1.0)
    assert pace.seconds < 0.04
    for _ in range(100):
        pace.observe(0.5, 10.0)
    assert pace.seconds == pytest.approx(0.05, rel=0.05)


def test_those_who_are_refused_are_told_to_come_back_one_after_the_other() -> None:
    refusals, again = Refusals(2.0), list[int]()
    refusals.check(1.9, 0.5)
    Refusals(0.0).check(1e9, 0.5)
    for _ in range(400):
        with pytest.raises(Problem) as refused:
            refusals.check(2.5, 0.1)
        again.append(int((refused.value.headers or {})["Retry-After"]))
    assert again == sorted(again)
    assert again[0] == 1
    assert again[99] == pytest.approx(10.5, abs=1), "a hundred of them take ten seconds"
    assert again[-1] == pytest.approx(40.5, abs=2)
    with pytest.raises(Problem) as refused:
        refusals.check(1e6, 0.1)
    assert refused.value.headers == {"Retry-After": "60"}


def as_caller(name: str, call: Callable[[], Any]) -> "asyncio.Task[Any]":
    async def run() -> Any:
        caller.set(name)
        return await call()

    return asyncio.create_task(run())


def test_threads_are_given_in_turn_and_the_line_is_bounded() -> None:
    released, order = threading.Event(), list[str]()

    async def ask() -> list[object]:
        threads = Threads(1, "test", max_wait=1.0)
        threads._pace = Pace(seconds=0.3, weight=1e9)
        first = as_caller("many", lambda: threads.run(lambda: released.wait(PATIENCE)))
        await asyncio.sleep(0)
        many = [as_caller("many", lambda k=k: threads.run(lambda: order.append(f"m{k}"))) for k in range(5)]
        await asyncio.sleep(0)
        one = as_caller("one", lambda: threads.run(lambda: order.append("o0")))
        await asyncio.sleep(0)
        assert not one.done(), "others have their own share"
        released.set()
        found = await asyncio.gather(first, *many, one, return_exceptions=True)
        threads.close()
        return found

    found = asyncio.run(ask())
    refused = [answer for answer in found if isinstance(answer, Problem)]
    assert [problem.status_code for problem in refused] == [503] * 2, "the fourth and the fifth would wait too long"
    assert order == ["m0", "o0", "m1", "m2"]


def blocked(predictor: Predictor, released: threading.Event) -> Callable[[Sequence[NewUser], bool], Sequence[User]]:
    def adapt(many: Sequence[NewUser], score: bool) -> Sequence[User]:
        assert released.wait(PATIENCE)
        return predictor.adapt_many(many, score=score)

    return adapt


def test_who_would_wait_too_long_is_told_at_once(trained: paml.Run) -> None:
    released = threading.Event()

    async def ask() -> list[object]:
        jobs = [asyncio.create_task(batcher.run(NewUser(), lambda user: user.rate)) for _ in range(10)]
        done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
        assert done, "before anybody is served"
        released.set()
        return await asyncio.gather(*jobs, return_exceptions=True)

    batcher = Batcher(blocked(trained.predictor, released), max_users=1, max_wait=50.0)
    batcher._pace = Pace(seconds=10.0, weight=1e9)
    found = asyncio.run(ask())
    batcher.close()
    problems = [answer for answer in found if isinstance(answer, Problem)]
    assert 4 <= len(problems) <= 5
    assert {problem.status_code for problem in problems} == {503}
    assert all(int((problem.headers or {})["Retry-After"]) >= 1 for problem in problems)
    assert problems[0].document()["type"] == "urn:paml:overloaded"


def test_a_wrong_expectation_ends_with_a_deadline(trained: paml.Run) -> None:
    released = threading.Event()

    async def ask() -> list[object]:
        jobs = [asyncio.create_task(batcher.run(NewUser(), lambda user: user.rate)) for _ in range(3)]
        late = await asyncio.gather(*jobs[1:], return_exceptions=True)  # the first is being served all the time
        released.set()
        return [await jobs[0], *late]

    batcher = Batcher(blocked(trained.predictor, released), max_users=1, max_wait=0.2)
    batcher._pace = Pace(seconds=1e-6, weight=1e9)
    first, *late = asyncio.run(ask())
    batcher.close()
    assert isinstance(first, tuple)
    assert [type(answer) for answer in late] == [Problem, Problem]


def test_heavy_work_blocks_nobody_else(service: Service, trained: paml.Run) -> None:
    """More heavy requests than there are threads, for a new, a stored and a cached user."""
    released, ids = threading.Event(), trained.predictor.catalogue.ids

    async def ask() -> None:
        rating = [Rating(ids[0], 4.0)]
        await service.stored(lambda store: store.put_user("a", {}))
        await service.stored(lambda store: store.add_ratings("a", rating))
        await service.of_stored("a", lambda user: user.rate)  # now it is cached

        def wait(user: User) -> bool:
            return released.wait(PATIENCE)

        heavy = [service.of_stored("a", wait, lambda ratings: 1000.0) for _ in range(STORE_THREADS + 4)]
        heavy += [service.of_new_user(NewUser({}, rating), wait, lambda ratings: 1000.0)]
        tasks = [asyncio.create_task(one) for one in heavy]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(PATIENCE / 2):
            for _ in range(3):
                await service.of_stored("a", lambda user: user.recommend(3))
                await service.of_new_user(NewUser({}, rating), lambda user: user.recommend(3))
        assert not any(task.done() for task in tasks)
        released.set()
        assert all(await asyncio.gather(*tasks))

    asyncio.run(ask())


def test_what_is_heavy() -> None:
    assert costs.explaining(5000) + costs.adapting(5000) > 10 * costs.HEAVY
    assert costs.adapting(5000) > costs.HEAVY
    for ratings in (0, 20, 200):
        assert costs.explaining(ratings) + costs.adapting(ratings) < costs.HEAVY


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/recommend", {"ratings": [{"item": "no such thing", "value": 3}]}),
        ("POST", "/v1/recommend", {"among": ["no such thing"]}),
        ("POST", "/v1/users/a/ratings", {"ratings": [{"item": "no such thing", "value": 3}]}),
        ("GET", "/v1/users/a/predictions?item=no+such+thing", None),
        ("GET", "/v1/users/a/recommendations?among=no+such+thing", None),
        ("GET", "/v1/users/a/next-question?skip=no+such+thing", None),
        ("GET", "/v1/items?q=some+words", None),
    ],
)
def test_searches_run_neither_in_the_event_loop_nor_in_the_models_thread(
    trained: paml.Run, service: Service, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: Any
) -> None:
    where: list[str] = []
    search = service.predictor.catalogue.search

    def noting(text: str, limit: int = 20) -> Any:
        where.append(threading.current_thread().name)
        return search(text, limit=limit)

    async def ask() -> int:
        transport = httpx.ASGITransport(create_guarded(trained, service, Options()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await client.put("/v1/users/a", json={"profile": {}})
            monkeypatch.setattr(service.predictor.catalogue, "search", noting)
            return (await client.request(method, path, json=body)).status_code

    assert asyncio.run(ask()) == (200 if path.startswith("/v1/items") else 422)
    assert where
    assert all(name.startswith("paml-store") for name in where)


def test_a_put_beside_a_delete_is_answered_as_done(
    trained: paml.Run, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_user = Store.put_user

    def deleted_at_once(store: Store, name: str, *arguments: Any) -> Written:
        written = put_user(store, name, *arguments)
        store.delete_user(name)
        return written

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(create_guarded(trained, service, Options()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            monkeypatch.setattr(Store, "put_user", deleted_at_once)
            answer = await client.put("/v1/users/a", json={"profile": {"gender": "F"}})
            assert (await client.get("/v1/users/a")).status_code == 404
            return answer

    answer = asyncio.run(ask())
    assert answer.status_code == 201
    assert (answer.json()["id"], answer.json()["profile"], answer.json()["ratings"]) == ("a", {"gender": "F"}, [])
