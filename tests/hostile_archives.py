"""Zip archives that every route must refuse, each with the code of its error, and a writer of archives that can lie."""

import stat
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

MIB: Final = 1024 * 1024
DEFLATED: Final = 8


@dataclass(frozen=True)
class Member:
    """An entry of an archive. What is None follows from the content; other values are written as they are."""

    name: str | bytes
    content: bytes = b"x\n"
    method: int = DEFLATED
    flags: int = 0x800
    mode: int = stat.S_IFREG | 0o644
    system: int = 3
    dos_attributes: int = 0
    crc32: int | None = None
    size: int | None = None
    packed_size: int | None = None
    packed: bytes | None = None
    extra: bytes = b""
    local_extra: bytes = b""
    local_name: bytes | None = None
    local_method: int | None = None
    local_size: int | None = None
    local_flags: int | None = None
    descriptor: bytes = b""
    offset: int | None = None
    disk: int = 0

    @property
    def raw_name(self) -> bytes:
        return self.name if isinstance(self.name, bytes) else self.name.encode("utf-8", "surrogatepass")

    @cached_property
    def data(self) -> bytes:
        if self.packed is not None:
            return self.packed
        return deflate(self.content) if self.method == DEFLATED else self.content

    def numbers(self) -> tuple[int, int, int]:
        """Return the checksum, the packed size and the size."""
        size, packed_size = len(self.content), len(self.data)
        return (
            zlib.crc32(self.content) if self.crc32 is None else self.crc32,
            packed_size if self.packed_size is None else self.packed_size,
            size if self.size is None else self.size,
        )

    def header(self) -> bytes:
        name = self.raw_name if self.local_name is None else self.local_name
        flags = self.flags if self.local_flags is None else self.local_flags
        method = self.method if self.local_method is None else self.local_method
        crc32, packed_size, size = self.numbers()
        if flags & 0x8:
            crc32 = packed_size = size = 0
        size = size if self.local_size is None else self.local_size
        lengths = len(name), len(self.local_extra)
        fields = struct.pack("<4s5H3L2H", b"PK\3\4", 20, flags, method, 0, 33, crc32, packed_size, size, *lengths)
        return fields + name + self.local_extra

    def record(self, offset: int) -> bytes:
        attributes = self.mode << 16 | self.dos_attributes
        name = self.raw_name
        return (
            struct.pack("<4s2B5H3L", b"PK\1\2", 20, self.system, 20, self.flags, self.method, 0, 33, *self.numbers())
            + struct.pack(
                "<5H2L", len(name), len(self.extra), 0, self.disk, 0, attributes, offset if self.offset is None else self.offset
            )
            + name
            + self.extra
        )


def deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(content) + packer.flush()


def pack(*members: Member, count: int | None = None, comment: bytes = b"", start: int | None = None, end: bytes = b"") -> bytes:
    """Return an archive. ``count``, ``start`` and ``end`` replace the number of entries, the place of the directory, and the
    records of zip64 before the end."""
    body = bytearray()
    records = []
    for member in members:
        records.append(member.record(len(body)))
        body += member.header() + member.data + member.descriptor
    directory = b"".join(records)
    numbers = len(members) if count is None else count, len(directory), len(body) if start is None else start
    return bytes(body) + directory + end + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, numbers[0], *numbers, len(comment)) + comment


def files(**contents: bytes) -> bytes:
    """Return a valid archive of ``contents`` by name."""
    return pack(*(Member(name, content) for name, content in contents.items()))


def pack_zip64(
    *members: Member, count: int | None = None, size: int | None = None, length: int = 44, short: int = 0xFFFFFFFF
) -> bytes:
    """Return an archive whose end is in the form zip64. ``count``, ``size`` and ``length`` replace its numbers."""
    plain = pack(*members)
    directory_size, start = struct.unpack_from("<2L", plain, len(plain) - 10)
    entries = len(members) if count is None else count
    directory_end = len(plain) - 22
    record = struct.pack(
        "<4sQ2H2L4Q", b"PK\6\6", length, 45, 45, 0, 0, entries, entries, directory_size if size is None else size, start
    )
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, directory_end, 1)
    shorts = 0xFFFF, 0xFFFF, short, short
    return plain[:directory_end] + record + locator + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, *shorts, 0)


