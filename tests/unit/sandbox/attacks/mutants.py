"""Policies that leave one item out, each with the attack that then gains something."""

import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from spass.core.messages import Json
from spass.sandbox.child import landlock
from spass.sandbox.child.seccomp import OTHER_MACHINES, X32
from tests.unit.sandbox.attacks.attack import IS_X86_64
from tests.unit.sandbox.system_call_numbers import numbers_here


@dataclass(frozen=True, slots=True)
class Mutant:
    """``attack`` gains nothing with the policy ``base``, and something with the policy ``mutation``."""

    name: str
    attack: str
    mutation: Mapping[str, Json]
    base: Mapping[str, Json] = field(default_factory=dict)
    needs: Literal["", "root"] = ""


def _allow(attack: str, *names: str, rights: Sequence[str] = (), steps: Sequence[str] = ()) -> Mutant:
    """``rights`` and ``steps``: what else must be left out, because it would hide the mutant."""
    numbers = [number for name in names if (number := numbers_here().get(name)) is not None]
    hidden: dict[str, Json] = {"rights": list(rights), "steps": list(steps)} if rights or steps else {}
    return Mutant(f"{' and '.join(names)} allowed", attack, {**hidden, "allow": [*numbers]}, hidden)


def _without_check(attack: str, rule: str, at: int = 0) -> Mutant:
    return Mutant(f"{rule} without its check {at}", attack, {"check": [rule, at]})


_AS_ROOT: Final = ("drop_capabilities",)

OF_THE_FILTER: Final = (
    _allow("sockets of every family by number", "socket"),
    _allow("a datagram over UDP", "socket", "sendto"),
    _allow("pairs of sockets of every kind by number", "socketpair"),
    _allow("a fork by number", "fork", "clone"),
    _allow("a fork bomb", "clone"),
    _allow("a fork by clone3", "clone3"),
    _allow("a thread of the C library", "clone3", "clone", "rseq", "set_robust_list"),
    _allow("a program of its own", "execve", rights=["execute"]),
    _allow("a program in memory", "memfd_create"),
    _allow("a session of its own", "setsid"),
    _allow("a signal to another process", "kill", rights=["signals"]),
    _allow("a signal by number", "tkill", rights=["signals"]),
    _allow("a signal by number", "tgkill", rights=["signals"]),
    _allow("a signal with a value", "rt_sigqueueinfo", rights=["signals"]),
    _allow("a signal by a descriptor of the process", "pidfd_open"),
    _allow("a signal by a descriptor of the process", "pidfd_open", "pidfd_send_signal", rights=["signals"]),
    _allow("a debugger", "ptrace"),
    _allow("a descriptor of the parent", "pidfd_open"),
    _allow("the limits of another process", "prlimit64"),
    _allow("the priority of another process", "setpriority", steps=_AS_ROOT),
    _allow("moving another process", "sched_setaffinity", steps=_AS_ROOT),
    _allow("the session of another process", "getsid"),
    _allow("shared memory of System V", "shmget", "shmat"),
    _allow("queues and semaphores", "msgget"),
    _allow("queues and semaphores", "semget"),
    _allow("queues and semaphores", "mq_open", rights=["read_file", "write_file"]),
    _allow("keys of the kernel", "keyctl"),
    _allow("keys of the kernel", "add_key"),
    _allow("a changed mode", "chmod", "fchmodat"),
    _allow("a changed mode by number", "fchmodat2"),
    _allow("a changed mode of an open file", "fchmod"),
    _allow("a changed time", "utimensat"),
    _allow("a changed owner", "chown", "fchownat"),
    _allow("the attributes of a file", "listxattr"),
    _allow("a shortened file", "truncate", rights=["truncate"]),
    _allow("a symbolic link", "symlink", "symlinkat", rights=["make_sym"]),
    _allow("a pipe with a name", "mknod", "mknodat", rights=["make_fifo"]),
    _allow("a watch on others' files", "inotify_init1"),
    _allow("a watch on others' files", "inotify_init1", "inotify_add_watch"),
    _allow("a file by its handle", "name_to_handle_at"),
    _allow("a file by openat2", "openat2", rights=["read_file"]),
    _allow("memory that others may read", "prctl"),
    _allow("a life beyond the parent", "prctl"),
    _allow("a filter that asks another process", "seccomp"),
    _allow("another user", "setuid"),
    _allow("another user", "setresuid"),
    _allow("an address space without randomness", "personality"),
    _allow("the clock of the machine", "adjtimex"),
    _allow("a timer", "timer_create"),
    _allow("a timer", "timerfd_create"),
    _allow("an alarm", "setitimer"),
    _allow("asynchronous files", "io_setup"),
    _allow("events", "epoll_create1"),
    _allow("events", "eventfd2"),
    _allow("data moved in the kernel", "vmsplice"),
    _allow("the disks of the machine", "statfs"),
    _allow("the load of the machine", "sysinfo"),
    _allow("every system call without a rule", "process_vm_readv"),
    _allow("every system call without a rule", "process_vm_writev"),
    _allow("every system call without a rule", "pidfd_getfd"),
    _allow("every system call without a rule", "io_uring_setup"),
    _allow("every system call without a rule", "execveat"),
    _allow("every system call without a rule", "landlock_restrict_self"),
    _without_check("a descriptor that only names a file", "openat", 0),
    _without_check("a file without a name", "openat", 1),
    _without_check("a file that sends signals", "openat", 2),
    _without_check("a file emptied by opening it to read", "openat", 3),
    _without_check("a secret file, opened neither to read nor to write", "openat", 4),
    _without_check("a signal sent by a pipe", "fcntl"),
    _without_check("a signal sent by a pipe that a device call set up", "ioctl"),
    _without_check("other operations on locks", "futex"),
    _without_check("the clock of another process", "clock_gettime"),
    _without_check("the clock of another process", "clock_getres"),
    _without_check("the clock of another process", "clock_nanosleep"),
    _without_check("the processors of another process", "sched_getaffinity"),
    _without_check("the limits of another process", "prlimit64", 0),
    _without_check("larger limits", "prlimit64", 1),
    *(
        (
            _allow("a descriptor table of its own", "modify_ldt"),
            _allow("a register of the kernel", "arch_prctl"),
            Mutant("no guard of other machines", "a socket through the entry of 32-bit programs", {"guard": OTHER_MACHINES}),
            Mutant("no guard of other machines", "a fork through the entry of 32-bit programs", {"guard": OTHER_MACHINES}),
            Mutant("no guard of x32", "a call of 32-bit programs in 64-bit mode", {"guard": X32}),
        )
        if IS_X86_64
        else ()
    ),
)

