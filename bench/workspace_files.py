"""The files of the benches of workspaces, and git on the same files."""

import io
import random
import resource
import subprocess
import sysconfig
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from spass.workspaces.paths import WorkspacePath

MARKDOWN: Final = "**/*.md"
"""The pattern of every fiftieth file."""
_SIZES: Final = (200, 4000)  # characters
_SOURCES: Final = 200
_FILES_OF_AN_ARCHIVE: Final = 2500  # less than the 4 MiB of one request


def make_files(count: int) -> dict[WorkspacePath, bytes]:
    """Return ``count`` files of 2 KB on average, ten in a folder, three folders deep. They are parts of the standard library."""
    order = random.Random(1)
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:_SOURCES]
    text = "".join(module.read_text(encoding="utf-8") for module in modules)
    files: dict[WorkspacePath, bytes] = {}
    for number in range(count):
        start, size = order.randrange(len(text) - _SIZES[1]), order.randint(*_SIZES)
        files[path_of(number)] = text[start : start + size].encode()
    return files


def path_of(number: int) -> WorkspacePath:
    folder, part, package = number // 10 % 10, number // 100 % 10, number // 1000
    return WorkspacePath(f"package{package}/part{part}/folder{folder}/file{number}.{'py' if number % 50 else 'md'}")


def make_archives(files: Mapping[WorkspacePath, bytes]) -> Sequence[bytes]:
    """Return the files as zips, each as large as one request may be."""
    archives: list[bytes] = []
    paths = [*files]
    for start in range(0, len(paths), _FILES_OF_AN_ARCHIVE):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in paths[start : start + _FILES_OF_AN_ARCHIVE]:
                archive.writestr(path, files[path])
        archives.append(packed.getvalue())
    return archives


class Git:
    """A repository in ``folder``. Every method returns the processor time of git in seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        folder.mkdir()
        self._run("init", "--quiet", "--initial-branch=main")

    def commit_all(self, files: Mapping[WorkspacePath, bytes]) -> float:
        """Write ``files``, which takes no part in the time, and commit them."""
        for path, body in files.items():
            target = self._folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(body)
        return self._run("add", "--all") + self._run("commit", "--quiet", "--message=Import")

    def commit_file(self, path: WorkspacePath, body: bytes) -> float:
        (self._folder / path).write_bytes(body)
        return self._run("commit", "--quiet", "--all", "--message=Edit")

    def read_file(self, path: WorkspacePath) -> float:
        return self._run("show", f"HEAD:{path}")

    def list_files(self) -> float:
        return self._run("ls-tree", "-r", "-t", "HEAD")

    def clone(self, target: Path) -> float:
        """Clone without links to the objects of the repository."""
        return self._run("clone", "--quiet", "--no-local", ".", str(target))

    def _run(self, *arguments: str) -> float:
        identity = (
            "-c",
            "user.name=bench",
            "-c",
            "user.email=bench@example.org",
            "-c",
            "gc.auto=0",
            "-c",
            "commit.gpgsign=false",
        )
        began = _children_seconds()
        subprocess.run(["git", *identity, *arguments], cwd=self._folder, check=True, capture_output=True)
        return _children_seconds() - began


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
