"""What every reader does with the bytes themselves: take them in bites, count lines, refuse what is no text of UTF-8."""

import asyncio
import codecs
from collections.abc import AsyncIterator
from typing import Final

from spass.rag.ingest.plan import FileRefused

BOM: Final = codecs.BOM_UTF8
_BITE: Final = 64 * 1024
"""Bytes worked on before others get their turn: a few milliseconds."""


async def bites(blocks: AsyncIterator[bytes], size: int | None = None) -> AsyncIterator[bytes]:
    """``blocks`` in pieces small enough to be worked on at once; only the first ``size`` bytes of them, if it is given.

    Raises:
        ValueError: there are fewer.
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
    """The number of the line that the bytes so far end on, where LF, CR and CRLF each end one."""

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
    """Lets the bytes of a text pass, without its byte order mark."""

    def __init__(self, *, every_byte: bool) -> None:
        """With ``every_byte`` all of it must be UTF-8; without, only be no other encoding that shows."""
        self.offset = 0
        """Bytes that were left out before the first that passed."""
        self._start = b""
        self._started = False
        self._lines = LineCount()
        self._decoder = codecs.getincrementaldecoder("utf-8")() if every_byte else None

    def passed(self, data: bytes, *, final: bool = False) -> bytes:
        """``data``, perhaps with some kept back until it is clear what the file begins with.

        Raises:
            FileRefused: it is no text of UTF-8.
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
            message = f"Line {self._lines.line} holds a NUL byte: the file is no text, or UTF-16; save it as UTF-8."
            raise FileRefused("not_text", message, self._lines.line)
