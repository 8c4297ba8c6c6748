"""Packs: the compressed bodies that one version added, concatenated."""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spass.core.errors import InternalError
from spass.workspaces.change import Body
from spass.workspaces.tree import TreeFile

_RAW_DEFLATE = -15  # zlib's window bits for a stream without header and checksum, as a zip holds it


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack, and its files by SHA-256."""

    name: str
    content: bytes
    files: Mapping[str, TreeFile]


def encode_pack(name: str, bodies: Iterable[Body]) -> Pack:
    """Return the pack of ``bodies``. A body that does not shrink is stored as it is."""
    parts: list[bytes] = []
    files: dict[str, TreeFile] = {}
    offset = 0
    for body in bodies:
        part = _deflate(body.content)
        if len(part) >= body.size:
            part = body.content
        pack = name if part else ""
        files[body.sha256] = TreeFile(body.sha256, body.size, pack, offset if part else 0, len(part), zlib.crc32(body.content))
        parts.append(part)
        offset += len(part)
    return Pack(name, b"".join(parts), files)


def decode_body(file: TreeFile, stored: bytes) -> bytes:
    """Return the body of ``file``, given its bytes in the pack.

    Raises:
        InternalError: these are not its bytes.
    """
    try:
        body = zlib.decompress(stored, _RAW_DEFLATE, file.size) if file.is_deflated else stored
    except zlib.error:
        body = None
    if body is None or len(body) != file.size or zlib.crc32(body) != file.crc32:
        raise InternalError(f"The bytes of a file of {file.size} bytes in {file.pack!r} are damaged.")
    return body


def _deflate(body: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=_RAW_DEFLATE)
    return compressor.compress(body) + compressor.flush()
