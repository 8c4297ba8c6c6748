"""Decide which paths of the host a container sees. Every path is resolved first, and the resolved path is what is mounted."""

import os
import re
import stat
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final

from spass.core.json import InvalidJson, read_object
from spass.core.messages import Json

BLOCKED: Final = (
    *(".ssh", ".env", "*.pem", "*.key", "id_rsa*", "id_ed25519*", "credentials*", ".netrc", ".npmrc", ".pypirc"),
    *(".gnupg", ".aws", ".azure", ".kube", ".docker", "gcloud"),
)
"""Names of files and folders that hold credentials. No path with such a component is mounted."""
_WRITABLE: Final = ":rw"
_KERNEL_FOLDERS: Final = tuple(map(PurePosixPath, ("/proc", "/sys", "/dev", "/run")))
"""Files below these folders show or control the host: its processes, devices, and the sockets of its services."""
_MOUNT_TABLE: Final = Path("/proc/self/mountinfo")
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_ROOT_KEYS: Final = frozenset({"path", "read_only"})
_FILE_KEYS: Final = frozenset({"roots", "blocked_patterns"})


class MountRefused(ValueError):
    """A path must not be mounted, has changed since it was checked, or the allow-list cannot be read. The message names it and
    says why."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A resolved path of the host. ``identity`` is its device and its inode when it was checked."""

    path: str
    writable: bool
    identity: tuple[int, int]

    @property
    def argument(self) -> str:
        """Return the value of the runtime's option ``-v``."""
        return f"{self.path}:{self.path}:{'rw' if self.writable else 'ro'}"


@dataclass(frozen=True, slots=True)
class Root:
    """A folder below which paths may be mounted."""

    path: PurePosixPath
    read_only: bool


@dataclass(frozen=True, slots=True)
class AllowList:
    """The rules of one runner. ``roots`` None restricts nothing. ``patterns`` match one component of a path each, in any case."""

    roots: tuple[Root, ...] | None = None
    patterns: tuple[str, ...] = BLOCKED


