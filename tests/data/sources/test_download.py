"""Downloads from a real local server, which can break off, ignore ranges, change its file or refuse."""

import hashlib
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest

from paml.data.sources.download import Archive, Patience, data_home, fetch
from paml.errors import DataError
from paml.progress import LineProgress, Progress, Step

CONTENT = np.random.default_rng(0).bytes(1_000_000)
OTHER = np.random.default_rng(1).bytes(1_000_000)
# A self-signed certificate for 127.0.0.1, which nobody trusts, and its key, which protects nothing.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgFecKPdGD8wA1MGni
fqL6nvBJr2LicJos8sNfrnT+sdChRANCAASiq/urH1w/jq63gTa2mfvsHqW0oo0B
T+xvuMbD2USXT7TckyU5RW0X9rV4gStDaZ9Vbmiqp8xNSQmddVAIM7u5
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBjjCCATSgAwIBAgIUemIA4bXKSBjhYmMfmdbnmBfe0gowCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MB4XDTI2MTExNjAwMzQ0MloXDTI2MTExNzAw
MzQ0MlowFDESMBAGA1UEAwwJbG9jYWxob3N0MFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAEoqv7qx9cP46ut4E2tpn77B6ltKKNAU/sb7jGw9lEl0+03JMlOUVtF/a1
eIErQ2mfVW5oqqfMTUkJnXVQCDO7uaNkMGIwHQYDVR0OBBYEFBnxgfthmBW04rYn
PD412vEKMBKzMB8GA1UdIwQYMBaAFBnxgfthmBW04rYnPD412vEKMBKzMA8GA1Ud
EwEB/wQFMAMBAf8wDwYDVR0RBAgwBocEfwAAATAKBggqhkjOPQQDAgNIADBFAiEA
xQqCZZdH5RRcWiIQih/iu/6r9ALxd6nqsm3EK5VFTGYCIDtrd3n9wKtk76k1el6C
cwy0k7GcmTy4+C1QQxlR0xw1
-----END CERTIFICATE-----
"""
HASTE = Patience(timeout=60.0, pauses=(0.0, 0.01))  # no pauses, but time for a busy machine


@dataclass
class Site:
    """What the server has and how it behaves; it records what it was asked and how much it sent."""

    content: bytes = CONTENT
    etag: str | None = '"1"'
    modified: str | None = None
    ranges: bool = True
    wrong_part: bool = False
    lengths: bool = True
    breaks: list[int] = field(default_factory=list)
    """Bytes after which the connection breaks, for each of the next responses."""
    refusals: list[int] = field(default_factory=list)
    """Status codes of the next responses."""
    redirect: str | None = None
    asked: list[str | None] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    hold: threading.Event | None = None
    url: str = ""

    def archive(self, **changes: Any) -> Archive:
        known = {"size": len(CONTENT), "md5": hashlib.md5(CONTENT).hexdigest()}
        return Archive(**{"name": "a.zip", "url": self.url, "page": "https://example.org/a", **known, **changes})


def answer(site: Site, handler: BaseHTTPRequestHandler) -> None:
    asked = handler.headers["Range"]
    site.asked.append(asked)
    if site.hold:
        site.hold.wait()
    if site.redirect or site.refusals:
        handler.send_response(302 if site.redirect else site.refusals.pop(0))
        if site.redirect:
            handler.send_header("Location", site.redirect)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    start, total, tag = 0, len(site.content), site.etag or site.modified
    if asked and site.ranges and handler.headers["If-Range"] in (None, tag):
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
    if start >= total:
        handler.send_response(416)
        handler.send_header("Content-Range", f"bytes */{total}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    body = site.content[start:]
    body = body[: site.breaks.pop(0)] if site.breaks else body
    site.sent.append(len(body))  # all of it before the head: with that in hand, a test may change the site and go on
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start - site.wrong_part}-{total - 1}/{total}")
    if site.lengths:
        handler.send_header("Content-Length", str(total - start))
    for name, value in (("ETag", site.etag), ("Last-Modified", site.modified)):
        if value:
            handler.send_header(name, value)
    handler.end_headers()
    with suppress(ConnectionError):  # who has seen enough hangs up
        handler.wfile.write(body)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(site, self)

        def log_message(self, *_: object) -> None:
            """Nothing on standard error."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site.url = f"http://127.0.0.1:{server.server_port}/a.zip"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield site
        if site.hold:
            site.hold.set()
        server.shutdown()
        thread.join()


