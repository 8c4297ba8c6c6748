"""The targets of attacks: secrets, servers, files and processes that confined code must not reach."""

import ctypes
import os
import resource
import secrets
import socket
import stat
import subprocess
import sysconfig
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Self

import pytest

import spass
from spass.core.messages import Json
from spass.sandbox.child.kernel import machine
from spass.sandbox.child.system_calls import RULES
from tests.unit.sandbox.system_call_numbers import numbers_here

_IPC_CREATE: Final = 0o1000
_IPC_REMOVE: Final = 0
_VICTIM_FILES: Final = 1000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.shmat.restype = ctypes.c_void_p


class World:
    """A world for one attack. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self.scratch: Final = folder / "scratch"
        self.secret: Final = f"secret-{secrets.token_hex(8)}"
        self._stack: Final = ExitStack()
        self._servers: Final[dict[str, socket.socket]] = {}
        self._memory: Final = ctypes.create_string_buffer(self.secret.encode(), 64)
        self._canary: Final = folder / "canary.txt"

    def __enter__(self) -> Self:
        self.scratch.mkdir()
        (self.folder / "secret.txt").write_text(self.secret)
        self._canary.write_text("canary")
        self._canary.chmod(0o600)
        (self.folder / "empty").mkdir()
        (self.folder / "leftover").mkdir()
        (self.folder / "leftover" / "notes.txt").write_text(self.secret)
        self._descriptor = os.open(self.folder / "secret.txt", os.O_RDONLY)
        self._stack.callback(os.close, self._descriptor)
        self.leaked = os.dup(self._descriptor)
        """A descriptor that the child inherits by mistake."""
        self._stack.callback(os.close, self.leaked)
        patch = self._stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("SPASS_SECRET", self.secret)
        self._listen()
        self._share_memory()
        self._victim = self._stack.enter_context(subprocess.Popen(["sleep", "60"], start_new_session=True))
        self._stack.callback(self._victim.kill)
        resource.prlimit(self._victim.pid, resource.RLIMIT_NOFILE, (_VICTIM_FILES, _VICTIM_FILES))
        self._before = self._look()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def names(self) -> dict[str, Json]:
        """Return what the attacks know as ``W``: where everything is, but no secret."""
        packages = Path(sysconfig.get_path("purelib"))
        allowed = {rule.x86_64 if machine() == "x86_64" else rule.aarch64 for rule in RULES} - {None}
        return {
            "secret_file": str(self.folder / "secret.txt"),
            "canary": str(self._canary),
            "folder": str(self.folder),
            "empty_folder": str(self.folder / "empty"),
            "leftover": str(self.folder / "leftover"),
            "library": str(Path(spass.__file__).parent),
            "packages": str(packages),
            "package_file": str(packages / "pytest" / "__init__.py"),
            "parent": os.getpid(),
            "victim": self._victim.pid,
            "address": ctypes.addressof(self._memory),
            "secret_descriptor": self._descriptor,
            "shared_key": self._key,
            "shared_file": self._shared_file.name,
            "tcp": self._port("tcp"),
            "tcp6": self._port("tcp6"),
            "udp": self._port("udp"),
            "unix": str(self.folder / "stream.sock"),
            "unix_datagram": str(self.folder / "datagram.sock"),
            "abstract": f"spass-{self.secret[-8:]}",
            "runtime_api": f"127.0.0.1:{self._port('tcp')}",
            "calls": dict(numbers_here()),
            "allowed": sorted(number for number in allowed if number is not None),
        }

    def gains(self, output: str) -> list[str]:
        """Return what the code gained, whose output this is."""
        gains = [line for line in output.splitlines() if "GAINED" in line]
        if self.secret in output:
            gains.append("the secret is in the output")
        gains += [f"the server {name} was reached" for name, server in self._servers.items() if _was_reached(server)]
        after = self._look()
        return gains + [
            f"{name} was {before!r}, is {after[name]!r}" for name, before in self._before.items() if before != after[name]
        ]

    def _look(self) -> dict[str, object]:
        """Return everything that code must not change."""
        status: os.stat_result | None = None
        with suppress(FileNotFoundError):
            status = self._canary.stat()
        return {
            "the folder": sorted(path.name for path in self.folder.iterdir()),
            "the canary": status and (self._canary.read_text(), stat.S_IMODE(status.st_mode), status.st_mtime_ns, status.st_ino),
            "the victim": self._victim.poll(),
            "its priority": _priority(self._victim.pid),
            "its limits": _limits(self._victim.pid),
            "the parent's memory": self._memory.value,
        }

    def _listen(self) -> None:
        addresses: dict[str, tuple[int, int, tuple[str, int] | str]] = {
            "tcp": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "udp": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "tcp6": (socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
            "unix": (socket.AF_UNIX, socket.SOCK_STREAM, str(self.folder / "stream.sock")),
            "unix_datagram": (socket.AF_UNIX, socket.SOCK_DGRAM, str(self.folder / "datagram.sock")),
            "abstract": (socket.AF_UNIX, socket.SOCK_STREAM, f"\0spass-{self.secret[-8:]}"),
        }
        for name, (family, kind, address) in addresses.items():
            with suppress(OSError):  # a machine may have no IPv6
                server = self._stack.enter_context(socket.socket(family, kind))
                server.bind(address)
                server.setblocking(False)
                if kind == socket.SOCK_STREAM:
                    server.listen()
                self._servers[name] = server

    def _port(self, name: str) -> int:
        return int(self._servers[name].getsockname()[1]) if name in self._servers else 9

    def _share_memory(self) -> None:
        self._key = secrets.randbelow(2**30) + 1
        identifier = _LIBC.shmget(self._key, 64, _IPC_CREATE | 0o600)
        assert identifier >= 0
        self._stack.callback(_LIBC.shmctl, identifier, _IPC_REMOVE, None)
        address = ctypes.c_void_p(_LIBC.shmat(identifier, None, 0))
        ctypes.memmove(address, self.secret.encode(), len(self.secret))
        _LIBC.shmdt(address)
        self._shared_file = Path("/dev/shm") / f"spass-{secrets.token_hex(8)}"
        self._shared_file.write_text(self.secret)
        self._stack.callback(self._shared_file.unlink, missing_ok=True)


def _was_reached(server: socket.socket) -> bool:
    try:
        if server.type == socket.SOCK_STREAM:
            server.accept()[0].close()
        else:
            server.recv(1)
    except BlockingIOError:
        return False
    return True


def _priority(process: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getpriority(os.PRIO_PROCESS, process)
    return None


def _limits(process: int) -> tuple[int, int] | None:
    with suppress(ProcessLookupError):
        return resource.prlimit(process, resource.RLIMIT_NOFILE)
    return None
