"""Read the events of a stream: each is one line ``data: {…}``, and those of a managed run also have an id and may have a name."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from spass.sdk.errors import SpassApiError, SpassUnreachable, invalid_answer

Event: TypeAlias = dict[str, Any]
"""An event of a stream, as docs/streaming.md describes it, or one of a managed run, as docs/managed.md does."""

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
_STREAM_STATUS: Final = 200
_CHUNK: Final = "chunk"  # the name of an event without a name: a chunk in OpenAI's format
_DONE: Final = b"[DONE]"
_BROKEN: Final = "The connection broke before the answer was complete."


def read_events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events in ``chunks`` up to ``done``. Skip comments. Raise SpassApiError if the stream ends with an error, or it
    is not a stream of a gateway, and SpassUnreachable if the stream ends too early."""
    for line in _lines(chunks):
        if not line.startswith(b"data:"):
            continue
        event = _parse(line.removeprefix(b"data:"))
        if event["type"] == "error":
            raise SpassApiError.from_envelope(_STREAM_STATUS, event)
        yield event
        if event["type"] == "done":
            return
    raise SpassUnreachable(_BROKEN)


def read_run_events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events of a managed run in ``chunks`` up to ``[DONE]``, each with a ``type`` and its ``event_id``. Raise the
    errors of ``read_events``."""
    event_id, name, data = None, _CHUNK, b""
    for line in _lines(chunks):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match field:
            case b"id":
                event_id = value.decode("ascii", "replace")
            case b"event":
                name = value.decode("utf-8", "replace")
            case b"data":
                data = value
            case b"" if not line and data:
                if data == _DONE:
                    return
                event = _parse_object(data)
                if name == "error":
                    raise SpassApiError.from_envelope(_STREAM_STATUS, event)
                yield {**event, "type": name, "event_id": event_id}
                event_id, name, data = None, _CHUNK, b""
            case _:  # a comment, or a field such as ``retry``
                pass
    raise SpassUnreachable(_BROKEN)


def is_after(event_id: str, other: str) -> bool:
    """Return whether the event ``<attempt>-<n>`` comes after the event ``other``."""
    try:
        first, second = (tuple(map(int, text.split("-"))) for text in (event_id, other))
    except ValueError:
        raise invalid_answer(_STREAM_STATUS) from None
    return first > second


def _parse(data: bytes) -> Event:
    event = _parse_object(data)
    if not isinstance(event.get("type"), str):
        raise invalid_answer(_STREAM_STATUS)
    return event


def _parse_object(data: bytes) -> Event:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise invalid_answer(_STREAM_STATUS) from None
    if not isinstance(event, dict):
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
