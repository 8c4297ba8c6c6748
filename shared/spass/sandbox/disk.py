"""The room that an untrusted child may use on the disk. An image for containers has this module, and no package."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MAX_BYTES: Final = 64 * 2**20
_MIN_FREE: Final = 2**30
"""Bytes that all children together must leave free on the disk, or a tenth of a small disk."""
_BLOCK: Final = 512
_LIST: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | getattr(os, "O_NOATIME", 0)
"""Without O_NOATIME a child would see in a folder's time that it was listed, and could move its files there just then."""
_REMOVED: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Errors of a folder that is not there any more, or that a file or a link has replaced."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """``size`` is in bytes. ``fault`` is a clause that says which bound the child exceeds, or None."""

    size: int
    fault: str | None = None


def measure_folder(folder: Path, max_files: int) -> DiskUse:
    """Return what ``folder`` holds. A folder in it that cannot be listed exceeds the bound: it could hide any number of files."""
    size = count = 0
    pending = [str(folder)]
    while pending:
        try:
            for is_folder, path, room in _entries(pending.pop()):
                count += 1
                size += room
                if count > max_files:
                    return DiskUse(size, "wrote too many files")
                if size > _MAX_BYTES:
                    return DiskUse(size, f"wrote more than {_MAX_BYTES >> 20} MiB")
                if is_folder:
                    pending.append(path)
        except OSError as error:
            if error.errno not in _REMOVED:
                return DiskUse(size, "made a folder whose files cannot be counted")
    return DiskUse(size)


def is_nearly_full(folder: Path) -> bool:
    """Return True if the disk of ``folder`` has less room left than the gateway and other programs may need."""
    with suppress(OSError):
        disk = shutil.disk_usage(folder)
        return disk.free < min(_MIN_FREE, disk.total // 10)
    return False


def _entries(folder: str) -> Iterator[tuple[bool, str, int]]:
    """Yield for each entry whether it is a folder, its path and its bytes. Leave out what is removed meanwhile.

    Raises:
        OSError: the folder cannot be listed, or is not there any more.
    """
    descriptor = os.open(folder, _LIST)
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    room = entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                    yield entry.is_dir(follow_symlinks=False), os.path.join(folder, entry.name), room  # noqa: PTH118
    finally:
        os.close(descriptor)
