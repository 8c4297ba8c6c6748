"""Write a zip (https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT) whose bodies are copied from packs as they are."""

import struct
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from spass.workspaces.objects import WorkspaceObjects
from spass.workspaces.paths import WorkspacePath
from spass.workspaces.tree import TreeFile

_LOCAL: Final = struct.Struct("<4s5H3L2H")
_CENTRAL: Final = struct.Struct("<4s6H3L5H2L")
_END: Final = struct.Struct("<4s4H2LH")
_VERSION: Final = 20  # folders and deflate
_MADE_BY_UNIX: Final = 3 << 8 | _VERSION
_UTF8: Final = 1 << 11
_DEFLATED: Final = 8
_DATE: Final = 1 << 5 | 1  # 1980-01-01, the first day that a zip can tell: equal trees make equal archives
_REGULAR_FILE: Final = 0o100644 << 16
_CHUNK_BYTES: Final = 2**16


class _Entry(NamedTuple):
    name: bytes
    file: TreeFile
    offset: int

    def header(self) -> bytes:
        return _LOCAL.pack(b"PK\x03\x04", _VERSION, *self._fields_of_both(), len(self.name), 0) + self.name

    def directory(self) -> bytes:
        fields = self._fields_of_both()
        return (
            _CENTRAL.pack(b"PK\x01\x02", _MADE_BY_UNIX, _VERSION, *fields, len(self.name), 0, 0, 0, 0, _REGULAR_FILE, self.offset)
            + self.name
        )

    def _fields_of_both(self) -> tuple[int, ...]:
        method = _DEFLATED if self.file.is_deflated else 0
        return _UTF8, method, 0, _DATE, self.file.crc32, self.file.length, self.file.size


async def stream_archive(objects: WorkspaceObjects, files: Mapping[WorkspacePath, TreeFile]) -> AsyncGenerator[bytes, None]:
    """Yield a zip of ``files`` in chunks. A zip of at most 5,000 files and 100 MiB needs no Zip64 fields."""
    names: dict[tuple[str, int, str], list[WorkspacePath]] = {}
    for path in sorted(files):
        file = files[path]
        names.setdefault((file.pack, file.offset, file.sha256), []).append(path)
    entries: list[_Entry] = []
    waiting, position, size = list[bytes](), 0, 0
    async with aclosing(objects.stored_bodies(files.values())) as bodies:
        async for file, content in bodies:
            for path in names[file.pack, file.offset, file.sha256]:
                entry = _Entry(path.encode(), file, position + size)
                entries.append(entry)
                header = entry.header()
                waiting += [header, content]
                size += len(header) + len(content)
            if size >= _CHUNK_BYTES:
                yield b"".join(waiting)
                waiting, position, size = [], position + size, 0
    yield b"".join([*waiting, *_directory(entries, position + size)])


def _directory(entries: Sequence[_Entry], start: int) -> Iterator[bytes]:
    """Yield the central directory, which begins at the offset ``start``, and its end record."""
    size = 0
    for entry in sorted(entries):
        record = entry.directory()
        size += len(record)
        yield record
    yield _END.pack(b"PK\x05\x06", 0, 0, len(entries), len(entries), size, start, 0)
