"""An attack: code that a model could write, to gain what the sandbox must not give."""

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

IS_X86_64: Final = platform.machine() == "x86_64"

_CAP_SYS_PTRACE: Final = 19
_CAP_SYS_ADMIN: Final = 21

PRELUDE: Final = """
import ctypes, mmap, os, struct, sys

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long

def gain(what):
    print("GAINED", what)

def call(name, *arguments):
    number = W["calls"].get(name) if isinstance(name, str) else name
    if number is None:
        return -38
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    return -ctypes.get_errno() if result < 0 else result

def attempt(what, action):
    try:
        value = action()
    except BaseException as error:
        print("refused", what, type(error).__name__, error)
    else:
        gain(f"{what}: {value!r:.80}")

def try_call(name, *arguments):
    result = call(name, *arguments)
    if result >= 0:
        gain(f"{name} {result}")
    else:
        print("refused", name, os.strerror(-result))
    return result

def read(path):
    with open(path, "rb") as file:
        data = file.read()
    gain(f"{path}: {data!r}")
"""
"""``W`` has the addresses and paths of a world. ``GAINED`` in the output is a gain, whatever else the world shows."""


@dataclass(frozen=True, slots=True)
class Attack:
    """``ends``: the child ends without a report. All others report what they printed.

    ``succeeds`` tells when the same code, not confined, gains something: it shows that the check can fail.

    ``as root``: with all capabilities. ``never``: it depends on the machine's kernel, or would harm the machine.
    """

    name: str
    code: str
    succeeds: Literal["always", "as root", "never"] = "always"
    ends: bool = False

    def succeeds_here(self) -> bool:
        return self.succeeds == "always" or (self.succeeds == "as root" and has_capabilities())


def has_capabilities() -> bool:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    held = int(status["CapEff"], 16)
    return bool(held >> _CAP_SYS_PTRACE & held >> _CAP_SYS_ADMIN & 1)
