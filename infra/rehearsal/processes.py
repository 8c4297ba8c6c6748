"""Run the programs of a rehearsal, all of which end with it."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 5.0
_TAIL_LINES: Final = 12


class RehearsalFailed(Exception):
    """The rehearsal cannot go on. ``log`` is the file that says why."""

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def server(name: str, command: Sequence[str], *, port: int, log: Path, environment: Mapping[str, str]) -> Iterator["Server"]:
    """Run a server in a process group of its own until the block ends, which begins when ``port`` answers.

    Raises:
        RehearsalFailed: the port is taken, or the server ended or does not answer.
    """
    if _listens(port):
        raise RehearsalFailed(f"Port {port} of {name} is taken by another program.")
    with log.open("ab") as output:
        process = subprocess.Popen(
            # The server ends when its standard input closes, which a kill of this process does too.
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
    running = Server(name, process, log)
    try:
        running.wait_until_it_listens(port)
        yield running
    finally:
        running.end()


class Server:
    """A running server and all that it has started."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    def failure(self) -> RehearsalFailed | None:
        """Return why the server has ended, or None if it runs."""
        if self._process.poll() is None:
            return None
        return RehearsalFailed(f"{self.name} ended with status {self._process.returncode}.", self.log)

    def check(self) -> None:
        """Check that the server runs.

        Raises:
            RehearsalFailed: it has ended.
        """
        if failure := self.failure():
            raise failure

    def wait_until_it_listens(self, port: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            if _listens(port):
                return
            time.sleep(0.05)
        raise RehearsalFailed(f"{self.name} did not answer within {_START_SECONDS:.0f} s.", self.log)

    def end(self) -> None:
        """End the process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def run(
    command: Sequence[str | Path], *, log: Path, environment: Mapping[str, str], cwd: Path = ROOT, seconds: float = 600
) -> str:
    """Run a program, append what it prints to ``log`` and return that.

    Raises:
        RehearsalFailed: its exit status is not 0, or it did not end in time.
    """
    start = log.stat().st_size if log.exists() else 0
    name = Path(command[0]).name
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=environment,
            start_new_session=True,
        )
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise RehearsalFailed(f"{name} did not end within {seconds:.0f} s.", log) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    text = log.read_bytes()[start:].decode(errors="replace")
    if status:
        raise RehearsalFailed(f"{name} ended with status {status}:\n{tail(text)}", log)
    return text


def tail(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
        return True
    return False
