"""The folder of an edit: private, temporary, and removed also if the gateway dies during the edit."""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "spass-edit-"
_PRIVATE: Final = 0o700
_MAX_MEASURED: Final = 5000
_MAX_DEPTH: Final = 64


@contextmanager
def edit_folder(temporary: Path) -> Iterator[Path]:
    """Create a folder in ``temporary`` that only this user can enter, named for this process. Remove it after the body.

    First remove the folders of processes that have ended: the kernel releases the lock of a folder when its process ends.
    """
    for orphan in temporary.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            _remove_unlocked(orphan)
    folder, lock = _create_locked(temporary)
    try:
        yield folder
    finally:
        remove_folder(folder)
        os.close(lock)


def remove_folder(folder: Path) -> None:
    """Remove a folder with everything in it, whatever rights and depth an untrusted process gave it. Follow no links.

    Folders at a great depth are moved to the top, because the kernel limits the length of a path.
    """
    folder.chmod(_PRIVATE)
    folders = [folder]
    for current in folders:  # grows
        for entry in list(os.scandir(current)):
            path = Path(entry.path)
            if not entry.is_dir(follow_symlinks=False):
                path.unlink()
                continue
            path.chmod(_PRIVATE)
            is_deep = len(path.parts) - len(folder.parts) > _MAX_DEPTH
            folders.append(path.rename(tempfile.mkdtemp(dir=folder)) if is_deep else path)
    for current in reversed(folders):
        current.rmdir()


def measure_folder(folder: Path) -> int:
    """Return the bytes on disk of the files in a folder. Stop after 5,000 files and folders."""
    total = 0
    pending = [str(folder)]
    measured = 0
    while pending and measured < _MAX_MEASURED:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                measured += 1
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def _create_locked(temporary: Path) -> tuple[Path, int]:
    """Return a new folder and its locked descriptor. Until it is locked, another process may remove it as an orphan."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=temporary.resolve()))
        with suppress(OSError):
            lock = _lock(folder)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _remove_unlocked(folder: Path) -> None:
    """Remove a folder if no process has its lock.

    A folder of another user stays: that user could replace it by a link to a folder of this one at any moment. In a shared
    temporary folder only the owner of an entry can replace it.

    Raises:
        OSError: a process has it.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return
    folder.chmod(_PRIVATE)  # without the right to read, it cannot be locked
    lock = _lock(folder)
    try:
        remove_folder(folder)
    finally:
        os.close(lock)


def _lock(folder: Path) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
