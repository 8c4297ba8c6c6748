"""Split JSONL files into lines. Each line contains one document."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from spass.core.json import InvalidJson, read_object
from spass.core.messages import Json
from spass.rag.index.documents import MAX_METADATA_DEPTH
from spass.rag.ingest.plan import Position
from spass.rag.ingest.records import MAX_RECORD_BYTES, EntryRefused, RawRecord

_MAX_DEPTH: Final = MAX_METADATA_DEPTH + 4
"""Larger than the limit of metadata, so that the check of metadata reports the error instead of the parser."""
_BLANK_LINES: Final = re.compile(rb"(?:[ \t\r]*+\n)*+")


class LineSplitter:
    """Split a file into lines at LF. A CR before the LF counts as a blank. Skip blank lines."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self._partial_line = b""
        self._size = 0  # bytes of the line so far, also those that were dropped because the line is too long

    def feed(self, data: bytes, *, final: bool) -> Iterator[RawRecord]:
        """Yield the lines that end in ``data``. If ``data`` is ``final``, also yield the last line. The caller must exhaust the
        iterator."""
        begin = self._skip_blank_lines(data, 0)
        while (end := data.find(b"\n", begin)) >= 0:
            yield from self._end_line(data[begin:end], 1)
            begin = self._skip_blank_lines(data, end + 1)
        if final:
            yield from self._end_line(data[begin:], 0)
            return
        self._size += len(data) - begin
        self._partial_line = self._partial_line + data[begin:] if self._size <= MAX_RECORD_BYTES else b""

    @property
    def end(self) -> int:
        """Return the offset of the next line."""
        return self.position.offset

    def may_end(self) -> bool:
        """Return True: a part may end after every line."""
        return True

    def _skip_blank_lines(self, data: bytes, begin: int) -> int:
        if self._size:
            return begin
        blank = _BLANK_LINES.match(data, begin)
        if blank is None or blank.end() == begin:
            return begin
        self.position = _advance(self.position, len(blank[0]), blank[0].count(b"\n"))
        return blank.end()

    def _end_line(self, tail: bytes, newline: int) -> Iterator[RawRecord]:
        size = self._size + len(tail)
        line = self._partial_line + tail if size <= MAX_RECORD_BYTES else None
        start = self.position
        self.position, self._partial_line, self._size = _advance(start, size + newline, newline), b"", 0
        if line is None or line.strip():
            yield RawRecord(line, start, self.position)


def _advance(position: Position, size: int, lines: int) -> Position:
    return Position(position.offset + size, position.line + lines, position.number + lines)


def fields_of_line(line: bytes) -> Mapping[str, Json]:
    """Return the fields of the document on ``line``.

    Raises:
        EntryRefused: the line is not a JSON object in UTF-8.
    """
    try:
        return read_object(line.decode(), max_depth=_MAX_DEPTH)
    except UnicodeDecodeError:
        raise EntryRefused("not_utf8", "The line is not UTF-8.") from None
    except InvalidJson as error:
        reason = error.reason if error.position is None else f"it is not valid JSON from character {error.position + 1} on"
        raise EntryRefused("invalid_request", f"The line is not a document: {reason}.") from None
