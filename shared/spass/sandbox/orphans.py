"""Names of containers that tell who started them, and the removal of those whose process is gone.

A name is ``spass-<host>-<process>-<start of the process>-<random>``. So a process recognizes the containers of its own machine
whose owner has ended, and never touches containers of a living process or of another machine that shares the daemon.
"""

import hashlib
import os
import platform
import re
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"spass-(?P<host>[0-9a-f]{8})-(?P<process>\d+)-(?P<start>\d+)-[0-9a-f]{16}")
_SECONDS: Final = 10.0
"""Seconds that one command of the runtime may take."""
_ATTEMPTS: Final = 3


def new_name() -> str:
    """Return the name of a new container of this process."""
    process = os.getpid()
    return f"spass-{_host()}-{process}-{_start_of(process) or 0}-{secrets.token_hex(8)}"


def remove_orphans(runtime: str, environment: Mapping[str, str]) -> None:
    """Remove the containers of this machine whose process has ended. Ignore a runtime that cannot list them: the
    start reports it."""
    for name in list_containers(runtime, environment, "spass-"):
        match = _NAME.fullmatch(name)
        if match and match["host"] == _host() and not _is_alive(int(match["process"]), int(match["start"])):
            remove_container(runtime, environment, name)


def remove_container(runtime: str, environment: Mapping[str, str], name: str) -> None:
    """Kill and remove the container, if it exists. (Podman's ``rm -f`` alone waits ten seconds until it kills.)"""
    for _ in range(_ATTEMPTS):
        _run([runtime, "kill", name], environment)
        _run([runtime, "rm", "-f", name], environment)
        if name not in list_containers(runtime, environment, name):
            return


def list_containers(runtime: str, environment: Mapping[str, str], prefix: str) -> Sequence[str]:
    """Return the names of containers, also stopped ones, that begin with ``prefix``."""
    names = _run([runtime, "ps", "-a", "--filter", f"name=^{prefix}", "--format", "{{.Names}}"], environment).split()
    return [name for name in names if name.startswith(prefix)]


def _run(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the output of a command, or an empty text if it fails."""
    with suppress(OSError, subprocess.TimeoutExpired):
        ended = subprocess.run(  # noqa: S603
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
        return ended.stdout.decode("utf-8", "replace")
    return ""


@cache
def _host() -> str:
    """Return eight hexadecimal digits of the machine and its namespace of processes."""
    with suppress(OSError):
        return _digest(f"{platform.node()} {Path('/proc/self/ns/pid').stat().st_ino}")
    return _digest(platform.node())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _is_alive(process: int, start: int) -> bool:
    if start:
        return _start_of(process) == start
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # a process of another user
    return True


def _start_of(process: int) -> int | None:
    """Return when a process started, in ticks since the boot, or None if it does not exist. Numbers of processes repeat."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    return None
