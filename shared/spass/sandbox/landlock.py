"""Tell whether this machine can confine child processes."""

import os
import sys
from functools import cache
from typing import Final

_CREATE_RULESET: Final = 444
_ASK_VERSION: Final = 1
_MACHINES: Final = ("x86_64", "aarch64")


@cache
def missing_for_processes() -> str | None:
    """Return what this machine lacks for the launcher ``process``, for people, or None."""
    if sys.platform != "linux" or os.uname().machine not in _MACHINES or sys.maxsize < 2**32:
        return "child processes are confined on 64-bit Linux on x86-64 and arm64 only"
    import ctypes

    version: int = ctypes.CDLL(None).syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    return None if version > 0 else "the kernel has no Landlock, or does not use it"
