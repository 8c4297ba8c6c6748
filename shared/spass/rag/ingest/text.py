"""Split TXT and Markdown files into chunks, at sections, paragraphs and sentences.

A chunk is a byte range of the file that neither begins nor ends with blanks. Together the chunks contain all text of the file.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from pydantic import JsonValue

from spass.rag.ingest.blocks import LineCount
from spass.rag.ingest.chunk_end import WINDOW_BYTES, ChunkEnd, TextWindow, align_to_character, find_chunk_end
from spass.rag.ingest.filenames import metadata_name
from spass.rag.ingest.plan import Entry, FileKind, Position
from spass.rag.ingest.records import build_document

_BLANKS: Final = re.compile(
    rb"(?:[\s\x1c-\x1f]++|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)*+"
)
"""The characters of ``str.isspace``, in UTF-8."""
_LEADING_BLANK_BYTES: Final = 64  # of the blanks before a chunk; earlier ones do not affect where the chunk ends
_START_OF_FILE: Final = b"\n\n"


@dataclass(frozen=True, slots=True)
class Chunk:
    data: bytes
    begin: int
    line: int
    next_position: Position
    """The position after ``data``. The blanks that follow it are before the next chunk."""
    window: TextWindow

    def is_same_if_file_ends(self, end: int) -> bool:
        """Return whether this chunk would be the same if the file ended at offset ``end``."""
        body = self.window.body[: end - self.begin]
        return find_chunk_end(replace(self.window, body=body)) == ChunkEnd(len(self.data), self.next_position.fence)


class Chunker:
    """Split a text into chunks."""

    def __init__(self, kind: FileKind, position: Position) -> None:
        self._markdown = kind is FileKind.MARKDOWN
        self._data = b""
        self._offset = position.offset  # in the file, of the first byte of ``_data``
        self._lines = LineCount(position.line)
        self._number = position.number
        self._fence = position.fence
        self._recent: deque[Chunk] = deque()  # chunks whose window reaches beyond the last chunk

    @property
    def end(self) -> int:
        """Return the offset of the next byte to feed."""
        return self._offset + len(self._data)

    def feed(self, data: bytes, *, final: bool = False) -> Iterator[Chunk]:
        """Yield the chunks that later bytes cannot change. If ``data`` is ``final``, yield all chunks. Exhaust the iterator."""
        data = self._data + data
        at = 0
        while True:
            begin = _end_of_blanks(data, at)
            if begin == len(data) or (len(data) - begin < WINDOW_BYTES and not final):
                break
            chunk = self._chunk(data, at, begin)
            at = begin + len(chunk.data)
            self._recent.append(chunk)
            while self._recent[0].begin + WINDOW_BYTES <= chunk.next_position.offset:
                self._recent.popleft()
            yield chunk
        if begin - at > _LEADING_BLANK_BYTES:
            drop_end = align_to_character(data, begin - _LEADING_BLANK_BYTES)
            self._lines.add(data[at:drop_end])
            at = drop_end
        self._data = data[at:]
        self._offset += at

    def may_end(self) -> bool:
        """Return whether a part may end after the last chunk: the chunks so far must not depend on later bytes."""
        end = self._recent[-1].next_position.offset
        return all(chunk.is_same_if_file_ends(end) for chunk in reversed(self._recent))

    def _chunk(self, data: bytes, at: int, begin: int) -> Chunk:
        leading_blanks = data[max(at, begin - _LEADING_BLANK_BYTES) : begin]
        if self._number == 1:
            leading_blanks = _START_OF_FILE + leading_blanks
        window = TextWindow(data[begin : begin + WINDOW_BYTES], leading_blanks, self._fence, self._markdown)
        chunk_end = find_chunk_end(window)
        end = begin + chunk_end.size
        self._lines.add(data[at:begin])
        line = self._lines.line
        self._lines.add(data[begin:end])
        self._number += 1
        self._fence = chunk_end.fence
        next_position = Position(self._offset + end, self._lines.line, self._number, self._fence)
        return Chunk(data[begin:end], self._offset + begin, line, next_position, window)


def _end_of_blanks(data: bytes, at: int) -> int:
    blanks = _BLANKS.match(data, at)
    return blanks.end() if blanks else at


def chunk_entry(chunk: Chunk, filename: str) -> Entry:
    """Return the entry of ``chunk``. A chunk is always a valid document."""
    after = chunk.next_position
    metadata: dict[str, JsonValue] = {"source": metadata_name(filename), "start": chunk.begin, "end": after.offset}
    return Entry(chunk.line, build_document(chunk.data.decode(), metadata, filename, after.number - 1), None, after)
