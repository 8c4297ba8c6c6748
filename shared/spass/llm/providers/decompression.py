"""Decompress a body in pieces of bounded size, because one compressed byte can become a thousand."""

import zlib
from collections.abc import AsyncIterator
from typing import Final

import httpx

_CONTENT_CODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS  # the header of the data says which
_PIECE: Final = 64 * 1024


async def iter_decompressed(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the body of ``response``, at most 64 KiB of what was compressed at a time.

    Raises:
        httpx.DecodingError: it is damaged, or compressed in another way or twice: a body that is compressed twice could unpack to
            a million times its size.
    """
    coding = response.headers.get("content-encoding", "").strip().lower()
    if coding in ("", "identity"):
        async for piece in response.aiter_raw():
            yield piece
        return
    if coding not in _CONTENT_CODINGS:
        raise httpx.DecodingError("an unknown content coding")
    unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
    async for piece in response.aiter_raw():
        packed = b"" if unpacker.eof else piece  # what follows the end is read, so that the connection can serve again
        while packed:
            yield _decompress(unpacker, packed)
            packed = unpacker.unconsumed_tail
    while rest := _decompress(unpacker, b""):
        yield rest


def _decompress(unpacker: "zlib._Decompress", packed: bytes) -> bytes:
    try:
        return unpacker.decompress(packed, _PIECE)
    except zlib.error as error:
        raise httpx.DecodingError("damaged data") from error
