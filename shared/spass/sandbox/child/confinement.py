"""Confine this process before it runs the first line of code that a model wrote.

The kernel enforces each bound: seccomp refuses system calls, Landlock refuses files, and resource limits end excess. Code can
change every Python object of this process, so no Python object is a boundary.
"""

from __future__ import annotations

import errno
import resource
from posix import O_RDONLY, chdir, environ, getcwd, listdir, open, stat, uname  # noqa: A004

from spass.sandbox.child import landlock, seccomp
from spass.sandbox.child.interpreter_files import interpreter_files
from spass.sandbox.child.kernel import machine, system_call
from spass.sandbox.child.system_calls import RULES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Final

    from spass.sandbox.child.system_calls import Rule

MAX_FILE: Final = 16 * 2**20
"""Bytes of one file in the scratch folder."""
MAX_OPEN_FILES: Final = 24
"""Files that are removed while they are open take room that no folder shows, at most ``MAX_FILE`` each."""
MAX_STACK: Final = 8 * 2**20
_VARIABLES: Final = frozenset({b"LC_CTYPE", b"LD_LIBRARY_PATH", b"PYTHONHASHSEED"})
"""The variables that the child may be started with. Python itself sets the first; Lambda's Python needs the second."""
_STARTED_WITH: Final = frozenset(environ)

_PRCTL: Final = {"x86_64": 157, "aarch64": 167}
_CAPSET: Final = {"x86_64": 126, "aarch64": 91}
_SOCKET: Final = {"x86_64": 41, "aarch64": 198}
_CLOSE_RANGE: Final = 436
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_NO_NEW_PRIVS: Final = 38
_SIGKILL: Final = 9
_CAPABILITIES_VERSION: Final = 0x20080522
_MAX_DESCRIPTOR: Final = 2**31 - 1
_AF_UNIX: Final = 1
_AF_INET: Final = 2
_SOCK_STREAM: Final = 1
_KIND_OF_FILE: Final = 0o170000
_FOLDER: Final = 0o040000


class ConfinementFailed(Exception):
    """This process cannot be confined. The message says why; no code may run."""


class Bounds:
    """The bounds that the parent sets. ``memory`` is in bytes and ``processor`` in seconds. ``keep`` are the descriptors that
    stay open. ``mounts`` are further files and folders that code may use."""

    __slots__ = ("keep", "memory", "mounts", "processor", "scratch")

    def __init__(
        self, scratch: str, memory: int, processor: int, keep: Collection[int], mounts: Sequence[landlock.Grant] = ()
    ) -> None:
        self.scratch = scratch
        self.memory = memory
        self.processor = processor
        self.keep = keep
        self.mounts = mounts


def close_descriptors(bounds: Bounds) -> None:
    """Close every descriptor that the parent left open by mistake."""
    low = 0
    for descriptor in (*sorted(bounds.keep), _MAX_DESCRIPTOR):
        if low < descriptor:
            system_call(_CLOSE_RANGE, low, descriptor - 1, 0)
        low = descriptor + 1


def require_empty_environment(_: Bounds) -> None:
    """Refuse to run with variables: to delete them would leave their values in memory."""
    others = sorted(name.decode("utf-8", "replace") for name in _STARTED_WITH - _VARIABLES)
    if others:
        raise ConfinementFailed(f"the child was started with variables in its environment: {', '.join(others)}")


def enter_scratch(bounds: Bounds) -> None:
    """Make the scratch folder the current folder. It must be empty."""
    chdir(bounds.scratch)
    if listdir("."):
        raise ConfinementFailed(f"the scratch folder {bounds.scratch} is not empty")


