"""Requests that are nearly right: does any of them get a server error, and do memory and open files stay as they were?

A valid request of a random route is changed in one to four places: method, path, query, headers, length, the JSON of
its body (types, numbers, depth, text of all kinds), or bytes anywhere.
"""

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.attack.clients import Client, parser, target, used

CLIENTS = 16
PARTS = 4  # after each of which memory and files are looked at
PATIENCE = 3.0  # for an answer: a request whose body is shorter than it says is waited for by the server, not by us
METHODS = ["GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "get", "X" * 50, ""]
TEXTS = [
    "",
    "\x00",
    "%",
    "%00",
    "%ff",
    "../..",
    "a/b",
    "🎬",
    "\u202e",
    "'; --",
    "x" * 3000,
    "NaN",
    "-1",
    "1e999",
    "null",
    "é",
]
HEADERS = [
    "Content-Length: 999",
    "Content-Length: -1",
    "Content-Length: 1, 1",
    "Content-Length: ٣",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Host: evil.example",
    "Host:",
    "Origin: null",
    "Content-Type: text/plain",
    "Content-Type: application/json; charset=utf-16",
    "Authorization: Bearer x",
    "Authorization: Basic eA==",
    "X-Request-ID: " + "x" * 2000,
    "X-Request-ID: ü",
    "X-Forwarded-For: ,,,",
    "X-Forwarded-For: ::1%eth0",
    "Expect: 100-continue",
    "Upgrade: websocket\r\nConnection: Upgrade",
    "Connection: close",
    "Range: bytes=0-",
    "Cookie: " + "c" * 5000,
    " folded",
    "Bad Name: x",
]
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2.5,
    1e308,
    10**30,
    "",
    "x" * 2000,
    "\x00",
    "\ud800",
    [],
    {},
    [[]],
    {"a": {"b": []}},
    [None] * 200,
]

Parts = dict[str, Any]


def valid(draw: random.Random, items: list[str]) -> Parts:
    """A request as it should be."""
    user, item = f"u{draw.randrange(20)}", draw.choice(items)
    ratings = [{"item": one, "value": draw.randint(1, 5)} for one in draw.sample(items, 3)]
    routes: list[tuple[str, str, Any]] = [
        ("PUT", f"/v1/users/{user}", {"profile": {"gender": "F"}}),
        ("GET", f"/v1/users/{user}", None),
        ("DELETE", f"/v1/users/{user}", None),
        ("POST", f"/v1/users/{user}/ratings", {"ratings": ratings}),
        ("DELETE", f"/v1/users/{user}/ratings/{item}", None),
        ("GET", f"/v1/users/{user}/recommendations?n=5&why=2&among={item}", None),
        ("GET", f"/v1/users/{user}/predictions?item={item}", None),
        ("GET", f"/v1/users/{user}/next-question?skip={item}", None),
        ("GET", f"/v1/users/{user}/rate-profile", None),
        ("POST", "/v1/recommend", {"profile": {}, "ratings": ratings, "n": 3, "why": 1}),
        ("GET", "/v1/items?q=film&limit=5", None),
        *(
            ("GET", path, None)
            for path in ("/v1/model", "/v1/audit", "/healthz", "/readyz", "/metrics", "/", "/static/app.js")
        ),
    ]
    method, path, body = draw.choice(routes)
    return {"method": method, "path": path, "body": body, "headers": ["Host: localhost"], "raw": None}


def _method(parts: Parts, draw: random.Random) -> None:
    parts["method"] = draw.choice(METHODS)


def _path(parts: Parts, draw: random.Random) -> None:
    place = draw.randrange(len(parts["path"]) + 1)
    parts["path"] = parts["path"][:place] + draw.choice([*TEXTS, "?", "/", "&n=0", "#"]) + parts["path"][place:]


def _header(parts: Parts, draw: random.Random) -> None:
    parts["headers"].insert(draw.randrange(len(parts["headers"]) + 1), draw.choice(HEADERS))


def _body(parts: Parts, draw: random.Random) -> None:
    parts["body"] = _changed(parts["body"], draw)


