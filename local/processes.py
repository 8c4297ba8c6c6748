"""Run child processes that end when their parent ends, even after a kill."""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

import httpx

from local.home import ROOT, LocalError

_START_SECONDS: Final = 45.0
_STOP_SECONDS: Final = 20.0
_TAIL_LINES: Final = 8


@contextmanager
def child(
    name: str,
    module: str,
    arguments: Sequence[str],
    *,
    healthy: str,
    log: Path,
    environment: Mapping[str, str],
    keep_open: int | None = None,
) -> Iterator[None]:
    """Run ``python -m module`` until the block ends. The block begins when the URL ``healthy`` answers.

    The child has its own process group, so a Ctrl-C reaches only this process, which stops its children in order. The child
    watches a pipe that closes when this process ends (`local.child`). Its output goes to ``log``. It keeps the file descriptor
    ``keep_open`` open until it ends.

    Raises:
        LocalError: the child ended, or did not answer within 45 s.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "local.child", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**environment, "PYTHONPATH": os.pathsep.join([str(ROOT / "shared"), str(ROOT)])},
            start_new_session=True,
            pass_fds=() if keep_open is None else (keep_open,),
        )
    try:
        _wait_until_healthy(name, healthy, process.poll, log)
        yield
    finally:
        _stop(process)


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str, *, timeout: float) -> bool:
    """Return whether an HTTP server answers at ``url``, with any status. Do not read the body, which may never end."""
    try:
        with httpx.stream("GET", url, timeout=timeout, verify=_tls(), trust_env=False):
            return True
    except (httpx.TransportError, httpx.InvalidURL):
        return False


@cache
def _tls() -> ssl.SSLContext:
    """Return the TLS context. Cached: reading the certificates takes 20 ms of CPU, and a start asks every 50 ms."""
    return httpx.create_ssl_context(trust_env=False)


def _wait_until_healthy(name: str, url: str, exit_code: Callable[[], int | None], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if exit_code() is not None:
            raise LocalError(f"{name} ended while starting; its output is in {log}:\n{_tail(log)}")
        if answers(url, timeout=2.0):
            return
        time.sleep(0.05)
    raise LocalError(f"{name} did not answer within {_START_SECONDS:.0f} s; its output is in {log}:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Also kill the processes that the child started: they are in its process group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin:
            process.stdin.close()
