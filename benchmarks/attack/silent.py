"""Connections that say nothing, little or half of something: is everybody else still answered within a second?

Bodies that are announced and never come, on requests that have none and on those that have; connections without a
word; heads that come byte by byte. Each is held while somebody at another address asks for /v1/model, on a new
connection each time.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial

from benchmarks.attack.clients import Waits, parser, probing, target

HEAD = "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n"
Writers = list[asyncio.StreamWriter]


async def opened(port: int, count: int, sent: bytes, writers: Writers) -> None:
    """Open connections that send this and no more; again and again, as the server closes them."""
    for _ in range(count):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            writers.append(writer)
        except OSError:
            await asyncio.sleep(0.01)


async def trickled(port: int, count: int, writers: Writers) -> None:
    """Heads without an end, a byte every second."""
    await opened(port, count, b"GET /v1/model HTTP/1.1\r\nX: ", writers)
    while True:
        await asyncio.sleep(1)
        for writer in writers:
            if not writer.is_closing():
                writer.write(b"x")


async def beside(attack: Callable[[Writers], Awaitable[None]], port: int, seconds: float) -> Waits:
    """What others wait while an attack lasts."""
    writers: Writers = []
    async with probing(port) as waits:
        task = asyncio.ensure_future(attack(writers))
        await asyncio.sleep(seconds)
        task.cancel()
    for writer in writers:
        writer.close()
    await asyncio.gather(task, *(writer.wait_closed() for writer in writers), return_exceptions=True)
    return waits


async def measure(port: int, count: int, seconds: float) -> dict[str, Waits]:
    """What others wait beside each attack."""

    async def nothing(writers: Writers) -> None:
        pass

    def sending(*heads: tuple[str, str]) -> Callable[[Writers], Awaitable[None]]:
        async def attack(writers: Writers) -> None:
            for method, path in heads:
                await opened(port, count // len(heads), HEAD.format(method=method, path=path).encode(), writers)

        return attack

    attacks = {
        "nobody": nothing,
        "GET with a body that never comes": sending(
            ("GET", "/healthz"), ("GET", "/v1/model"), ("DELETE", "/v1/users/a")
        ),
        "POST with a body that never comes": sending(("POST", "/v1/recommend"), ("PUT", "/v1/users/a")),
        "idle connections": partial(opened, port, count, b""),
        "heads that never end": partial(trickled, port, count),
    }
    return {name: await beside(attack, port, seconds) for name, attack in attacks.items()}


def main(arguments: list[str]) -> dict[str, Waits]:
    """Print what others waited."""
    options = parser(__doc__)
    options.add_argument("--count", type=int, default=1100, help="connections of each kind (1100)")
    given = options.parse_args(arguments)
    with target(given.run, "--rate", "100") as (_, port, _):
        found = asyncio.run(measure(port, given.count, given.seconds))
    print(f"others beside {given.count} connections of each kind, for {given.seconds:g} s")
    for name, waits in found.items():
        print(f"{name:<34} {waits}")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
