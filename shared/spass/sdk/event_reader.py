"""Read the events of a stream: each is one line ``data: {…}``."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from spass.sdk.errors import SpassApiError, SpassUnreachable, invalid_answer

Event: TypeAlias = dict[str, Any]
"""An event of a stream, as docs/streaming.md describes it."""

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
_STREAM_STATUS: Final = 200


def read_events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events in ``chunks`` up to ``done``. Skip comments.

    Raises:
        SpassApiError: the stream ends with an error, or it is not a stream of a gateway.
        SpassUnreachable: the stream ends too early.
    """
    for line in _lines(chunks):
        if not line.startswith(b"data:"):
            continue
        event = _parse(line.removeprefix(b"data:"))
        if event["type"] == "error":
            raise SpassApiError.from_envelope(_STREAM_STATUS, event)
        yield event
        if event["type"] == "done":
            return
    raise SpassUnreachable("The connection broke before the answer was complete.")


def _parse(data: bytes) -> Event:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise invalid_answer(_STREAM_STATUS) from None
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise invalid_answer(_STREAM_STATUS)
    return event


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a body without their ends. Only LF and CRLF end a line."""
    pieces: list[bytes] = []
    size = 0
    for chunk in chunks:
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield b"".join([*pieces, line]).removesuffix(b"\r")
            pieces.clear()
            size = 0
        pieces.append(rest)
        size += len(rest)
        if size > MAX_LINE_BYTES:
            raise invalid_answer(_STREAM_STATUS)
