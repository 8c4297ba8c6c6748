"""A tree: the files of one version, each with the place of its body in a pack. A tree never changes."""

import json
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple

from spass.core.errors import InvalidPath, WorkspaceFileNotFound
from spass.workspaces.globs import Globs
from spass.workspaces.paths import WorkspacePath, show

_FILE_BYTES: Final = 600  # memory of one file of a decoded tree and of its parts, without the path: tuple, texts and numbers
_NAME_BYTES: Final = 65  # memory of the name of a folder, without its characters
_MAX_PARTS: Final = 4  # parts of a tree that are kept, each for the patterns of another agent
_FASTEST: Final = 1  # most bytes are digests, so a higher level of zlib saves only 5 % in three times the time
_AFTER_SLASH: Final = "0"  # the character after "/": it ends the range of a folder's paths in their order


class TreeFile(NamedTuple):
    """A file: the SHA-256 (hex), the ``size`` in bytes and the CRC-32 of its body, which is in ``pack`` from ``offset`` on.

    It has ``length`` bytes there: a raw deflate stream if they are fewer than ``size``, else the body as it is. An empty file
    is in no pack.
    """

    sha256: str
    size: int
    pack: str
    offset: int
    length: int
    crc32: int

    @property
    def is_deflated(self) -> bool:
        return self.length < self.size


class TreeEntry(NamedTuple):
    """An entry of a listing. ``size`` (bytes) and ``sha256`` are None for a directory."""

    path: str
    type: Literal["file", "directory"]
    size: int | None
    sha256: str | None


