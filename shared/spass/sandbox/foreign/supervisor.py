"""Run a program and leave none of its processes behind, also those that left its process group or its session.

This file is started with the program's command as arguments. It ends, with everything below it, when the program ends, on
SIGTERM, and on Linux also when the gateway dies.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_KILL_SECONDS: Final = 4.0
_POLL_SECONDS: Final = 0.005


class Stopped(BaseException):
    """The gateway wants the program to end, or has ended itself."""


def main() -> int:
    """Run the command in the arguments. Return its exit code, or 128 plus the number of the signal that ended it."""
    signal.signal(signal.SIGTERM, _stop)
    environment = {name: value for name, value in os.environ.items() if name != "LC_CTYPE"}  # Python itself has set that
    try:
        _adopt_orphans()
        program = os.posix_spawnp(sys.argv[1], sys.argv[1:], environment, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ))
        code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    except Stopped:
        code = -signal.SIGTERM
    except OSError as error:
        sys.stderr.write(f"The program cannot be started: {error.strerror}\n")
        code = 127
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _kill_children()
    return code if code >= 0 else 128 - code


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise Stopped


def _adopt_orphans() -> None:
    """Become the parent of every process below that loses its own, and ask for SIGTERM when the gateway dies (Linux only)."""
    if sys.platform == "linux":
        import ctypes

        library = ctypes.CDLL(None)
        library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _kill_children() -> None:
    """Kill the processes below this one. The children of a killed process become children of this one, which are killed next."""
    give_up = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < give_up:
        for child in _children():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_POLL_SECONDS)


def _children() -> Iterator[int]:
    """Yield this process's children, where the system lists processes as files."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])
            if parent == os.getpid():
                yield int(process.name)


if __name__ == "__main__":
    sys.exit(main())
