"""A child process that is not trusted: two pipes with lines of JSON, limits, and an end that does not depend on the child."""

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from spass.core.messages import Json

MAX_LINE: Final = 16 * 2**20
MAX_OUTPUT: Final = 64 * 2**20
"""Bytes of one line, and of everything that a child writes."""
MAX_LINES: Final = 2000
_END_SECONDS: Final = 5.0
_STOP_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.0005
_PR_SET_DUMPABLE: Final = 4
_CPU_CLOCK: Final = 2
"""CPUCLOCK_SCHED of the kernel: the low bits of the number of a process's clock. ``clock_getcpuclockid`` builds it this way."""


class ChildFailed(Exception):
    """The child did not start, ended too early, or wrote too much. The message says which."""


class ChildProcess:
    """A child in its own process group. Call ``connect`` first, and ``kill`` last, also after an error."""

    def __init__(self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> None:
        """Start the child in ``folder``. It inherits no descriptors, and no variables except ``environment``.

        Call this in the thread that waits for the child: on Linux the child may ask to end with the thread that started it.

        Raises:
            ChildFailed: the system has no memory or no process for it.
        """
        self._process: Final = start_process(command, folder, environment)
        self._reader: Final = asyncio.StreamReader(limit=MAX_LINE)
        self._transports: Final[list[asyncio.BaseTransport]] = []
        self._writer: asyncio.WriteTransport | None = None
        self._fault = ""
        self._signals: Final = threading.Lock()
        self._is_paused = False
        self._is_stopped = False
        self._is_killed = False
        self._received = 0
        self._lines = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    async def connect(self) -> None:
        """Connect the pipes to the running event loop. asyncio's own subprocesses would also need a watcher."""
        loop = asyncio.get_running_loop()
        source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._reader), self._process.stdout)
        self._transports.append(source)
        self._writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._process.stdin)
        self._transports.append(self._writer)

    def send(self, line: Mapping[str, Json]) -> None:
        """Send a line, and let a paused child go on. The line waits in memory until the child reads it."""
        if self._writer is None:
            raise ChildFailed("is not connected")
        self._writer.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        with self._signals:
            was_paused, self._is_paused = self._is_paused, False
            if was_paused and not self._is_stopped:
                self._signal_group(signal.SIGCONT)

    def pause(self) -> None:
        """Stop the child's process group until the next ``send``. The child cannot prevent it."""
        with self._signals:
            self._is_paused = True
            self._signal_group(signal.SIGSTOP)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the child's process group during the body, whatever is sent meanwhile. One thread at a time may do so.

        A child whose first line was not received computes on, because it may not have asked to end with this process yet. If this
        process is killed, a stopped child that has not asked stays for ever.
        """
        if not self._lines:
            yield
            return
        with self._signals:
            self._is_stopped = True
            self._signal_group(signal.SIGSTOP)
        try:
            self._wait_until_stopped()
            yield
        finally:
            with self._signals:
                self._is_stopped = False
                if not self._is_paused:
                    self._signal_group(signal.SIGCONT)

    async def receive(self) -> bytes:
        """Return the next line. Raise ChildFailed if there is none, or the child has written more than it may."""
        try:
            line = await self._reader.readline()
        except ValueError:
            raise ChildFailed("wrote a line that is too long") from None
        self._received += len(line)
        self._lines += 1
        if self._received > MAX_OUTPUT or self._lines > MAX_LINES:
            raise ChildFailed("wrote too much")
        if not line.endswith(b"\n"):
            raise ChildFailed(self._fault or "ended unexpectedly")
        return line

    def cpu_seconds(self) -> float:
        """Return the processor time that the child has used, until ``kill`` (Linux only; elsewhere 0). Its own children do not
        count.
        """
        if sys.platform == "linux" and self._process.returncode is None:
            return time.clock_gettime((~self._process.pid << 3) | _CPU_CLOCK)
        return 0.0

    def stop(self, fault: str) -> None:
        """Kill the child's process group. ``receive`` then raises ``ChildFailed`` with this fault."""
        self._fault = fault
        with self._signals:
            self._signal_group(signal.SIGKILL)

    def kill(self) -> None:
        """Kill the child's process group, wait until the child has ended, and close the pipes.

        This does not await: a cancelled task would skip the rest.
        """
        with self._signals:
            self._signal_group(signal.SIGKILL)
            self._is_killed = True
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        for transport in self._transports:
            transport.close()
        for pipe in (self._process.stdin, self._process.stdout)[len(self._transports) :]:
            if pipe is not None:
                pipe.close()

    def _signal_group(self, number: signal.Signals) -> None:
        # The number of the group stays taken until the child is waited for, which only kill does.
        if not self._is_killed:
            signal_group(self._process, number)

    def _wait_until_stopped(self) -> None:
        """Wait until the child has stopped: it first ends the system call that it is in. Give up after a second."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return
        give_up = time.monotonic() + _STOP_SECONDS
        how = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        with suppress(ChildProcessError):  # it was killed and waited for
            while os.waitid(os.P_PID, self._process.pid, how) is None and time.monotonic() < give_up:
                time.sleep(_POLL_SECONDS)


def start_process(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], *, errors: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own. It inherits no descriptors, and no variables except ``environment``. ``errors`` is
    its stderr. asyncio's own subprocesses would need a watcher. Raise ChildFailed if it cannot be started."""
    hide_memory()
    try:
        return subprocess.Popen(  # noqa: S603
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: an argument holds a null character
        raise ChildFailed(f"could not be started: {getattr(error, 'strerror', None) or 'bad arguments'}") from None


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the group of a process that was not waited for, so that the number of the group is still its own."""
    with suppress(ProcessLookupError, PermissionError):  # macOS does not permit signals to a group that has ended
        os.killpg(process.pid, number)


def hide_memory() -> None:
    """Make this process not dumpable: then no other process of its user can read its memory and environment (root can)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
