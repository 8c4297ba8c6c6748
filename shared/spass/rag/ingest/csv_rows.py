"""Split CSV files into rows. Each row contains one document.

The format is RFC 4180, but a row may also end with LF or CR alone. The column ``text`` is the text, the optional column ``id`` is
the id, and every other column is a metadata field with a string value. An empty cell has no value: if the id is empty, one is
generated; if a metadata cell is empty, the document does not have that field, and a filter sees it as null.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final

from spass.rag.ingest.plan import IngestRefused, Position
from spass.rag.ingest.records import LineCount, RawRecord, RecordSplitter

_TEXT: Final = "text"
_ID: Final = "id"
_MAX_HEADER_BYTES: Final = 8192
_MAX_NAME_IN_MESSAGE: Final = 64  # characters of a column name in a message
_OTHER_DELIMITERS: Final = {";": "semicolons", "\t": "tabs", "|": "bars"}

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


class RowSplitter(RecordSplitter):
    """Split a file into rows at LF, CR or CRLF outside of quotes."""

    _BLANK_LINES = re.compile(rb"(?:[ \t]*+[\r\n])*+")

    def __init__(self, position: Position) -> None:
        super().__init__(position, LineCount(position.line))
        self._state = _State.CELL
        self._quote_line = position.line  # where the last quote was opened

    def _record_end(self, data: bytes, begin: int) -> int | None:
        if self._state is _State.CELL and (end := _end_without_quotes(data, begin)):
            return end
        at = begin
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

    def _end_record(self, data: bytes, begin: int, end: int) -> RawRecord | None:
        if self._state is _State.QUOTED:  # only at the end of the file
            message = f"The quote opened on line {self._quote_line} is not closed."
            raise IngestRefused("csv_unclosed_quote", message, self._quote_line)
        return super()._end_record(data, begin, end)


def _end_without_quotes(data: bytes, begin: int) -> int:
    """Return the end of the row at ``begin``. Return 0 if it contains quotes, or a CR before its end; most rows do not."""
    end = data.find(b"\n", begin)
    if end < 0 or data.find(b'"', begin, end) >= 0 or data.find(b"\r", begin, end - 1) >= 0:
        return 0
    return end + 1


def fields_of_row(columns: Sequence[str], row: bytes) -> Mapping[str, object]:
    """Return the fields of the document in ``row``. Raise ``IngestRefused`` if the row does not have exactly one cell per column,
    or its quotes are wrong."""
    try:
        cells = _cells(row)
    except csv.Error:
        raise IngestRefused("csv_bad_row", "A quoted cell continues after its closing quote.") from None
    if len(cells) != len(columns):
        raise IngestRefused("csv_bad_row", f"Cells in the row: {len(cells)}; in the header: {len(columns)}.")
    filled = {name: cell for name, cell in zip(columns, cells, strict=True) if cell}
    document: dict[str, object] = {name: filled.pop(name) for name in (_ID, _TEXT) if name in filled}
    return {**document, "metadata": filled}


def _cells(row: bytes) -> list[str]:
    return next(csv.reader([row.decode()], strict=True))


def columns_of(record: RawRecord) -> tuple[str, ...]:
    """Return the column names in the header. Raise ``IngestRefused`` if the header is too long, repeats a column name, has a
    column without a name, or has no column ``text``."""
    line = record.position.line
    if record.data is None or len(record.data) > _MAX_HEADER_BYTES:
        raise IngestRefused("csv_bad_header", f"The header is longer than {_MAX_HEADER_BYTES} bytes.", line)
    try:
        names = _cells(record.data)
    except csv.Error:
        raise IngestRefused("csv_bad_header", "A quoted name in the header continues after its closing quote.", line) from None
    for number, name in enumerate(names):
        if not name.strip():
            raise IngestRefused("csv_bad_header", f"Column {number + 1} has no name in the header.", line)
        if name in names[:number]:
            raise IngestRefused("csv_bad_header", f"The column {name[:_MAX_NAME_IN_MESSAGE]!r} is in the header twice.", line)
    if _TEXT not in names:
        raise IngestRefused("csv_no_text_column", f"The header has no column {_TEXT!r}{_hint(names)}.", line)
    return tuple(names)


def _hint(names: Sequence[str]) -> str:
    if len(names) == 1:
        for delimiter, plural in _OTHER_DELIMITERS.items():
            if delimiter in names[0]:
                return f"; its cells seem to be separated by {plural}, where a CSV needs commas"
    similar = next((name for name in names if name.strip().lower() == _TEXT), None)
    return f"; {similar[:_MAX_NAME_IN_MESSAGE]!r} is a different name" if similar else ""
