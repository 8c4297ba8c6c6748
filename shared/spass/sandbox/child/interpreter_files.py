"""The files of the Python interpreter that confined code may read: the standard library, and the libraries that it loads."""

from __future__ import annotations

import encodings
import sys
from posix import O_RDONLY, close, listdir, open, read, scandir  # noqa: A004

from spass.sandbox.child.landlock import READ_DIR, READ_FILE, TRUNCATE, WRITE_FILE, Grant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Final

_FOREIGN: Final = frozenset({"site-packages", "dist-packages"})
"""Folders in the standard library's folder that hold other installed packages."""

# What the extension modules of the standard library are linked with, as distributions and standalone builds name them.
_LIBRARIES: Final = frozenset(
    f"lib{name}"
    for name in (
        *("bz2", "crypt", "crypto", "db", "expat", "ffi", "gcc_s", "gdbm", "gdbm_compat", "lzma", "m", "mpdec", "ncurses"),
        *("ncursesw", "nsl", "panel", "panelw", "readline", "sqlite3", "ssl", "stdc++", "tinfo", "tinfow", "tirpc", "uuid", "z"),
        "zstd",
    )
)
_LOADER_CACHE: Final = "/etc/ld.so.cache"
_LIBRARY_FOLDERS: Final = ("/lib", "/usr/lib", "/usr/local/lib")
"""The folders in which musl looks for libraries. It has no cache."""
_MAX_CACHE: Final = 4 * 2**20

_TIME_ZONES: Final = "/usr/share/zoneinfo"
_MIME_TYPES: Final = "/etc/mime.types"
_NOWHERE: Final = "/dev/null"


def interpreter_files() -> Iterator[Grant]:
    """Yield the files, each with the right to read it."""
    modules = encodings.__path__[0].rpartition("/")[0]
    for folder in (modules, *(path for path in sys.path if path.endswith("/lib-dynload"))):
        yield Grant(folder, (READ_DIR,))  # import lists it
        yield from _modules_of(folder)
    yield from (Grant(path, (READ_FILE,)) for path in (_LOADER_CACHE, *_shared_libraries(), _MIME_TYPES))
    yield Grant(_TIME_ZONES, (READ_FILE, READ_DIR))
    yield Grant(_NOWHERE, (READ_FILE, WRITE_FILE, TRUNCATE))


def _modules_of(folder: str) -> Iterator[Grant]:
    with scandir(folder) as entries:
        for entry in entries:
            if entry.name not in _FOREIGN:
                yield Grant(entry.path, (READ_FILE, READ_DIR) if entry.is_dir() else (READ_FILE,))


def _shared_libraries() -> Iterator[str]:
    """Yield the paths of the shared libraries that extension modules load."""
    yield from _libraries_in(f"{sys.base_exec_prefix}/lib")
    try:
        cache = _read(_LOADER_CACHE)
    except OSError:
        for folder in _LIBRARY_FOLDERS:
            yield from _libraries_in(folder)
        return
    paths = (path.decode("utf-8", "surrogateescape") for path in cache.split(b"\0") if path.startswith(b"/"))
    yield from (path for path in paths if _is_library(path.rpartition("/")[2]))


def _read(path: str) -> bytes:
    descriptor = open(path, O_RDONLY)
    try:
        return read(descriptor, _MAX_CACHE)
    finally:
        close(descriptor)


def _libraries_in(folder: str) -> Iterable[str]:
    try:
        return [f"{folder}/{name}" for name in listdir(folder) if _is_library(name)]
    except OSError:
        return ()


def _is_library(name: str) -> bool:
    stem, extension, _ = name.partition(".so")
    return bool(extension) and stem.partition("-")[0] in _LIBRARIES