def end_with_parent(_: Bounds) -> None:
    """Let the kernel kill this process when the thread that started it ends."""
    system_call(_PRCTL[machine()], _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def hide_memory(_: Bounds) -> None:
    """Prevent other processes of the same user from reading this one, and core dumps."""
    system_call(_PRCTL[machine()], _PR_SET_DUMPABLE, 0, 0, 0, 0)


def refuse_privileges(_: Bounds) -> None:
    """Make programs with set-user-ID bits ordinary ones. A user's process may use seccomp and Landlock only then."""
    system_call(_PRCTL[machine()], _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def drop_capabilities(_: Bounds) -> None:
    """Drop what a process of root may do beyond one of a user."""
    header = _CAPABILITIES_VERSION.to_bytes(4, "little") + bytes(4)
    system_call(_CAPSET[machine()], header, bytes(24))


STEPS: Final = (
    end_with_parent, close_descriptors, require_empty_environment, enter_scratch, hide_memory, refuse_privileges,
    drop_capabilities,
)  # fmt: skip

LIMITS: Final[Mapping[int, Callable[[Bounds], int]]] = {
    resource.RLIMIT_AS: lambda bounds: bounds.memory,
    resource.RLIMIT_CPU: lambda bounds: bounds.processor,
    resource.RLIMIT_FSIZE: lambda _: MAX_FILE,
    resource.RLIMIT_NOFILE: lambda _: MAX_OPEN_FILES,
    resource.RLIMIT_STACK: lambda _: MAX_STACK,
    resource.RLIMIT_NPROC: lambda _: 0,  # without effect for root
    resource.RLIMIT_CORE: lambda _: 0,
}


def _must_have_no_socket(_: int) -> None:
    number = _SOCKET[machine()]
    _must_fail("a socket", errno.EPERM, lambda: system_call(number, _AF_UNIX, _SOCK_STREAM, 0))
    _must_fail("a socket", errno.EPERM, lambda: system_call(number, _AF_INET, _SOCK_STREAM, 0))


def _must_have_no_files(offered: int) -> None:
    if offered:
        _must_fail("a folder outside", errno.EACCES, lambda: open("/", O_RDONLY))


def _must_fail(what: str, expected: int, attempt: Callable[[], object]) -> None:
    try:
        attempt()
    except OSError as error:
        if error.errno != expected:
            raise ConfinementFailed(f"opening {what} failed for a reason other than the confinement: {error}") from error
    else:
        raise ConfinementFailed(f"the confinement does not hold: {what} can be opened")


class Policy:
    """Everything that confines. Tests leave out one item and show that an attack then succeeds."""

    def __init__(self) -> None:
        self.steps: Sequence[Callable[[Bounds], None]] = STEPS
        self.limits = LIMITS
        self.rights: Sequence[landlock.Right] = landlock.RIGHTS
        self.scratch_rights: Sequence[landlock.Right] = landlock.OF_SCRATCH
        self.rules: Sequence[Rule] = RULES
        self.guards: Sequence[str] = seccomp.GUARDS
        self.verifications: Sequence[Callable[[int], None]] = (_must_have_no_socket, _must_have_no_files)


POLICY: Final = Policy()


def confine(limits: Mapping[str, object], scratch: str, keep: Collection[int]) -> dict[str, int]:
    """Confine this process for good, and verify it. Return what holds: ``{"seccomp": True, "landlock": version or 0}``.

    ``limits`` has ``memory`` in bytes, ``cpu_turn`` in seconds of processor time, and optionally ``landlock``, the lowest version
    that is required. ``scratch`` is the only folder in which files may be written. ``keep`` are the descriptors that stay open.

    Raises:
        ConfinementFailed: a bound cannot be set, or does not hold.
    """
    name = machine()
    if not name:
        system = uname()
        raise ConfinementFailed(f"code runs on 64-bit Linux on x86-64 and arm64, not on {system.sysname} on {system.machine}")
    bounds = Bounds(scratch, _number(limits, "memory"), _number(limits, "cpu_turn"), keep, _mounts(limits))
    offered = landlock.version()
    required = _number(limits, "landlock") if "landlock" in limits else 0
    if offered < required:
        raise ConfinementFailed(f"the kernel offers version {offered} of Landlock; version {required} is required")
    try:
        _apply(POLICY, bounds, offered, name)
    except OSError as error:
        raise ConfinementFailed(f"the kernel refused to confine the child: {error}") from error
    for verify in POLICY.verifications:
        verify(offered)
    return {"seccomp": True, "landlock": offered}


def _apply(policy: Policy, bounds: Bounds, offered: int, name: str) -> None:
    program = seccomp.assemble(policy.rules, name, policy.guards)
    for step in policy.steps:
        step(bounds)
    if offered:
        grants = (*interpreter_files(), *bounds.mounts, landlock.Grant(getcwd(), policy.scratch_rights))
        landlock.restrict(grants, offered, policy.rights)
    for limit, value in policy.limits.items():
        _, hard = resource.getrlimit(limit)
        bound = value(bounds) if hard == resource.RLIM_INFINITY else min(value(bounds), hard)
        resource.setrlimit(limit, (bound, bound))
    seccomp.install(program, name)


def _mounts(limits: Mapping[str, object]) -> list[landlock.Grant]:
    """Return the rights on the mounts of a container. A file has no rights of folders."""
    mounts = limits.get("mounts") or ()
    if not isinstance(mounts, (list, tuple)):
        raise ConfinementFailed(f"the limit 'mounts' must be a list, not {mounts!r}")
    grants = []
    for path, writable in mounts:
        rights = landlock.OF_SCRATCH if writable else (landlock.READ_FILE, landlock.READ_DIR)
        is_folder = stat(path).st_mode & _KIND_OF_FILE == _FOLDER
        grants.append(landlock.Grant(path, rights if is_folder else [right for right in rights if right in landlock.OF_FILES]))
    return grants


def _number(limits: Mapping[str, object], name: str) -> int:
    value = limits.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfinementFailed(f"the limit {name!r} must be a whole number, not {value!r}")
    return value
