"""JSONL: a document on each line."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from spass.core.json import InvalidJson, read_object
from spass.core.messages import Json
from spass.rag.index.documents import MAX_METADATA_DEPTH
from spass.rag.ingest.plan import Position
from spass.rag.ingest.records import MAX_RECORD_BYTES, EntryRefused, RawRecord

_MAX_DEPTH: Final = MAX_METADATA_DEPTH + 4
"""Deep enough that the check of metadata, and not the parser, refuses what is nested too deep."""
_BLANK_LINES: Final = re.compile(rb"(?:[ \t\r]*+\n)*+")


class LineSplitter:
    """Splits lines at LF; a CR before it is a blank of the line. Blank lines are skipped."""

    def __init__(self, at: Position) -> None:
        self.at = at
        self._held = b""
        self._size = 0  # of the line so far, held or not

    def feed(self, data: bytes, *, final: bool) -> Iterator[RawRecord]:
        """Yield the lines that are complete with ``data``; all of them if it is ``final``. Read it to the end."""
        begin = self._without_blank_lines(data, 0)
        while (end := data.find(b"\n", begin)) >= 0:
            yield from self._ended(data[begin:end], 1)
            begin = self._without_blank_lines(data, end + 1)
        if final:
            yield from self._ended(data[begin:], 0)
            return
        self._size += len(data) - begin
        self._held = self._held + data[begin:] if self._size <= MAX_RECORD_BYTES else b""

    @property
    def end(self) -> int:
        """Return the offset of the next line."""
        return self.at.offset

    def may_end(self) -> bool:
        """Return True: a part may end after every line."""
        return True

    def _without_blank_lines(self, data: bytes, begin: int) -> int:
        if self._size:
            return begin
        blank = _BLANK_LINES.match(data, begin)
        if blank is None or blank.end() == begin:
            return begin
        self.at = _after(self.at, len(blank[0]), blank[0].count(b"\n"))
        return blank.end()

    def _ended(self, rest: bytes, newline: int) -> Iterator[RawRecord]:
        size = self._size + len(rest)
        line = self._held + rest if size <= MAX_RECORD_BYTES else None
        at, after = self.at, _after(self.at, size + newline, newline)
        self.at, self._held, self._size = after, b"", 0
        if line is None or line.strip():
            yield RawRecord(line, at, after)


def _after(at: Position, size: int, lines: int) -> Position:
    return Position(at.offset + size, at.line + lines, at.number + lines)


def fields_of_line(line: bytes) -> Mapping[str, Json]:
    """Raises:
    EntryRefused: the line is not a document.
    """
    try:
        return read_object(line.decode(), max_depth=_MAX_DEPTH)
    except UnicodeDecodeError:
        raise EntryRefused("not_utf8", "The line is not UTF-8.") from None
    except InvalidJson as error:
        reason = error.reason if error.position is None else f"it is not valid JSON from character {error.position + 1} on"
        raise EntryRefused("invalid_request", f"The line is not a document: {reason}.") from None
