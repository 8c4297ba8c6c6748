"""A stand-in for docker: a program on the PATH that records its arguments and runs a Python program as the container.

The container has a process of its own, like that of a daemon: it outlives its client, and only ``kill`` and ``rm`` end it.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_SOURCE: Final = """#!{python} -S
import json, os, signal, subprocess, sys
from pathlib import Path

folder = Path({folder!r})
running = folder / "running"


def record(**entry):
    with (folder / "calls.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\\n")


def end(name):
    try:
        os.killpg(int((running / name).read_text()), signal.SIGKILL)
    except (OSError, ValueError):
        pass


command = sys.argv[1]
record(arguments=sys.argv[1:], environment=dict(os.environ), folder=os.getcwd())
if command == "run":
    name = sys.argv[sys.argv.index("--name") + 1]
    container = [sys.executable, "-S", "-u", str(folder / "container.py"), *sys.argv]
    process = subprocess.Popen(container, start_new_session=True, env={{}})
    (running / name).write_text(str(process.pid))
    code = process.wait()
    (running / name).unlink(missing_ok=True)
    sys.exit(code if code >= 0 else 137)
elif command == "ps":
    print("\\n".join(path.name for path in running.iterdir()))
elif command == "kill":
    end(sys.argv[2])
elif command == "rm":
    end(sys.argv[-1])
    (running / sys.argv[-1]).unlink(missing_ok=True)
"""


@dataclass(frozen=True)
class Call:
    """One call of the runtime."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str


class RecordingRuntime:
    """The stand-in ``name``, installed in ``folder``. ``path`` is the PATH that finds it."""

    def __init__(self, folder: Path, name: str = "docker") -> None:
        self._folder = folder
        self.path: Final = f"{folder}:{os.environ['PATH']}"
        self.program: Final = folder / name
        (folder / "running").mkdir()
        self.program.write_text(_SOURCE.format(python=sys.executable, folder=str(folder)))
        self.program.chmod(0o755)
        self.contain("pass")

    def contain(self, code: str) -> None:
        """Set the program that the containers run."""
        (self._folder / "container.py").write_text(code)

    @property
    def calls(self) -> list[Call]:
        """Return every call so far."""
        path = self._folder / "calls.jsonl"
        lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [Call(**line) for line in lines]

    @property
    def runs(self) -> list[Call]:
        """Return the calls that started a container."""
        return [call for call in self.calls if call.arguments[0] == "run"]

    @property
    def running(self) -> set[str]:
        """Return the names of the containers that exist."""
        return {path.name for path in (self._folder / "running").iterdir()}

    def add_container(self, name: str) -> None:
        """Add a container without a process."""
        (self._folder / "running" / name).write_text("")
