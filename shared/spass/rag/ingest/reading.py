"""Read files as streams: check a whole file and plan its parts, and later read the entries of one part.

Only one block and one record of a file are in memory at a time.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeAlias

from spass.rag.ingest.blocks import TextGuard, bites
from spass.rag.ingest.csv_rows import RowSplitter, columns_of, fields_of_row
from spass.rag.ingest.jsonl import LineSplitter, fields_of_line
from spass.rag.ingest.plan import Entry, FileKind, FileName, FilePlan, FileRefused, PartRange, Position
from spass.rag.ingest.records import RawRecord, parse_entry
from spass.rag.ingest.text import Chunk, Chunker, chunk_entry

Unit: TypeAlias = RawRecord | Chunk


class _Splitter(Protocol):
    @property
    def end(self) -> int: ...

    def feed(self, data: bytes, *, final: bool) -> Iterator[Unit]: ...

    def may_end(self) -> bool: ...


async def survey(kind: FileKind, blocks: AsyncIterator[bytes], *, part_bytes: int) -> FilePlan:
    """Read the whole file once, and plan parts of about ``part_bytes`` bytes. Each part ends with a record or chunk.

    Raises:
        FileRefused: the file is empty, is not text in UTF-8, or is a CSV with a wrong header or wrong quotes. A JSONL
            line that is not UTF-8 does not raise: it becomes the error of one entry when the part is read.
    """
    guard = TextGuard(every_byte=kind is not FileKind.JSONL)
    running: _Survey | None = None
    async for data in bites(blocks):
        if passed := guard.passed(data):
            running = running or _Survey(kind, Position(guard.offset), part_bytes)
            running.feed(passed, final=False)
    passed = guard.passed(b"", final=True)
    running = running or _Survey(kind, Position(guard.offset), part_bytes)
    running.feed(passed, final=True)
    return running.plan()


async def entries(
    kind: FileKind, columns: Sequence[str], source: FileName, blocks: AsyncIterator[bytes], start: Position, end: int
) -> AsyncIterator[Entry]:
    """Yield the entries of a part from ``start`` up to the offset ``end`` of the part.

    ``start`` is the start of the part or the ``next_position`` of one of its entries. ``blocks`` begin at the byte
    ``start.offset`` and contain at least all bytes up to ``end``.

    Raises:
        ValueError: the blocks end before ``end``, or contain bytes that are not UTF-8, which ``survey`` refuses.
    """
    splitter = _splitter(kind, start)
    fields = fields_of_line if kind is FileKind.JSONL else partial(fields_of_row, columns)

    def entry(unit: Unit) -> Entry:
        return chunk_entry(unit, source) if isinstance(unit, Chunk) else parse_entry(unit, fields, source)

    async for data in bites(blocks, end - start.offset):
        for unit in splitter.feed(data, final=False):
            yield entry(unit)
    for unit in splitter.feed(b"", final=True):
        yield entry(unit)


class _Survey:
    def __init__(self, kind: FileKind, start: Position, part_bytes: int) -> None:
        self._kind = kind
        self._splitter = _splitter(kind, Position(start.offset, number=0) if kind is FileKind.CSV else start)
        self._part_bytes = part_bytes
        self._columns: tuple[str, ...] = ()
        self._start = start  # of the current part
        self._parts: list[PartRange] = []
        self._empty = True

    def feed(self, data: bytes, *, final: bool) -> None:
        for unit in self._splitter.feed(data, final=final):
            if self._kind is FileKind.CSV and not self._columns and isinstance(unit, RawRecord):
                self._columns = columns_of(unit)
                self._start = unit.next_position
                continue
            self._empty = False
            if unit.next_position.offset - self._start.offset >= self._part_bytes and self._splitter.may_end():
                self._parts.append(PartRange(self._start, unit.next_position.offset))
                self._start = unit.next_position
        if final and self._empty:
            raise FileRefused(
                "empty_file",
                _EMPTY_MESSAGES[self._kind] if self._columns or self._kind is not FileKind.CSV else "The file is empty.",
            )

    def plan(self) -> FilePlan:
        end = self._splitter.end
        last_part = [PartRange(self._start, end)] if end > self._start.offset or not self._parts else []
        return FilePlan(self._kind, self._columns, (*self._parts, *last_part))


_EMPTY_MESSAGES = {
    FileKind.JSONL: "The file holds no line that is not blank.",
    FileKind.CSV: "The file holds no row below a header.",
    FileKind.TEXT: "The file holds nothing but blanks.",
    FileKind.MARKDOWN: "The file holds nothing but blanks.",
}


def _splitter(kind: FileKind, position: Position) -> _Splitter:
    match kind:
        case FileKind.JSONL:
            return LineSplitter(position)
        case FileKind.CSV:
            return RowSplitter(position)
        case _:
            return Chunker(kind, position)
