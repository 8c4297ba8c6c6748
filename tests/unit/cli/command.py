"""Run the command line in a process of its own, with a pipe or with a pseudo-terminal."""

import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
COMMAND = (sys.executable, "-m", "spass")


class Output(NamedTuple):
    code: int
    out: str
    err: str


def environment(url: str, **others: str) -> dict[str, str]:
    """Return the environment of a command that uses the gateway at ``url``."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SPASS_")}
    return inherited | {"PYTHONPATH": str(ROOT / "shared"), "SPASS_URL": url, "COLUMNS": "100"} | others


def spass(url: str, *arguments: str, stdin: str | bytes = b"", variables: Mapping[str, str] | None = None) -> Output:
    """Run ``spass`` to its end. Its output is a pipe."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=data,
        capture_output=True,
        timeout=60,
        check=False,
        env=environment(url, **(variables or {})),
    )
    return Output(done.returncode, done.stdout.decode(), done.stderr.decode())


def spass_in_terminal(url: str, *arguments: str, stdin: bytes = b"") -> Output:
    """Run ``spass`` to its end in a pseudo-terminal, which gets ``stdin``. Return all its output as ``out``."""
    terminal, end = pty.openpty()
    with subprocess.Popen([*COMMAND, *arguments], stdin=end, stdout=end, stderr=end, env=environment(url)) as process:
        os.close(end)
        os.write(terminal, stdin)
        pieces: list[bytes] = []
        while True:
            try:
                piece = os.read(terminal, 4096)
            except OSError:  # Linux: the process has closed the terminal
                break
            if not piece:
                break
            pieces.append(piece)
        code = process.wait(60)
    os.close(terminal)
    return Output(code, b"".join(pieces).decode().replace("\r\n", "\n"), "")
