"""Attacks that use up the machine."""

from typing import Final

from tests.unit.sandbox.attacks.attack import Attack

RESOURCES: Final = (
    Attack("a large object", 'attempt("memory", lambda: len(bytes(600 * 2**20)))'),
    Attack(
        "memory in many pieces",
        """
pieces = []
try:
    while len(pieces) < 60:
        pieces.append(bytes(10 * 2**20))
    gain("600 MiB")
except MemoryError:
    pieces.clear()
""",
    ),
    Attack("mapped memory", 'attempt("private", lambda: mmap.mmap(-1, 2**30, mmap.MAP_PRIVATE))'),
    Attack("mapped memory that is shared", 'attempt("shared", lambda: mmap.mmap(-1, 2**30))'),
    Attack("a large file", 'attempt("file", lambda: open("large", "wb").write(bytes(17 * 2**20)))'),
    Attack("a large file with holes", 'attempt("truncate", lambda: open("large", "wb").truncate(2**40))'),
    Attack(
        "many open files",
        """
files = []
try:
    while len(files) < 24:
        files.append(os.open(os.devnull, os.O_RDONLY))
    gain("24 open files")
except OSError:
    pass
for file in files:
    os.close(file)
""",
    ),
    Attack(
        "a busy loop",
        """
import resource
while resource.getrusage(resource.RUSAGE_SELF).ru_utime < 4:
    for _ in range(10**5):
        pass
gain("4 s of processor time")
""",
        ends=True,
    ),
    Attack(
        "a busy loop that ignores signals",
        """
import resource, signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while resource.getrusage(resource.RUSAGE_SELF).ru_utime < 4:
    for _ in range(10**5):
        pass
gain("4 s of processor time")
""",
        "never",
        ends=True,
    ),
    Attack(
        "larger limits",
        """
unlimited = ctypes.create_string_buffer(struct.pack("qq", -1, -1))
for limit in range(16):
    try_call("prlimit64", 0, limit, unlimited, None)
    try_call("setrlimit", limit, unlimited)
""",
    ),
    Attack(
        "limits that were never set",
        """
import resource
bounds = {"AS": 2**29, "CPU": 10**3, "FSIZE": 2**24, "NOFILE": 24, "STACK": 2**23, "NPROC": 0, "CORE": 0}
for name, bound in bounds.items():
    hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
    if hard == -1 or hard > bound:
        gain(f"{name}: {hard}")
""",
    ),
    Attack("a crash that writes its memory to a file", "import os\nctypes.string_at(0)", "never", ends=True),
    Attack("a stack without an end", "import sys\nsys.setrecursionlimit(10**9)\ndef f():\n    f()\nf()", "never", ends=True),
)
