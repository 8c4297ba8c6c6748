"""HTTP/1.1 over a socket: parsing of answers and reuse of connections."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.models.providers import direct, http
from spass.models.providers.direct import LONGEST_HEAD, DirectTransport
from tests.unit.certificates import self_signed

pytestmark = pytest.mark.anyio

SIMPLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n1\r\n \r\n5 \r\nworld\r\n0\r\nx-trailer: 1\r\n\r\n"
)


class Peer:
    """A server that answers each request with the next of ``answers``, piece by piece, and then closes the connection."""

    def __init__(self, *answers: Sequence[bytes]) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line), 0)
                self.requests.append(head + await reader.readexactly(length))
                for piece in self.answers.pop(0):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(peer: Peer, secure: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=secure)
    try:
        yield f"{'https' if secure else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def send(transport: DirectTransport, url: str, content: bytes = b"{}") -> tuple[httpx.Response, bytes]:
    response = await transport.handle_async_request(httpx.Request("POST", url, content=content))
    return response, b"".join([piece async for piece in response.aiter_bytes()])


async def answer_to(*answers: Sequence[bytes]) -> tuple[httpx.Response, bytes]:
    """Request ``answers`` one after the other, and return the last answer."""
    transport = DirectTransport(keepalive=5)
    async with serving(Peer(*answers)) as url:
        try:
            for _ in answers[:-1]:
                await send(transport, url)
            return await send(transport, url)
        finally:
            await transport.aclose()


@pytest.mark.parametrize(
    ("raw", "status", "body"),
    [
        (SIMPLE, 200, b"hi"),
        (CHUNKED, 200, b"hello world"),
        (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SIMPLE, 200, b"hi"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nContent-Length: 9\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 200, b"hi"),
        (b"HTTP/1.1 500 Oh no: \xff\r\nX-Empty:\r\nX-Many: \t a b \t\r\nContent-Length: 2\r\n\r\nhi", 500, b"hi"),
    ],
)
async def test_an_answer_is_read_in_pieces_of_any_size(raw: bytes, status: int, body: bytes) -> None:
    for pieces in ([raw], [raw[at : at + 1] for at in range(len(raw))]):
        response, received_body = await answer_to(pieces)
        assert (response.status_code, received_body) == (status, body)


@pytest.mark.parametrize("raw", [b"HTTP/1.0 200 OK\r\n\r\nto the end", b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nto the end"])
async def test_a_body_without_length_ends_with_the_connection(raw: bytes) -> None:
    assert (await answer_to([raw]))[1] == b"to the end"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 000 OK\r\nContent-Length: 2\r\n\r\nhi" + SIMPLE,
        b"HTTP/1.1 999 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi!",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2,\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nX: a\r\n folded\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi!\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x2\r\nhi\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 5000,
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * LONGEST_HEAD + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX:" + b" " * (LONGEST_HEAD - 100) + b"\x01\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * LONGEST_HEAD + b"Content-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 100 Continue\r\n\r\n" * LONGEST_HEAD,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=" + b"b" * 2 * LONGEST_HEAD,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n" + b"X: y\r\n" * LONGEST_HEAD,
    ],
)
async def test_a_malformed_answer_is_a_failure(raw: bytes) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await answer_to([raw])


@given(body=st.binary(max_size=300), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_a_chunked_body_is_joined(body: bytes, sizes: list[int]) -> None:
    raw, at = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 0
    while at < len(body):
        size = sizes[at % len(sizes)]
        piece = body[at : at + size]
        raw, at = raw + b"%X\r\n%s\r\n" % (len(piece), piece), at + size
    pieces = [raw[start : start + sizes[0]] for start in range(0, len(raw), sizes[0])]
    assert asyncio.run(answer_to([*pieces, b"0\r\n\r\n"]))[1] == body


async def test_a_connection_is_reused_for_the_same_request() -> None:
    peer = Peer([SIMPLE], [CHUNKED], [SIMPLE])
    transport = DirectTransport(keepalive=5)
    async with serving(peer) as url:
        assert [(await send(transport, f"{url}/v1/ä b?c=d", b"%d" % number))[1] for number in range(3)] == [
            b"hi",
            b"hello world",
            b"hi",
        ]
        await transport.aclose()
    assert peer.connections == 1
    assert [request.partition(b"\r\n")[0] for request in peer.requests] == [b"POST /v1/%C3%A4%20b?c=d HTTP/1.1"] * 3
    assert [request[-1:] for request in peer.requests] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("first", "keepalive"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nhi", 5),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", 5),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 5),
        (SIMPLE + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", 5),
        (SIMPLE, 0),
    ],
)
async def test_a_connection_that_is_idle_or_has_unexpected_bytes_is_not_reused(first: bytes, keepalive: int) -> None:
    peer = Peer([first], [SIMPLE])
    transport = DirectTransport(keepalive=keepalive)
    async with serving(peer) as url:
        assert [(await send(transport, url))[1] for _ in range(2)] == [b"hi", b"hi"]
        await transport.aclose()
    assert peer.connections == 2


async def test_a_connection_with_an_early_answer_is_not_reused() -> None:
    handlers: list[asyncio.Task[None] | None] = []
    release = asyncio.Event()

    async def answer_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SIMPLE)  # the body is not read, so most of it is not sent
        await release.wait()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    transport = DirectTransport(keepalive=5)
    server = await asyncio.start_server(answer_head, "127.0.0.1", 0)
    async with server, asyncio.timeout(10):
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert [(await send(transport, url, content))[1] for content in (bytes(2**24), b"{}")] == [b"hi", b"hi"]
        await transport.aclose()
        release.set()
        await asyncio.gather(*filter(None, handlers))
    assert len(handlers) == 2


async def test_a_connection_that_the_server_closed_is_not_reused() -> None:
    peer = Peer([SIMPLE])
    transport = DirectTransport(keepalive=5)
    async with serving(peer) as url:
        await send(transport, url)
        ((idle,),) = transport._idle.values()
        while idle[0].is_quiet:
            await asyncio.sleep(0)
        peer.answers.append([SIMPLE])
        assert (await send(transport, url))[1] == b"hi"
        await transport.aclose()
    assert peer.connections == 2


async def test_an_answer_not_read_to_its_end_closes_its_connection() -> None:
    peer = Peer([SIMPLE], [SIMPLE])
    transport = DirectTransport(keepalive=5)
    async with serving(peer) as url:
        response = await transport.handle_async_request(httpx.Request("POST", url))
        await response.aclose()
        await send(transport, url)
        await transport.aclose()
    assert peer.connections == 2


async def test_a_slow_reader_pauses_the_sender_and_loses_nothing() -> None:
    body = bytes(range(256)) * 16_384
    transport = DirectTransport(keepalive=5)
    async with serving(Peer([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body])) as url:
        response = await transport.handle_async_request(httpx.Request("POST", url))
        received_body = bytearray()
        async for piece in response.aiter_bytes():
            received_body += piece
            await asyncio.sleep(0)
        await transport.aclose()
    assert received_body == body


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "a\x00b"])
async def test_a_header_value_with_a_line_break_is_refused(value: str) -> None:
    request = httpx.Request("POST", "http://127.0.0.1:9", headers={"X-Key": value})
    with pytest.raises(httpx.LocalProtocolError):
        await DirectTransport(keepalive=5).handle_async_request(request)


async def test_other_schemes_than_http_are_refused() -> None:
    with pytest.raises(httpx.UnsupportedProtocol):
        await DirectTransport(keepalive=5).handle_async_request(httpx.Request("POST", "ftp://127.0.0.1/"))


async def test_an_untrusted_certificate_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = self_signed(tmp_path)
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secure.load_cert_chain(certificate)
    transport = DirectTransport(keepalive=5)
    try:
        async with serving(Peer([SIMPLE], [SIMPLE]), secure) as url:
            direct._certificates.cache_clear()
            with pytest.raises(httpx.ConnectError):
                await send(transport, url)
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            direct._certificates.cache_clear()
            assert (await send(transport, url))[1] == b"hi"
            with pytest.raises(httpx.ConnectError):
                await send(transport, url.replace("127.0.0.1", "localhost"))
            await transport.aclose()
    finally:
        direct._certificates.cache_clear()


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://api.example.com/v1", "http://proxy.example.com:3128"),
        ("http://api.example.com/v1", "http://plain.example.com"),
        ("https://inside.example.org/v1", None),
        ("http://127.0.0.1:8000/v1", None),
        ("http://localhost:8000/v1", None),
    ],
)
def test_the_proxy_of_the_environment_is_not_used_for_loopback(
    url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "proxy.example.com:3128")
    monkeypatch.setenv("http_proxy", "http://plain.example.com")
    monkeypatch.setenv("no_proxy", "example.org")
    assert http._find_proxy(httpx.URL(url)) == proxy
    assert isinstance(http.transport_to(url), DirectTransport) == (proxy is None)
