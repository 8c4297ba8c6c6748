"""Read the directory of a zip archive strictly (https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT).

``zipfile`` is made for archives that one trusts. It accepts bytes before and after the archive, cuts a name at NUL, may take the
name from an extra field, and compares neither sizes nor overlaps. So another program could find other files in the same body.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from spass.core.errors import InvalidArchive
from spass.workspaces.paths import show

_END: Final = struct.Struct("<4s4H2LH")
_END_SIGNATURE: Final = b"PK\5\6"
_END_64: Final = struct.Struct("<4sQ2H2L4Q")
_LOCATOR: Final = struct.Struct("<4sLQL")
_ENTRY: Final = struct.Struct("<4s2B5H3L5H2L")
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_EXTRA: Final = struct.Struct("<2H")
_ZIP64_EXTRA: Final = 1
_MAX_COMMENT_BYTES: Final = 0xFFFF
_IN_ZIP64: Final = 0xFFFFFFFF
"""A number of 32 bits whose value is in a field of 64 bits."""
_SHORT_IN_ZIP64: Final = 0xFFFF
_WIDE_BYTES: Final = 8
_SIZES_FOLLOW: Final = 0x8
"""The flag of a local header that was written before the sizes were known."""
_UTF_8: Final = 0x800


class ZipEntry(NamedTuple):
    """One entry. ``data`` is its compressed content.

    ``crc32`` and ``size`` describe the content, as the directory claims. ``flags`` are set in the directory or in the entry's
    header. The meaning of ``attributes`` depends on the ``system`` that wrote the archive.
    """

    raw_name: bytes
    name: str
    system: int
    flags: int
    method: int
    crc32: int
    packed_size: int
    size: int
    attributes: int
    offset: int
    data: memoryview = memoryview(b"")


class _Directory(NamedTuple):
    """The directory at the end of an archive: its entries and its place."""

    entries: int
    start: int
    end: int


def read_entries(body: bytes) -> Sequence[ZipEntry]:
    """Return the entries of the archive ``body`` in the order of its directory. Raise InvalidArchive if it is not a whole zip
    archive and nothing else, or its entries overlap or contradict its directory."""
    directory = _find_directory(body)
    entries: list[ZipEntry] = []
    places: list[tuple[int, int, str]] = []
    for record in _records(body, directory):
        start, flags = _read_header(body, record, directory)
        end = start + record.packed_size
        if end > directory.start:
            raise _damaged_entry(record.name, "its data goes beyond the archive's directory")
        places.append((record.offset, end, record.name))
        entries.append(record._replace(flags=flags, data=memoryview(body)[start:end]))
    if len(entries) != directory.entries:
        raise _not_a_zip(f"its directory has {len(entries)} entries and claims to have {directory.entries}")
    _check_places(places, directory)
    return entries


def _check_places(places: list[tuple[int, int, str]], directory: _Directory) -> None:
    """Check that the archive begins with its first entry, and that no two entries share bytes."""
    places.sort()
    if (places[0][0] if places else directory.start) != 0:
        raise _not_a_zip("it begins with other data")
    for (_, end, name), (start, _, other) in pairwise(places):
        if start < end:
            raise InvalidArchive(f"The entries {show(name)} and {show(other)} of the archive overlap. Pack the files again.")


def _find_directory(body: bytes) -> _Directory:
    """Find the directory by the record at the end, behind which there is nothing but its comment."""
    at = len(body)
    first = max(0, len(body) - _END.size - _MAX_COMMENT_BYTES)
    while (at := body.rfind(_END_SIGNATURE, first, at)) >= 0:
        if at + _END.size <= len(body):
            _, *disks, count, size, start, comment = _END.unpack_from(body, at)
            if at + _END.size + comment == len(body):
                return _read_zip64(body, at, disks, (count, size, start))
        at += len(_END_SIGNATURE) - 1
    raise _not_a_zip("it does not end as one. It may be cut, or have other data at its end")


def _read_zip64(body: bytes, at: int, disks: Sequence[int], numbers: tuple[int, int, int]) -> _Directory:
    """Return the directory that the record at ``at`` names. If there is a record of zip64 before it, both must agree."""
    end, (count, size, start) = at, numbers
    locator = _LOCATOR.unpack_from(body, at - _LOCATOR.size) if at >= _LOCATOR.size else (b"", 0, 0, 0)
    if locator[0] == b"PK\6\7":
        end = locator[2]
        if end + _END_64.size > at - _LOCATOR.size:
            raise _not_a_zip("its end in the form zip64 is not where it should be")
        signature, length, _, _, *disks_64, _, count_64, size_64, start_64 = _END_64.unpack_from(body, end)
        limits = _SHORT_IN_ZIP64, _IN_ZIP64, _IN_ZIP64
        agree = all(
            short in (limit, long) for short, long, limit in zip(numbers, (count_64, size_64, start_64), limits, strict=True)
        )
        if signature != b"PK\6\6" or end + 12 + length != at - _LOCATOR.size or locator[1] or any(disks_64) or not agree:
            raise _not_a_zip("its end in the form zip64 contradicts its end")
        count, size, start = count_64, size_64, start_64
    if any(disks[:2]):
        raise _not_a_zip("it is one part of several. Send one archive")
    if start + size != end:
        raise _not_a_zip("its directory is not where its end says")
    return _Directory(count, start, end)


def _records(body: bytes, directory: _Directory) -> Iterator[ZipEntry]:
    """Yield the entries as the directory has them, without data."""
    at = directory.start
    while at < directory.end:
        if at + _ENTRY.size > directory.end or not body.startswith(b"PK\1\2", at):
            raise _not_a_zip("its directory is damaged")
        _, _, system, _, flags, method, _, _, crc32, *wide, name, extra, comment, disk, _, attributes, offset = (
            _ENTRY.unpack_from(body, at)
        )
        at += _ENTRY.size
        raw_name = body[at : at + name]
        shown_name = _decode_name(raw_name, flags)
        size, packed_size, offset = _widen((wide[1], wide[0], offset), body[at + name : at + name + extra], shown_name)
        at += name + extra + comment
        if at > directory.end or disk:
            raise _not_a_zip("its directory is damaged")
        yield ZipEntry(raw_name, shown_name, system, flags, method, crc32, packed_size, size, attributes, offset)


def _read_header(body: bytes, record: ZipEntry, directory: _Directory) -> tuple[int, int]:
    """Return the position of the entry's data, and the flags of the directory and of the header before the data."""
    at = record.offset
    if at + _LOCAL.size > directory.start or not body.startswith(b"PK\3\4", at):
        raise _damaged_entry(record.name, "it is not where the archive's directory says")
    _, _, flags, method, _, _, crc32, packed_size, size, name, extra = _LOCAL.unpack_from(body, at)
    at += _LOCAL.size
    if body[at : at + name] != record.raw_name or method != record.method:
        raise _damaged_entry(record.name, "its header has another name or method than the archive's directory")
    if not flags & _SIZES_FOLLOW:
        size, packed_size = _widen((size, packed_size), body[at + name : at + name + extra], record.name)
        if (crc32, packed_size, size) != (record.crc32, record.packed_size, record.size):
            raise _damaged_entry(record.name, "its header has another size or checksum than the archive's directory")
    return at + name + extra, flags | record.flags


