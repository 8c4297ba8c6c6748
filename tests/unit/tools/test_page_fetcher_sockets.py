"""Fetching over sockets: drips, bombs, endless pages, redirects into a private network, and the name in the certificate."""

import asyncio
import gzip
import socket
import ssl
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from spass.core.effects import Page
from spass.models.providers import direct
from spass.testing.http_server import HttpAnswer, HttpRequest, serve
from spass.tools import page_fetcher
from tests.unit.certificates import self_signed
from tests.unit.tools.internet import PUBLIC, Internet

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
TEXT = "text/plain"


def answering(answer: HttpAnswer | Callable[[HttpRequest], HttpAnswer]) -> Callable[[HttpRequest], HttpAnswer]:
    return answer if callable(answer) else lambda _: answer


async def fetch(answer: HttpAnswer | Callable[[HttpRequest], HttpAnswer], url: str = "http://public.example/") -> Page:
    """Return the page that a server at ``PUBLIC`` answers with, and check that nothing stays open."""
    with serve(answering(answer)) as server:
        internet = Internet({PUBLIC: server})
        page = await internet.fetcher.fetch(url, 4000)
    assert {*internet.connected} <= {(PUBLIC, 80)}
    assert internet.open_transports == 0
    return page


@asynccontextmanager
async def raw_server(pieces: Callable[[], AsyncIterator[bytes]], tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve what ``pieces`` yields to every connection, whatever it asks for."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            async for piece in pieces():
                writer.write(piece)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def fetch_raw(pieces: Callable[[], AsyncIterator[bytes]]) -> Page:
    async with raw_server(pieces) as server:
        internet = Internet({PUBLIC: server})
        page = await internet.fetcher.fetch("http://public.example/", 4000)
        assert internet.open_transports == 0
        return page


def head(*headers: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", "Content-Type: text/plain", *headers, "", ""]).encode()


async def test_a_page_arrives_as_text_and_the_request_names_its_host() -> None:
    seen: list[HttpRequest] = []

    def respond(request: HttpRequest) -> HttpAnswer:
        seen.append(request)
        return HttpAnswer(b"<title>Shop</title><p>Open <b>9 to 18</b>.", content_type="text/html", headers={"Set-Cookie": "a=b"})

    assert await fetch(respond, "http://public.example/hours?day=1") == Page("Shop\n\nOpen 9 to 18.")
    (request,) = seen
    assert (request.method, request.path, request.headers["host"]) == ("GET", "/hours?day=1", "public.example")


async def test_no_cookie_is_kept_over_a_redirect_and_no_proxy_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    seen: list[HttpRequest] = []

    def respond(request: HttpRequest) -> HttpAnswer:
        seen.append(request)
        if len(seen) == 1:
            return HttpAnswer(status=302, headers={"Location": "/next", "Set-Cookie": "a=b"})
        return HttpAnswer(b"Here.", content_type=TEXT)

    assert await fetch(respond) == Page("Here.")
    assert [request.path for request in seen] == ["/", "/next"]
    assert not any("cookie" in request.headers or "proxy-connection" in request.headers for request in seen)


async def test_a_redirect_into_a_private_network_connects_to_nothing() -> None:
    with serve(lambda _: HttpAnswer(b"Secret.", content_type=TEXT)) as private:
        port = private.rpartition(":")[2]
        for location in (
            private,
            f"http://localhost:{port}/",
            "http://[::1]/",
            "http://169.254.169.254/latest/",
            "file:///etc/passwd",
        ):
            with serve(lambda _, location=location: HttpAnswer(status=302, headers={"Location": location})) as server:  # type: ignore[misc]
                internet = Internet({PUBLIC: server}, {"localhost": ["127.0.0.1"]})
                page = await internet.fetcher.fetch("http://public.example/", 4000)
                assert internet.connected == [(PUBLIC, 80)]
                assert page.error
                assert page.text == ""


async def test_a_name_that_changes_its_address_between_redirects_is_judged_again() -> None:
    addresses = [[PUBLIC], ["127.0.0.1"]]
    with serve(lambda _: HttpAnswer(status=302, headers={"Location": "http://rebind.example/again"})) as server:
        internet = Internet({PUBLIC: server}, {"rebind.example": lambda: addresses.pop(0)})
        page = await internet.fetcher.fetch("http://rebind.example/", 4000)
    assert (internet.connected, internet.resolved) == ([(PUBLIC, 80)], ["rebind.example"] * 2)
    assert page == Page(error="The host has no public address.")


def endless(piece: bytes, limit: list[int]) -> Iterator[bytes]:
    """Yield up to a gigabyte in pieces, and note in ``limit`` how many bytes were read."""
    for _ in range(1024 * MIB // len(piece)):
        limit[0] += len(piece)
        yield piece


async def test_a_gigabyte_is_cut_off_after_two_mebibytes() -> None:
    sent = [0]
    page = await fetch(lambda _: HttpAnswer(endless(b"x" * 65536, sent), content_type=TEXT))
    assert page == Page(error="The page is longer than 2 MiB.")
    assert sent[0] < 64 * MIB  # what the buffers of both sides hold


@pytest.mark.parametrize("size", [2 * MIB, 2 * MIB + 1])
async def test_the_limit_is_two_mebibytes_unpacked(size: int) -> None:
    for body, headers in ((b"x" * size, {}), (gzip.compress(b"x" * size), {"Content-Encoding": "gzip"})):
        page = await fetch(HttpAnswer(body, content_type=TEXT, headers=headers))
        assert page == (Page("x" * 4000) if size == 2 * MIB else Page(error="The page is longer than 2 MiB."))


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_bomb_is_cut_while_it_is_unpacked(coding: str) -> None:
    packer = zlib.compressobj(9, wbits=31 if coding == "gzip" else 15)
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(64)) + packer.flush()
    tracemalloc.start()
    try:
        page = await fetch(HttpAnswer(bomb, content_type=TEXT, headers={"Content-Encoding": coding}))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert page == Page(error="The page is longer than 2 MiB.")
    assert peak < 16 * MIB


async def test_compressed_bytes_without_content_are_limited_too() -> None:
    empty_block = zlib.compressobj(wbits=31).flush(zlib.Z_SYNC_FLUSH)[-5:]
    start = gzip.compress(b"")[:10]
    sent = [0]

    def pieces() -> Iterator[bytes]:
        yield start
        yield from endless(empty_block * 10_000, sent)

    page = await fetch(lambda _: HttpAnswer(pieces(), content_type=TEXT, headers={"Content-Encoding": "gzip"}))
    assert page == Page(error="The page is longer than 2 MiB.")


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "gzip, deflate", "x"])
async def test_another_coding_is_not_unpacked(coding: str) -> None:
    body = gzip.compress(gzip.compress(b"x"))
    page = await fetch(HttpAnswer(body, content_type=TEXT, headers={"Content-Encoding": coding}))
    assert page == Page(error="The connection broke off, or the answer cannot be read.")


