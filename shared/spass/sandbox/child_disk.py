"""Limit what the children of this process take of the disk, also in files that they have removed and still use."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from spass.sandbox.child_process import ChildFailed, ChildProcess
from spass.sandbox.disk import DiskUse, free_bytes, is_nearly_full, measure_folder
from spass.sandbox.scratch_folder import in_thread, scratch_folder

_TICK_SECONDS: Final = 0.25
_MAX_FILE: Final = 16 * 2**20
"""Bytes of one file; a limit of the child's process."""
_MAX_REMOVED: Final = 4
_OWN_DESCRIPTORS: Final = 5
_MAX_SHOWN: Final = 4
"""Open files that count as files of the folder, which shows their room, if it has as many. Each further one may be removed."""
_SMALL: Final = 2**20
"""Bytes that a child may take also while the disk is nearly full."""
_MAX_LIST: Final = 2**20
_CHUNK: Final = 1 << 16
_REMOVED: Final = b" (deleted)"


class ChildDisk:
    """The room of one child on the disk.

    A removed file is in no folder, and keeps its room while it is mapped or open. The kernel shows the lists of a confined child
    to root alone, but lists that were opened before stay readable. They do not tell an open file that was removed from another.
    So open files that may be removed count as much as they can hold, but not more than what the disk has lost meanwhile.
    """

    def __init__(self, process: ChildProcess, folder: Path, max_files: int) -> None:
        """``max_files`` includes folders."""
        self._process: Final = process
        self.folder: Final = folder
        self._max_files: Final = max_files
        self._lists: Final[list[int]] = []
        self._lock: Final = threading.Lock()
        self._last = DiskUse(0)
        self._is_over = False
        self._free: Final = free_bytes(folder)

    def watch_removed_files(self) -> None:
        """Also count the files that the child removes and still uses. Call this before it gets its first line. Raise ChildFailed
        if the system does not show what it uses."""
        try:
            for name in ("maps", "fd"):
                self._lists.append(os.open(f"/proc/{self._process.pid}/{name}", os.O_RDONLY))
        except OSError as error:
            raise ChildFailed(f"cannot be watched: {error.strerror}") from None

    def measure(self) -> DiskUse:
        """Return what the child takes. After ``stop``, return what it took before, because its room is not free yet."""
        with self._lock:
            if not self._is_over:
                self._last = measure_folder(self.folder, self._max_files, self._process.stopped)
                if self._lists:
                    self._last = self._add_removed(self._last)
            return self._last

    def stop(self, fault: str) -> None:
        """Stop the child."""
        with self._lock:
            self._is_over = True
        self._process.stop(fault)

    def close(self) -> None:
        """Close the lists. The child has ended, and its folder is removed."""
        with self._lock:
            self._is_over = True
            while self._lists:
                os.close(self._lists.pop())

    def _add_removed(self, use: DiskUse) -> DiskUse:
        """Return ``use`` with the room of the removed files, each as large as a file can be."""
        mapped = self._count_mapped()
        too_many = f"mapped more than {_MAX_REMOVED} files that it had removed" if mapped > _MAX_REMOVED else None
        opened = max(0, self._count_open() - min(_MAX_SHOWN, use.files)) * _MAX_FILE
        if opened:
            opened = min(opened, max(0, self._free - free_bytes(self.folder)))
        return DiskUse(use.size + mapped * _MAX_FILE + opened, use.files, use.fault or too_many)

    def _count_mapped(self) -> int:
        """Return the number of removed files of the folder that the child maps."""
        maps, text = self._lists[0], bytearray()
        try:
            os.lseek(maps, 0, os.SEEK_SET)
            while len(text) < _MAX_LIST and (chunk := os.read(maps, _CHUNK)):
                text += chunk
        except OSError:  # the child has ended
            return 0
        if len(text) >= _MAX_LIST:
            return _MAX_REMOVED + 1  # no program of one thread has so many mappings
        beginning = os.fsencode(self.folder) + b"/"
        # The kernel escapes a line feed in a file's name, and no other character that ends a line elsewhere.
        removed = (line.split(None, 5) for line in bytes(text).split(b"\n") if line.endswith(_REMOVED))
        return len({(device, number) for _, _, _, device, number, path in removed if path.startswith(beginning)})

    def _count_open(self) -> int:
        try:
            os.lseek(self._lists[1], 0, os.SEEK_SET)
            return max(0, len(os.listdir(self._lists[1])) - _OWN_DESCRIPTORS)  # noqa: PTH208
        except OSError:  # the child has ended
            return 0


class ChildDisks:
    """A set of children. While the disk is nearly full, the one that takes most is stopped, unless that is little."""

    def __init__(self) -> None:
        self._disks: Final[set[ChildDisk]] = set()

    def add(self, disk: ChildDisk) -> None:
        self._disks.add(disk)

    def remove(self, disk: ChildDisk) -> None:
        """Forget a child that has ended. Call this after its folder is removed: until then it keeps its room."""
        self._disks.discard(disk)
        disk.close()

    async def limit(self, disk: ChildDisk) -> None:
        """Stop the child when it takes more than it may, or when that cannot be measured."""
        try:
            while (fault := await in_thread(self._find_fault, disk)) is None:  # noqa: ASYNC110 (no event tells what the child writes)
                await asyncio.sleep(_TICK_SECONDS)
        except Exception:
            disk.stop("cannot be watched")
            raise
        disk.stop(fault)

    def _find_fault(self, disk: ChildDisk) -> str | None:
        """Return a clause that says why the child must be stopped, or None."""
        use = disk.measure()
        if use.fault is None and use.size > _SMALL and is_nearly_full(disk.folder) and self._is_largest(disk, use):
            # Ask again: the child that took most may have ended meanwhile.
            return "took the most room while the disk is nearly full" if is_nearly_full(disk.folder) else None
        return use.fault

    def _is_largest(self, disk: ChildDisk, use: DiskUse) -> bool:
        return all(use.size >= other.measure().size for other in tuple(self._disks) if other is not disk)


CHILD_DISKS: Final = ChildDisks()
"""The children of this process, whatever they run: who filled the disk is to be found among them all."""


@asynccontextmanager
async def start_in_folder(
    command: Sequence[str],
    prefix: str,
    environment: Callable[[Path], Mapping[str, str]],
    temporary: Path | None,
    *,
    max_files: int,
    watches_removed: bool = False,
) -> AsyncIterator[ChildProcess]:
    """Start a child in a scratch folder of its own, and limit what it takes of the disk. At the end kill it, and remove the
    folder. ``environment`` returns its variables, given the folder. ``watches_removed``: see ``watch_removed_files``.

    Raises:
        ChildFailed: the system has no process, memory or room for it.
    """
    with ExitStack() as stack:
        async with scratch_folder(prefix, temporary) as folder:
            process = ChildProcess(command, folder=folder, environment=environment(folder))
            try:
                disk = ChildDisk(process, folder, max_files)
                CHILD_DISKS.add(disk)
                stack.callback(CHILD_DISKS.remove, disk)
                if watches_removed:
                    disk.watch_removed_files()
                await process.connect()
                limit = asyncio.create_task(CHILD_DISKS.limit(disk))
                try:
                    yield process
                finally:
                    limit.cancel()
            finally:
                process.kill()  # before the first await, at which a cancellation may arrive
