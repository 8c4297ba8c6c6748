"""Split the streams of providers into events: server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html),
or lines, each of which is a JSON object (https://github.com/ndjson/ndjson-spec)."""

import re
from typing import Final, NamedTuple, Protocol, TypeVar

E = TypeVar("E")

MAX_SSE_EVENT_BYTES: Final = 8 * 1024 * 1024

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


class ServerSentEvent(NamedTuple):
    event: str
    data: str


class EventTooLong(Exception):
    """One event is too long."""


class StreamParser(Protocol[E]):
    """Turn the bytes of a stream, in pieces of any size, into events."""

    def feed(self, chunk: bytes) -> list[E]:
        """Return the events that ``chunk`` completes. Raise ``EventTooLong`` if one does not end."""
        ...

    def close(self) -> list[E]:
        """Return the events that the end of the body completes."""
        ...


class SseParser:
    """Parse server-sent events. This is a ``StreamParser``."""

    def __init__(self, max_event_bytes: int = MAX_SSE_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._pending: list[bytes] = []  # pieces of an incomplete line
        self._after_cr = False
        self._event = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        if not chunk:
            return []
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._size += len(chunk)
        *lines, incomplete_line = _LINE_END.split(chunk) if b"\r" in chunk else chunk.split(b"\n")
        # A CR at the end of a chunk ends its line. An LF at the start of the next chunk belongs to that CR.
        self._after_cr = chunk.endswith(b"\r")
        events = []
        for line in lines:
            self._pending.append(line)
            if event := self._read_line(b"".join(self._pending)):
                events.append(event)
                self._size = 0
            self._pending.clear()
        if incomplete_line:
            self._pending.append(incomplete_line)
        if self._size > self._max_event_bytes:
            raise EventTooLong
        return events

    def close(self) -> list[ServerSentEvent]:
        """Return the event that the end of the body completes, because some servers omit the last blank line."""
        return self.feed(b"\n\n")

    def _read_line(self, line: bytes) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.removeprefix(_BYTE_ORDER_MARK).partition(b":")
        text = value.removeprefix(b" ").decode(errors="replace")
        if field == b"data":
            self._data.append(text)
        elif field == b"event":
            self._event = text
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        event = ServerSentEvent(self._event or "message", "\n".join(self._data)) if self._data else None
        self._event = ""
        self._data = []
        return event


class LineParser:
    """Split a stream into lines, and skip blank ones. This is a ``StreamParser``."""

    def __init__(self, max_line_bytes: int = MAX_SSE_EVENT_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._pending: list[bytes] = []  # pieces of an incomplete line
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        lines = []
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            lines += self._complete(end)
        if rest:
            self._pending.append(rest)
            self._size += len(rest)
        if self._size > self._max_line_bytes:
            raise EventTooLong
        return lines

    def close(self) -> list[bytes]:
        """Return the line that the end of the body completes, because the last line feed may be missing."""
        return self._complete(b"")

    def _complete(self, end: bytes) -> list[bytes]:
        line = b"".join([*self._pending, end]).removeprefix(_BYTE_ORDER_MARK).strip()
        self._pending.clear()
        self._size = 0
        return [line] if line else []
