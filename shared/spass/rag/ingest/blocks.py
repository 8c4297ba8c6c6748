"""The bytes of a file: pieces of them, numbers of lines, and the check that they are text in UTF-8."""

import asyncio
import codecs
from collections.abc import AsyncIterator
from typing import Final

from spass.rag.ingest.plan import FileRefused

BOM: Final = codecs.BOM_UTF8
_BITE: Final = 64 * 1024
"""Bytes that are read before other tasks of the event loop run: a few milliseconds."""


async def bites(blocks: AsyncIterator[bytes], size: int | None = None) -> AsyncIterator[bytes]:
    """Yield ``blocks`` in pieces of at most 64 KiB; only the first ``size`` bytes of them, if it is given.

    Raises:
        ValueError: there are fewer bytes.
    """
    left = size
    if left == 0:
        return
    async for block in blocks:
        view = memoryview(block)[:left]
        for begin in range(0, len(view), _BITE):
            yield bytes(view[begin : begin + _BITE])
            await asyncio.sleep(0)
        if left is not None:
            left -= len(view)
            if not left:
                return
    if left:
        raise ValueError(f"The blocks end {left} bytes before the part does.")


class LineCount:
    """Counts lines, each of which ends with LF, CR or CRLF. ``line`` is the number of the current one."""

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
    ended = data.count(b"\n")
    if b"\r" in data:
        ended += data.count(b"\r") - data.count(b"\r\n")
    return ended


class TextGuard:
    """Checks that bytes are text in UTF-8, and drops the byte order mark."""

    def __init__(self, *, every_byte: bool) -> None:
        """With ``every_byte`` all bytes must be UTF-8; without it, only UTF-16 and NUL bytes are refused."""
        self.offset = 0
        """Bytes of the byte order mark, which was dropped."""
        self._start = b""
        self._started = False
        self._lines = LineCount()
        self._decoder = codecs.getincrementaldecoder("utf-8")() if every_byte else None

    def passed(self, data: bytes, *, final: bool = False) -> bytes:
        """Return ``data``, without bytes that are kept back until the start of the file is known.

        Raises:
            FileRefused: it is not text in UTF-8.
        """
        if not self._started:
            data = self._begun(data, final=final)
        self._check(data, final=final)
        self._lines.add(data)
        return data

    def _begun(self, data: bytes, *, final: bool) -> bytes:
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
