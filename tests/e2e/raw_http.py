"""Send HTTP/1.1 requests as raw bytes, which client libraries would refuse, and check the form of the answers."""

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
_BYTES: Final = frozenset({"application/octet-stream", "application/zip"})
_CODE: Final = re.compile(r"[a-z]+(_[a-z]+)*")
_INTERNAL_WORDS: Final = (
    "Traceback", 'File "', '.py", line', '.py\\", line', ".py:", "site-packages", "arn:aws", "127.0.0.1", "localhost",
    "amazonaws", "botocore", "ministack", "pydantic", "Error(", "object at 0x", "/home/", "/tmp/", str(ROOT),
)  # fmt: skip
"""Words that would reveal paths, hosts, libraries or stack traces in an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it was received."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the value of a header, or None. Fail if the header occurs more than once."""
        values = [value for header_name, value in self.headers if header_name.lower() == name.lower()]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    def json(self) -> Any:
        return json.loads(self.body)


def request_bytes(
    method: bytes, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes = b"", *, framed: bool = True
) -> bytes:
    """Return the bytes of a request. ``framed`` adds the correct Content-Length."""
    lines = [b"%s %s HTTP/1.1" % (method, target), b"Host: localhost", b"Connection: close"]
    lines += [name + b": " + value for name, value in headers]
    if framed and (body or method not in {b"GET", b"HEAD", b"DELETE"}):
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def exchange(base_url: str, data: bytes, *, method: str = "GET", finish: bool = False) -> Answer | None:
    """Send ``data`` and return one answer, or None if the server closes the connection without one.

    ``finish`` closes the sending half of the connection after ``data``.
    """
    url = urlsplit(base_url)
    assert url.hostname is not None
    with socket.create_connection((url.hostname, url.port or 80), timeout=SECONDS) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # the server may answer before it has read all of the data
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
    """Assert the rules for every answer: no server failure, a request id, JSON (or server-sent events, or bytes), errors
    in the error envelope, and no internal details or ``secrets``.
    """
    assert answer.status < 500 or answer.status == 508, f"{answer.status}: {answer.body[:500]!r}"
    request_id = answer.header("SPASS-Request-Id")
    assert request_id is not None
    assert _REQUEST_ID.fullmatch(request_id)
    media_type = (answer.header("Content-Type") or "").partition(";")[0]
    is_bytes = answer.status == 200 and media_type in _BYTES
    if answer.status == 304:
        assert answer.body == b""
        assert answer.header("ETag")
        return
    assert is_bytes or media_type in ({"application/json", "text/event-stream"} if answer.status < 300 else {"application/json"})
    body = answer.body.decode(errors="replace" if is_bytes else "strict")
    text = "\n".join(f"{name}: {value}" for name, value in answer.headers) + "\n" + body
    assert not [word for word in (*_INTERNAL_WORDS, *secrets) if word in text], text[:2000]
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
    for field_error in error["details"].get("errors", ()):
        assert field_error.keys() == {"loc", "message", "type"}
        assert field_error["loc"][0] in {"body", "header", "path", "query"}
    assert len(answer.body) < 20_000, "an error must not repeat the whole request"
    if answer.status == 401:
        assert answer.header("x-amzn-Remapped-WWW-Authenticate") == "Bearer"
    if answer.status == 405:
        assert answer.header("Allow")
