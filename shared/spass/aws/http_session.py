"""The HTTP session of the table's client, in place of botocore's own, which takes half of the processor time of a table call.

It does what calls of the table need: bodies in memory, kept connections, TLS, and the exceptions by which botocore retries.
"""

import os
import select
import socket
import ssl
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ConnectionClosedError, ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError, SSLError
from botocore.httpsession import where
from botocore.utils import get_environ_proxies
from httptools import HttpParserError, HttpResponseParser

if TYPE_CHECKING:
    from botocore.compat import HTTPHeaders
    from mypy_boto3_dynamodb import DynamoDBClient

_PIECE: Final = 64 * 1024


def use_http_session(client: "DynamoDBClient", *, connect_timeout: float, read_timeout: float) -> None:
    """Let ``client`` send its requests by an ``HttpSession``. Behind a proxy, which that does not know, it keeps botocore's."""
    if not get_environ_proxies(client.meta.endpoint_url):
        endpoint = client._endpoint  # type: ignore[attr-defined]  # noqa: SLF001 (botocore has no other way to set it)
        endpoint.http_session = HttpSession(connect_timeout=connect_timeout, read_timeout=read_timeout)


class HttpSession:
    """Sends requests over kept connections, from any thread. Timeouts are in seconds; ``read_timeout`` bounds each silence."""

    def __init__(self, *, connect_timeout: float, read_timeout: float) -> None:
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._idle: dict[_Origin, list[_Connection]] = {}
        weakref.finalize(self, _close, self._idle)

    def send(self, request: AWSPreparedRequest) -> AWSResponse:
        """Send ``request`` and return its whole answer.

        Raises:
            botocore.exceptions.HTTPClientError: there is no answer. After anything but ``EndpointConnectionError`` and
                ``ConnectTimeoutError`` the request may have taken effect.
        """
        url = urlsplit(request.url)
        usual_port = 443 if url.scheme == "https" else 80
        origin = _Origin(url.scheme == "https", url.hostname or "", url.port or usual_port)
        idle = self._idle.setdefault(origin, [])
        connection = _still_open(idle) or self._connect(origin, request.url)
        try:
            with _as_botocore(request):
                answer = connection.exchange(_message(request, url, url.netloc.removesuffix(f":{usual_port}")))
        except BaseException:
            connection.close()
            raise
        if answer.is_last:
            connection.close()
        else:
            idle.append(connection)
        return AWSResponse(request.url, answer.status, cast("HTTPHeaders", answer.headers), answer)

    def close(self) -> None:
        _close(self._idle)

    def _connect(self, origin: "_Origin", url: str) -> "_Connection":
        try:
            made = socket.create_connection((origin.host, origin.port), timeout=self._connect_timeout)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if origin.secure:
                made = self._certificates.wrap_socket(made, server_hostname=origin.host)
        except ssl.SSLError as error:
            raise SSLError(endpoint_url=url, error=error) from error
        except TimeoutError as error:
            raise ConnectTimeoutError(endpoint_url=url, error=error) from error
        except OSError as error:
            raise EndpointConnectionError(endpoint_url=url, error=error) from error
        made.settimeout(self._read_timeout)
        return _Connection(made)

    @cached_property
    def _certificates(self) -> ssl.SSLContext:
        """The authorities that botocore trusts. Made once, because they take a while to read."""
        named = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE")
        return ssl.create_default_context(cafile=named or where())


class _Origin(NamedTuple):
    secure: bool
    host: str
    port: int


class _Connection:
    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing came that nobody asked for, such as the end of the connection."""
        return not self._poll.poll(0)

    def exchange(self, message: bytes) -> "_Answer":
        self._socket.sendall(message)
        answer = _Answer()
        while not answer.is_whole:
            piece = self._socket.recv(_PIECE)
            if not piece:
                raise ConnectionResetError("the connection ended before the answer did")
            answer.feed(piece)
        return answer

    def close(self) -> None:
        self._socket.close()


class _Answer:
    """Collects an answer. The parser calls the methods ``on_…``; botocore reads the body by ``stream``. After an answer that
    ``is_last`` no other may come over its connection."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self.headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self.is_whole = False
        self.is_last = True

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1")] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self.is_whole = True
        self.is_last = not self._parser.should_keep_alive()  # the parser forgets it when this returns

    @property
    def status(self) -> int:
        return self._parser.get_status_code()

    def stream(self) -> Iterator[bytes]:
        yield from self._body


def _close(connections: Mapping[_Origin, list[_Connection]]) -> None:
    for idle in connections.values():
        while idle:
            idle.pop().close()


def _still_open(idle: list[_Connection]) -> _Connection | None:
    """Take the connection that was used last, if the other side has kept it too."""
    while idle:
        connection = idle.pop()
        if connection.is_quiet:
            return connection
        connection.close()
    return None


def _message(request: AWSPreparedRequest, url: SplitResult, host: str) -> bytes:
    """Return the bytes of ``request``. Its signature holds for ``host`` without the usual port."""
    lines = [f"{request.method} {url.path or '/'} HTTP/1.1", f"Host: {host}", "Accept-Encoding: identity"]
    headers: Iterable[tuple[str, str | bytes]] = request.headers.items()
    for name, value in headers:
        lines.append(f"{name}: {value.decode('latin-1') if isinstance(value, bytes) else value}")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + cast("bytes", request.body)


@contextmanager
def _as_botocore(request: AWSPreparedRequest) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise ReadTimeoutError(endpoint_url=request.url, error=error) from error
    except (OSError, HttpParserError) as error:
        raise ConnectionClosedError(endpoint_url=request.url, request=request, error=error) from error
