"""A program outside the gateway, in a process group of its own: lines through its pipes, bounds, and an end without leftovers."""

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from spass.core.json import dump_line
from spass.core.messages import Json
from spass.redaction.detector import SecretSet
from spass.redaction.stream import redact_secrets
from spass.redaction.text import MAX_PROVIDER_CHARACTERS, redact, redact_provider_text
from spass.sandbox.child_process import ChildFailed, signal_group, start_process
from spass.sandbox.program_answer import AnswerReader

MAX_OUTPUT: Final = 100_000_000
"""Bytes that a program may write to each of its two pipes."""
_CHUNK: Final = 256 * 1024
_KEPT_ERRORS: Final = 16 * 1024  # bytes at the end of stderr
_END_SECONDS: Final = 5.0
_LAST_ERRORS_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.01
_OF_STACK: Final = re.compile(r"\s|Traceback |Node\.js v")


class Program:
    """A running program. Use it as an asynchronous context manager, which kills the process group at the end.
    Methods raise ChildFailed if it cannot be started, has written too much, or has failed.

    ``secrets`` never appear in the message of an error. With ``grace``, the program is asked to end (SIGTERM), and killed after
    this time, in seconds.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        secrets: Sequence[str] = (),
        grace: float = 0,
    ) -> None:
        self._command: Final = tuple(command)
        self._environment: Final = dict(environment)
        self._folder: Final = folder
        self._secrets: Final = tuple(secrets)
        self._grace: Final = grace
        self._process: subprocess.Popen[bytes] | None = None
        self._readers: Final[list[asyncio.BaseTransport]] = []
        self._writer: asyncio.WriteTransport | None = None
        self._output: Final = asyncio.StreamReader(limit=_CHUNK)
        self._errors: Final = _Errors(self._kill_group)
        self._buffer = bytearray()
        self._received = 0
        self._is_at_end = False

    async def __aenter__(self) -> Self:
        """Start the program. It inherits no descriptors, and no variables except its ``environment``."""
        process = self._process = start_process(self._command, self._folder, self._environment, errors=subprocess.PIPE)
        try:
            loop = asyncio.get_running_loop()
            output, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._output), process.stdout)
            self._readers.append(output)
            errors, _ = await loop.connect_read_pipe(lambda: self._errors, process.stderr)
            self._readers.append(errors)
            self._writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        except BaseException:
            self.kill()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def send(self, value: Mapping[str, Json]) -> None:
        """Send a line of JSON. It waits in memory until the program reads it."""
        if self._writer is not None:
            self._writer.write(dump_line(dict(value)).encode() + b"\n")

    def end_input(self) -> None:
        """Close the program's stdin after everything that was sent."""
        if self._writer is not None:
            self._writer.write_eof()

    async def read_line(self) -> str | None:
        """Return the next line that the program writes, without its end, or None after the last one."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0 and not self._is_at_end:
            searched = len(self._buffer)
            chunk = await self._output.read(_CHUNK)
            self._received += len(chunk)
            self._is_at_end = not chunk
            if max(self._received, self._errors.received) >= MAX_OUTPUT:
                raise ChildFailed(f"wrote {MAX_OUTPUT // 1_000_000} MB, which is too much")
            self._buffer += chunk
        if end < 0 and not self._buffer:
            return None
        stop = end if end >= 0 else len(self._buffer)
        line = self._buffer[:stop].decode("utf-8", "replace").removesuffix("\r")
        del self._buffer[: stop + 1]
        return line

    async def wait(self) -> None:
        """Wait until the program has ended, and kill what is left of its group. Raise ChildFailed if it ended with an exit code
        other than 0. ``describe`` adds the end of its stderr."""
        if self._process is None:
            return
        while not self._has_ended():  # noqa: ASYNC110 (no event tells the end of a process without a watcher)
            await asyncio.sleep(_POLL_SECONDS)
        self._kill_group()
        code = self._process.wait()
        with suppress(TimeoutError):  # a process that left the group may keep the pipe open
            await asyncio.wait_for(self._errors.ended.wait(), _LAST_ERRORS_SECONDS)
        if code < 0:
            raise ChildFailed(f"was killed by signal {-code}")
        if code > 0:
            raise ChildFailed(f"ended with exit code {code}")

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, or None if the program runs. It is negative after a signal."""
        return None if self._process is None else self._process.returncode

    def describe(self, fault: str) -> str:
        """Return ``fault`` with the end of what the program wrote to stderr, redacted and shortened."""
        said = self._errors.last_lines(self._secrets)
        return f"{fault}: {said}" if said else fault

    def kill(self) -> None:
        """Kill the process group, wait until the program has ended, and close the pipes.

        This does not await: a cancelled task would skip the rest.
        """
        if self._process is None:
            return
        if self._grace and not self._has_ended():
            os.kill(self._process.pid, signal.SIGTERM)
            give_up = time.monotonic() + self._grace
            while not self._has_ended() and time.monotonic() < give_up:
                time.sleep(_POLL_SECONDS)
        self._kill_group()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._close_pipes(self._process)

    def _close_pipes(self, process: subprocess.Popen[bytes]) -> None:
        if self._writer is None and process.stdin is not None:
            process.stdin.close()
        elif self._writer is not None and (not self._writer.is_closing() or self._writer.get_write_buffer_size()):
            self._writer.abort()  # also while it waits for room, but not twice
        for transport in self._readers:
            transport.close()
        for pipe in (process.stdout, process.stderr)[len(self._readers) :]:
            if pipe is not None:
                pipe.close()

    def _has_ended(self) -> bool:
        """Return True if the program has ended. Do not reap it where the system allows that: reaping frees the number of its
        group, and another program could get it before ``_kill_group``."""
        process = self._process
        if process is None or process.returncode is not None:
            return True
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return process.poll() is not None

    def _kill_group(self) -> None:
        if self._process is not None and self._process.returncode is None:
            signal_group(self._process, signal.SIGKILL)


