"""Attacks on the confinement itself, and on interfaces of the kernel that code has no use for."""

from typing import Final

from tests.unit.sandbox.attacks.attack import IS_X86_64, Attack

_MACHINE_CODE = """
low = LIBC.mmap
low.restype, low.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
page = low(None, 4096, 7, 0x22 | 0x40, -1, 0)  # below 4 GiB, where 32-bit code can read it
def run(code, data=b""):
    ctypes.memmove(page, code, len(code))
    ctypes.memmove(page + 2048, data, len(data))
    return ctypes.CFUNCTYPE(ctypes.c_long)(page)()
def interrupt(number, first=0, second=0):
    moves = b"\\xb8" + struct.pack("I", number) + b"\\xbb" + struct.pack("I", first) + b"\\xb9" + struct.pack("I", second)
    return b"\\x53" + moves + b"\\xcd\\x80\\x5b\\x48\\x98\\xc3"  # push rbx; …; int 0x80; pop rbx; cdqe; ret
"""

_OF_X86_64: Final = (
    Attack("a call of 32-bit programs in 64-bit mode", 'call(0x40000000 + 39)\ngain("x32")', ends=True),
    Attack("a call of 32-bit programs with a number of its own", 'call(0x40000000 + 520)\ngain("x32")', ends=True),
    Attack("the call before the first one", 'call(0xFFFFFFFF)\ngain("a call")', ends=True),
    Attack(
        "a socket through the entry of 32-bit programs",
        _MACHINE_CODE
        + """
SOCKETCALL, SOCKET = 102, 1
if (result := run(interrupt(SOCKETCALL, SOCKET, page + 2048), struct.pack("III", 2, 1, 0))) >= 0:
    gain(f"socket {result}")
""",
        ends=True,
    ),
    Attack(
        "a fork through the entry of 32-bit programs",
        _MACHINE_CODE
        + """
FORK = 2
if (result := run(interrupt(FORK))) == 0:
    LIBC._exit(0)
if result > 0:
    gain(f"process {result}")
""",
        ends=True,
    ),
    Attack(
        "a process number through the entry of 32-bit programs",
        _MACHINE_CODE + 'gain(f"process {run(interrupt(20))}")',
        ends=True,
    ),
    Attack("access to ports", 'try_call("iopl", 3)\ntry_call("ioperm", 0x80, 1, 1)', "never"),
    Attack(
        "a descriptor table of its own",
        'try_call("modify_ldt", 1, ctypes.create_string_buffer(struct.pack("IIII", 0, 0, 0, 0x51)), 16)',
    ),
    Attack("a register of the kernel", 'try_call("arch_prctl", 0x1003, ctypes.create_string_buffer(8))'),
)

KERNEL: Final = (
    *(_OF_X86_64 if IS_X86_64 else ()),
    Attack(
        "every system call without a rule",
        """
probes = {335, 336} if os.uname().machine == "x86_64" else set()  # of debuggers; no filter judges them, and they end the process
for number in range(1024):
    if number not in W["allowed"] and number not in probes:
        if (result := call(number, -1, -1, -1, -1, -1, -1)) != -1:
            gain(f"the kernel judged call {number}: {result}")
""",
        "never",
    ),
    Attack("another filter", 'try_call("seccomp", 1, 0, ctypes.create_string_buffer(16))', "never"),
    Attack(
        "a filter that asks another process",
        'try_call("seccomp", 2, 0, ctypes.create_string_buffer(struct.pack("I", 0x7FC00000)))',
    ),
    Attack("memory that others may read", 'try_call("prctl", 4, 1, 0, 0, 0)'),
    Attack("a life beyond the parent", 'try_call("prctl", 1, 0, 0, 0, 0)'),
    Attack("a name of another program", 'try_call("prctl", 15, b"init", 0, 0, 0)'),
    Attack("a process that adopts others", 'try_call("prctl", 36, 1, 0, 0, 0)'),
    Attack(
        "capabilities",
        """
header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
data = ctypes.create_string_buffer(24)
call("capget", header, data)
if any(data.raw):
    gain("capabilities")
""",
        "as root",
    ),
    Attack("another user", 'attempt("setuid", lambda: os.setuid(os.getuid()))\ntry_call("setresuid", -1, -1, -1)'),
    Attack("a namespace of its own", 'try_call("unshare", 0x10000000)\ntry_call("unshare", 0x40000000)', "as root"),
    Attack("an address space without randomness", 'try_call("personality", 0x0040000)'),
    Attack("a fault handler in user space", 'try_call("userfaultfd", 1)', "never"),
    Attack(
        "a program in the kernel",
        'try_call("bpf", 0, ctypes.create_string_buffer(struct.pack("5I", 2, 4, 8, 4, 0)), 20)',
        "never",
    ),
    Attack(
        "the counters of the processor",
        'try_call("perf_event_open", ctypes.create_string_buffer(struct.pack("IIQ", 1, 128, 0) + bytes(112)), 0, -1, -1, 0)',
        "never",
    ),
    Attack("secret memory", 'try_call("memfd_secret", 0)', "never"),
    Attack("the messages of the kernel", 'try_call("syslog", 10, None, 0)', "as root"),
    Attack("the clock of the machine", 'try_call("adjtimex", ctypes.create_string_buffer(208))'),
    Attack("a timer", 'try_call("timer_create", 0, None, ctypes.create_string_buffer(8))\ntry_call("timerfd_create", 1, 0)'),
    Attack("an alarm", 'import signal\nattempt("setitimer", lambda: signal.setitimer(signal.ITIMER_REAL, 1000))'),
    Attack("locked memory", 'try_call("mlock", ctypes.create_string_buffer(8), 8)\ntry_call("mlockall", 4)', "as root"),
    Attack(
        "other operations on locks",
        """
first, second = ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)
try_call("futex", first, 3, 0, 0, second, 0)
try_call("futex", first, 128 + 4, 0, 0, second, 0)
""",
    ),
    Attack("asynchronous files", 'try_call("io_setup", 1, ctypes.create_string_buffer(8))'),
    Attack("events", 'try_call("epoll_create1", 0)\ntry_call("eventfd2", 0, 0)'),
    Attack("data moved in the kernel", 'reader, writer = os.pipe()\ntry_call("vmsplice", writer, None, 0, 0)'),
    Attack("the disks of the machine", 'attempt("statvfs", lambda: os.statvfs("/"))'),
    Attack("the load of the machine", 'try_call("sysinfo", ctypes.create_string_buffer(128))'),
)
