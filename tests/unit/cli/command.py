"""Run the command line in a process of its own, without or with a pseudo-terminal."""

import multiprocessing
import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from multiprocessing.context import ForkServerContext
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
    """Run ``spass`` to its end, in a copy of a process that has imported what it needs: that takes 0.4 s of processor time.

    With ``variables`` it is started anew, because Python reads some of them when it starts.
    """
    data = stdin.encode() if isinstance(stdin, str) else stdin
    if variables is not None:
        return _start(url, arguments, data, variables)
    with tempfile.TemporaryDirectory() as folder:
        inputs, *outputs = (Path(folder) / name for name in ("in", "out", "err"))
        inputs.write_bytes(data)
        process = _forks().Process(target=_run, args=(inputs, outputs, arguments, environment(url)))
        process.start()
        process.join(60)
        assert process.exitcode is not None, "the command did not end within a minute"
        out, err = (path.read_text() for path in outputs)
        return Output(process.exitcode, out, err)


def _start(url: str, arguments: tuple[str, ...], data: bytes, variables: Mapping[str, str]) -> Output:
    """Run ``spass`` in a new process. Its input and its output are pipes."""
    done = subprocess.run(
        [*COMMAND, *arguments], input=data, capture_output=True, timeout=60, check=False, env=environment(url, **variables)
    )
    return Output(done.returncode, done.stdout.decode(), done.stderr.decode())


@cache
def _forks() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [__name__, *(f"spass.cli.{command}" for command in ("ask", "chat", "job", "listing", "managed"))]
    )
    return context


def _run(inputs: Path, outputs: list[Path], arguments: tuple[str, ...], variables: Mapping[str, str]) -> None:
    """Run the command in this process, with its streams in these files."""
    os.dup2(os.open(inputs, os.O_RDONLY), 0)
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115 (a descriptor, and for the whole process)
    os.environ.clear()
    os.environ.update(variables)
    from spass.cli.main import main

    sys.exit(main(arguments))


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