@dataclass(frozen=True)
class Tree:
    """The files of a version by path."""

    files: Mapping[WorkspacePath, TreeFile]

    @cached_property
    def paths(self) -> Sequence[WorkspacePath]:
        """All paths in order."""
        return sorted(self.files)

    @cached_property
    def total_bytes(self) -> int:
        """The sizes of all files together."""
        return sum(file.size for file in self.files.values())

    @cached_property
    def by_sha256(self) -> Mapping[str, TreeFile]:
        """A file with each content."""
        return {file.sha256: file for file in self.files.values()}

    @cached_property
    def memory_bytes(self) -> int:
        """An estimate of the memory of this tree, with the names of the folders that it and its parts may compute."""
        folders = {path.rpartition("/")[0] for path in self.files}
        names = sum((folder.count("/") + 1) * (len(folder) // 2 + _NAME_BYTES) for folder in folders)
        return 2 * sum(map(len, self.files)) + _FILE_BYTES * (len(self.files) + 1) + names * (1 + _MAX_PARTS)

    def is_folder(self, folder: str) -> bool:
        """Return True if a file is below ``folder``. The root, ``""``, is always a folder."""
        if not folder:
            return True
        position = bisect_left(self.paths, f"{folder}/")
        return position < len(self.paths) and self.paths[position].startswith(f"{folder}/")

    def below(self, folder: str) -> Sequence[WorkspacePath]:
        """Return the paths below ``folder`` in order, at any depth."""
        places = _places_below(self.paths, folder)
        return self.paths[places.start : places.stop]

    def matching(self, globs: Globs) -> "Tree":
        """Return the tree of the files that ``globs`` match. It is kept for the next call, because that matches every path."""
        if globs.matches_everything:
            return self
        part = self._parts.get(globs)
        if part is None:
            if len(self._parts) == _MAX_PARTS:
                self._parts.clear()
            part = self._parts[globs] = Tree({path: file for path, file in self.files.items() if globs.matches(path)})
        return part

    def covered(self, folder: str) -> Sequence[WorkspacePath]:
        """Return the paths of the file or folder ``folder``, in order."""
        path = WorkspacePath(folder)
        return [path] if path in self.files else self.below(folder)

    def sha256(self, path: WorkspacePath) -> str | None:
        """Return the SHA-256 (hex) of the file at ``path``, or None if there is none."""
        file = self.files.get(path)
        return file.sha256 if file else None

    def list(self, folder: str = "", depth: int | None = None, *, after: str = "") -> Iterator[TreeEntry]:
        """Yield the files and directories below ``folder`` by path, beginning after the path ``after``: those directly in it with
        ``depth`` 1, all with None."""
        names = self._names
        places = _places_below(names, folder)
        position = max(places.start, bisect_right(names, after))
        segments = None if depth is None else depth + (folder.count("/") + 1 if folder else 0)
        while position < places.stop:
            name = names[position]
            if segments is not None and name.count("/") >= segments:
                # Everything else in this directory is too deep as well.
                directory = "/".join(name.split("/", segments)[:segments])
                position = bisect_left(names, directory + _AFTER_SLASH, position)
                continue
            file = self.files.get(name)
            yield TreeEntry(name, "file", file.size, file.sha256) if file else TreeEntry(name, "directory", None, None)
            position += 1

    @cached_property
    def _names(self) -> Sequence[WorkspacePath]:
        """The paths of all files and directories in order."""
        folders = set[WorkspacePath]()
        for path in self.files:
            folder = WorkspacePath(path.rpartition("/")[0])
            while folder and folder not in folders:
                folders.add(folder)
                folder = WorkspacePath(folder.rpartition("/")[0])
        return sorted((*self.files, *folders))

    @cached_property
    def _parts(self) -> dict[Globs, "Tree"]:
        return {}


def _places_below(paths: Sequence[str], folder: str) -> range:
    """Return where the paths below ``folder`` are in ``paths``, which are in order."""
    return range(bisect_left(paths, f"{folder}/"), bisect_left(paths, folder + _AFTER_SLASH)) if folder else range(len(paths))


EMPTY_TREE: Final = Tree({})


def changed_paths(old: Tree, new: Tree, folder: str = "") -> Sequence[WorkspacePath]:
    """Return the paths of the file or folder ``folder`` whose files differ, in order."""
    paths = {path for tree in (old, new) for path in tree.covered(folder)}
    return sorted(path for path in paths if old.sha256(path) != new.sha256(path))


class TreeAt(NamedTuple):
    """The tree of a ``version`` of the workspace's ``generation``. Without a workspace, the generation is empty."""

    version: int
    generation: str
    tree: Tree


def encode_tree(tree: Tree) -> bytes:
    """Return the tree as compressed JSON: the packs' names, and per path a list of the file's values."""
    packs = {name: number for number, name in enumerate(dict.fromkeys(file.pack for file in tree.files.values()))}
    files = {
        path: [sha256, size, packs[pack], offset, length, crc32]
        for path, (sha256, size, pack, offset, length, crc32) in tree.files.items()
    }
    content = json.dumps({"packs": [*packs], "files": files}, ensure_ascii=False, separators=(",", ":"))
    return zlib.compress(content.encode(), _FASTEST)


def decode_tree(body: bytes) -> Tree:
    """Return the tree that ``encode_tree`` encoded."""
    decoded = json.loads(zlib.decompress(body))
    packs = decoded["packs"]
    return Tree(
        {
            path: TreeFile(sha256, size, packs[pack], offset, length, crc32)
            for path, (sha256, size, pack, offset, length, crc32) in decoded["files"].items()
        }
    )


def find_file(at: TreeAt, path: WorkspacePath) -> TreeFile:
    """Return the file at ``path``.

    Raises:
        InvalidPath: the path is a folder, or below a file.
        WorkspaceFileNotFound: there is no such file.
    """
    file = at.tree.files.get(path)
    if file is None:
        if at.tree.is_folder(path):
            raise InvalidPath(f"{show(path)} is a folder in version {at.version}. Name a file.", param="path")
        check_folders_above(at, path)
        raise WorkspaceFileNotFound(f"There is no file {show(path)} in version {at.version}.", param="path")
    return file


def check_folders_above(at: TreeAt, path: str) -> None:
    """Check that no file is where ``path`` has a folder. Raise InvalidPath if a part of the path is a file."""
    ends = [end for end, character in enumerate(path) if character == "/"]
    above = next((path[:end] for end in ends if path[:end] in at.tree.files), None)
    if above is not None:
        raise InvalidPath(f"Nothing is below {show(above)}, because it is a file in version {at.version}.", param="path")
