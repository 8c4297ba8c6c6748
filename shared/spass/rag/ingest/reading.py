"""Read files as streams: check a whole file and plan its parts, and later read the entries of one part.

Only one block and one record of a file are in memory at a time.
"""

import asyncio
import codecs
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

from spass.rag.ingest.csv_rows import RowSplitter, columns_of, fields_of_row
from spass.rag.ingest.plan import Entry, FileKind, FilePlan, IngestRefused, PartRange, Position
from spass.rag.ingest.records import LineCount, LineSplitter, RawRecord, fields_of_line, parse_entry
from spass.rag.ingest.text import Passage, TextSplitter, passage_entry

_Unit: TypeAlias = RawRecord | Passage

_EMPTY_MESSAGES: Final[Mapping[FileKind, str]] = {
    FileKind.JSONL: "All lines of the file are blank.",
    FileKind.CSV: "The file has a header, but no row.",
    FileKind.TEXT: "The file is blank.",
    FileKind.MARKDOWN: "The file is blank.",
}

_PIECE_BYTES: Final = 64 * 1024
"""Bytes to process before other tasks of the event loop may run. They take a few milliseconds."""


class _Splitter(Protocol):
    @property
    def end(self) -> int: ...

    def feed(self, data: bytes, *, final: bool = False) -> Iterator[_Unit]: ...

    def may_end(self) -> bool: ...


async def survey(kind: FileKind, blocks: AsyncIterator[bytes], *, part_bytes: int) -> FilePlan:
    """Read the whole file once, and plan parts of about ``part_bytes`` bytes. Each part ends with a record or passage.

    Raises:
        IngestRefused: the file is empty, is not text in UTF-8, or is a CSV with a wrong header or wrong quotes. A JSONL line that
            is not UTF-8 does not raise: it becomes the error of one entry when the part is read.
    """
    bom_bytes, pieces = await _skip_bom(_cut_into_pieces(blocks))
    start = Position(bom_bytes)  # of the current part
    splitter = _splitter(kind, Position(bom_bytes, number=0) if kind is FileKind.CSV else start)
    columns: tuple[str, ...] = ()
    parts: list[PartRange] = []
    empty = True
    async for unit in _split(splitter, _check_text(pieces, every_byte=kind is not FileKind.JSONL)):
        if kind is FileKind.CSV and not columns and isinstance(unit, RawRecord):
            columns = columns_of(unit)
            start = unit.next_position
            continue
        empty = False
        if unit.next_position.offset - start.offset >= part_bytes and splitter.may_end():
            parts.append(PartRange(start, unit.next_position.offset))
            start = unit.next_position
    if empty:
        without_header = kind is FileKind.CSV and not columns
        raise IngestRefused("empty_file", "The file is empty." if without_header else _EMPTY_MESSAGES[kind])
    if splitter.end > start.offset:
        parts.append(PartRange(start, splitter.end))
    return FilePlan(kind, columns, tuple(parts))


async def entries(
    kind: FileKind, columns: Sequence[str], filename: str, blocks: AsyncIterator[bytes], start: Position, end: int
) -> AsyncIterator[Entry]:
    """Yield the entries of a part from ``start`` up to the offset ``end`` of the part.

    ``start`` is the start of the part or the ``next_position`` of one of its entries. ``blocks`` begin at the byte
    ``start.offset`` and contain at least all bytes up to ``end``.

    Raises:
        ValueError: the blocks end before ``end``, or contain bytes that are not UTF-8, which ``survey`` refuses.
    """
    parse = fields_of_line if kind is FileKind.JSONL else partial(fields_of_row, columns)
    async for unit in _split(_splitter(kind, start), _cut_into_pieces(blocks, end - start.offset)):
        yield passage_entry(unit, filename) if isinstance(unit, Passage) else parse_entry(unit, parse, filename)


async def _split(splitter: _Splitter, pieces: AsyncIterator[bytes]) -> AsyncIterator[_Unit]:
    async for data in pieces:
        for unit in splitter.feed(data):
            yield unit
    for unit in splitter.feed(b"", final=True):
        yield unit


def _splitter(kind: FileKind, position: Position) -> _Splitter:
    match kind:
        case FileKind.JSONL:
            return LineSplitter(position)
        case FileKind.CSV:
            return RowSplitter(position)
        case _:
            return TextSplitter(kind, position)


async def _cut_into_pieces(blocks: AsyncIterator[bytes], size: int | None = None) -> AsyncIterator[bytes]:
    """Yield ``blocks`` in pieces of at most 64 KiB. With ``size``, yield only the first ``size`` bytes. Raise ``ValueError`` if
    ``blocks`` contain fewer than ``size`` bytes."""
    remaining = size
    if remaining == 0:
        return
    async for block in blocks:
        view = memoryview(block)[:remaining]
        for begin in range(0, len(view), _PIECE_BYTES):
            yield bytes(view[begin : begin + _PIECE_BYTES])
            await asyncio.sleep(0)
        if remaining is not None:
            remaining -= len(view)
            if not remaining:
                return
    if remaining:
        raise ValueError(f"The blocks end {remaining} bytes before the part does.")


async def _skip_bom(pieces: AsyncIterator[bytes]) -> tuple[int, AsyncIterator[bytes]]:
    """Return the size of the byte order mark (BOM) at the start of a file, or 0, and the pieces after it. Raise ``IngestRefused``
    if the file is UTF-16 or UTF-32."""
    head = b""
    while len(head) < len(codecs.BOM_UTF8) and (piece := await anext(pieces, b"")):
        head += piece
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise IngestRefused("not_utf8", "The file is UTF-16 or UTF-32; save it as UTF-8.", 1)
    size = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0

    async def rest() -> AsyncIterator[bytes]:
        yield head[size:]
        async for piece in pieces:
            yield piece

    return size, rest()


async def _check_text(pieces: AsyncIterator[bytes], *, every_byte: bool) -> AsyncIterator[bytes]:
    """Yield ``pieces``. Check that they contain no NUL byte and, with ``every_byte``, that they are UTF-8. Raise
    ``IngestRefused`` if they are not UTF-8 text."""
    lines = LineCount()
    decoder = codecs.getincrementaldecoder("utf-8")() if every_byte else None
    try:
        async for data in pieces:
            text, nul, _ = data.partition(b"\0")
            if decoder:
                decoder.decode(text, final=bool(nul))
            lines.add(text)
            if nul:
                message = f"Line {lines.line} contains a NUL byte: the file is not text, or it is UTF-16; save it as UTF-8."
                raise IngestRefused("not_text", message, lines.line)
            yield data
        if decoder:
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        lines.add(error.object[: error.start])
        raise IngestRefused("not_utf8", f"Line {lines.line} is not UTF-8.", lines.line) from None