def read_allow_list(path: str) -> AllowList:
    """Return the rules in the file at ``path``; an empty path means an empty allow-list."""
    if not path:
        return AllowList()
    try:
        members = read_object(Path(path).read_text("utf-8"))
    except OSError as error:
        raise MountRefused(f"The mount allow-list {path!r} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise MountRefused(f"The mount allow-list {path!r} is not a text in UTF-8.") from None
    except InvalidJson as error:
        raise MountRefused(f"The mount allow-list {path!r} is not valid: {error.reason}.") from None
    try:
        _refuse_unknown_keys(members, _FILE_KEYS)
        roots = tuple(_root(root, number) for number, root in enumerate(_list(members, "roots")))
        patterns = tuple(_pattern(pattern, number) for number, pattern in enumerate(_list(members, "blocked_patterns")))
    except ValueError as error:
        raise MountRefused(f"The mount allow-list {path!r} is not valid: {error}.") from None
    return AllowList(roots, (*BLOCKED, *patterns))


def resolve_mounts(mounts: Sequence[str], allow_list: AllowList) -> tuple[Mount, ...]:
    """Return the resolved paths of ``mounts``, each once. ``:rw`` after a path asks for permission to write."""
    resolved: dict[str, Mount] = {}
    for given in mounts:
        mount = _resolve(given, allow_list)
        if resolved.setdefault(mount.path, mount).writable != mount.writable:
            raise MountRefused(f"The path {given!r} is mounted twice, and only once for writing. Name it once.")
    return tuple(resolved.values())


def check_unchanged(mounts: Sequence[Mount]) -> None:
    """Check that every path still is what was checked, and no link leads elsewhere now."""
    for mount in mounts:
        try:
            unchanged = os.path.realpath(mount.path, strict=True) == mount.path and _identity(mount.path) == mount.identity
        except OSError:
            unchanged = False
        if not unchanged:
            raise MountRefused(f"The path {mount.path!r} changed while it was being mounted. Start the agent again.")


def _resolve(given: str, allow_list: AllowList) -> Mount:
    name = given.removesuffix(_WRITABLE)
    wants_writing = name != given
    _check_name(name, given)
    try:
        path = os.path.realpath(name, strict=True)
        mode = Path(path).lstat().st_mode
        identity = _identity(path)
        found = os.stat(name)  # noqa: PTH116 (the kernel decides; Path would drop the end of "file/.")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a path"
        raise MountRefused(f"The path {given!r} cannot be mounted: {reason}.") from None
    if (found.st_dev, found.st_ino) != identity:
        raise MountRefused(f"The path {given!r} changed while it was being checked. Start the agent again.")
    _check_name(path, given)
    for component in (*PurePosixPath(name).parts, *PurePosixPath(path).parts):
        if pattern := _blocked_by(component, allow_list.patterns):
            raise MountRefused(f"The path {given!r} cannot be mounted: {component!r} matches the blocked pattern {pattern!r}.")
    _check_place(PurePosixPath(path), mode, given)
    _check_roots(PurePosixPath(path), given, allow_list, wants_writing=wants_writing)
    if not wants_writing and (inner := mounted_below(path)):
        raise MountRefused(
            f"The path {given!r} cannot be mounted: {inner!r} is mounted in it, and would be writable. Name folders beside it."
        )
    return Mount(path, wants_writing, identity)


def _check_name(path: str, given: str) -> None:
    """Refuse a path that the runtime would read differently than the host: it splits its argument at colons."""
    if not path.startswith("/"):
        raise MountRefused(f"The path {given!r} cannot be mounted: it must be absolute.")
    if any(character in ":\\\u2028\u2029" or unicodedata.category(character)[0] == "C" for character in path):
        raise MountRefused(
            f"The path {given!r} cannot be mounted: it contains a colon, a backslash, a line break or an invisible character."
            " Only ':rw' may follow a path."
        )


def _blocked_by(component: str, patterns: Sequence[str]) -> str | None:
    name = _fold(component)
    return next((pattern for pattern in patterns if fnmatchcase(name, _fold(pattern))), None)


def _fold(name: str) -> str:
    """Return ``name`` as a file system that ignores case may compare it."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _check_place(path: PurePosixPath, mode: int, given: str) -> None:
    if path == PurePosixPath("/"):
        raise MountRefused(f"The path {given!r} cannot be mounted: it is the root of the file system. Name a folder in it.")
    if folder := next((folder for folder in _KERNEL_FOLDERS if path.is_relative_to(folder)), None):
        raise MountRefused(f"The path {given!r} cannot be mounted: {str(folder)!r} belongs to the system.")
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise MountRefused(f"The path {given!r} cannot be mounted: it is neither a folder nor a file.")


def _check_roots(path: PurePosixPath, given: str, allow_list: AllowList, *, wants_writing: bool) -> None:
    """Refuse a path outside the roots. The innermost root around a path decides whether it may be written, and no root inside
    the path may be read-only."""
    roots = allow_list.roots
    around = [root for root in roots or () if path.is_relative_to(root.path)]
    if roots is not None and not around:
        allowed = ", ".join(str(root.path) for root in roots) or "none"
        raise MountRefused(f"The path {given!r} cannot be mounted: it is outside the allowed roots ({allowed}).")
    if not wants_writing:
        return
    depth = max((len(root.path.parts) for root in around), default=0)
    deciding = [root for root in around if len(root.path.parts) == depth] + [
        root for root in roots or () if root.path.is_relative_to(path)
    ]
    if not around or any(root.read_only for root in deciding):
        raise MountRefused(f'The path {given!r} cannot be mounted for writing: no root with "read_only": false allows it.')


def mounted_below(path: str) -> str | None:
    """Return a folder below ``path`` at which another file system is mounted: a read-only mount does not include it."""
    try:
        lines = _MOUNT_TABLE.read_bytes().decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")
    except OSError:
        return None  # not Linux: the runtime's own machine has no mounts of ours
    points = (_ESCAPE.sub(lambda match: chr(int(match[1], 8)), line.split(" ")[4]) for line in lines)
    return next((point for point in points if point.startswith(f"{path}/")), None)


def _identity(path: str) -> tuple[int, int]:
    status = Path(path).lstat()
    return status.st_dev, status.st_ino


def _list(members: Mapping[str, Json], key: str) -> Sequence[Json]:
    value = members.get(key, [])
    if not isinstance(value, list):
        raise ValueError(f"'{key}' must be a list")  # noqa: TRY004 (a wrong file, not a wrong argument)
    return value


def _root(value: Json, number: int) -> Root:
    if not isinstance(value, dict):
        raise ValueError(f"'roots[{number}]' must be an object with 'path' and 'read_only'")  # noqa: TRY004
    _refuse_unknown_keys(value, _ROOT_KEYS, f"roots[{number}].")
    path, read_only = value.get("path"), value.get("read_only", True)
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        raise ValueError(f"'roots[{number}].path' must be an absolute path")
    if not isinstance(read_only, bool):
        raise ValueError(f"'roots[{number}].read_only' must be true or false")  # noqa: TRY004
    return Root(PurePosixPath(os.path.realpath(path)), read_only)


def _pattern(value: Json, number: int) -> str:
    if not isinstance(value, str) or not value or "/" in value:
        raise ValueError(f"'blocked_patterns[{number}]' must be the name of a file or a folder, such as '*.secret'")
    return value


def _refuse_unknown_keys(members: Mapping[str, Json], known: frozenset[str], prefix: str = "") -> None:
    if unknown := sorted(set(members) - known):
        raise ValueError(f"unknown key '{prefix}{unknown[0]}'; the keys are {', '.join(sorted(known))}")
