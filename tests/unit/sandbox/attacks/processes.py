"""Attacks on other processes, and attempts to start some."""

from typing import Final

from tests.unit.sandbox.attacks.attack import Attack

STARTS: Final = (
    Attack("a fork", 'attempt("fork", lambda: os.fork() or os._exit(0))'),
    Attack(
        "a fork by number",
        """
for name, arguments in (("fork", ()), ("clone", (17, 0, 0, 0, 0)), ("clone", (17 | 0x8000, 0, 0, 0, 0))):
    result = call(name, *arguments)
    if result == 0:
        os._exit(0)
    if result > 0:
        gain(f"a process by {name}")
""",
    ),
    Attack("a virtual fork", 'if (result := call("vfork")) >= 0:\n    gain(f"process {result}")', "never"),
    Attack(
        "a fork by clone3",
        """
arguments = ctypes.create_string_buffer(struct.pack("8Q", 0, 0, 0, 0, 17, 0, 0, 0))
result = call("clone3", arguments, 64)
if result == 0:
    os._exit(0)
if result > 0:
    gain("a process")
""",
        "as root",
    ),
    Attack(
        "a fork bomb",
        """
children = 0
for _ in range(20):
    if (result := LIBC.fork()) == 0:
        os._exit(0)
    children += result > 0
if children:
    gain(f"{children} processes")
""",
    ),
    Attack(
        "a thread",
        """
import threading
attempt("thread", lambda: threading.Thread(target=print).start())
""",
    ),
    Attack(
        "a thread of the C library",
        """
if LIBC.pthread_create(ctypes.byref(ctypes.c_void_p()), None, LIBC.getpid, None) == 0:
    gain("a thread")
""",
    ),
    Attack(
        "a program",
        """
import subprocess
attempt("subprocess", lambda: subprocess.run(["/bin/sh", "-c", f"echo > {W['folder']}/made"]))
""",
    ),
    Attack("a shell", 'attempt("system", lambda: LIBC.system(f"echo > {W[\'folder\']}/made".encode()) and 1 / 0)'),
    Attack(
        "a program in the place of this one",
        """
words = (ctypes.c_char_p * 4)(b"/bin/sh", b"-c", f"echo > {W['folder']}/made".encode(), None)
LIBC.execve(b"/bin/sh", words, None)
""",
    ),
    Attack(
        "a program by its descriptor",
        """
words = (ctypes.c_char_p * 4)(b"/bin/sh", b"-c", f"echo > {W['folder']}/made".encode(), None)
call("execveat", -100, b"/bin/sh", words, None, 0)
""",
    ),
    Attack(
        "a program in memory",
        """
if (descriptor := try_call("memfd_create", b"program", 0)) >= 0:
    os.write(descriptor, f"#!/bin/sh\\necho > {W['folder']}/made\\n".encode())
    words = (ctypes.c_char_p * 2)(b"program", None)
    call("execveat", descriptor, b"", words, None, 0x1000)
""",
    ),
    Attack(
        "a spawned program",
        """
words = (ctypes.c_char_p * 4)(b"/bin/sh", b"-c", f"echo > {W['folder']}/made".encode(), None)
LIBC.posix_spawn(ctypes.byref(ctypes.c_int()), b"/bin/sh", None, None, words, None) or os.wait()
""",
    ),
    Attack(
        "a program of its own",
        """
MACHINES = {"x86_64": (62, "bf2a000000b83c0000000f05"), "aarch64": (183, "400580d2a80b80d2010000d4")}
machine, code = MACHINES[os.uname().machine]  # exit_group(42)
code = bytes.fromhex(code)
start = 0x400078
head = b"\\x7fELF\\x02\\x01\\x01" + bytes(9) + struct.pack("HHIQQQIHHHHHH", 2, machine, 1, start, 64, 0, 0, 64, 56, 1, 0, 0, 0)
segment = struct.pack("IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, 120 + len(code), 120 + len(code), 0x1000)
file = os.open("program", os.O_WRONLY | os.O_CREAT, 0o755)
os.write(file, head + segment + code)
os.close(file)
words = (ctypes.c_char_p * 2)(b"program", None)
LIBC.execve(b"program", words, None)
""",
    ),
    Attack("a pool of processes", 'import multiprocessing\nattempt("pool", lambda: multiprocessing.Pool(1).terminate())'),
    Attack("a session of its own", 'attempt("setsid", os.setsid)'),
)

SIGNALS: Final = (
    Attack("a signal to another process", 'attempt("kill", lambda: os.kill(W["victim"], 9))'),
    Attack("a signal to the parent", 'attempt("kill", lambda: os.kill(W["parent"], 0))'),
    Attack("a signal to all processes of the group", 'attempt("killpg", lambda: os.killpg(os.getpgid(W["victim"]), 0))'),
    Attack(
        "a signal by number",
        """
for name, arguments in (("tkill", (W["victim"], 9)), ("tgkill", (W["victim"], W["victim"], 9))):
    try_call(name, *arguments)
""",
    ),
    Attack(
        "a signal with a value",
        """
information = ctypes.create_string_buffer(struct.pack("iii", 9, 0, -1) + bytes(116))
try_call("rt_sigqueueinfo", W["victim"], 9, information)
""",
    ),
    Attack(
        "a signal by a descriptor of the process",
        """
if (descriptor := try_call("pidfd_open", W["victim"], 0)) >= 0:
    try_call("pidfd_send_signal", descriptor, 9, None, 0)
""",
    ),
    Attack(
        "a signal sent by a pipe",
        """
import fcntl
reader, writer = os.pipe()
F_SETSIG = 10
for command, value in ((fcntl.F_SETOWN, W["victim"]), (F_SETSIG, 9), (fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)):
    attempt(f"command {command}", lambda: fcntl.fcntl(reader, command, value))
os.write(writer, b"x")
""",
    ),
    Attack(
        "a signal sent by a pipe that a device call set up",
        """
import fcntl
reader, writer = os.pipe()
FIOSETOWN, FIOASYNC, TIOCSTI = 0x8901, 0x5452, 0x5412
for command, value in ((FIOSETOWN, W["victim"]), (FIOASYNC, 1), (TIOCSTI, 65)):
    attempt(f"command {command}", lambda: fcntl.ioctl(reader, command, struct.pack("i", value)))
""",
    ),
)

