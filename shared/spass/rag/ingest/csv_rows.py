"""Split CSV files into rows. Each row contains one document.

The format is RFC 4180, but a row may also end with LF or CR alone. The column ``text`` is the text, the optional column ``id`` is
the id, and every other column is a metadata field with a string value. An empty cell has no value: if the id is empty, one is
generated; if a metadata cell is empty, the document does not have that field, and a filter sees it as null.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Final

from spass.rag.ingest.blocks import LineCount
from spass.rag.ingest.plan import FileRefused, Position
from spass.rag.ingest.records import MAX_RECORD_BYTES, EntryRefused, RawRecord

_TEXT: Final = "text"
_ID: Final = "id"
_MAX_HEADER_BYTES: Final = 8192
_MAX_NAME_IN_MESSAGE: Final = 64  # characters of a column name in a message
_OTHER_DELIMITERS: Final = {";": "semicolons", "\t": "tabs", "|": "bars"}

_BLANK_LINES: Final = re.compile(rb"(?:[ \t]*+[\r\n])*+")
_CELL_IN_QUOTES: Final = re.compile(rb'(?:[^"]++|"")*+')
_OPENING_OR_END: Final = re.compile(rb',"|[\r\n]')


class _State(Enum):
    CELL = auto()
    """At the start of a cell. Only here a quote opens a quoted cell."""
    PLAIN = auto()
    QUOTED = auto()
    QUOTE = auto()
    """After a quote within a quoted cell. It is the first half of an escaped quote (``""``), or it closes the cell."""
    RETURN = auto()
    """After a CR that ends the row. A following LF belongs to the same row end."""


class RowSplitter:
    """Split a file into rows at LF, CR or CRLF outside of quotes. Skip blank lines between rows."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self._state = _State.CELL
        self._partial_row = b""
        self._size = 0  # bytes of the row so far, also those that were dropped because the row is too long
        self._lines = LineCount(position.line)
        self._counted = 0  # bytes of the current data whose lines were counted
        self._quote_line = position.line  # where the last quote was opened

    def feed(self, data: bytes, *, final: bool) -> Iterator[RawRecord]:
        """Yield the rows that end in ``data``. If ``data`` is ``final``, also yield the last row. The caller must exhaust the
        iterator.

        Raises:
            FileRefused: the file ends within quotes.
        """
        self._counted = 0
        begin = self._skip_blank_lines(data, 0)
        while (end := self._row_end(data, begin)) is not None:
            yield from self._end_row(data, begin, end)
            begin = self._skip_blank_lines(data, end)
        if final and self._state is _State.QUOTED:
            message = f"The quote opened on line {self._quote_line} is not closed."
            raise FileRefused("csv_unclosed_quote", message, self._quote_line)
        if final:
            yield from self._end_row(data, begin, len(data))
            return
        self._count(data, len(data))
        self._size += len(data) - begin
        self._partial_row = self._partial_row + data[begin:] if self._size <= MAX_RECORD_BYTES else b""

    @property
    def end(self) -> int:
        """Return the offset of the next row."""
        return self.position.offset

    def may_end(self) -> bool:
        """Return True: a part may end after every row."""
        return True

    def _skip_blank_lines(self, data: bytes, begin: int) -> int:
        if self._size:
            return begin
        blank = _BLANK_LINES.match(data, begin)
        if blank is None or blank.end() == begin:
            return begin
        self._count(data, blank.end())
        self.position = replace(self.position, offset=self.position.offset + len(blank[0]), line=self._lines.line)
        return blank.end()

    def _row_end(self, data: bytes, at: int) -> int | None:
        """Return the offset after the row that continues at ``at``, or None if the row does not end in ``data``."""
        if self._state is _State.CELL and (end := _end_without_quotes(data, at)):
            return end
        while at < len(data):
            if self._state is _State.RETURN:
                self._state = _State.CELL
                return at + data.startswith(b"\n", at)
            if self._state is _State.CELL and data.startswith(b'"', at):
                at = self._open_quote(data, at + 1)
            elif self._state is _State.QUOTED:
                cell = _CELL_IN_QUOTES.match(data, at)
                if cell is None or cell.end() == len(data):
                    return None
                at = cell.end() + 1
                self._state = _State.QUOTE
            elif self._state is _State.QUOTE and data.startswith(b'"', at):
                at += 1
                self._state = _State.QUOTED
            elif (match := _OPENING_OR_END.search(data, at)) is None:
                self._state = _State.CELL if data.endswith(b",") else _State.PLAIN
                return None
            elif match[0] == b',"':
                at = self._open_quote(data, match.end())
            else:
                at = match.end()
                self._state = _State.RETURN if match[0] == b"\r" else _State.CELL
                if self._state is _State.CELL:
                    return at
        return None

    def _open_quote(self, data: bytes, at: int) -> int:
        self._count(data, at)
        self._quote_line = self._lines.line
        self._state = _State.QUOTED
        return at

    def _count(self, data: bytes, until: int) -> None:
        self._lines.add(data[self._counted : until])
        self._counted = until

    def _end_row(self, data: bytes, begin: int, end: int) -> Iterator[RawRecord]:
        self._count(data, end)
        size = self._size + end - begin
        row = (self._partial_row + data[begin:end]).rstrip(b"\r\n") if size <= MAX_RECORD_BYTES else None
        blank = row is not None and not row.strip()
        start = self.position
        self.position = Position(start.offset + size, self._lines.line, start.number + (not blank))
        self._partial_row, self._size = b"", 0
        if not blank:
            yield RawRecord(row, start, self.position)


