"""The folder of an untrusted child: private, temporary, and removed also if the gateway dies while the child runs."""

import asyncio
import fcntl
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from spass.sandbox.child_process import ChildFailed
from spass.store.shielded import run_shielded

P = ParamSpec("P")
T = TypeVar("T")

_PRIVATE: Final = 0o700
_MAX_PATH: Final = 512
"""Bytes of a path. The kernel's limit is 4096, with the name of an entry, and it looks up every folder of a path each time."""
_threads: Final = ThreadPoolExecutor(2, thread_name_prefix="scratch-folders")
"""A child can fill its folder with so many files that the event loop would wait for seconds."""
_removals: Final = ThreadPoolExecutor(1, thread_name_prefix="scratch-removals")
"""Removals of large folders must not delay the starts and the measurements of other tenants' children."""


@asynccontextmanager
async def scratch_folder(prefix: str, temporary: Path | None = None) -> AsyncIterator[Path]:
    """Create a folder in ``temporary`` that only this user can enter, named for this process. Remove it after the body, also if
    the body was cancelled. ``temporary`` None is the system's temporary folder.

    First remove the folders with this prefix of processes that have ended: the kernel releases the lock of a folder when its
    process ends.

    Raises:
        ChildFailed: no folder can be created, for example because the disk is full.
    """
    loop = asyncio.get_running_loop()
    temporary = temporary or Path(tempfile.gettempdir())
    await loop.run_in_executor(_threads, _remove_orphans, temporary, prefix)
    try:
        folder, lock = _create_locked(temporary, prefix)
    except OSError as error:
        raise ChildFailed(f"has no folder to work in: {error.strerror}") from None
    try:
        yield folder
    finally:
        try:
            await run_shielded(loop.run_in_executor(_removals, _remove_if_possible, folder))
        finally:
            os.close(lock)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``function`` in a thread of the scratch folders."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(function, *args, **kwargs))


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
            is_deep = len(os.fsencode(path)) > _MAX_PATH
            folders.append(path.rename(tempfile.mkdtemp(dir=folder)) if is_deep else path)
    for current in reversed(folders):
        current.rmdir()


def _remove_if_possible(folder: Path) -> None:
    """Remove the folder. If that fails, the work of its child is still good, and the next start tries to remove the folder."""
    with suppress(OSError):
        remove_folder(folder)


def _remove_orphans(temporary: Path, prefix: str) -> None:
    for orphan in temporary.glob(f"{prefix}*"):
        with suppress(OSError):
            _remove_unlocked(orphan)


def _create_locked(temporary: Path, prefix: str) -> tuple[Path, int]:
    """Return a new folder and its locked descriptor. Until it is locked, another process may remove it as an orphan."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=temporary.resolve()))
        with suppress(OSError):
            lock = _lock(folder)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _remove_unlocked(folder: Path) -> None:
    """Remove a folder if no process has its lock.

    A folder of another user stays: that user could replace it by a link to a folder of this one at any moment. In a shared
    temporary folder only the owner of an entry can replace it."""
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
