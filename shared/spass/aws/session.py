"""How botocore's calls of the table leave the process: over plain sockets, without urllib3.

botocore makes, signs, retries and reads each call as ever; only the bytes go another way. urllib3 and ``http.client`` take as
long for a call of the table as all of that together: two writes, a mail parser for the headers, a stack of readers for one body.
"""

import os
import select
import socket
import ssl
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

from botocore.awsrequest import AWSPreparedRequest, AWSResponse, HeadersDict
from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ReadTimeoutError,
    SSLError,
)
from botocore.httpsession import get_cert_path

from spass.core.http_head import LONGEST_HEAD, Head, MalformedAnswer, chunk_size, parse_head

if TYPE_CHECKING:
    from botocore.compat import HTTPHeaders

_KEEP_SECONDS: Final = 15.0


class TableSession:
    """Takes the place of botocore's ``URLLib3Session``; many threads may send at once. ``seconds`` bound each wait."""

    def __init__(self, *, connect_seconds: float, read_seconds: float) -> None:
        self._connect_seconds = connect_seconds
        self._read_seconds = read_seconds
        self._idle: _Idle = defaultdict(deque)
        weakref.finalize(self, _close, self._idle)

    def send(self, request: AWSPreparedRequest) -> AWSResponse:
        """The answer, whole.

        Raises:
            HTTPClientError: none came; which of its kinds, botocore's retries are decided by.
        """
        where = urlsplit(request.url)
        origin = f"{where.scheme}://{where.netloc}"
        connection = self._kept(origin) or self._connected(where)
        try:
            head, body = connection.exchange(_bytes_of(request, where))
        except BaseException as error:
            connection.close()
            match error:
                case TimeoutError():
                    raise ReadTimeoutError(endpoint_url=request.url, error=error) from error
                case OSError() | EOFError():
                    raise ConnectionClosedError(endpoint_url=request.url, request=request, error=error) from error
                case MalformedAnswer():
                    raise HTTPClientError(error=error) from error
            raise
        if head.reusable:
            self._idle[origin].append((connection, time.monotonic() + _KEEP_SECONDS))
        else:
            connection.close()
        headers = HeadersDict({name.decode("ascii"): value.decode("latin-1") for name, value in head.headers})
        return AWSResponse(request.url, head.status, cast("HTTPHeaders", headers), _Whole(body))

    def close(self) -> None:
        _close(self._idle)

    def _kept(self, origin: str) -> "_Connection | None":
        """The connection that was used last, if it is still good."""
        idle = self._idle[origin]
        while True:
            try:
                connection, until = idle.pop()
            except IndexError:
                return None
            if until > time.monotonic() and connection.is_quiet:
                return connection
            connection.close()

    def _connected(self, where: SplitResult) -> "_Connection":
        host, port = where.hostname or "", where.port or (443 if where.scheme == "https" else 80)
        try:
            plain = socket.create_connection((host, port), self._connect_seconds)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connected = self._certificates.wrap_socket(plain, server_hostname=host) if where.scheme == "https" else plain
        except ssl.SSLError as error:
            raise SSLError(endpoint_url=where.geturl(), error=error) from error
        except TimeoutError as error:
            raise ConnectTimeoutError(endpoint_url=where.geturl(), error=error) from error
        except OSError as error:
            raise EndpointConnectionError(endpoint_url=where.geturl(), error=error) from error
        connected.settimeout(self._read_seconds)
        return _Connection(connected)

    @cached_property
    def _certificates(self) -> ssl.SSLContext:
        """Those that botocore would trust."""
        named = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE")
        bundle = Path(named or get_cert_path(True) or "")
        return ssl.create_default_context(cafile=bundle) if bundle.is_file() else ssl.create_default_context(capath=bundle)


class _Connection:
    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._reader = connected.makefile("rb")

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come that nobody asked for, not even the end."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def exchange(self, data: bytes) -> tuple[Head, bytes]:
        self._socket.sendall(data)
        while (head := parse_head(self._read_head())).is_interim:
            pass
        if head.chunked:
            return head, b"".join(self._chunks())
        if head.length is not None:
            return head, self._exactly(head.length)
        return head, self._reader.read()

    def close(self) -> None:
        with suppress(OSError):
            self._reader.close()
            self._socket.close()

    def _read_head(self) -> bytes:
        lines: list[bytes] = []
        size = 0
        while (line := self._reader.readline(LONGEST_HEAD)) != b"\r\n":
            size += len(line)
            if size > LONGEST_HEAD:
                raise MalformedAnswer("a head that does not end")
            if not line.endswith(b"\n"):
                raise EOFError
            if not line.endswith(b"\r\n"):
                raise MalformedAnswer("a line of the head")
            lines.append(line)
        return b"".join(lines).removesuffix(b"\r\n")

    def _chunks(self) -> Iterator[bytes]:
        while size := chunk_size(self._reader.readline(LONGEST_HEAD).removesuffix(b"\r\n")):
            yield self._exactly(size)
            if self._exactly(2) != b"\r\n":
                raise MalformedAnswer("the end of a chunk")
        while self._reader.readline(LONGEST_HEAD) not in (b"\r\n", b""):  # trailers
            pass

    def _exactly(self, count: int) -> bytes:
        data = self._reader.read(count)
        if len(data) < count:
            raise EOFError
        return data


_Idle = defaultdict[str, deque[tuple[_Connection, float]]]


def _close(idle: _Idle) -> None:
    for kept in idle.values():
        while kept:
            kept.pop()[0].close()


class _Whole(NamedTuple):
    """A body as botocore asks for one."""

    body: bytes

    def stream(self) -> Iterator[bytes]:
        yield self.body


def _bytes_of(request: AWSPreparedRequest, where: SplitResult) -> bytes:
    target = (where.path or "/") + (f"?{where.query}" if where.query else "")
    headers: Mapping[str, str | bytes] = {"Host": where.netloc, "Accept-Encoding": "identity", **request.headers}
    lines = [f"{request.method} {target} HTTP/1.1".encode()]
    for name, value in headers.items():
        lines.append(name.encode() + b": " + (value if isinstance(value, bytes) else str(value).encode()))
    body = request.body or b""
    if not isinstance(body, bytes | bytearray):
        raise TypeError("calls of the table have their body in memory")
    return b"\r\n".join([*lines, b"", body])
