"""A stream cut into records, of which only one is ever held, and that only up to a limit."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from spass.rag.index.documents import MAX_METADATA_BYTES, MAX_TEXT_BYTES
from spass.rag.ingest.plan import Position

_LONGEST_ESCAPE: Final = len(r"\u0041")
MAX_RECORD_BYTES: Final = _LONGEST_ESCAPE * (MAX_TEXT_BYTES + MAX_METADATA_BYTES) + 12 * 1024
"""72 KiB. The largest document with every character escaped, and room for its id, keys and blanks between them."""

_BLANK_LINES: Final = re.compile(rb"(?:[ \t\r]*+\n)*+")


@dataclass(frozen=True, slots=True)
class Record:
    """``data`` without its line end; None, if it is longer than ``MAX_RECORD_BYTES``."""

    data: bytes | None
    at: Position
    after: Position


class LineSplitter:
    """Lines that end with LF; a CR before it is a blank of theirs. Blank lines are no records."""

    def __init__(self, at: Position) -> None:
        self.at = at
        self._held = b""
        self._size = 0  # of the line so far, held or not

    def feed(self, data: bytes, *, final: bool) -> Iterator[Record]:
        """The lines that are complete with ``data``; all of them, if it is ``final``. To be read to the end."""
        begin = self._without_blank_lines(data, 0)
        while (end := data.find(b"\n", begin)) >= 0:
            yield from self._ended(data[begin:end], 1)
            begin = self._without_blank_lines(data, end + 1)
        if final:
            yield from self._ended(data[begin:], 0)
            return
        self._size += len(data) - begin
        self._held = self._held + data[begin:] if self._size <= MAX_RECORD_BYTES else b""

    def _without_blank_lines(self, data: bytes, begin: int) -> int:
        if self._size:
            return begin
        blank = _BLANK_LINES.match(data, begin)
        if blank is None or blank.end() == begin:
            return begin
        self.at = _behind(self.at, len(blank[0]), blank[0].count(b"\n"))
        return blank.end()

    def _ended(self, rest: bytes, newline: int) -> Iterator[Record]:
        size = self._size + len(rest)
        line = self._held + rest if size <= MAX_RECORD_BYTES else None
        at, after = self.at, _behind(self.at, size + newline, newline)
        self.at, self._held, self._size = after, b"", 0
        if line is None or line.strip():
            yield Record(line, at, after)


def _behind(at: Position, size: int, lines: int) -> Position:
    return Position(at.offset + size, at.line + lines, at.number + lines)