def wide(*numbers: int) -> bytes:
    """Return the extra field of zip64 with ``numbers``."""
    return struct.pack(f"<2H{len(numbers)}Q", 1, 8 * len(numbers), *numbers)


HONEST: Final = Member("src/main.py", b"print('hello')\n" * 20)
_BOMB: Final = bytes(16 * MIB)


def _quoted_overlap() -> bytes:
    """Entries that quote the next one, so that one kernel counts often (https://www.bamsoftware.com/hacks/zipbomb/)."""
    kernel = Member("z", b"\0" * MIB)
    tail, records = kernel.header() + kernel.data, [kernel]
    names = [f"{number:03}" for number in range(50)]
    for name in reversed(names):
        quote = struct.pack("<BHH", 0, len(tail[:30]), 0xFFFF ^ len(tail[:30]))
        member = Member(name, b"\0" * MIB, packed=quote + tail)
        records.insert(0, member)
        tail = member.header() + quote + tail
    body, directory, at = tail, b"", 0
    for member in records:
        directory += member.record(at)
        at += len(member.header()) + (5 if member is not kernel else 0)
    return body + directory + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(records), len(records), len(directory), len(body), 0)


def _many(count: int) -> Callable[[], bytes]:
    return lambda: pack(*(Member(f"f{number}", b"", method=0) for number in range(count)))


def _full_overlap() -> bytes:
    first = Member("a", b"\0" * MIB)
    return pack(
        first, *(Member(f"a{number}", b"\0" * MIB, packed=b"", packed_size=len(first.data), offset=0) for number in range(200))
    )


def _one_to_a_million() -> bytes:
    """An archive that claims a million times its size: 5,000 entries of 128 MiB, all at one place."""
    large = Member("a", bytes(128 * MIB))
    other = Member("a", b"", packed=b"", packed_size=len(large.data), size=128 * MIB, offset=0)
    body = pack(large, *(replace(other, name=f"b{number}") for number in range(4999)))
    assert 1_000_000 * len(body) < 5000 * 128 * MIB
    return body


def _same_place() -> bytes:
    first = Member("a.py", b"x" * 100)
    return pack(first, replace(first, packed=b"", packed_size=len(first.data), offset=0, name="b.py"))


def _hidden_entry() -> bytes:
    """An archive whose first entry is not in its directory."""
    hidden = Member("hidden")
    place = len(hidden.header() + hidden.data)
    member = replace(HONEST, offset=place)
    return hidden.header() + hidden.data + pack(member, start=place + len(member.header() + member.data))


def _truncated_stream() -> bytes:
    return pack(replace(HONEST, packed=HONEST.data[:-3]))


INVALID_ARCHIVE: Final = "invalid_archive"
LIMIT: Final = "workspace_limit"
INVALID_PATH: Final = "invalid_path"

