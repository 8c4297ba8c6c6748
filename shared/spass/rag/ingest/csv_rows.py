"""CSV: a document in each row.

The form is that of RFC 4180, but rows may also end with LF or CR alone. The column ``text`` is the text, ``id`` the id if there
is one, every other column a string of metadata. An empty cell is no value: the id is generated, the metadata lack the field,
which a filter sees as null.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from spass.rag.ingest.checks import Problem, entry_of
from spass.rag.ingest.lines import Record
from spass.rag.ingest.plan import Entry, FileRefused, Kind, Parts, Plan, Position, Source
from spass.rag.ingest.rows import RowSplitter

_TEXT: Final = "text"
_ID: Final = "id"
_MAX_HEADER_BYTES: Final = 8192
_SHOWN: Final = 64  # characters of a name that the file chose
_OTHER_DELIMITERS: Final = {";": "semicolons", "\t": "tabs", "|": "bars"}


class CsvSurvey:
    """Reads the header, and all rows only as far as to see that each quote is closed."""

    def __init__(self, start: Position, part_bytes: int) -> None:
        self._rows = RowSplitter(replace(start, number=0))  # the header has number 0
        self._part_bytes = part_bytes
        self._columns: tuple[str, ...] = ()
        self._parts: Parts | None = None
        self._found_rows = False

    def feed(self, data: bytes, *, final: bool) -> None:
        for record in self._rows.feed(data, final=final):
            if self._parts is None:
                self._columns = _header(record)
                self._parts = Parts(record.after, self._part_bytes)
            else:
                self._found_rows = True
                self._parts.may_end(record.after)
        if final and not self._found_rows:
            raise FileRefused("empty_file", "The file holds no row below a header." if self._parts else "The file is empty.")

    def plan(self) -> Plan:
        parts = self._parts.until(self._rows.at.offset) if self._parts else ()
        return Plan(Kind.CSV, self._columns, parts)


class CsvReader:
    def __init__(self, columns: Sequence[str], source: Source, start: Position) -> None:
        self._columns = columns
        self._source = source
        self._rows = RowSplitter(start)

    def feed(self, data: bytes, *, final: bool) -> Iterator[Entry]:
        for record in self._rows.feed(data, final=final):
            yield entry_of(record, self._fields, self._source)

    def _fields(self, row: bytes) -> Mapping[str, object]:
        try:
            cells = _cells(row)
        except csv.Error:
            raise Problem("csv_bad_row", "A quoted cell goes on after its closing quote.") from None
        if len(cells) != len(self._columns):
            raise Problem("csv_bad_row", f"Cells in the row: {len(cells)}; in the header: {len(self._columns)}.")
        filled = {name: cell for name, cell in zip(self._columns, cells, strict=True) if cell}
        document: dict[str, object] = {name: filled.pop(name) for name in (_ID, _TEXT) if name in filled}
        return {**document, "metadata": filled}


def _cells(row: bytes) -> list[str]:
    return next(csv.reader([row.decode()], strict=True))


def _header(record: Record) -> tuple[str, ...]:
    line = record.at.line
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
            raise FileRefused("csv_bad_header", f"The column {name[:_SHOWN]!r} stands twice in the header.", line)
    if _TEXT not in names:
        raise FileRefused("csv_no_text_column", f"The header names no column {_TEXT!r}{_hint(names)}.", line)
    return tuple(names)


def _hint(names: Sequence[str]) -> str:
    if len(names) == 1:
        for delimiter, called in _OTHER_DELIMITERS.items():
            if delimiter in names[0]:
                return f"; its cells seem to be separated by {called}, where a CSV needs commas"
    near = next((name for name in names if name.strip().lower() == _TEXT), None)
    return f"; {near[:_SHOWN]!r} is another name" if near else ""
