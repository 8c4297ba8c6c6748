"""An HTTP server on a loopback port. A function of the test answers its requests."""

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeAlias

import httpx

JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. ``path`` includes the query. ``connection`` is the socket on which it arrived."""

    method: str
    path: str
    headers: httpx.Headers
    body: bytes
    connection: socket.socket

    @property
    def json(self) -> Any:
        """Decode the body, which must be JSON."""
        return json.loads(self.body)

    def wait_for_disconnect(self, seconds: float) -> bool:
        """Wait until the client closes the connection. Return False if it does not within ``seconds``."""
        self.connection.settimeout(seconds)
        with suppress(TimeoutError):
            return not self.connection.recv(1)
        return False


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer. An iterator as ``body`` is sent piece by piece, and its end closes the connection. ``content_length`` overrides
    the header Content-Length with a wrong number of bytes; the connection closes after the body."""

    body: bytes | Iterator[bytes] = b""
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    content_length: int | None = None


RequestHandler: TypeAlias = Callable[[HttpRequest], HttpAnswer | None]
"""Return the answer to a request, or None to close the connection. Each request has its own thread, so the function may block."""


def json_answer(value: object, status: int = 200) -> HttpAnswer:
    """Return an answer whose body is ``value`` as JSON."""
    return HttpAnswer(json.dumps(value).encode(), status)


@contextmanager
def serve(respond: RequestHandler) -> Iterator[str]:
    """Serve on a free loopback port until the block ends. Yield the base URL without a final slash."""

    class Handler(_Handler):
        def respond(self, request: HttpRequest) -> HttpAnswer | None:
            return respond(request)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False  # the test must not wait for a request that still blocks
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def respond(self, request: HttpRequest) -> HttpAnswer | None:
        raise NotImplementedError

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = self.respond(
            HttpRequest(self.command, self.path, httpx.Headers(list(self.headers.items())), body, self.connection)
        )
        try:
            if answer is None:
                self.close_connection = True
            else:
                self._send(answer)
        except ConnectionError:  # the client has disconnected
            self.close_connection = True

    do_HEAD = do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815 (the base class's names)

    def _send(self, answer: HttpAnswer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if isinstance(answer.body, bytes):
            pieces: Iterable[bytes] = [answer.body]
            length = len(answer.body) if answer.content_length is None else answer.content_length
            self.send_header("Content-Length", str(length))
        else:
            pieces = answer.body
        if not isinstance(answer.body, bytes) or answer.content_length is not None:
            self.send_header("Connection", "close")  # this call also sets close_connection
        self.end_headers()
        for piece in pieces:
            self.wfile.write(piece)
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        """Log nothing."""