OTHERS: Final = (
    Attack(
        "the memory of the parent",
        """
buffer = ctypes.create_string_buffer(64)
local, remote = struct.pack("PN", ctypes.addressof(buffer), 64), struct.pack("PN", W["address"], 64)
call("process_vm_readv", W["parent"], ctypes.create_string_buffer(local), 1, ctypes.create_string_buffer(remote), 1, 0)
print(buffer.raw)
""",
        "as root",
    ),
    Attack(
        "the memory of the parent by a file",
        """
descriptor = os.open(f"/proc/{W['parent']}/mem", os.O_RDWR)
print(os.pread(descriptor, 64, W["address"]))
""",
        "as root",
    ),
    Attack(
        "a debugger",
        """
PTRACE_SEIZE, PTRACE_ATTACH, PTRACE_TRACEME = 0x4206, 16, 0
try_call("ptrace", PTRACE_SEIZE, W["victim"], 0, 0)
try_call("ptrace", PTRACE_TRACEME, 0, 0, 0)
""",
    ),
    Attack(
        "a descriptor of the parent",
        """
process = try_call("pidfd_open", W["parent"], 0)
if process >= 0 and (descriptor := try_call("pidfd_getfd", process, W["secret_descriptor"], 0)) >= 0:
    print(os.pread(descriptor, 100, 0))
""",
    ),
    Attack(
        "descriptors that the parent left open",
        """
for descriptor in range(3, 1024):
    try:
        print(os.pread(descriptor, 200, 0))
    except OSError:
        pass
""",
    ),
    Attack(
        "the limits of another process",
        """
try_call("prlimit64", W["victim"], 7, None, ctypes.create_string_buffer(16))
try_call("prlimit64", W["victim"], 7, ctypes.create_string_buffer(struct.pack("QQ", 3, 3)), None)
""",
    ),
    Attack("the priority of another process", 'attempt("setpriority", lambda: os.setpriority(0, W["victim"], 19))'),
    Attack("the processors of another process", 'attempt("affinity", lambda: os.sched_getaffinity(W["victim"]))'),
    Attack("moving another process", 'attempt("affinity", lambda: os.sched_setaffinity(W["victim"], {0}))'),
    Attack(
        "the clock of another process",
        """
time_of_victim = ctypes.create_string_buffer(16)
try_call("clock_gettime", (~W["victim"] << 3) | 2, time_of_victim)
try_call("clock_getres", (~W["victim"] << 3) | 2, time_of_victim)
try_call("clock_nanosleep", (~W["victim"] << 3) | 2, 0, ctypes.create_string_buffer(16), None)
""",
    ),
    Attack("the session of another process", 'attempt("getsid", lambda: os.getsid(W["victim"]))'),
    Attack("a comparison with another process", 'try_call("kcmp", os.getpid(), W["parent"], 1, 0, 0)', "never"),
    Attack("the namespaces of another process", 'attempt("setns", lambda: os.open(f"/proc/{W[\'victim\']}/ns/net", 0))'),
    Attack(
        "shared memory of System V",
        """
LIBC.shmat.restype = ctypes.c_void_p
identifier = try_call("shmget", W["shared_key"], 64, 0)
if identifier >= 0:
    address = LIBC.shmat(identifier, None, 0o10000)
    print(ctypes.string_at(address, 64))
""",
    ),
    Attack(
        "queues and semaphores",
        """
try_call("msgget", 0, 0o600)
try_call("semget", 0, 1, 0o600)
queue = try_call("mq_open", b"spass-attack", 0o102, 0o600, None)
if queue >= 0:
    call("mq_unlink", b"spass-attack")
""",
    ),
    Attack(
        "keys of the kernel",
        """
KEYCTL_GET_KEYRING_ID = 0
try_call("keyctl", KEYCTL_GET_KEYRING_ID, -3, 0)
try_call("add_key", b"user", b"attack", b"x", 1, -3)
""",
        "as root",
    ),
)

ENVIRONMENT: Final = (
    Attack("the environment", "print(dict(os.environ), os.environb)"),
    Attack("the environment of the C library", 'LIBC.getenv.restype = ctypes.c_char_p\nprint(LIBC.getenv(b"SPASS_SECRET"))'),
    Attack(
        "the memory in which the environment was",
        """
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(LIBC, "environ")
at = 0
while environ[at]:
    print(environ[at])
    at += 1
""",
    ),
    Attack("the environment by a file", 'attempt("read", lambda: read("/proc/self/environ"))'),
)

PROCESSES: Final = STARTS + SIGNALS + OTHERS + ENVIRONMENT
