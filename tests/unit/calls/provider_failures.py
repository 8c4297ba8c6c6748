"""Build the failures of every provider, with a given text in their messages."""

import json
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import httpx

from tests.unit.models.scripted_upstream import Answer, json_answer, text

HOST: Final = "models.internal.acme.example"
PATH: Final = "/var/task/private/app.py"
ARN: Final = "arn:aws:iam::123456789012:role/private-role"
OUR_NAMES: Final = (HOST, "models.internal", PATH, "private", "123456789012", "Traceback", "site-packages", ".py")
"""Names of our resources, which must not leak either."""


def error_answer(message: str, status: int) -> Answer:
    """Return an error body that contains ``message`` in every field."""
    return json_answer(
        {"error": {"message": f"no: {message} {PATH} {ARN}", "type": message, "code": message, "param": message}}, status
    )


def _events(*payloads: object, breaks: Exception | None = None) -> Answer:
    chunks = [b"data: " + (one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n\n" for one in payloads]
    return Answer(200, chunks, {"content-type": "text/event-stream"}, breaks=breaks)


_CHUNK: Final = {"choices": [{"index": 0, "delta": {"content": "Well "}}]}

FailureOf: TypeAlias = Callable[[str], Answer | Exception]

_STATUSES: Final = (400, 401, 403, 404, 409, 413, 422, 429, 500, 502, 503, 529)


def _with_status(status: int) -> FailureOf:
    return lambda message: error_answer(message, status)


FAILURES: Final[Mapping[str, FailureOf]] = {
    **{f"status {status}": _with_status(status) for status in _STATUSES},
    "too long": lambda message: error_answer(f"prompt is too long {message}", 400),
    "our key": lambda message: error_answer(f"Incorrect API key provided: {message}", 400),
    "a bare text": lambda message: text(message, 400),
    "a page": lambda message: text(f"<html>{message}</html>", 502),
    "a detail": lambda message: json_answer({"detail": message, "message": message}, 422),
    "headers": lambda message: json_answer(
        {}, 429, retry_after=_one_line(message), x_request_id=_one_line(message), server=_one_line(message)
    ),
    "a redirect": lambda message: Answer(307, [], {"location": f"https://{HOST}/{_one_line(message)}"}),
    "no json": lambda message: text("{" + message, 200),
    "another shape": lambda message: json_answer({"choices": message, "data": message, message[:20]: message}),
    "an error in a 200": lambda message: error_answer(message, 200),
    "no connection": lambda message: httpx.ConnectError(message),
    "no time": lambda message: httpx.ReadTimeout(message),
    "no http": lambda message: httpx.RemoteProtocolError(message),
    "a wrong address": lambda message: httpx.UnsupportedProtocol(message),
    "a bug": lambda message: RuntimeError(message),
    "an error in a stream": lambda message: _events(_CHUNK, {"error": {"message": message, "type": message, "code": message}}),
    "no json in a stream": lambda message: _events(_CHUNK, b"{" + _one_line(message).encode()),
    "a stream that breaks": lambda message: _events(_CHUNK, breaks=httpx.ReadError(message)),
    "a stream with a bug": lambda message: _events(_CHUNK, breaks=KeyError(message)),
}


def _one_line(message: str) -> str:
    return message.replace("\n", " ").encode("ascii", "replace").decode()
