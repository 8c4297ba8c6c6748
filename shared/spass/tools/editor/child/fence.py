"""The limits that the child sets for itself before it reads the edit, and the audit hook that ends it.

The hook is a fence against misled code of ours and Aider's. It is not a sandbox: native code does not raise audit events.
"""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Final

MAX_MEMORY: Final = 1024 * 2**20
"""Bytes of address space. An edit of 2 MiB needs less than half of it."""
MAX_FILE: Final = 16 * 2**20
"""Bytes of a file, four times as large as the largest file of a workspace."""
MAX_CPU: Final = 620
"""Seconds of processor time: a little more than the longest edit may take."""
_MAX_OPEN_FILES: Final = 64
_PR_SET_PDEATHSIG: Final = 1

_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# What an edit never does: start a process, use the network or native code, send a signal, create links, change limits.
_FORBIDDEN_FAMILIES: Final = frozenset(
    {"socket", "ctypes", "subprocess", "pty", "resource", "sqlite3", "syslog", "urllib", "webbrowser"}
)
_FORBIDDEN: Final = frozenset(
    f"os.{name}"
    for name in (
        *("exec", "fork", "forkpty", "kill", "killpg", "posix_spawn", "spawn", "startfile", "system"),
        *("chdir", "chflags", "chmod", "chown", "link", "lockf", "removexattr", "setxattr", "symlink", "unshare", "setns"),
    )
) | {"cpython.PyInterpreterState_New"}  # another interpreter does not have the hook
# Functions that raise no event: they start a process, act on another one, or make something that is not a file.
_SILENT: Final[Mapping[str, tuple[str, ...]]] = {
    "_posixsubprocess": ("fork_exec",),
    "os": ("mkfifo", "mknod", "pidfd_open", "sched_setaffinity", "sched_setparam", "sched_setscheduler", "setpriority"),
    "signal": ("pidfd_send_signal",),
}
_IMPLEMENTED_IN: Final = {"os": "posix", "signal": "_signal"}
# The positions of paths and of folder descriptors in the arguments of the changes that an edit makes in its folder.
_CHANGES: Final[Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "os.mkdir": ((0,), (2,)),
    "os.remove": ((0,), (1,)),
    "os.rename": ((0, 1), (2, 3)),
    "os.rmdir": ((0,), (1,)),
    "os.truncate": ((0,), ()),
    "os.utime": ((0,), (3,)),
}
_NO_DESCRIPTOR: Final = -1
_MAX_EVENT: Final = 300


def close_fence(folder: str, gateway: int, report: Callable[[str], None]) -> None:
    """Limit this process, and end it when it does what an edit never does, or when the process ``gateway``, its parent, ends. It
    may write in ``folder`` only.

    ``report`` receives the name of the event before the process ends. Reading elsewhere than in ``folder`` and on Python's path
    raises ``PermissionError``.
    """
    _end_with_parent(gateway)
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, MAX_FILE),
        (resource.RLIMIT_CPU, MAX_CPU),
        (resource.RLIMIT_NOFILE, _MAX_OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),  # without effect for root
        (resource.RLIMIT_AS, MAX_MEMORY),
    ):
        with suppress(ValueError, OSError):  # macOS does not have every limit
            resource.setrlimit(limit, (value, value))
    hook = _Hook(os.path.realpath(folder), report)
    for name, functions in _SILENT.items():
        for module in {import_module(name), import_module(_IMPLEMENTED_IN.get(name, name))}:
            for function in functions:
                if hasattr(module, function):
                    setattr(module, function, partial(_end, hook, f"{name}.{function}"))
    sys.addaudithook(hook)


def _end(hook: "_Hook", event: str, *_: object, **__: object) -> None:
    """Stand in the place of a function that an edit never calls."""
    hook.end(event)


def _end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that started it ends. Only Linux can do this."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the kernel was asked


class _Hook:
    """The audit hook: called with the name and the arguments of each event, before it happens."""

    def __init__(self, folder: str, report: Callable[[str], None]) -> None:
        self._inside: Final = f"{folder}{os.sep}"
        self._readable: Final = tuple({f"{os.path.realpath(path)}{os.sep}" for path in (folder, *sys.path)})
        self._report: Final = report
        self._is_ending = False

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        if event == "open":
            self._check_open(args)
        elif event in {"os.listdir", "os.scandir"}:
            self._check_read(event, _resolve(args[0] or "."))
        elif event in _CHANGES:
            self._check_change(event, args)
        elif event in _FORBIDDEN or event.partition(".")[0] in _FORBIDDEN_FAMILIES:
            self.end(event)

    def _check_open(self, args: tuple[object, ...]) -> None:
        path, flags = _resolve(args[0]), args[2]
        if path == os.devnull:
            return
        if path is not None and isinstance(flags, int) and flags & _WRITES and not path.startswith(self._inside):
            self.end(f"open {path}")
        self._check_read("open", path)

    def _check_read(self, event: str, path: str | None) -> None:
        if path is None:
            return  # a descriptor of an open file
        if f"{path}/".startswith("/proc/"):
            self.end(f"{event} {path}")
        if not f"{path}{os.sep}".startswith(self._readable):
            raise PermissionError(f"an edit does not read {path}")

    def _check_change(self, event: str, args: tuple[object, ...]) -> None:
        paths, descriptors = _CHANGES[event]
        targets = [_resolve(args[at]) for at in paths]
        is_inside = all(path is not None and path.startswith(self._inside) for path in targets)
        if not is_inside or any(args[at] != _NO_DESCRIPTOR for at in descriptors):
            self.end(event)

    def end(self, event: str) -> None:
        """Report ``event`` and end the process."""
        if not self._is_ending:  # reporting raises events too
            self._is_ending = True
            self._report(event[:_MAX_EVENT])
        os._exit(1)


def _resolve(path: object) -> str | None:
    return os.path.realpath(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else None