HOSTILE: Final[Mapping[str, tuple[str, str, Callable[[], bytes]]]] = {
    # a bomb
    "16 MiB in one file": (LIMIT, "bomb", lambda: pack(Member("bomb", _BOMB))),
    "one byte more than 4 MiB": (LIMIT, "big", lambda: pack(HONEST, Member("big", bytes(4 * MIB + 1)))),
    "a bomb that claims to be small": (LIMIT, "bomb", lambda: pack(Member("bomb", _BOMB, size=10, crc32=0))),
    "a bomb that claims to be huge": (LIMIT, "bomb", lambda: pack(Member("bomb", _BOMB, size=2**32 - 2))),
    "a bomb of one to a million": (INVALID_ARCHIVE, "b0", _one_to_a_million),
    "101 MiB in 26 files": (LIMIT, "f25", lambda: pack(*(Member(f"f{number}", bytes(4 * MIB)) for number in range(26)))),
    "5,001 files": (LIMIT, "f5000", _many(5001)),
    "40,000 files": (LIMIT, "f5000", _many(40_000)),
    "entries at one place": (INVALID_ARCHIVE, "a", _full_overlap),
    "entries that quote the next": (INVALID_ARCHIVE, "000", _quoted_overlap),
    "two names of one place": (INVALID_ARCHIVE, "b.py", _same_place),
    # sizes and checksums that are not true
    "a size that is too small": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py", b"x" * 100, size=99))),
    "a size that is too large": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py", b"x" * 100, size=101))),
    "a stored size that is too small": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py", b"x" * 100, method=0, size=99))),
    "another size before the data": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py", b"x" * 100, local_size=99))),
    "a wrong checksum": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py", b"x" * 100, crc32=1))),
    "a packed size beyond the directory": (INVALID_ARCHIVE, "src/main.py", lambda: pack(replace(HONEST, packed_size=9999))),
    "a packed size that is too small": (INVALID_ARCHIVE, "src/main.py", lambda: pack(replace(HONEST, packed_size=5))),
    "bytes after the stream": (INVALID_ARCHIVE, "src/main.py", lambda: pack(replace(HONEST, packed=HONEST.data + b"more"))),
    "a stream that is cut": (INVALID_ARCHIVE, "src/main.py", _truncated_stream),
    "a stream that is not deflate": (INVALID_ARCHIVE, "src/main.py", lambda: pack(replace(HONEST, packed=b"\xff" * 50))),
    "a zip64 size that is not true": (
        INVALID_ARCHIVE,
        "a.py",
        lambda: pack(Member("a.py", b"x" * 9, size=2**32 - 1, extra=wide(2**60), local_extra=wide(2**60))),
    ),
    "a zip64 size that is missing": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py", b"x" * 9, size=2**32 - 1))),
    "a zip64 place that is not true": (
        INVALID_ARCHIVE,
        "a.py",
        lambda: pack(Member("a.py", b"x" * 9, offset=2**32 - 1, extra=wide(2**63))),
    ),
    # entries that are not regular files
    "a link": (INVALID_ARCHIVE, "link", lambda: pack(Member("link", b"/etc/passwd", mode=stat.S_IFLNK | 0o777))),
    "a link of another system": (INVALID_ARCHIVE, "link", lambda: pack(Member("link", b"x", mode=stat.S_IFLNK, system=0))),
    "a link with a folder's name": (INVALID_ARCHIVE, "link/", lambda: pack(Member("link/", b"/etc", mode=stat.S_IFLNK))),
    "a reparse point": (INVALID_ARCHIVE, "link", lambda: pack(Member("link", mode=0, system=10, dos_attributes=0x400))),
    "a character device": (INVALID_ARCHIVE, "null", lambda: pack(Member("null", b"", mode=stat.S_IFCHR))),
    "a block device": (INVALID_ARCHIVE, "sda", lambda: pack(Member("sda", b"", mode=stat.S_IFBLK))),
    "a pipe": (INVALID_ARCHIVE, "pipe", lambda: pack(Member("pipe", b"", mode=stat.S_IFIFO))),
    "a socket": (INVALID_ARCHIVE, "socket", lambda: pack(Member("socket", b"", mode=stat.S_IFSOCK))),
    "a folder with a file's name": (INVALID_ARCHIVE, "src", lambda: pack(Member("src", b"", mode=stat.S_IFDIR))),
    "an encrypted entry": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py", flags=0x801))),
    "an entry encrypted before its data only": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py", local_flags=0x801))),
    "a strongly encrypted entry": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py", flags=0x841))),
    "a patch": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py", flags=0x820))),
    "method bzip2": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py", method=12))),
    "method LZMA": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py", method=14))),
    "method deflate64": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py", method=9))),
    "method AES": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py", method=99))),
    # names
    "two entries of one name": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py"), Member("b.py"), Member("a.py", b"other"))),
    "names that differ only in case": (INVALID_PATH, "A.py", lambda: pack(Member("a.py"), Member("A.py"))),
    "a file where a folder is": (INVALID_PATH, "src", lambda: pack(Member("src/a.py"), Member("src"))),
    "a parent folder": (INVALID_PATH, "../evil", lambda: pack(HONEST, Member("../evil"))),
    "an absolute path": (INVALID_PATH, "/etc/passwd", lambda: pack(Member("/etc/passwd"))),
    "a backslash": (INVALID_PATH, "evil", lambda: pack(Member("..\\evil"))),
    "a name with NUL": (INVALID_PATH, "a.py", lambda: pack(Member("a.py\0.txt"))),
    "a hook of git": (INVALID_PATH, ".git/hooks/pre-commit", lambda: pack(Member(".git/hooks/pre-commit"))),
    "a hostile folder": (INVALID_PATH, "../up", lambda: pack(HONEST, Member("../up/", b"", mode=stat.S_IFDIR))),
    "an empty name": (INVALID_PATH, "''", lambda: pack(Member(""))),
    "a name that is not UTF-8": (INVALID_ARCHIVE, "not UTF-8", lambda: pack(Member(b"\xff\xfe.py"))),
    "another name before the data": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py", local_name=b"../../x"))),
    "another method before the data": (INVALID_ARCHIVE, "a.py", lambda: pack(Member("a.py", local_method=0))),
    # bodies that are not one whole archive
    "no byte": (INVALID_ARCHIVE, "not a valid zip", lambda: b""),
    "a text": (INVALID_ARCHIVE, "not a valid zip", lambda: b"print('hello')\n" * 100),
    "a gzip": (INVALID_ARCHIVE, "not a valid zip", lambda: b"\x1f\x8b\x08" + bytes(100)),
    "bytes before the archive": (INVALID_ARCHIVE, "not a valid zip", lambda: b"MZ" + pack(HONEST)),
    "an archive before the archive": (INVALID_ARCHIVE, "not a valid zip", lambda: pack(HONEST) + pack(HONEST)),
    "an entry that the directory hides": (
        INVALID_ARCHIVE,
        "other data",
        _hidden_entry,
    ),
    "bytes after the archive": (INVALID_ARCHIVE, "not a valid zip", lambda: pack(HONEST) + b"\0"),
    "a comment that is too short": (INVALID_ARCHIVE, "not a valid zip", lambda: pack(HONEST, comment=b"abc")[:-1]),
    "too many entries claimed": (INVALID_ARCHIVE, "not a valid zip", lambda: pack(HONEST, count=2)),
    "too few entries claimed": (INVALID_ARCHIVE, "not a valid zip", lambda: pack(HONEST, Member("a"), count=1)),
    "a directory at another place": (INVALID_ARCHIVE, "not a valid zip", lambda: pack(HONEST, start=0)),
    "a directory beyond the end": (INVALID_ARCHIVE, "not a valid zip", lambda: pack(HONEST, start=2**31)),
    "a part of several": (INVALID_ARCHIVE, "not a valid zip", lambda: pack(replace(HONEST, disk=1))),
    "a zip64 count that is not true": (INVALID_ARCHIVE, "not a valid zip", lambda: pack_zip64(HONEST, count=2**40)),
    "a zip64 directory that is not there": (INVALID_ARCHIVE, "not a valid zip", lambda: pack_zip64(HONEST, size=2**40)),
    "a zip64 end of another length": (INVALID_ARCHIVE, "not a valid zip", lambda: pack_zip64(HONEST, length=2**63)),
    "a zip64 end that contradicts the end": (INVALID_ARCHIVE, "not a valid zip", lambda: pack_zip64(HONEST, short=7)),
}
"""For each kind: the code of the error, words that its message must hold, and the body."""


def cut_archives(steps: int = 1) -> Sequence[bytes]:
    """Return an archive cut at every place, ``steps`` bytes apart."""
    body = pack(HONEST, Member("docs/a.md", b"# A\n" * 50, method=0), Member("docs/", b"", mode=stat.S_IFDIR | 0o755))
    return [body[:end] for end in range(0, len(body), steps)]
