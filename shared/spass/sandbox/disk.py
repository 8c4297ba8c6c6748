"""The room that an untrusted child may use on the disk. An image for containers has this module, and no package."""

import errno
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
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
_SETTLED_NS: Final = 10**9
"""Nanoseconds. File systems have coarser clocks than the process."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """``size`` is in bytes, and ``files`` counts the files of the folder. ``fault`` is a clause that says which bound the child
    exceeds, or None."""

    size: int
    files: int = 0
    fault: str | None = None


def measure_folder(folder: Path, max_files: int, stopped: Callable[[], AbstractContextManager[None]]) -> DiskUse:
    """Return what ``folder`` holds. A folder in it that cannot be listed exceeds the bound: it could hide any number of files.

    Files that are renamed while folders are listed may be missed or counted twice. If that is possible, list them again within
    ``stopped``, in which the child does nothing.
    """
    settled = time.time_ns() - _SETTLED_NS
    listing = _Listing(max_files)
    listing.add(folder)
    if listing.fault is not None or listing.changed_ns >= settled:
        listing = _Listing(max_files)
        with stopped():
            listing.add(folder)
    return DiskUse(listing.size, listing.files, listing.fault)


def is_nearly_full(folder: Path) -> bool:
    """Return True if the disk of ``folder`` has less room left than the gateway and other programs may need."""
    with suppress(OSError):
        disk = shutil.disk_usage(folder)
        return disk.free < min(_MIN_FREE, disk.total // 10)
    return False


def free_bytes(folder: Path) -> int:
    """Return the bytes that are free on the disk of ``folder``, or 0 if that is unknown."""
    with suppress(OSError):
        return shutil.disk_usage(folder).free
    return 0


@dataclass(slots=True)
class _Listing:
    """The sum of all that is in a folder. ``changed_ns`` is the time of the last change of a listed folder, since the epoch."""

    max_files: int
    size: int = 0
    files: int = 0
    changed_ns: int = 0
    fault: str | None = None
    _pending: list[str] = field(default_factory=list)

    def add(self, folder: Path) -> None:
        """Add the folder with all that is below."""
        self._pending = [str(folder)]
        found = 0
        while self._pending and self.fault is None:
            try:
                found += self._add_entries(self._pending.pop(), self.max_files - found)
            except OSError as error:
                self.changed_ns = time.time_ns()
                if error.errno not in _REMOVED:
                    self.fault = "made a folder whose files cannot be counted"

    def _add_entries(self, folder: str, room: int) -> int:
        """Add the entries of one folder, and return their number. Leave out what is removed meanwhile."""
        count = 0
        descriptor = os.open(folder, _LIST)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        self.size += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                        count += 1
                        if entry.is_dir(follow_symlinks=False):
                            self._pending.append(os.path.join(folder, entry.name))  # noqa: PTH118
                        else:
                            self.files += 1
                    if count > room:
                        self.fault = "wrote too many files"
                    elif self.size > _MAX_BYTES:
                        self.fault = f"wrote more than {_MAX_BYTES >> 20} MiB"
                    if self.fault is not None:
                        break
            self.changed_ns = max(self.changed_ns, os.fstat(descriptor).st_ctime_ns)
        finally:
            os.close(descriptor)
        return count
