"""The handler of the sandbox's Lambda function: run one confined child to its end. It needs the standard library alone.

The event is ``{"start", "token", "cells", "cell_cpu", "cell_wall"}``: base64 of the compressed start line, its token, the number
of its cells, and the limits of a cell in seconds. The answer is ``{"lines", "cpu", "fault"}``: base64 of the child's compressed
lines, the seconds of processor time that it used, and why it was stopped, or None. The child gets no further line: it ends at the
first call to the outside that its journal does not answer. An event without a start keeps the function active.
"""

from __future__ import annotations

import base64
import os
import select
import signal
import sys
import time
import zlib
from contextlib import contextmanager, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Protocol

    class Context(Protocol):
        """The part of Lambda's context that the handler uses."""

        def get_remaining_time_in_millis(self) -> int: ...


_FOLDER = os.path.dirname(os.path.abspath(__file__))
_CHILD = os.path.join(_FOLDER, "child", "__main__.py")
_LAMBDA_FOLDER = "/var/task"
_LAMBDA_TEMPORARY = "/tmp"  # noqa: S108
_MAX_OUTPUT = 64 * 2**20
_MAX_ANSWER = 5 * 2**20
_RESERVE_SECONDS = 3.0
_TICK_SECONDS = 0.25
_CHUNK = 1 << 16
_CPU_CLOCK = 2
_PR_SET_DUMPABLE = 4


def handler(event: dict[str, Any], context: Context) -> dict[str, Any]:
    """Run the program of ``event``."""
    if not event.get("start"):
        return {}
    _hide_memory()
    child = _Child(event, time.monotonic() + context.get_remaining_time_in_millis() / 1000 - _RESERVE_SECONDS)
    with _temporary_folder() as folder:
        child.run(zlib.decompress(base64.b64decode(event["start"])), folder)
    return child.answer()


@contextmanager
def _temporary_folder() -> Iterator[str]:
    """Create a folder, and remove it afterwards with everything that code could write beside it.

    The kernel of Lambda has no Landlock, so code can write to all of the machine's temporary folder, which the next turn of the
    same user gets too.
    """
    is_lambda = _FOLDER == _LAMBDA_FOLDER
    root = _LAMBDA_TEMPORARY if is_lambda else _new_folder(os.environ.get("TMPDIR") or _LAMBDA_TEMPORARY)
    _empty_folder(root)  # Lambda keeps what an invocation that was killed has left
    try:
        yield _new_folder(root)
    finally:
        _empty_folder(root)
        if not is_lambda:
            os.rmdir(root)


def _new_folder(parent: str) -> str:
    folder = os.path.join(parent, os.urandom(16).hex())
    os.mkdir(folder, 0o700)
    return folder


def _empty_folder(folder: str) -> None:
    """Remove what is in ``folder``, whatever rights and depth code gave it. Follow no links.

    Move the contents of each folder to the top first, because the kernel limits the length of a path.
    """
    while names := os.listdir(folder):
        for path in [os.path.join(folder, name) for name in names]:
            if not _make_writable(path):
                os.unlink(path)
                continue
            for inner in [os.path.join(path, name) for name in os.listdir(path)]:
                _make_writable(inner)
                os.rename(inner, os.path.join(folder, os.urandom(16).hex()))
            os.rmdir(path)


def _make_writable(path: str) -> bool:
    """Return True if ``path`` is a folder, whose contents this process may now change."""
    is_folder = os.path.isdir(path) and not os.path.islink(path)
    if is_folder:
        os.chmod(path, 0o700)
    return is_folder


class _Child:
    """One run of the child."""

    def __init__(self, event: dict[str, Any], deadline: float) -> None:
        self._cell_end = b"\n" + event["token"].encode() + b' {"cell"'
        self._cells_left: int = event.get("cells", 1) - 1  # gateways of the release before do not send it while a deployment runs
        self._cell_cpu: float = event["cell_cpu"]
        self._cell_wall: float = event["cell_wall"]
        self._deadline = deadline
        self._output = bytearray()
        self._cpu = 0.0
        self._fault: str | None = None

    def run(self, start: bytes, folder: str) -> None:
        """Run the child in ``folder`` until it ends, or exceeds a limit."""
        environment = {"PYTHONHASHSEED": "0"}
        if libraries := os.environ.get("LD_LIBRARY_PATH"):  # Lambda's interpreter does not start without it
            environment["LD_LIBRARY_PATH"] = libraries
        import subprocess  # not when the module loads: the first caller waits for that

        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-s", "-P", "-S", "-B", "-X", "utf8", _CHILD],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            with suppress(BrokenPipeError), process.stdin as stdin:  # type: ignore[union-attr]
                stdin.write(start + b"\n")  # the child reads all of it before it runs code
            with process.stdout as stdout:  # type: ignore[union-attr]
                self._fault = self._read(process.pid, stdout.fileno())
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the number stays taken until the child is waited for
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self._cpu = usage.ru_utime + usage.ru_stime

    def answer(self) -> dict[str, Any]:
        """Return the answer of the function. It is small enough for Lambda."""
        lines = base64.b64encode(zlib.compress(bytes(self._output), 1))
        if len(lines) > _MAX_ANSWER:
            return {"lines": "", "cpu": self._cpu, "fault": "wrote too much"}
        return {"lines": lines.decode(), "cpu": self._cpu, "fault": self._fault}

    def _read(self, pid: int, descriptor: int) -> str | None:
        """Read the child's output to the end. Return the limit that a cell exceeded, or None.

        Code can write the line that ends a cell. So each cell but the last sets the clocks back once, and no line more.
        """
        cell_began, cell_began_cpu, searched = time.monotonic(), 0.0, 0
        while True:
            readable, _, _ = select.select([descriptor], [], [], _TICK_SECONDS)
            if readable:
                chunk = os.read(descriptor, _CHUNK)
                if not chunk:
                    return None
                self._output += chunk
            now, cpu = time.monotonic(), time.clock_gettime((~pid << 3) | _CPU_CLOCK)
            if len(self._output) > _MAX_OUTPUT:
                return "wrote too much"
            if self._cells_left > 0 and (ended := self._output.count(self._cell_end, searched)):
                cell_began, cell_began_cpu = now, cpu
                self._cells_left -= ended
                searched = self._output.rfind(self._cell_end) + len(self._cell_end)
            searched = max(searched, len(self._output) - len(self._cell_end) + 1)
            if cpu - cell_began_cpu > self._cell_cpu:
                return f"used more than {self._cell_cpu:g} s of processor time"
            if now > self._deadline or now - cell_began > self._cell_wall:
                return f"took longer than {now - cell_began:.0f} s"


def _hide_memory() -> None:
    """Make this process not dumpable: then the child cannot read its memory and environment."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
