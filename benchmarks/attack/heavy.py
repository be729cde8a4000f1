"""A few clients ask for the dearest answers, others for usual ones: how much longer do these wait than alone?

Heavy: five reasons for each of a hundred items, for a user who has rated thousands. Light: the ten best items for a
stored user, and for a new one with ten ratings. All from one address and without keys, which is the worst case.
"""

import asyncio
import itertools
import sys
import time

import paml
from benchmarks.attack.clients import Client, Waits, parser, target
from benchmarks.serve import new_users, request
from paml.recommend.requests import Rating
from paml.serve.store.store import MAX_RATINGS, Store

LIGHT_CLIENTS, HEAVY_CLIENTS, USERS = 4, 4, 40


def light_requests(run: paml.Run) -> list[bytes]:
    """Half for stored users, half for new ones."""
    people = new_users(run, USERS)
    new = [{"profile": one.profile, "ratings": [vars(rating) for rating in one.ratings]} for one in people]
    stored = [request("GET", f"/v1/users/{k}/recommendations") for k in range(USERS)]
    pairs = zip(stored, (request("POST", "/v1/recommend", body) for body in new), strict=True)
    return [one for pair in pairs for one in pair]


def fill(run: paml.Run, url: str) -> int:
    """Store the users; how many ratings the eager one has."""
    store, catalogue = Store.open(url), run.predictor.catalogue
    for k, person in enumerate(new_users(run, USERS)):
        store.put_user(str(k), person.profile)
        store.add_ratings(str(k), person.ratings)
    store.put_user("eager", {})
    levels = run.predictor.target.levels
    ratings = [Rating(item, levels[k % len(levels)]) for k, item in enumerate(catalogue.ids[:MAX_RATINGS])]
    store.add_ratings("eager", ratings)
    store.close()
    return len(ratings)


async def clients(port: int, count: int, requests: list[bytes], until: float, waits: Waits) -> None:
    """Ask one after the other; who is told to come again later does."""

    async def one(k: int) -> None:
        client = Client(port)
        for sent in itertools.cycle(requests[k:] + requests[:k]):
            if time.perf_counter() > until:
                break
            answer = await client.ask(sent)
            waits.add(answer)
            if answer.retry:
                await asyncio.sleep(min(answer.retry, max(0.0, until - time.perf_counter())))
        client.close()

    await asyncio.gather(*(one(k) for k in range(count)))


async def measure(port: int, light: list[bytes], heavy: list[bytes], seconds: float) -> tuple[Waits, Waits, Waits]:
    """Waits of the light ones alone, of the light ones beside the heavy ones, and of the heavy ones."""
    alone, beside, dear = Waits(), Waits(), Waits()
    await clients(port, LIGHT_CLIENTS, light, time.perf_counter() + min(3.0, seconds), Waits())  # everything is cold
    await clients(port, LIGHT_CLIENTS, light, time.perf_counter() + seconds, alone)
    until = time.perf_counter() + seconds
    await asyncio.gather(
        clients(port, HEAVY_CLIENTS, heavy, until, dear), clients(port, LIGHT_CLIENTS, light, until, beside)
    )
    return alone, beside, dear


def main(arguments: list[str]) -> float:
    """Print the waits; the ratio of the light ones' p99."""
    options = parser(__doc__).parse_args(arguments)
    with target(options.run, "--max-wait", "2") as (run, port, folder):
        ratings = fill(run, f"sqlite:///{folder / 'users.sqlite'}")
        heavy = [request("GET", "/v1/users/eager/recommendations?n=100&why=5&exclude_seen=false")]
        found = asyncio.run(measure(port, light_requests(run), heavy, options.seconds))
    print(f"{LIGHT_CLIENTS} light clients beside {HEAVY_CLIENTS} that ask why for a user with {ratings:,} ratings")
    for name, waits in zip(("light alone", "light beside", "heavy"), found, strict=True):
        print(f"{name:<13} {waits}")
    ratio = found[1].at(99) / found[0].at(99)
    print(f"p99 of the light ones: {ratio:.2f} times what it is alone; p50: {found[1].at(50) / found[0].at(50):.2f}")
    return ratio


if __name__ == "__main__":
    main(sys.argv[1:])
