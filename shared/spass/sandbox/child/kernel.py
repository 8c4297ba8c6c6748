"""System calls that Python has no function for, by their numbers. (``ctypes`` itself would import ``os``.)"""

from __future__ import annotations

import _ctypes
import sys
from posix import strerror, uname

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

_C_CALL: Final = 1
_KEEP_ERRNO: Final = 8


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]  # noqa: SLF001
    _type_ = "l"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _C_CALL | _KEEP_ERRNO
    _restype_ = _Long


_PROCESS: Final = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
_syscall: Final = _Function(_ctypes.dlsym(_PROCESS, "syscall"))


def system_call(number: int, *arguments: int | bytes | None) -> int:
    """Make a system call and return its result. The kernel may read ``bytes``, but must not write to them. Raise OSError if the
    kernel refused it."""
    result: int = _syscall(_Long(number), *(_Long(word) if isinstance(word, int) else word for word in arguments))
    if result < 0:
        error = _ctypes.get_errno()
        raise OSError(error, strerror(error))
    return result


class Words:
    """Words of 64 bits at a fixed address."""

    def __init__(self, words: Sequence[int]) -> None:
        self._array = (_Long * len(words))(*words)
        self.address: int = _ctypes.addressof(self._array)


def machine() -> str:
    """Return ``x86_64`` or ``aarch64`` for a 64-bit process on Linux, and an empty string for any other."""
    name = uname().machine
    is_known = sys.platform == "linux" and sys.maxsize > 1 << 32 and name in {"x86_64", "aarch64"}
    return name if is_known else ""
