"""The system calls that confined code may make. The kernel refuses all others with "Operation not permitted"."""

from __future__ import annotations

import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_LOW_WORD: Final = 0xFFFFFFFF


class Check:
    """A condition on an argument: its bits under ``mask`` are ``value``, or, if not ``equal``, they are anything else."""

    __slots__ = ("argument", "equal", "mask", "value")

    def __init__(self, argument: int, mask: int, value: int, *, equal: bool = True) -> None:
        self.argument = argument
        self.mask = mask
        self.value = value
        self.equal = equal


class Rule:
    """A system call by its number on each machine (None: the machine does not have it). Without ``error`` it is allowed.

    The rule applies if all checks hold. With an ``error`` the kernel does nothing and returns this error; 0 is a success.
    """

    __slots__ = ("aarch64", "checks", "error", "name", "x86_64")

    def __init__(
        self, name: str, x86_64: int | None, aarch64: int | None, checks: tuple[Check, ...] = (), error: int | None = None
    ) -> None:
        self.name = name
        self.x86_64 = x86_64
        self.aarch64 = aarch64
        self.checks = checks
        self.error = error


def _only(argument: int, *values: int) -> tuple[tuple[Check, ...], ...]:
    """Return one tuple of checks for each value that an ``int`` argument may have."""
    return tuple((Check(argument, _LOW_WORD, value),) for value in values)


# The flags of open have the same bits on both machines.
_O_ACCMODE: Final = 0o3
_NO_ACCESS: Final = 0o3
_O_TRUNC: Final = 0o1000
_O_ASYNC: Final = 0o20000
_O_PATH: Final = 0o10000000
_O_TMPFILE: Final = 0o20000000


def _open_flags(argument: int) -> tuple[Check, ...]:
    """Refuse files without a name, descriptors that Landlock does not judge, and the signals of O_ASYNC.

    Before its third version Landlock does not judge O_TRUNC: a file that may only be read could be emptied. No version judges the
    access mode 3, neither to read nor to write, which gives a descriptor of any file, and with O_TRUNC empties it.
    """
    return (
        Check(argument, _O_PATH, 0),
        Check(argument, _O_TMPFILE, 0),
        Check(argument, _O_ASYNC, 0),
        Check(argument, _O_TRUNC | _O_ACCMODE, _O_TRUNC, equal=False),
        Check(argument, _O_ACCMODE, _NO_ACCESS, equal=False),
    )


_CLOCKS: Final = Check(0, _LOW_WORD & ~0xF, 0)  # other numbers are clocks of other processes
_OWN_PROCESS: Final = Check(0, _LOW_WORD, 0)
_NO_NEW_LIMIT: Final = Check(2, _LOW_WORD << 32 | _LOW_WORD, 0)

# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_GETLK, F_SETLK, F_SETLKW, F_DUPFD_CLOEXEC. With F_SETOWN and F_SETSIG, others get signals.
_FCNTL: Final = _only(1, 0, 1, 2, 3, 5, 6, 7, 1030)
# TCGETS, TIOCGWINSZ, FIONCLEX, FIOCLEX. TIOCSTI would type into a terminal, FIOSETOWN would send signals.
_IOCTL: Final = _only(1, 0x5401, 0x5413, 0x5450, 0x5451)
# FUTEX_WAIT, WAKE, WAIT_BITSET, WAKE_BITSET, without the flags for private futexes (128) and the real-time clock (256).
_FUTEX: Final = tuple((Check(1, _LOW_WORD & ~0x180, operation),) for operation in (0, 1, 9, 10))

