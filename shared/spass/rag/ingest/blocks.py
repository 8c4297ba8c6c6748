"""Process the bytes of a file: cut them into small pieces, count lines, and check that they are UTF-8 text."""

import asyncio
import codecs
from collections.abc import AsyncIterator
from typing import Final

from spass.rag.ingest.plan import IngestRefused

_PIECE_BYTES: Final = 64 * 1024
"""Bytes to process before other tasks of the event loop may run. They take a few milliseconds."""


async def cut_into_pieces(blocks: AsyncIterator[bytes], size: int | None = None) -> AsyncIterator[bytes]:
    """Yield ``blocks`` in pieces of at most 64 KiB. With ``size``, yield only the first ``size`` bytes.

    Raises:
        ValueError: ``blocks`` contain fewer than ``size`` bytes.
    """
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


class LineCount:
    """Count lines that end with LF, CR or CRLF, or only with LF. ``line`` is the number of the current line."""

    def __init__(self, line: int = 1, *, cr_ends_line: bool = True) -> None:
        self.line = line
        self._cr_ends_line = cr_ends_line
        self._after_cr = False

    def add(self, data: bytes) -> None:
        self.line += data.count(b"\n")
        if not self._cr_ends_line or not data:
            return
        if b"\r" in data:
            self.line += data.count(b"\r") - data.count(b"\r\n")
        if self._after_cr and data.startswith(b"\n"):
            self.line -= 1
        self._after_cr = data.endswith(b"\r")


async def skip_bom(pieces: AsyncIterator[bytes]) -> tuple[int, AsyncIterator[bytes]]:
    """Return the size of the byte order mark (BOM) at the start of a file, or 0, and the pieces after it.

    Raises:
        IngestRefused: the file is UTF-16 or UTF-32.
    """
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


async def check_text(pieces: AsyncIterator[bytes], *, every_byte: bool) -> AsyncIterator[bytes]:
    """Yield ``pieces``. Check that they contain no NUL byte and, with ``every_byte``, that they are UTF-8.

    Raises:
        IngestRefused: they are not UTF-8 text.
    """
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