class _Errors(asyncio.Protocol):
    """The end of stderr. ``on_overflow`` is called when the program has written too much there."""

    def __init__(self, on_overflow: Callable[[], None]) -> None:
        self._on_overflow = on_overflow
        self._kept = bytearray()
        self.received = 0
        self.ended = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.ended.set()

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self._kept += data
        del self._kept[:-_KEPT_ERRORS]
        if self.received >= MAX_OUTPUT:
            self._on_overflow()

    def last_lines(self, secrets: Sequence[str]) -> str:
        """Return the last lines, redacted, on one line of at most 500 characters. Lines of a stack trace are left out."""
        text = self._kept.decode("utf-8", "replace")
        if self.received > _KEPT_ERRORS:
            text = text.partition("\n")[2]  # the first line may begin inside a secret
        text = redact(redact_secrets(SecretSet(secrets, ()), text))  # before lines are left out: some secrets have several
        lines = [line for line in text.splitlines() if line.strip() and not _OF_STACK.match(line)]
        kept: list[str] = []
        while lines and sum(map(len, kept)) + len(kept) + len(lines[-1]) <= MAX_PROVIDER_CHARACTERS:
            kept.insert(0, lines.pop())
        return redact_provider_text("\n".join(kept or lines[-1:]), secrets=secrets)


class ChildTimedOut(ChildFailed):
    """The child did not end in time. It was killed."""


async def run_child(
    command: Sequence[str],
    request: Mapping[str, Json],
    *,
    environment: Mapping[str, str],
    folder: Path,
    timeout: float,  # noqa: ASYNC109
    secrets: Sequence[str] = (),
    grace: float = 0,
) -> dict[str, Json]:
    """Run ``command`` in ``folder`` for at most ``timeout`` seconds and return the JSON object that it answers.

    The program reads ``request`` as one line of JSON from stdin and writes the answer between ``OUTPUT_START`` and
    ``OUTPUT_END``. It has the variables of ``environment`` and no others. See ``Program`` for ``secrets`` and ``grace``.
    However this ends, no process of the program's group is left.

    Raises:
        ChildTimedOut: the time is over.
        ChildFailed: the program failed, wrote too much, or wrote anything but one answer.
    """
    program = Program(command, environment=environment, folder=folder, secrets=secrets, grace=grace)
    answer = AnswerReader()
    try:
        async with asyncio.timeout(timeout), program:
            program.send(request)
            program.end_input()
            while (line := await program.read_line()) is not None:
                answer.add(line)
            await program.wait()
        return answer.answer()
    except TimeoutError:
        raise ChildTimedOut(f"did not end within {timeout:g} seconds") from None
    except ChildFailed as failure:
        raise ChildFailed(program.describe(str(failure))) from None
