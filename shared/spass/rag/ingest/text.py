"""TXT and Markdown: chunks that follow the structure of the text.

A chunk is a piece of the file byte by byte, without the blanks around it. Together the chunks are all of the file that is not
blank.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from pydantic import JsonValue

from spass.rag.ingest.blocks import LineCount
from spass.rag.ingest.plan import Entry, FileKind, FileName, Position
from spass.rag.ingest.records import named_document
from spass.rag.ingest.structure import REACH, ChunkEnd, TextWindow, cut, whole_characters

_BLANKS: Final = re.compile(
    rb"(?:[\s\x1c-\x1f]++|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)*+"
)
"""The characters of ``str.isspace``, in UTF-8."""
_LEAD: Final = 64  # bytes of the blanks before a chunk that can matter
_START_OF_FILE: Final = b"\n\n"


@dataclass(frozen=True, slots=True)
class Chunk:
    data: bytes
    begin: int
    after: Position
    """The end of ``data``; the blanks that follow are before the next."""
    page: TextWindow

    def same_if_file_ends(self, end: int) -> bool:
        """Return True if the chunk would be the same in a file that ends at the offset ``end``."""
        body = self.page.body[: end - self.begin]
        return cut(replace(self.page, body=body)) == ChunkEnd(len(self.data), self.after.fence)


class Chunker:
    """Splits text into chunks."""

    def __init__(self, kind: FileKind, at: Position) -> None:
        self._markdown = kind is FileKind.MARKDOWN
        self._data = b""
        self._offset = at.offset  # of the first byte of data
        self._lines = LineCount(at.line)
        self._number = at.number
        self._fence = at.fence
        self._recent: deque[Chunk] = deque()  # chunks that saw what is behind the last one

    @property
    def end(self) -> int:
        """Return the offset of the next byte to feed."""
        return self._offset + len(self._data)

    def feed(self, data: bytes, *, final: bool) -> Iterator[Chunk]:
        """Yield the chunks that are certain with ``data``; all of them if it is ``final``. Read it to the end."""
        data = self._data + data
        here = 0
        while True:
            begin = _end_of_blanks(data, here)
            if begin == len(data) or (len(data) - begin < REACH and not final):
                break
            chunk = self._chunk(data, here, begin)
            here = begin + len(chunk.data)
            self._recent.append(chunk)
            while self._recent[0].begin + REACH <= chunk.after.offset:
                self._recent.popleft()
            yield chunk
        if begin - here > _LEAD:
            dropped = whole_characters(data, begin - _LEAD)
            self._lines.add(data[here:dropped])
            here = dropped
        self._data = data[here:]
        self._offset += here

    def may_end(self) -> bool:
        """Return True if a part may end after the last chunk: the chunks before it would be the same."""
        end = self._recent[-1].after.offset
        return all(chunk.same_if_file_ends(end) for chunk in reversed(self._recent))

    def _chunk(self, data: bytes, here: int, begin: int) -> Chunk:
        lead = data[max(here, begin - _LEAD) : begin]
        if self._number == 1:
            lead = _START_OF_FILE + lead
        page = TextWindow(data[begin : begin + REACH], lead, self._fence, self._markdown)
        found = cut(page)
        end = begin + found.size
        self._lines.add(data[here:end])
        self._number += 1
        self._fence = found.fence
        after = Position(self._offset + end, self._lines.line, self._number, self._fence)
        return Chunk(data[begin:end], self._offset + begin, after, page)


def _end_of_blanks(data: bytes, here: int) -> int:
    blanks = _BLANKS.match(data, here)
    return blanks.end() if blanks else here


def chunk_entry(chunk: Chunk, source: FileName) -> Entry:
    """Return the document that ``chunk`` is; it always keeps the rules."""
    metadata: dict[str, JsonValue] = {"source": source.name, "start": chunk.begin, "end": chunk.after.offset}
    return Entry(named_document(chunk.data.decode(), metadata, source, chunk.after.number - 1), None, chunk.after)
