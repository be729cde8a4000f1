"""What a client may do to a connection: be silent, send half of something, read nothing, open many of them."""

import json
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

import paml
from paml.serve.current import chosen_id, network_of
from paml.serve.descriptors import divided
from paml.serve.limits import Limits
from serve.serving import Server, head
from waiting import PATIENCE, wait_until

SHORT = "import paml.serve.connections as c; c.HEAD_SECONDS = c.WRITE_SECONDS = c.CLOSING_SECONDS = 1.0"
FEW_FILES = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (240, 240))"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def strict(trained: paml.Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with short deadlines, few connections of an address and few files; the rates of requests are its own."""
    folder = tmp_path_factory.mktemp("strict")
    options = (
        "--store",
        f"sqlite:///{folder / 'users.sqlite'}",
        "--connections",
        "100",
        "--max-wait",
        "0",
        "--rate",
        "0",
    )
    server = Server(trained.path, folder / "log", *options, setup=f"{SHORT}\n{FEW_FILES}")
    yield server.ready()
    assert server.stop() == 0
    assert "Traceback" not in server.log


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes it without a further word; waits until either happens."""
    try:
        return connection.recv(65536) == b""
    except ConnectionError:
        return True


def answer(connection: socket.socket) -> bytes:
    """One whole answer, head and body; its body is left unread if the request was for a head only."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(65536)
        assert part, received
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    while length and len(body) < int(length[1]) and not head.startswith(b"HTTP/1.1 100"):
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def closed_for(server: Server, reason: str) -> float:
    with server.client() as client:
        found = re.search(rf'paml_connections_closed_total{{reason="{reason}"}} (\S+)', client.get("/metrics").text)
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT", GET[:-2]], ids=["nothing", "half a line", "half a head"])
def test_a_connection_without_a_complete_head_is_closed(strict: Server, sent: bytes) -> None:
    with strict.connect() as connection:
        connection.sendall(sent)
        assert is_closed(connection)


def test_half_a_head_after_an_answer_is_not_waited_for_either(strict: Server) -> None:
    with strict.connect() as connection:
        connection.sendall(GET)
        assert b"200 OK" in answer(connection)
        connection.sendall(GET[:20])
        assert is_closed(connection)


def test_a_body_has_its_own_deadline(strict: Server) -> None:
    body = b'{"profile": {}}'
    with strict.connect() as connection, strict.connect() as silent:
        connection.sendall(head("PUT", "/v1/users/slow", len(body)))
        assert is_closed(silent), "the time for a head is over"
        connection.sendall(body)
        assert answer(connection).startswith(b"HTTP/1.1 201")


def test_silent_connections_make_room_and_busy_ones_do_not(strict: Server) -> None:
    """More than an address may have, and more than the process has files."""
    with ExitStack() as stack:
        busy = stack.enter_context(strict.connect())
        busy.sendall(head("PUT", "/v1/users/busy", 15))
        silent = [stack.enter_context(strict.connect()) for _ in range(300)]
        with strict.client() as client:
            assert client.get("/v1/model").status_code == 200
        assert is_closed(silent[0])
        busy.sendall(b'{"profile": {}}')
        assert answer(busy).startswith(b"HTTP/1.1 201")
    assert closed_for(strict, "no-room") + closed_for(strict, "silent") >= 200
    assert "out of system resource" not in strict.log


def test_only_so_many_bodies_of_one_address_are_waited_for(strict: Server) -> None:
    with ExitStack() as stack, strict.client() as client:
        waited = 0
        for _ in range(100):
            connection = stack.enter_context(strict.connect())
            connection.sendall(head("POST", "/v1/recommend", 2, "Expect: 100-continue"))
            first = answer(connection)
            if not first.startswith(b"HTTP/1.1 100"):
                break
            waited += 1
        assert first.startswith(b"HTTP/1.1 429")
        assert b"too-many-at-once" in first
        assert waited == Limits().bodies_per_address
        assert client.get("/v1/model").status_code == 200, "others are answered"
        assert client.post("/v1/recommend", json={}).status_code == 429


@pytest.mark.slow
def test_where_all_are_busy_a_further_connection_is_told(trained: paml.Run, tmp_path: Path) -> None:
    options = "--store", f"sqlite:///{tmp_path / 'users.sqlite'}", "--connections", "5"
    server = Server(trained.path, tmp_path / "log", *options).ready()
    try:
        with ExitStack() as stack:
            for _ in range(5):
                busy = stack.enter_context(server.connect())
                busy.sendall(head("POST", "/v1/recommend", 2, "Expect: 100-continue"))
                assert answer(busy).startswith(b"HTTP/1.1 100")
            refused = answer(stack.enter_context(server.connect()))
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"Retry-After: 2" in refused
            assert json.loads(refused.partition(b"\r\n\r\n")[2])["type"] == "urn:paml:too-many-connections"
            busy.sendall(b"{}")
            assert answer(busy).startswith(b"HTTP/1.1 200")
    finally:
        server.kill()


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
def test_no_body_is_waited_for_where_none_belongs(strict: Server, method: str) -> None:
    with strict.connect() as connection:
        connection.sendall(head(method, "/v1/users/nobody", 1))
        assert re.match(rb"HTTP/1.1 40[45]", connection.recv(12) if method == "HEAD" else answer(connection))
        connection.sendall(b"x" + GET)
        wait_until(lambda: b"200 OK" in connection.recv(65536), "what was announced is skipped")