_OPEN: Final[Mapping[str, Json]] = {"open_filter": True}
"""Landlock alone: what it refuses, the filter refuses too."""
_OPEN_AS_ROOT: Final[Mapping[str, Json]] = {**_OPEN, "steps": ["drop_capabilities"]}

_ATTACKS_ON_RIGHTS: Final = {
    "execute": "a program of its own",
    "write_file": "a changed file",
    "read_file": "a secret file",
    "read_dir": "the lists of folders",
    "remove_dir": "a removed folder",
    "remove_file": "a removed file",
    "make_dir": "a new folder",
    "make_reg": "a new file beside others",
    "make_sock": "a Unix socket of its own",
    "make_fifo": "a pipe with a name",
    "make_sym": "a symbolic link",
    "truncate": "a shortened file",
    "ioctl_dev": "a command to a device",
    "bind_tcp": "a server",
    "connect_tcp": "a TCP connection over IPv4",
    "abstract_sockets": "an abstract Unix socket",
    "signals": "a signal to another process",
}
_OF_ROOT: Final = {"make_char": "a character device", "make_block": "a device"}

OF_LANDLOCK: Final = (
    *(
        Mutant(f"Landlock without {right}", attack, {**_OPEN, "rights": [right]}, _OPEN)
        for right, attack in _ATTACKS_ON_RIGHTS.items()
        if next(each for each in landlock.RIGHTS if each.name == right).version <= landlock.version()
    ),
    *(
        Mutant(f"Landlock without {right}", attack, {**_OPEN_AS_ROOT, "rights": [right]}, _OPEN_AS_ROOT, "root")
        for right, attack in _OF_ROOT.items()
    ),
)

OF_THE_LIMITS: Final = (
    Mutant("no limit of memory", "a large object", {"limit": "RLIMIT_AS"}),
    Mutant("no limit of memory", "mapped memory", {"limit": "RLIMIT_AS"}),
    Mutant("no limit of processor time", "a busy loop", {"limit": "RLIMIT_CPU"}),
    Mutant("no limit of files", "a large file with holes", {"limit": "RLIMIT_FSIZE"}),
    Mutant("no limit of open files", "many open files", {"limit": "RLIMIT_NOFILE"}),
    *(
        Mutant(f"no {limit}", "limits that were never set", {"limit": limit})
        for limit, bound in (("RLIMIT_STACK", 8 * 2**20), ("RLIMIT_NPROC", 0), ("RLIMIT_CORE", 0))
        # A machine may have this limit already.
        if not 0 <= resource.getrlimit(getattr(resource, limit))[1] <= bound
    ),
)

OF_THE_STEPS: Final = (
    Mutant("open descriptors", "descriptors that the parent left open", {"steps": ["close_descriptors"]}),
    Mutant("capabilities", "capabilities", {**_OPEN, "steps": ["drop_capabilities"]}, _OPEN, "root"),
)
