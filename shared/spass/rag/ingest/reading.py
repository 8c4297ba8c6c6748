"""Files as streams: one pass that refuses what cannot be read and finds the parts, then the entries of a part.

No more of a file is held than one record and a block, wherever its bytes come from.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeAlias

from spass.rag.ingest.blocks import TextGuard, bites
from spass.rag.ingest.csv_rows import RowSplitter, columns_of, fields_of_row
from spass.rag.ingest.jsonl import LineSplitter, fields_of_line
from spass.rag.ingest.plan import Entry, FileKind, FileName, FilePlan, FileRefused, PartRange, Position
from spass.rag.ingest.records import RawRecord, entry_of
from spass.rag.ingest.text import Chunk, Chunker, chunk_entry

Unit: TypeAlias = RawRecord | Chunk


class _Splitter(Protocol):
    @property
    def end(self) -> int: ...

    def feed(self, data: bytes, *, final: bool) -> Iterator[Unit]: ...

    def may_end(self) -> bool: ...


async def survey(kind: FileKind, blocks: AsyncIterator[bytes], *, part_bytes: int) -> FilePlan:
    """Read the whole file once, and plan parts of about ``part_bytes`` that each end with a record or chunk.

    Raises:
        FileRefused: it is empty, is not text in UTF-8, or is a CSV whose header or quotes are wrong. A line of JSONL that is not
            UTF-8 is refused alone, when it is read.
    """
    guard = TextGuard(every_byte=kind is not FileKind.JSONL)
    found: _Survey | None = None
    async for data in bites(blocks):
        if passed := guard.passed(data):
            found = found or _Survey(kind, Position(guard.offset), part_bytes)
            found.feed(passed, final=False)
    passed = guard.passed(b"", final=True)
    found = found or _Survey(kind, Position(guard.offset), part_bytes)
    found.feed(passed, final=True)
    return found.plan()


async def entries(
    kind: FileKind, columns: Sequence[str], source: FileName, blocks: AsyncIterator[bytes], start: Position, end: int
) -> AsyncIterator[Entry]:
    """Yield the entries of a part from ``start``, its start or any ``Entry.after`` in it, up to ``end``, the part's.

    ``columns`` are the plan's. ``blocks`` begin at the byte ``start.offset`` and reach to ``end`` at least.

    Raises:
        ValueError: the blocks end before that, or are not UTF-8 where the survey would have refused it.
    """
    splitter = _splitter(kind, start)
    fields = fields_of_line if kind is FileKind.JSONL else partial(fields_of_row, columns)

    def entry(unit: Unit) -> Entry:
        return chunk_entry(unit, source) if isinstance(unit, Chunk) else entry_of(unit, fields, source)

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
        self._start = start  # of the part that is open
        self._closed: list[PartRange] = []
        self._empty = True

    def feed(self, data: bytes, *, final: bool) -> None:
        for unit in self._splitter.feed(data, final=final):
            if self._kind is FileKind.CSV and not self._columns and isinstance(unit, RawRecord):
                self._columns = columns_of(unit)
                self._start = unit.after
                continue
            self._empty = False
            if unit.after.offset - self._start.offset >= self._part_bytes and self._splitter.may_end():
                self._closed.append(PartRange(self._start, unit.after.offset))
                self._start = unit.after
        if final and self._empty:
            raise FileRefused(
                "empty_file", _EMPTY[self._kind] if self._columns or self._kind is not FileKind.CSV else "The file is empty."
            )

    def plan(self) -> FilePlan:
        end = self._splitter.end
        rest = [PartRange(self._start, end)] if end > self._start.offset or not self._closed else []
        return FilePlan(self._kind, self._columns, (*self._closed, *rest))


_EMPTY = {
    FileKind.JSONL: "The file holds no line that is not blank.",
    FileKind.CSV: "The file holds no row below a header.",
    FileKind.TEXT: "The file holds nothing but blanks.",
    FileKind.MARKDOWN: "The file holds nothing but blanks.",
}


def _splitter(kind: FileKind, at: Position) -> _Splitter:
    match kind:
        case FileKind.JSONL:
            return LineSplitter(at)
        case FileKind.CSV:
            return RowSplitter(at)
        case _:
            return Chunker(kind, at)
