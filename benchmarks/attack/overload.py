"""Many clients at once ask for new users: how many are answered and how many turned away, and how long do both wait?

Once with the limit of the expected wait, once without. Who is turned away comes again after `Retry-After`.
"""

import asyncio
import json
import sys
import time
from collections import Counter

from benchmarks.attack.clients import Client, Waits, parser, target
from benchmarks.serve import new_users, request


async def load(port: int, clients: int, requests: list[bytes], seconds: float) -> tuple[Waits, Waits, Counter[int]]:
    """Waits of those who were answered, of those who were turned away, and how many got which status."""
    answered, shed, statuses = Waits(), Waits(), Counter[int]()
    until = time.perf_counter() + seconds

    async def one(k: int) -> None:
        client = Client(port)
        while time.perf_counter() < until:
            answer = await client.ask(requests[k % len(requests)])
            statuses[answer.status] += 1
            if answer.status == 200:
                answered.add(answer)
            else:
                shed.seconds.append(answer.seconds)
            await asyncio.sleep(min(answer.retry, max(0.0, until - time.perf_counter())))
        client.close()

    await asyncio.gather(*(one(k) for k in range(clients)))
    return answered, shed, statuses


def main(arguments: list[str]) -> dict[str, tuple[Waits, Waits, Counter[int]]]:
    """Print shares and waits."""
    options = parser(__doc__)
    options.add_argument("--clients", type=int, default=500, help="at once (500)")
    options.add_argument("--max-wait", type=float, nargs="+", default=[2.0, 0.0], help="limits to try (2 0)")
    given = options.parse_args(arguments)
    found = {}
    for limit in given.max_wait:
        with target(given.run, "--max-wait", str(limit), "--connections", str(2 * given.clients)) as (run, port, _):
            people = new_users(run, 100, given.seed)
            bodies = [{"profile": one.profile, "ratings": [vars(r) for r in one.ratings]} for one in people]
            requests = [request("POST", "/v1/recommend", json.loads(json.dumps(body))) for body in bodies]
            asyncio.run(load(port, 4, requests, min(2.0, given.seconds)))
            answered, shed, statuses = asyncio.run(load(port, given.clients, requests, given.seconds))
        found[f"{limit:g} s" if limit else "any"] = answered, shed, statuses
        share = len(answered.seconds) / sum(statuses.values())
        print(f"{given.clients} clients, expected wait at most {limit or float('inf'):g} s: {share:.0%} answered")
        print(f"  answered     {answered}")
        print(f"  turned away  {shed}")
        print(f"  statuses     {dict(sorted(statuses.items()))}")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
