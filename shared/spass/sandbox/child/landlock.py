"""Landlock: the kernel lets this process use only the files of a list, and no network. Each version of it can refuse more."""

from __future__ import annotations

from posix import O_CLOEXEC, O_PATH, close, open  # noqa: A004

from spass.sandbox.child.kernel import system_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Final

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_QUERY_VERSION: Final = 1
_PATH_BENEATH: Final = 1


class Right:
    """A right that the kernel refuses unless it is granted. ``version``: the first version of Landlock that knows it.

    ``word``: the kernel has one word of bits for files, one for networks, and one for what processes of another confinement own.
    """

    __slots__ = ("bit", "name", "version", "word")

    def __init__(self, name: str, bit: int, version: int = 1, word: int = 0) -> None:
        self.name = name
        self.bit = bit
        self.version = version
        self.word = word


EXECUTE: Final = Right("execute", 1 << 0)
WRITE_FILE: Final = Right("write_file", 1 << 1)
READ_FILE: Final = Right("read_file", 1 << 2)
READ_DIR: Final = Right("read_dir", 1 << 3)
REMOVE_DIR: Final = Right("remove_dir", 1 << 4)
REMOVE_FILE: Final = Right("remove_file", 1 << 5)
MAKE_CHAR: Final = Right("make_char", 1 << 6)
MAKE_DIR: Final = Right("make_dir", 1 << 7)
MAKE_REG: Final = Right("make_reg", 1 << 8)
MAKE_SOCK: Final = Right("make_sock", 1 << 9)
MAKE_FIFO: Final = Right("make_fifo", 1 << 10)
MAKE_BLOCK: Final = Right("make_block", 1 << 11)
MAKE_SYM: Final = Right("make_sym", 1 << 12)
REFER: Final = Right("refer", 1 << 13, 2)
TRUNCATE: Final = Right("truncate", 1 << 14, 3)
IOCTL_DEV: Final = Right("ioctl_dev", 1 << 15, 5)


RIGHTS: Final = (
    EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO,
    MAKE_BLOCK, MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV,
    Right("bind_tcp", 1 << 0, 4, word=1),
    Right("connect_tcp", 1 << 1, 4, word=1),
    Right("abstract_sockets", 1 << 0, 6, word=2),
    Right("signals", 1 << 1, 6, word=2),
)  # fmt: skip

OF_SCRATCH: Final = (WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG, REFER, TRUNCATE)

OF_FILES: Final = (EXECUTE, WRITE_FILE, READ_FILE, TRUNCATE, IOCTL_DEV)
"""The rights that a single file can be granted."""


class Grant:
    """The rights on a file, or on a folder and everything beneath it."""

    __slots__ = ("path", "rights")

    def __init__(self, path: str, rights: Sequence[Right]) -> None:
        self.path = path
        self.rights = rights


def version() -> int:
    """Return the version of the interface that the kernel offers; 0 if it has none, or if it is turned off."""
    try:
        return system_call(_CREATE_RULESET, None, 0, _QUERY_VERSION)
    except OSError:
        return 0


def restrict(grants: Iterable[Grant], offered: int, rights: Sequence[Right] = RIGHTS) -> None:
    """Refuse this process all ``rights`` that it is not granted, for good. A path that cannot be opened is not granted.

    ``offered`` is the version of the interface."""
    words = [_bits(right for right in rights if right.version <= offered and right.word == word) for word in range(3)]
    # The kernel refuses a word that it does not know, unless it is 0.
    attributes = b"".join(word.to_bytes(8, "little") for word in words)
    ruleset = system_call(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for grant in grants:
            _add(ruleset, grant, words[0])
        system_call(_RESTRICT_SELF, ruleset, 0)
    finally:
        close(ruleset)


def _add(ruleset: int, grant: Grant, handled: int) -> None:
    rights = _bits(grant.rights) & handled
    if not rights:
        return
    try:
        path = open(grant.path, O_PATH | O_CLOEXEC)
    except OSError:
        return
    try:
        system_call(_ADD_RULE, ruleset, _PATH_BENEATH, rights.to_bytes(8, "little") + path.to_bytes(4, "little"), 0)
    finally:
        close(path)


def _bits(rights: Iterable[Right]) -> int:
    return sum(right.bit for right in rights)
