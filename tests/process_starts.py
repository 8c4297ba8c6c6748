"""Record the processes that this one starts."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Final

_EVENTS: Final = frozenset(
    {"subprocess.Popen", "pty.spawn", *(f"os.{name}" for name in ("exec", "fork", "forkpty", "posix_spawn", "spawn", "system"))}
)
_recordings: list[list[tuple[str, str]]] = []


@contextmanager
def record_process_starts() -> Iterator[Sequence[tuple[str, str]]]:
    """Yield a list that grows with the audit event and the arguments of each start of a process within the block."""
    _install_hook()
    starts: list[tuple[str, str]] = []
    _recordings.append(starts)
    try:
        yield starts
    finally:
        _recordings.remove(starts)


@cache
def _install_hook() -> None:
    """Install the hook. Python has no way to remove it."""
    sys.addaudithook(_record)


def _record(event: str, args: tuple[object, ...]) -> None:
    if _recordings and event in _EVENTS:
        for starts in _recordings:
            starts.append((event, repr(args)))
