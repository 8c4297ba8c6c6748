"""Build the failures of every provider, with a given text in their messages."""

import json
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import httpx

from tests.unit.llm.scripted_upstream import Answer, text, whole

HOST: Final = "models.internal.acme.example"
PATH: Final = "/var/task/private/app.py"
ARN: Final = "arn:aws:iam::123456789012:role/private-role"
PLACES: Final = (HOST, "models.internal", PATH, "private", "123456789012", "Traceback", "site-packages", ".py")
"""The name of a resource of ours, which must not leak either."""


def failing_words(words: str, status: int) -> Answer:
    """Return an error body that contains ``words`` in every field."""
    return whole({"error": {"message": f"no: {words} {PATH} {ARN}", "type": words, "code": words, "param": words}}, status)


def _events(*payloads: object, breaks: Exception | None = None) -> Answer:
    chunks = [b"data: " + (one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n\n" for one in payloads]
    return Answer(200, chunks, {"content-type": "text/event-stream"}, breaks=breaks)


_CHUNK: Final = {"choices": [{"index": 0, "delta": {"content": "Well "}}]}

Failing: TypeAlias = Callable[[str], Answer | Exception]

_STATUSES: Final = (400, 401, 403, 404, 409, 413, 422, 429, 500, 502, 503, 529)


def _with(status: int) -> Failing:
    return lambda words: failing_words(words, status)


FAILURES: Final[Mapping[str, Failing]] = {
    **{f"status {status}": _with(status) for status in _STATUSES},
    "too long": lambda words: failing_words(f"prompt is too long {words}", 400),
    "our key": lambda words: failing_words(f"Incorrect API key provided: {words}", 400),
    "a bare text": lambda words: text(words, 400),
    "a page": lambda words: text(f"<html>{words}</html>", 502),
    "a detail": lambda words: whole({"detail": words, "message": words}, 422),
    "headers": lambda words: whole({}, 429, retry_after=_line(words), x_request_id=_line(words), server=_line(words)),
    "a redirect": lambda words: Answer(307, [], {"location": f"https://{HOST}/{_line(words)}"}),
    "no json": lambda words: text("{" + words, 200),
    "another shape": lambda words: whole({"choices": words, "data": words, words[:20]: words}),
    "an error in a 200": lambda words: failing_words(words, 200),
    "no connection": lambda words: httpx.ConnectError(words),
    "no time": lambda words: httpx.ReadTimeout(words),
    "no http": lambda words: httpx.RemoteProtocolError(words),
    "a wrong address": lambda words: httpx.UnsupportedProtocol(words),
    "a bug": lambda words: RuntimeError(words),
    "an error in a stream": lambda words: _events(_CHUNK, {"error": {"message": words, "type": words, "code": words}}),
    "no json in a stream": lambda words: _events(_CHUNK, b"{" + _line(words).encode()),
    "a stream that breaks": lambda words: _events(_CHUNK, breaks=httpx.ReadError(words)),
    "a stream with a bug": lambda words: _events(_CHUNK, breaks=KeyError(words)),
}


def _line(words: str) -> str:
    return words.replace("\n", " ").encode("ascii", "replace").decode()
