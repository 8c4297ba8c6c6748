"""Process the bytes of a file: cut them into small pieces, count lines, and check that they are UTF-8 text."""

import asyncio
import codecs
from collections.abc import AsyncIterator
from typing import Final

from spass.rag.ingest.plan import FileRefused

BOM: Final = codecs.BOM_UTF8
_PIECE_BYTES: Final = 64 * 1024
"""Bytes to process before other tasks of the event loop may run. They take a few milliseconds."""


async def bites(blocks: AsyncIterator[bytes], size: int | None = None) -> AsyncIterator[bytes]:
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
    """Count lines that end with LF, CR or CRLF. ``line`` is the number of the current line."""

    def __init__(self, line: int = 1) -> None:
        self.line = line
        self._after_cr = False

    def add(self, data: bytes) -> None:
        self.line += lines_ended(data)
        if self._after_cr and data.startswith(b"\n"):
            self.line -= 1
        if data:
            self._after_cr = data.endswith(b"\r")


def lines_ended(data: bytes) -> int:
    """Return the number of line ends (LF, CR or CRLF) in ``data``."""
    count = data.count(b"\n")
    if b"\r" in data:
        count += data.count(b"\r") - data.count(b"\r\n")
    return count


class TextGuard:
    """Check that bytes are UTF-8 text, and drop the byte order mark."""

    def __init__(self, *, every_byte: bool) -> None:
        """With ``every_byte``, check that all bytes are UTF-8. Without it, refuse only UTF-16 and NUL bytes."""
        self.offset = 0
        """The size in bytes of the byte order mark that was dropped, or 0."""
        self._start = b""
        self._started = False
        self._lines = LineCount()
        self._decoder = codecs.getincrementaldecoder("utf-8")() if every_byte else None

    def passed(self, data: bytes, *, final: bool = False) -> bytes:
        """Check ``data`` and return it. Buffer the first bytes of the file until they show whether there is a byte order mark.

        Raises:
            FileRefused: ``data`` is not UTF-8 text.
        """
        if not self._started:
            data = self._drop_bom(data, final=final)
        self._check(data, final=final)
        self._lines.add(data)
        return data

    def _drop_bom(self, data: bytes, *, final: bool) -> bytes:
        self._start += data
        if self._start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise FileRefused("not_utf8", "The file is UTF-16 or UTF-32; save it as UTF-8.", 1)
        if len(self._start) < len(BOM) and not final:
            return b""
        self._started = True
        if self._start.startswith(BOM):
            self.offset = len(BOM)
        return self._start[self.offset :]

    def _check(self, data: bytes, *, final: bool) -> None:
        nul = data.find(b"\0")
        try:
            if self._decoder:
                self._decoder.decode(data if nul < 0 else data[:nul], final=final or nul >= 0)
        except UnicodeDecodeError as error:
            self._lines.add(error.object[: error.start])
            raise FileRefused("not_utf8", f"Line {self._lines.line} is not UTF-8.", self._lines.line) from None
        if nul >= 0:
            self._lines.add(data[:nul])
            message = f"Line {self._lines.line} holds a NUL byte: the file is not text, or it is UTF-16; save it as UTF-8."
            raise FileRefused("not_text", message, self._lines.line)
