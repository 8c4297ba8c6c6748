"""Server-sent events as providers send them (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

import re
from typing import Final, NamedTuple

MAX_SSE_EVENT_BYTES: Final = 8 * 1024 * 1024

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


class ServerSentEvent(NamedTuple):
    event: str
    data: str


class EventTooLong(Exception):
    """One event is over ``MAX_SSE_EVENT_BYTES`` bytes."""


class SseParser:
    """Takes bytes in whatever pieces they come and gives events as soon as they are whole."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []  # pieces of a line whose end has not come
        self._after_cr = False
        self._event = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that ``chunk`` completes.

        Raises:
            EventTooLong: an event does not end.
        """
        if not chunk:
            return []
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._size += len(chunk)
        *lines, rest = _LINE_END.split(chunk)
        # A final CR ends its line at once; if LF follows in the next chunk, it belongs to it.
        self._after_cr = chunk.endswith(b"\r")
        events = []
        for line in lines:
            self._pending.append(line)
            if event := self._line(b"".join(self._pending)):
                events.append(event)
                self._size = 0
            self._pending.clear()
        if rest:
            self._pending.append(rest)
        if self._size > MAX_SSE_EVENT_BYTES:
            raise EventTooLong
        return events

    def close(self) -> list[ServerSentEvent]:
        """The event that the end of the body completes: servers exist that leave out the last blank line."""
        return self.feed(b"\n\n")

    def _line(self, line: bytes) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.removeprefix(b"\xef\xbb\xbf").partition(b":")
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