def test_many_bodies_that_never_come_keep_nobody_out(strict: Server) -> None:
    """Each of 600 requests announces a body, and sends none; 40 at a time, as there are few files."""
    with strict.client() as client:
        for _ in range(15):
            with ExitStack() as stack:
                for path in ("/healthz", "/v1/model"):
                    for _ in range(20):
                        connection = stack.enter_context(strict.connect())
                        connection.sendall(head("GET", path, 1))
                        assert answer(connection).startswith(b"HTTP/1.1 200")
                assert client.get("/v1/model").status_code == 200


def test_whoever_does_not_read_is_let_go(strict: Server) -> None:
    before = closed_for(strict, "not-read")
    with strict.connect() as connection:
        ask = GET.replace(b"/healthz", b"/openapi.json")
        connection.setblocking(False)
        with suppress(BlockingIOError, ConnectionError):  # until both sides' buffers are full
            for _ in range(1_000_000):
                connection.sendall(ask)
        wait_until(lambda: closed_for(strict, "not-read") > before)


@pytest.mark.parametrize("text", [b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nA B: c\r\n\r\n"])
def test_what_is_not_http_is_a_problem(strict: Server, text: bytes) -> None:
    with strict.connect() as connection:
        connection.sendall(text)
        top, _, body = answer(connection).partition(b"\r\n\r\n")
        assert top.startswith(b"HTTP/1.1 400")
        assert b"Connection: close" in top
        assert json.loads(body)["type"] == "urn:paml:not-http"
        assert is_closed(connection)


def test_a_bad_chunk_after_the_answer_ends_the_connection(strict: Server) -> None:
    with strict.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(b"no number\r\n")
        assert is_closed(connection)


@pytest.mark.slow
def test_stopping_lets_everybody_leave_first(trained: paml.Run, tmp_path: Path) -> None:
    options = "--store", f"sqlite:///{tmp_path / 'users.sqlite'}", "--drain", "300"
    server = Server(trained.path, tmp_path / "log", *options).ready()
    try:
        with server.client() as client:
            assert "connection" not in client.get("/readyz").headers
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: client.get("/readyz").status_code == 503, "it says that it is not ready")
            found = client.get("/v1/model")
            assert found.status_code == 200, "it goes on"
            assert found.headers["connection"] == "close"
            assert client.get("/readyz").json()["type"] == "urn:paml:stopping"
        server.process.send_signal(signal.SIGINT)  # a second signal: at once
        assert server.process.wait(PATIENCE) == 0
    finally:
        server.kill()


def test_requests_have_ids(server: Server, client: httpx.Client) -> None:
    own = client.get("/v1/nothing", headers={"X-Request-ID": "my-id.7"})
    assert own.headers["x-request-id"] == own.json()["request_id"] == "my-id.7"
    wait_until(lambda: re.search(r"GET unmatched 404 \S+ ms my-id\.7$", server.log, re.MULTILINE))
    made = {client.get("/healthz").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    for insane in ("", "x" * 65, "a b", "a\tb", "ü".encode(), "<b>"):
        assert re.fullmatch(
            "[0-9a-f]{16}", client.get("/healthz", headers={"X-Request-ID": insane}).headers["x-request-id"]
        )
    assert chosen_id("a\nb") != "a\nb"


def test_many_may_wait_to_be_accepted(server: Server, client: httpx.Client) -> None:
    """Who finds no place among the waiting is not refused, but asks again after a second: far too late."""
    longest = Path("/proc/sys/net/core/somaxconn")
    if not longest.exists() or int(longest.read_text()) < 600:
        pytest.skip("this system lets fewer connections wait than the test opens")
    server.process.send_signal(signal.SIGSTOP)
    try:
        with ExitStack() as stack:
            for _ in range(600):
                stack.enter_context(server.connect())
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert client.get("/healthz").is_success


def test_files_are_shared_out() -> None:
    for limit in (16, 256, 1024, 9344, 1 << 20):
        room = divided(limit)
        assert room.connections >= 1
        assert room.connections + room.at_once < limit, "some are left for the process"
    assert divided(1024).connections == 768


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::9", "2001:db8:1:2::/64"),
        ("", "unknown"),
        ("testclient", "testclient"),
    ],
)
def test_an_address_is_one_of_ipv4_or_a_network_of_ipv6(host: str, network: str) -> None:
    assert network_of(host) == network
