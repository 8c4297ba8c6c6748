"""The room that an untrusted child may use on the disk. An image for containers has this module, and no package."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

_MAX_BYTES: Final = 64 * 2**20
_MIN_FREE: Final = 2**30
"""Bytes that a child must leave free on the disk, or a tenth of a small disk."""
_BLOCK: Final = 512


def uses_too_much_disk(folder: Path, max_files: int) -> bool:
    """Return True if ``folder`` holds more files, folders or bytes than an untrusted child may need, or if the disk is nearly
    full: a file that was removed while it is mapped takes space, but is in no folder."""
    with suppress(OSError):
        disk = shutil.disk_usage(folder)
        if disk.free < min(_MIN_FREE, disk.total // 10):
            return True
    size = count = 0
    pending = [str(folder)]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                count += 1
                size += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                if count > max_files or size > _MAX_BYTES:
                    return True
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return False