async def drip_head() -> AsyncIterator[bytes]:
    for byte in head():
        yield bytes([byte])
        await asyncio.sleep(0.05)


async def drip_body() -> AsyncIterator[bytes]:
    yield head("Content-Length: 1000")
    for _ in range(1000):
        yield b"x"
        await asyncio.sleep(0.02)


async def drip_redirects() -> AsyncIterator[bytes]:
    await asyncio.sleep(0.2)
    yield head("Location: /", "Content-Length: 0", status="302 Found")


async def drip_informational() -> AsyncIterator[bytes]:
    while True:
        yield b"HTTP/1.1 103 Early Hints\r\n\r\n"
        await asyncio.sleep(0.02)


async def silence() -> AsyncIterator[bytes]:
    await asyncio.sleep(30)
    yield b""


@pytest.mark.parametrize("pieces", [drip_head, drip_body, drip_redirects, drip_informational, silence])
async def test_the_seconds_count_for_the_whole_page(
    pieces: Callable[[], AsyncIterator[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_fetcher, "SECONDS", 0.4)
    page = await fetch_raw(pieces)
    assert page.error is not None
    assert "seconds" in page.error


async def test_a_resolver_that_does_not_answer_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_fetcher, "SECONDS", 0.1)

    async def resolve(_: str) -> list[str]:
        await asyncio.sleep(30)
        return []

    page = await page_fetcher.PageFetcher(resolve).fetch("http://slow.example/", 4000)
    assert "seconds" in (page.error or "")


async def broken_head() -> AsyncIterator[bytes]:
    yield b"SSH-2.0-OpenSSH_9.6\r\n"


async def endless_head() -> AsyncIterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        yield b"X: " + b"x" * 8192 + b"\r\n"


async def half_body() -> AsyncIterator[bytes]:
    yield head("Content-Length: 100") + b"half"


async def nothing() -> AsyncIterator[bytes]:
    for _ in ():
        yield b""


@pytest.mark.parametrize("pieces", [broken_head, endless_head, half_body, nothing])
async def test_a_broken_answer_is_a_reason(pieces: Callable[[], AsyncIterator[bytes]]) -> None:
    assert await fetch_raw(pieces) == Page(error="The connection broke off, or the answer cannot be read.")


async def test_a_closed_port_is_a_reason() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        internet = Internet({PUBLIC: f"http://127.0.0.1:{unused.getsockname()[1]}"})
        page = await internet.fetcher.fetch("http://public.example/", 4000)
    assert page == Page(error="The host cannot be reached, or its certificate is not valid.")
    assert internet.open_transports == 0


async def test_a_cancelled_fetch_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        try:
            yield head("Content-Length: 1000")
            while True:
                yield b"x"
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    async with raw_server(pieces) as server:
        internet = Internet({PUBLIC: server})
        task = asyncio.create_task(internet.fetcher.fetch("http://public.example/", 4000))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert internet.open_transports == 0
        await asyncio.wait_for(closed.wait(), 5)


async def test_the_certificate_must_have_the_name_and_not_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = self_signed(tmp_path, "public.example")
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secure.load_cert_chain(certificate)
    names: list[str | None] = []
    secure.sni_callback = lambda _socket, name, _context: names.append(name)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    direct._certificates.cache_clear()

    async def pieces() -> AsyncIterator[bytes]:
        yield head("Content-Length: 5") + b"Here."

    try:
        async with raw_server(pieces, secure) as server:
            internet = Internet({PUBLIC: server})
            fetcher = internet.fetcher
            assert await fetcher.fetch("https://public.example/", 4000) == Page("Here.")
            for other in ("https://other.example/", f"https://{PUBLIC}/"):
                assert (await fetcher.fetch(other, 4000)).error == "The host cannot be reached, or its certificate is not valid."
        assert names[:2] == ["public.example", "other.example"]
        assert internet.connected == [(PUBLIC, 443)] * 3
    finally:
        direct._certificates.cache_clear()