RULES: Final = (
    # The most frequent calls first.
    Rule("read", 0, 63),
    Rule("write", 1, 64),
    Rule("mmap", 9, 222),
    Rule("munmap", 11, 215),
    Rule("mremap", 25, 216),
    Rule("madvise", 28, 233),
    Rule("brk", 12, 214),
    Rule("clock_gettime", 228, 113, (_CLOCKS,)),
    *(Rule("futex", 202, 98, checks) for checks in _FUTEX),
    # Files. Landlock judges which ones.
    Rule("open", 2, None, _open_flags(1)),
    Rule("openat", 257, 56, _open_flags(2)),
    Rule("close", 3, 57),
    Rule("stat", 4, None),
    Rule("fstat", 5, 80),
    Rule("lstat", 6, None),
    Rule("newfstatat", 262, 79),
    Rule("statx", 332, 291),
    Rule("access", 21, None),
    Rule("faccessat", 269, 48),
    Rule("faccessat2", 439, 439),
    Rule("readlink", 89, None),
    Rule("readlinkat", 267, 78),
    Rule("getdents64", 217, 61),
    Rule("getcwd", 79, 17),
    Rule("chdir", 80, 49),
    Rule("fchdir", 81, 50),
    Rule("lseek", 8, 62),
    Rule("pread64", 17, 67),
    Rule("pwrite64", 18, 68),
    Rule("readv", 19, 65),
    Rule("writev", 20, 66),
    Rule("ftruncate", 77, 46),
    Rule("fsync", 74, 82),
    Rule("fdatasync", 75, 83),
    Rule("mkdir", 83, None),
    Rule("mkdirat", 258, 34),
    Rule("rmdir", 84, None),
    Rule("unlink", 87, None),
    Rule("unlinkat", 263, 35),
    Rule("rename", 82, None),
    Rule("renameat", 264, 38),
    Rule("renameat2", 316, 276),
    Rule("umask", 95, 166),
    # Landlock does not judge these, so they do nothing. shutil.copy, tarfile and Path.touch rely on their success.
    Rule("chmod", 90, None, error=0),
    Rule("fchmod", 91, 52, error=0),
    Rule("fchmodat", 268, 53, error=0),
    Rule("fchmodat2", 452, 452, error=0),
    Rule("utime", 132, None, error=0),
    Rule("utimes", 235, None, error=0),
    Rule("futimesat", 261, None, error=0),
    Rule("utimensat", 280, 88, error=0),
    # shutil.copy2 accepts that a file system has no extended attributes.
    Rule("getxattr", 191, 8, error=errno.ENOTSUP),
    Rule("lgetxattr", 192, 9, error=errno.ENOTSUP),
    Rule("fgetxattr", 193, 10, error=errno.ENOTSUP),
    Rule("listxattr", 194, 11, error=errno.ENOTSUP),
    Rule("llistxattr", 195, 12, error=errno.ENOTSUP),
    Rule("flistxattr", 196, 13, error=errno.ENOTSUP),
    # Descriptors.
    Rule("dup", 32, 23),
    Rule("dup2", 33, None),
    Rule("dup3", 292, 24),
    Rule("pipe", 22, None),
    Rule("pipe2", 293, 59),
    *(Rule("fcntl", 72, 25, checks) for checks in _FCNTL),
    *(Rule("ioctl", 16, 29, checks) for checks in _IOCTL),
    Rule("poll", 7, None),
    Rule("ppoll", 271, 73),
    Rule("select", 23, None),
    Rule("pselect6", 270, 72),
    # Memory, locks and signal handlers of the process itself.
    Rule("mprotect", 10, 226),
    Rule("msync", 26, 227),
    Rule("rt_sigaction", 13, 134),
    Rule("rt_sigprocmask", 14, 135),
    Rule("rt_sigreturn", 15, 139),
    Rule("sigaltstack", 131, 132),
    Rule("restart_syscall", 219, 128),
    Rule("exit", 60, 93),
    Rule("exit_group", 231, 94),
    # Clocks.
    Rule("nanosleep", 35, 101),
    Rule("clock_nanosleep", 230, 115, (_CLOCKS,)),
    Rule("clock_getres", 229, 114, (_CLOCKS,)),
    Rule("gettimeofday", 96, 169),
    Rule("time", 201, None),
    Rule("times", 100, 153),
    # What the process knows about itself and its machine.
    Rule("getpid", 39, 172),
    Rule("getppid", 110, 173),
    Rule("gettid", 186, 178),
    Rule("getuid", 102, 174),
    Rule("geteuid", 107, 175),
    Rule("getgid", 104, 176),
    Rule("getegid", 108, 177),
    Rule("uname", 63, 160),
    Rule("getrusage", 98, 165),
    Rule("getrlimit", 97, 163),
    Rule("prlimit64", 302, 261, (_OWN_PROCESS, _NO_NEW_LIMIT)),
    Rule("sched_getaffinity", 204, 123, (_OWN_PROCESS,)),
    Rule("sched_yield", 24, 124),
    Rule("getrandom", 318, 278),
)