def _end_without_quotes(data: bytes, begin: int) -> int:
    """Return the end of the row at ``begin``. Return 0 if it contains quotes, or a CR before its end; most rows do not."""
    end = data.find(b"\n", begin)
    if end < 0 or data.find(b'"', begin, end) >= 0 or data.find(b"\r", begin, end - 1) >= 0:
        return 0
    return end + 1


def fields_of_row(columns: Sequence[str], row: bytes) -> Mapping[str, object]:
    """Return the fields of the document in ``row``.

    Raises:
        EntryRefused: the row does not have exactly one cell per column, or its quotes are wrong.
    """
    try:
        cells = _cells(row)
    except csv.Error:
        raise EntryRefused("csv_bad_row", "A quoted cell goes on after its closing quote.") from None
    if len(cells) != len(columns):
        raise EntryRefused("csv_bad_row", f"Cells in the row: {len(cells)}; in the header: {len(columns)}.")
    filled = {name: cell for name, cell in zip(columns, cells, strict=True) if cell}
    document: dict[str, object] = {name: filled.pop(name) for name in (_ID, _TEXT) if name in filled}
    return {**document, "metadata": filled}


def _cells(row: bytes) -> list[str]:
    return next(csv.reader([row.decode()], strict=True))


def columns_of(record: RawRecord) -> tuple[str, ...]:
    """Return the column names in the header.

    Raises:
        FileRefused: the header is too long, repeats a column name, has a column without a name, or has no column ``text``.
    """
    line = record.position.line
    if record.data is None or len(record.data) > _MAX_HEADER_BYTES:
        raise FileRefused("csv_bad_header", f"The header is longer than {_MAX_HEADER_BYTES} bytes.", line)
    try:
        names = _cells(record.data)
    except csv.Error:
        raise FileRefused("csv_bad_header", "A quoted name in the header goes on after its closing quote.", line) from None
    for number, name in enumerate(names):
        if not name.strip():
            raise FileRefused("csv_bad_header", f"Column {number + 1} has no name in the header.", line)
        if name in names[:number]:
            raise FileRefused("csv_bad_header", f"The column {name[:_MAX_NAME_IN_MESSAGE]!r} stands twice in the header.", line)
    if _TEXT not in names:
        raise FileRefused("csv_no_text_column", f"The header names no column {_TEXT!r}{_hint(names)}.", line)
    return tuple(names)


def _hint(names: Sequence[str]) -> str:
    if len(names) == 1:
        for delimiter, plural in _OTHER_DELIMITERS.items():
            if delimiter in names[0]:
                return f"; its cells seem to be separated by {plural}, where a CSV needs commas"
    similar = next((name for name in names if name.strip().lower() == _TEXT), None)
    return f"; {similar[:_MAX_NAME_IN_MESSAGE]!r} is another name" if similar else ""