def _text(parts: Parts, draw: random.Random) -> None:
    depth = draw.choice([10, 1000, 50_000])
    parts["raw"] = draw.choice([b"", b"{", b"[" * depth, b'{"a":' * depth, b"\xff\xfe", b"1" * depth, b'"\\ud800"'])


def _changed(value: Any, draw: random.Random) -> Any:
    """The same with one thing inside replaced, added or left out."""
    if draw.random() < 0.3 or not isinstance(value, dict | list) or not value:
        return draw.choice(VALUES)
    if isinstance(value, list):
        place = draw.randrange(len(value))
        return [*value[:place], _changed(value[place], draw), *value[place + 1 :], *value[: draw.randrange(2)]]
    name = draw.choice(sorted(value))
    rest = {key: one for key, one in value.items() if key != name}
    return rest if draw.random() < 0.2 else {**rest, draw.choice([name, name, "other"]): _changed(value[name], draw)}


CHANGES: list[Callable[[Parts, random.Random], None]] = [
    _method,
    _path,
    _path,
    _header,
    _header,
    _body,
    _body,
    _body,
    _text,
]


def fuzzed(draw: random.Random, items: list[str]) -> bytes:
    """A request with some changes, as it is sent."""
    parts = valid(draw, items)
    for _ in range(draw.randint(1, 4)):
        draw.choice(CHANGES)(parts, draw)
    lines, content = [f"{parts['method']} {parts['path']} HTTP/1.1", *parts["headers"]], parts["raw"]
    if content is None and parts["body"] is not None:
        content = json.dumps(parts["body"]).encode("utf-8", "surrogatepass")
    if content is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    sent = "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass") + (content or b"")
    if draw.random() < 0.1:
        place = draw.randrange(len(sent))
        sent = sent[:place] + draw.randbytes(draw.randint(1, 4)) + sent[place + draw.randrange(4) :]
    return sent


async def measure(port: int, items: list[str], count: int, seed: int) -> tuple[Counter[int], list[bytes]]:
    """How many got which status (0: none), and what got a server error."""
    statuses, errors, numbers = Counter[int](), list[bytes](), iter(range(count))

    async def one() -> None:
        client = Client(port, PATIENCE)
        for number in numbers:
            sent = fuzzed(random.Random(f"{seed} {number}"), items)
            answer = await client.ask(sent)
            statuses[answer.status] += 1
            if answer.status >= 500:
                errors.append(sent)
            client.close()  # what follows a request that was not understood is not a request
        client.close()

    await asyncio.gather(*(one() for _ in range(CLIENTS)))
    return statuses, errors


def main(arguments: list[str]) -> tuple[Counter[int], list[bytes], float, float]:
    """Print statuses and what the server uses; returned with the server errors, and how memory and files grew."""
    options = parser(__doc__)
    options.add_argument("--count", type=int, default=100_000, help="requests (100000)")
    given = options.parse_args(arguments)
    with target(given.run) as (run, port, _):
        items = run.predictor.catalogue.ids[:200]
        warm, _ = asyncio.run(measure(port, items, min(2000, given.count // 5), given.seed + 1))
        uses = [used(port)]
        statuses, errors = Counter[int](), list[bytes]()
        for part in range(PARTS):
            some, wrong = asyncio.run(measure(port, items, given.count // PARTS, PARTS * given.seed + part))
            statuses, errors = statuses + some, errors + wrong
            uses.append(used(port))
    memory, files = (" -> ".join(f"{one[k]:.0f}" for one in uses) for k in (0, 1))
    print(f"{given.count:,} requests after {sum(warm.values()):,}, seed {given.seed}: {dict(sorted(statuses.items()))}")
    print(f"server errors: {len(errors)}; at the beginning and after each quarter: memory {memory} MB, files {files}")
    for sent in errors[:5]:
        print(repr(sent[:500]))
    return statuses, errors, uses[-1][0] - uses[0][0], uses[-1][1] - uses[0][1]


if __name__ == "__main__":
    main(sys.argv[1:])
