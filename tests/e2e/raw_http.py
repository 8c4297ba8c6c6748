"""HTTP/1.1 as bytes on a socket, for requests that no client library would send, and what every answer of the gateway must be."""

import json
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any, Final
from urllib.parse import urlsplit

from local.home import ROOT

SECONDS: Final = 30.0

_REQUEST_ID: Final = re.compile(r"req_[0-9a-z]{26}")
_CODE: Final = re.compile(r"[a-z]+(_[a-z]+)*")
_INSIDE: Final = (
    "Traceback", 'File "', ".py", "site-packages", "arn:aws", "127.0.0.1", "localhost", "amazonaws", "botocore", "ministack",
    "pydantic", "Error(", "object at 0x", "/home/", "/tmp/", str(ROOT),
)  # fmt: skip
"""What an answer would hold that tells of paths, hosts, libraries or stacks. (None of it is sent.)"""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer as it came over the wire."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header that is there once or not at all."""
        found = [value for known, value in self.headers if known.lower() == name.lower()]
        assert len(found) <= 1, f"{name} came {len(found)} times"
        return found[0] if found else None

    def json(self) -> Any:
        return json.loads(self.body)


def request_bytes(
    method: bytes, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes = b"", *, framed: bool = True
) -> bytes:
    """A request, byte for byte. ``framed``: with the Content-Length that tells the truth."""
    lines = [b"%s %s HTTP/1.1" % (method, target), b"Host: gateway", b"Connection: close"]
    lines += [name + b": " + value for name, value in headers]
    if framed and (body or method not in {b"GET", b"HEAD", b"DELETE"}):
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def exchange(base_url: str, data: bytes, *, method: str = "GET", finish: bool = False) -> Answer | None:
    """Send ``data`` and read one answer; None if the connection was closed without one. ``finish``: nothing more is sent after
    it, and the server is told so.
    """
    where = urlsplit(base_url)
    assert where.hostname is not None
    with socket.create_connection((where.hostname, where.port or 80), timeout=SECONDS) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # it may answer before it has read everything
            connection.sendall(data)
            if finish:
                connection.shutdown(socket.SHUT_WR)
        response = HTTPResponse(connection, method=method)
        try:
            response.begin()
            return Answer(response.status, tuple(response.getheaders()), response.read())
        except (HTTPException, ConnectionResetError):
            return None
        finally:
            response.close()


def assert_sound(answer: Answer, *, secrets: Sequence[str], successes: Sequence[int], bodiless: bool = False) -> None:
    """What holds for every answer of the gateway, whatever was asked: no failure of its own, its request id, JSON (or the events
    that were asked for), every error in the one envelope, and nothing that tells of its inside.
    """
    assert answer.status < 500 or answer.status == 508, f"{answer.status}: {answer.body[:500]!r}"
    request_id = answer.header("SPASS-Request-Id")
    assert request_id is not None
    assert _REQUEST_ID.fullmatch(request_id)
    media_type = (answer.header("Content-Type") or "").partition(";")[0]
    assert media_type in ({"application/json", "text/event-stream"} if answer.status < 300 else {"application/json"})
    said = "\n".join(f"{name}: {value}" for name, value in answer.headers) + "\n" + answer.body.decode("utf-8")
    assert not [word for word in (*_INSIDE, *secrets) if word in said], said[:2000]
    if answer.status < 300:
        assert answer.status in successes
        return
    if not bodiless:
        _assert_envelope(answer, request_id)


def _assert_envelope(answer: Answer, request_id: str) -> None:
    assert answer.status >= 400
    body = answer.json()
    assert body.keys() == {"error", "request_id"}
    assert body["request_id"] == request_id
    error = body["error"]
    assert error.keys() == {"code", "message", "type", "param", "details"}
    assert _CODE.fullmatch(error["code"])
    assert error["message"]
    assert _CODE.fullmatch(error["type"])
    assert isinstance(error["details"], dict)
    assert error["details"].get("errors") or error["code"] != "invalid_request"
    for found in error["details"].get("errors", ()):
        assert found.keys() == {"loc", "message", "type"}
        assert found["loc"][0] in {"body", "header", "path", "query"}
    assert len(answer.body) < 20_000, "an error is no echo of what was sent"
    if answer.status == 401:
        assert answer.header("x-amzn-Remapped-WWW-Authenticate") == "Bearer"
    if answer.status == 405:
        assert answer.header("Allow")
