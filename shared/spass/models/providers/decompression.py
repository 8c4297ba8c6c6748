"""Decompress a body in pieces of limited size, because one compressed byte can expand to a thousand bytes."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Final

import httpx

_CONTENT_CODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS  # the header of the data says which
_PIECE: Final = 64 * 1024


async def iter_decompressed(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the body of ``response``, decompressed in pieces of at most 64 KiB.

    Raises:
        httpx.DecodingError: the body is damaged, has an unknown coding, or is compressed twice. A body that is compressed twice
            could expand to a million times its size.
    """
    coding = response.headers.get("content-encoding", "").strip().lower()
    if coding in ("", "identity"):
        async for piece in response.aiter_raw():
            yield piece
        return
    if coding not in _CONTENT_CODINGS:
        raise httpx.DecodingError("an unknown content coding")
    decompressor = zlib.decompressobj(_GZIP_OR_ZLIB)
    async for piece in response.aiter_raw():
        compressed = b"" if decompressor.eof else piece  # read the bytes after the end too, so that the connection can be reused
        while compressed:
            yield _decompress(decompressor, compressed)
            compressed = decompressor.unconsumed_tail
            await asyncio.sleep(0)  # the pieces are in memory, and may be thousands: serve other requests between them
    while rest := _decompress(decompressor, b""):
        yield rest


def _decompress(decompressor: "zlib._Decompress", compressed: bytes) -> bytes:
    try:
        return decompressor.decompress(compressed, _PIECE)
    except zlib.error as error:
        raise httpx.DecodingError("damaged data") from error
