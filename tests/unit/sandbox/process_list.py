"""Find processes by a word of their command."""

import subprocess
import time


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
