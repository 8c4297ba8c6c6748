"""Read the files of a zip archive that a client sends, in bounded time and memory.

Nothing that the archive says about itself is trusted: each entry is inflated to at most the size that a file may have, and what
comes out is counted.
"""

import stat
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from spass.core.errors import InvalidArchive, WorkspaceLimit
from spass.workspaces.paths import (
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_TOTAL_BYTES,
    WorkspacePath,
    check_together,
    parse_folder,
    parse_path,
    show,
)
from spass.workspaces.zip_directory import ZipEntry, read_entries

_STORED: Final = 0
_DEFLATED: Final = 8
_ENCRYPTED: Final = 0x1 | 0x40 | 0x2000
_PATCH: Final = 0x20
_UNIX_SYSTEMS: Final = frozenset({3, 19})
_DOS_REPARSE_POINT: Final = 0x400
_PARAM: Final = "body"


class _File(NamedTuple):
    path: WorkspacePath
    entry: ZipEntry


def read_archive(body: bytes) -> dict[WorkspacePath, bytes]:
    """Return the files of the zip archive ``body``. Entries for folders are ignored.

    Raises:
        InvalidArchive: it is not a zip archive, or has an entry that is not a regular file, cannot be read, or is there twice.
        InvalidPath: an entry has no valid path, or two have paths that one tree cannot have.
        WorkspaceLimit: it has too many or too large files. Sizes are counted while inflating.
    """
    files = _list_files(read_entries(body))
    check_together((file.path for file in files), _PARAM)
    contents: dict[WorkspacePath, bytes] = {}
    room = MAX_TOTAL_BYTES
    for path, entry in files:
        contents[path] = content = _read_content(entry)
        room -= len(content)
        if room < 0:
            raise WorkspaceLimit(
                f"The files of the archive have more than {MAX_TOTAL_BYTES // 2**20} MiB together, counted up to {show(path)}. "
                "A workspace cannot hold more.",
                param=_PARAM,
            )
    return contents


def _list_files(entries: Sequence[ZipEntry]) -> Sequence[_File]:
    """Return the entries that are files, and check all of them, but not their content."""
    files: dict[WorkspacePath, _File] = {}
    for entry in entries:
        _check_kind(entry)
        if entry.name.endswith("/"):
            parse_folder(entry.name, _PARAM)
            continue
        path = parse_path(entry.name, _PARAM)
        if path in files:
            raise _refuse(entry, "is there twice. Send each file once")
        if len(files) == MAX_FILES:
            raise WorkspaceLimit(
                f"The archive has more than {MAX_FILES} files; {show(path)} is one too many. A workspace cannot hold more.",
                param=_PARAM,
            )
        files[path] = _File(path, entry)
    return [*files.values()]


def _check_kind(entry: ZipEntry) -> None:
    """Check that ``entry`` is a regular file or a folder, in a form that can be read.

    Programs write the type of a Unix file into the upper half of the attributes, whatever system they name.
    """
    kind = stat.S_IFMT(entry.attributes >> 16)
    is_reparse_point = entry.system not in _UNIX_SYSTEMS and entry.attributes & _DOS_REPARSE_POINT
    if stat.S_ISLNK(kind) or is_reparse_point:
        raise _refuse(entry, "is a link. Send a copy of the file instead")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _refuse(entry, "is a device or another special file. Send regular files only")
    if stat.S_ISDIR(kind) and not entry.name.endswith("/"):
        raise _refuse(entry, 'has the type of a folder, but its name does not end with "/". Pack the files again')
    if entry.flags & _ENCRYPTED:
        raise _refuse(entry, "is encrypted. Pack the files without a password")
    if entry.flags & _PATCH or entry.method not in (_STORED, _DEFLATED):
        raise _refuse(entry, f"uses the compression method {entry.method}. Use stored or deflate")


def _read_content(entry: ZipEntry) -> bytes:
    """Return the content of ``entry``, and check it against the size and the checksum that the archive claims."""
    if entry.method == _STORED:
        content, is_whole = bytes(entry.data[: MAX_FILE_BYTES + 1]), True
    else:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            content = inflater.decompress(entry.data, MAX_FILE_BYTES + 1)
        except zlib.error:
            raise _refuse(entry, "is damaged: it cannot be inflated. Pack the files again") from None
        is_whole = inflater.eof and not inflater.unused_data
    if len(content) > MAX_FILE_BYTES:
        raise WorkspaceLimit(
            f"The entry {show(entry.name)} of the archive has more than {MAX_FILE_BYTES // 2**20} MiB. A file cannot be larger.",
            param=_PARAM,
        )
    if not is_whole or len(content) != entry.size:
        raise _refuse(entry, "is damaged: its size is not the one that the archive names. Pack the files again")
    if zlib.crc32(content) != entry.crc32:
        raise _refuse(entry, "is damaged: its checksum is wrong. Pack the files again")
    return content


def _refuse(entry: ZipEntry, reason: str) -> InvalidArchive:
    return InvalidArchive(f"The entry {show(entry.name)} of the archive {reason}.", param=_PARAM)