class Counting(Progress):
    """Records every step's title, total and advances."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int | None, list[int]]] = []

    @contextmanager
    def step(self, title: str, total: int | None = None, *, in_bytes: bool = False) -> Iterator[Step]:
        amounts: list[int] = []
        self.steps.append((title, total, amounts))

        class Count(Step):
            def advance(self, amount: int = 1, note: str = "") -> None:
                amounts.append(amount)

        yield Count()


def files(home: Path) -> set[str]:
    return {path.name for path in home.iterdir()} - {".a.zip.lock"}


def test_a_file_is_fetched_once(site: Site, tmp_path: Path) -> None:
    progress = Counting()
    home = tmp_path / "made" / "on the way"
    path = fetch(site.archive(), progress, home)
    assert path == home / "a.zip"
    assert path.read_bytes() == CONTENT
    assert files(home) == {"a.zip"}
    [(title, total, amounts)] = progress.steps
    assert (title, total, sum(amounts)) == ("downloading a.zip", len(CONTENT), len(CONTENT))
    assert fetch(site.archive(), home=home) == path
    assert site.asked == [None]


@pytest.mark.parametrize("known", [{}, {"size": None}, {"md5": None}, {"size": None, "md5": None}], ids=str)
@pytest.mark.parametrize("tags", [('"1"', None), (None, "Mon, 01 Jun 2015 10:00:00 GMT"), (None, None)], ids=str)
def test_a_download_resumes_after_a_broken_connection(
    site: Site, tmp_path: Path, known: dict[str, None], tags: tuple[str | None, str | None]
) -> None:
    site.etag, site.modified = tags
    site.breaks = [300_000, 200_000]
    progress = Counting()
    archive = site.archive(**known)
    assert fetch(archive, progress, tmp_path, HASTE).read_bytes() == CONTENT
    [(_, _, amounts)] = progress.steps
    assert sum(amounts) == len(CONTENT)
    if any(tags) or archive.md5:
        assert site.asked == [None, "bytes=300000-", "bytes=500000-"]
        assert site.sent == [300_000, 200_000, 500_000]
        assert min(amounts) >= 0
    else:  # a mixture of two versions would not be noticed
        assert site.asked == [None, None, None]
    assert files(tmp_path) == {"a.zip"}


def test_a_weak_tag_does_not_count(site: Site, tmp_path: Path) -> None:
    site.etag, site.breaks = 'W/"1"', [300_000]
    assert fetch(site.archive(md5=None), home=tmp_path, patience=HASTE).read_bytes() == CONTENT
    assert site.asked == [None, None]


def test_a_part_survives_the_attempts_and_the_next_call_continues(site: Site, tmp_path: Path) -> None:
    site.breaks = [300_000, 0, 0]
    with pytest.raises(
        DataError, match=r"a.zip: cannot be downloaded \(the connection ended after 300,000 of 1,000,000"
    ):
        fetch(site.archive(), home=tmp_path, patience=HASTE)
    assert files(tmp_path) == {"a.zip.part", "a.zip.part.tag"}
    progress = Counting()
    assert fetch(site.archive(), progress, tmp_path, HASTE).read_bytes() == CONTENT
    assert site.asked[-1] == "bytes=300000-"
    assert site.sent[-1] == 700_000
    assert progress.steps[0][2][0] == 300_000
    assert sum(progress.steps[0][2]) == len(CONTENT)


def test_without_a_length_the_known_size_decides(site: Site, tmp_path: Path) -> None:
    site.lengths, site.breaks = False, [300_000]
    assert fetch(site.archive(), home=tmp_path, patience=HASTE).read_bytes() == CONTENT
    assert site.asked == [None, "bytes=300000-"]


def test_a_server_that_sends_a_different_part_than_requested(site: Site, tmp_path: Path) -> None:
    site.wrong_part, site.breaks = True, [300_000]
    assert fetch(site.archive(md5=None), home=tmp_path, patience=HASTE).read_bytes() == CONTENT
    assert site.asked == [None, "bytes=300000-", None]


def test_a_server_that_ignores_ranges_sends_everything_again(site: Site, tmp_path: Path) -> None:
    site.ranges, site.breaks = False, [300_000]
    progress = Counting()
    assert fetch(site.archive(), progress, tmp_path, HASTE).read_bytes() == CONTENT
    assert site.sent == [300_000, 1_000_000]
    assert sum(progress.steps[0][2]) == len(CONTENT)


def test_parts_of_two_versions_are_not_mixed(site: Site, tmp_path: Path) -> None:
    site.breaks = [300_000, 0, 0]
    with pytest.raises(DataError):
        fetch(site.archive(size=None, md5=None), home=tmp_path, patience=HASTE)
    site.content, site.etag = OTHER, '"2"'
    assert fetch(site.archive(size=None, md5=None), home=tmp_path, patience=HASTE).read_bytes() == OTHER
    assert site.asked[-1] == "bytes=300000-"
    assert site.sent[-1] == len(OTHER)


@pytest.mark.parametrize("known", [{}, {"size": None}], ids=str)
def test_a_complete_part_is_only_checked(site: Site, tmp_path: Path, known: dict[str, None]) -> None:
    (tmp_path / "a.zip.part").write_bytes(CONTENT)
    (tmp_path / ".a.zip.lock").touch()  # left by a process that was killed: it locks nobody out
    assert fetch(site.archive(**known), home=tmp_path).read_bytes() == CONTENT
    assert site.sent == []
    assert site.asked == (["bytes=1000000-"] if known else [])


def test_a_part_that_is_too_long_starts_again(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a.zip.part").write_bytes(CONTENT + b"x")
    assert fetch(site.archive(), home=tmp_path, patience=HASTE).read_bytes() == CONTENT
    assert site.asked == ["bytes=1000001-", None]


def test_wrong_content_is_refused_and_removed(site: Site, tmp_path: Path) -> None:
    site.content = OTHER
    found, expected = hashlib.md5(OTHER).hexdigest(), hashlib.md5(CONTENT).hexdigest()
    with pytest.raises(DataError, match=f"a.zip: what was downloaded has the MD5 {found} where {expected} is expected"):
        fetch(site.archive(), home=tmp_path)
    assert files(tmp_path) == set()


def test_a_page_instead_of_the_file_is_refused_and_the_part_is_kept(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a.zip.part").write_bytes(CONTENT[:300_000])
    site.content, site.ranges = b"<html>Please log in</html>", False
    with pytest.raises(DataError, match=r"the server offers 26 bytes where 1,000,000 are expected"):
        fetch(site.archive(), home=tmp_path)
    site.content, site.ranges = CONTENT, True
    assert fetch(site.archive(), home=tmp_path).read_bytes() == CONTENT
    assert site.sent[-1] == 700_000


def test_a_wrong_file_in_the_cache_is_named_and_kept(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    remedy = "remove it, or give the right file"
    path.write_bytes(b"mine")
    with pytest.raises(DataError, match=f"{path}: has 4 bytes where 1,000,000 are expected; {remedy}"):
        fetch(site.archive(), home=tmp_path)
    path.write_bytes(OTHER)
    with pytest.raises(DataError, match=rf"has the MD5 {hashlib.md5(OTHER).hexdigest()} where \w+ is expected"):
        fetch(site.archive(), home=tmp_path)
    assert path.read_bytes() == OTHER
    assert site.asked == []


def test_a_server_error_explains_how_to_download_by_hand(site: Site, tmp_path: Path) -> None:
    site.refusals = [404]
    by_hand = f"download {site.url} by hand (see https://example.org/a) and give the file"
    with pytest.raises(DataError) as caught:
        fetch(site.archive(), home=tmp_path)
    assert str(caught.value) == f"a.zip: cannot be downloaded (the server says 404 Not Found); {by_hand}"
    assert len(site.asked) == 1  # a missing file is not requested again
    assert files(tmp_path) == set()


def test_a_busy_server_is_asked_again(site: Site, tmp_path: Path) -> None:
    site.refusals = [503, 429]
    assert fetch(site.archive(), home=tmp_path, patience=HASTE).read_bytes() == CONTENT
    site.refusals = [503] * 3
    with pytest.raises(DataError, match="the server says 503 Service Unavailable"):
        fetch(site.archive(name="b.zip"), home=tmp_path, patience=HASTE)
    assert len(site.asked) == 6


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/a.zip"  # taken, so that nobody else listens there
        with pytest.raises(
            DataError, match=rf"cannot be downloaded \(Connection refused\); download {url} by hand .* give the file"
        ):
            fetch(Archive("a.zip", url, None, None, "https://example.org"), home=tmp_path, patience=HASTE)


def test_a_server_that_stops_answering(site: Site, tmp_path: Path) -> None:
    site.hold = threading.Event()
    with pytest.raises(DataError, match="the server does not answer"):
        fetch(site.archive(), home=tmp_path, patience=Patience(timeout=0.05, pauses=()))
    site.hold.set()


def test_a_certificate_that_is_not_valid_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "server.pem").write_text(CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    greeted = []

    def greet() -> None:
        connection, _ = plain.accept()
        with connection, pytest.raises(ssl.SSLError):
            context.wrap_socket(connection, server_side=True)
        greeted.append(1)

    with socket.create_server(("127.0.0.1", 0)) as plain:
        plain.settimeout(60)
        thread = threading.Thread(target=greet)
        thread.start()
        archive = Archive(
            "a.zip", f"https://127.0.0.1:{plain.getsockname()[1]}/a.zip", None, None, "https://example.org"
        )
        with pytest.raises(DataError, match=r"the server's certificate is not valid: .*certificate.*by hand"):
            fetch(archive, home=tmp_path, patience=HASTE)
        thread.join()
    assert greeted == [1]  # and not requested again: it would still be invalid


@pytest.mark.parametrize("address", ["ftp://127.0.0.1/a.zip", "file:///etc/hostname"])
def test_only_http(site: Site, tmp_path: Path, address: str) -> None:
    with pytest.raises(DataError, match="unknown url type"):
        fetch(site.archive(url=address), home=tmp_path)
    site.redirect = address
    with pytest.raises(DataError, match=r"unknown url type|is not allowed"):
        fetch(site.archive(), home=tmp_path)


def test_a_cache_folder_that_cannot_be_written(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / "home"
    with pytest.raises(DataError, match=f"{home}: cannot be written .*; set PAML_DATA_HOME to another folder"):
        fetch(site.archive(), home=home)
    assert site.asked == []


def test_two_concurrent_calls_download_once(site: Site, tmp_path: Path) -> None:
    site.hold = threading.Event()
    both = [Counting(), Counting()]
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda p=p: found.append(fetch(site.archive(), p, tmp_path).read_bytes())) for p in both
    ]
    for thread in threads:
        thread.start()
    while sum(len(progress.steps) for progress in both) < 2:
        threads[0].join(0.01)
    site.hold.set()
    for thread in threads:
        thread.join()
    assert found == [CONTENT, CONTENT]
    assert site.asked == [None]
    titles = {progress.steps[0][0] for progress in both}
    assert titles == {"downloading a.zip", "waiting for another download of a.zip"}


def test_the_environment_sets_the_cache_folder(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAML_DATA_HOME", str(tmp_path / "mine"))
    assert data_home() == tmp_path / "mine"
    assert fetch(site.archive()) == tmp_path / "mine" / "a.zip"
    monkeypatch.delenv("PAML_DATA_HOME")
    assert data_home() == platformdirs.user_cache_path("paml", appauthor=False)


def test_lines_count_bytes_in_megabytes(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paml.progress._LineStep.EVERY_SECONDS", 0.0)
    fetch(site.archive(), LineProgress(), tmp_path)
    captured = capsys.readouterr()
    assert not captured.out
    assert re.search(r"downloading a.zip: 1.0 MB of 1.0 MB\ndownloading a.zip: done in", captured.err)
