"""Parse streams of JSON objects, one a line (https://github.com/ndjson/ndjson-spec)."""

from functools import cached_property
from typing import Final, Generic, TypeVar

from pydantic import BaseModel

from spass.models.providers.payloads import parse
from spass.models.providers.sse import MAX_SSE_EVENT_BYTES, EventTooLong

P = TypeVar("P", bound=BaseModel)

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class JsonLine(Generic[P]):
    """One line of a stream. It is parsed when ``payload`` is first read, so that a damaged line does not hide those before it."""

    def __init__(self, model: type[P], text: bytes) -> None:
        self._model = model
        self._text = text

    @cached_property
    def payload(self) -> P:
        """Return the parsed line.

        Raises:
            BackendUnavailable: the line violates the protocol.
        """
        return parse(self._model, self._text)


class NdjsonParser(Generic[P]):
    """Split a stream into lines, each an object of ``model``. Skip blank lines. This is a ``StreamParser``."""

    def __init__(self, model: type[P], max_line_bytes: int = MAX_SSE_EVENT_BYTES) -> None:
        self._model = model
        self._max_line_bytes = max_line_bytes
        self._pending: list[bytes] = []  # pieces of an incomplete line
        self._size = 0

    def feed(self, chunk: bytes) -> list[JsonLine[P]]:
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

    def close(self) -> list[JsonLine[P]]:
        """Return the line that the end of the body completes, because the last line feed may be missing."""
        return self._complete(b"")

    def _complete(self, end: bytes) -> list[JsonLine[P]]:
        text = b"".join([*self._pending, end]).removeprefix(_BYTE_ORDER_MARK).strip()
        self._pending.clear()
        self._size = 0
        return [JsonLine(self._model, text)] if text else []