def _widen(numbers: Sequence[int], extra: bytes, name: str) -> Iterator[int]:
    """Yield ``numbers``, each from the extra field of zip64 if it says that it is there."""
    wide = _find_extra(extra, _ZIP64_EXTRA)
    for number in numbers:
        if number != _IN_ZIP64:
            yield number
        elif len(wide) < _WIDE_BYTES:
            raise _damaged_entry(name, "its sizes in the form zip64 are missing")
        else:
            yield int.from_bytes(wide[:_WIDE_BYTES], "little")
            wide = wide[_WIDE_BYTES:]


def _find_extra(extra: bytes, wanted: int) -> bytes:
    """Return the content of the first extra field ``wanted``, or nothing."""
    while len(extra) >= _EXTRA.size:
        kind, length = _EXTRA.unpack_from(extra)
        if kind == wanted:
            return extra[_EXTRA.size : _EXTRA.size + length]
        extra = extra[_EXTRA.size + length :]
    return b""


def _decode_name(raw_name: bytes, flags: int) -> str:
    """Decode a name. Some programs write UTF-8 without its flag; without UTF-8 it is code page 437, as the format says."""
    try:
        return raw_name.decode()
    except UnicodeDecodeError:
        name = raw_name.decode("cp437")
        if flags & _UTF_8:
            raise _damaged_entry(name, "its name is not UTF-8") from None
        return name


def _damaged_entry(name: str, reason: str) -> InvalidArchive:
    return InvalidArchive(f"The entry {show(name)} of the archive is damaged: {reason}. Pack the files again.")


def _not_a_zip(reason: str) -> InvalidArchive:
    return InvalidArchive(f"The body is not a valid zip archive: {reason}.")
