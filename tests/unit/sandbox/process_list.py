"""Find processes by a word of their command."""

import os
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path


def processes_with(word: str) -> list[str]:
    """Return the commands of the processes that have ``word`` in them."""
    listed = subprocess.run(["ps", "-eww", "-o", "stat=,args="], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in listed if word in line and not line.startswith("Z")]


def wait_for_processes(word: str, count: int, seconds: float = 2) -> None:
    """Wait until ``count`` processes have ``word`` in their command.

    Raises:
        TimeoutError: there are more or fewer for ``seconds``.
    """
    give_up = time.monotonic() + seconds
    while len(found := processes_with(word)) != count:
        if time.monotonic() > give_up:
            raise TimeoutError(f"{len(found)} processes: {found}")
        time.sleep(0.05)


def descendants() -> set[int]:
    """Return the ids of the processes that this one has started, directly or not, and that still run."""
    parents = dict(_parents())
    found, added = set[int](), {os.getpid()}
    while added := {process for process, parent in parents.items() if parent in added} - found:
        found |= added
    return found


def still_running(processes: Collection[int]) -> set[int]:
    """Return those of ``processes`` that still run, also if the process that started them has ended."""
    return {process for process, _ in _parents() if process in processes}


def _parents() -> Iterator[tuple[int, int]]:
    """Yield the id of each process that runs, and that of the process that has started it."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
                if state != "Z":
                    yield int(folder.name), int(parent)
