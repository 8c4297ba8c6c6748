"""The files of one edit: read them, show them to an editor as views, and take its result back as bodies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spass.core.errors import InvalidPath, WorkspaceLimit
from spass.tools.agent_workspace import path_not_allowed
from spass.tools.base import ToolError
from spass.tools.editor.view import FileView, ModelRoundTrip
from spass.tools.grants import Grants
from spass.workspaces.change import Change
from spass.workspaces.paths import MAX_FILE_BYTES, WorkspacePath, check_together, parse_path, show
from spass.workspaces.text import decode_text
from spass.workspaces.tree import TreeAt, find_file

_MAX_NAME_BYTES: Final = 255
"""Bytes of a name on usual file systems. A workspace has longer ones."""
MAX_EDIT_BYTES: Final = 2 * 2**20
"""Bytes of all files of one edit together, those to read included."""
MAX_EDIT_LINES: Final = 400_000
"""Lines of them together, and of one file after the edit. Each takes about 200 bytes of memory, and nine edits run at once."""


@dataclass(frozen=True, slots=True)
class EditPaths:
    """The files that an edit may change or create, and those that it only reads."""

    files: Sequence[WorkspacePath]
    read_only: Sequence[WorkspacePath]

    @classmethod
    def parse(cls, grants: Grants, files: Sequence[str], read_only: Sequence[str]) -> "EditPaths":
        """Return the paths, each once; a path on both lists is one to change.

        Raises:
            InvalidPath: one of them is not the form of a path.
            ToolError: one of them is outside the agent's globs.
        """
        to_change = _parse(files, "files")
        to_read = [path for path in _parse(read_only, "read_only_files") if path not in set(to_change)]
        for path in to_change:
            if not grants.write.matches(path):
                raise path_not_allowed(path, grants.paths.write, "change")
        for path in to_read:
            if not grants.read.matches(path):
                raise path_not_allowed(path, grants.paths.read, "read")
        return cls(to_change, to_read)

    def existing(self, at: TreeAt) -> list[WorkspacePath]:
        """Return the paths whose files exist.

        Raises:
            InvalidPath: a file to create cannot be in the tree.
            WorkspaceFileNotFound: a file to read does not exist.
            WorkspaceLimit: they hold more than 2 MiB together.
        """
        created = [path for path in self.files if path not in at.tree.files]
        if created:
            check_together([*created, *at.tree.files])
        existing = [path for path in self.files if path in at.tree.files]
        sizes = [at.tree.files[path].size for path in existing] + [find_file(at, path).size for path in self.read_only]
        if sum(sizes) > MAX_EDIT_BYTES:
            raise WorkspaceLimit(
                f"The files of this edit have {sum(sizes)} bytes; all together may have {MAX_EDIT_BYTES}. Name fewer files."
            )
        return [*existing, *self.read_only]


def _check_as_files(names: Mapping[str, WorkspacePath]) -> None:
    """Check that every file system can have files with these ``names`` in one folder. Some ignore case."""
    check_together(names, param="files")
    for name, path in names.items():
        if any(len(segment.encode()) > _MAX_NAME_BYTES for segment in name.split("/")):
            raise InvalidPath(
                f"A name in the path {show(path)} has more than {_MAX_NAME_BYTES} bytes of UTF-8, which the editor cannot write. "
                "Choose a shorter name; /git mv renames a file.",
                param="files",
            )


def _parse(paths: Sequence[str], param: str) -> list[WorkspacePath]:
    return list(dict.fromkeys(parse_path(path, f"{param}.{at}") for at, path in enumerate(paths)))


@dataclass(frozen=True, slots=True)
class EditTexts:
    """The views of the files, by the names under which the editor knows them. A name is a path as a model sees it."""

    paths: Mapping[str, WorkspacePath]
    views: Mapping[WorkspacePath, FileView]
    created: frozenset[WorkspacePath]
    read_only: frozenset[WorkspacePath]

    @classmethod
    def of(cls, paths: EditPaths, bodies: Mapping[WorkspacePath, bytes], model_round_trip: ModelRoundTrip) -> "EditTexts":
        """Return the views of ``bodies``; files without a body are to be created. This takes about a second for 2 MiB.

        Raises:
            ToolError: a file is not text.
            WorkspaceLimit: they have too many lines.
            InvalidPath: a model or a file system would take two of the paths for the same one, or a name is too long.
        """
        lines = 0
        for path, body in bodies.items():
            text = decode_text(body)
            if text is None:
                raise ToolError(f"{show(path)} is not a text file in UTF-8, so it cannot be edited here.", code="not_text")
            lines += len(text.splitlines())
        if lines > MAX_EDIT_LINES:
            raise WorkspaceLimit(
                f"The files of this edit have {lines} lines; all together may have {MAX_EDIT_LINES}. Name fewer files."
            )
        named = [*paths.files, *paths.read_only]
        names = {model_round_trip(path): path for path in named}
        if len(names) < len(named):
            raise InvalidPath("A model cannot tell two of the paths apart. Edit these files in separate calls.", param="files")
        _check_as_files(names)
        views = {path: FileView.of(bodies.get(path, b""), model_round_trip) for path in named}
        created = frozenset(path for path in paths.files if path not in bodies)
        return cls(names, views, created, frozenset(paths.read_only))

    @property
    def to_change(self) -> dict[str, str]:
        return self._texts(lambda path: path not in self.created and path not in self.read_only)

    @property
    def to_read(self) -> dict[str, str]:
        return self._texts(lambda path: path in self.read_only)

    @property
    def to_create(self) -> tuple[str, ...]:
        return tuple(name for name, path in self.paths.items() if path in self.created)

    def may_edit(self, name: str) -> bool:
        """Return True for the name of a file that the edit may change or create."""
        return name in self.paths and self.paths[name] not in self.read_only

    def change(self, results: Mapping[str, str], at: TreeAt) -> Change:
        """Return the change from the tree ``at`` to the edited texts ``results``, by name. Texts that the edit may not change are
        left out. Raise WorkspaceLimit if a text is too long."""
        writes: dict[WorkspacePath, bytes | None] = {}
        movable = {seen: text for view in self.views.values() for seen, text in view.movable_lines().items()}
        for name, text in results.items():
            if not self.may_edit(name):
                continue
            path = self.paths[name]
            if len(text) > MAX_FILE_BYTES:
                raise WorkspaceLimit(f"After the edit, {show(path)} would have more than {MAX_FILE_BYTES} bytes. Write less.")
            if text.count("\n") > MAX_EDIT_LINES:
                raise WorkspaceLimit(f"After the edit, {show(path)} would have more than {MAX_EDIT_LINES} lines. Write less.")
            body = self.views[path].restore(text, movable)
            if path in self.created or body != self.views[path].body:
                writes[path] = body
        expected = {path: at.tree.sha256(path) for path in writes}
        return Change.of(writes, expected)

    def _texts(self, is_wanted: Callable[[WorkspacePath], bool]) -> dict[str, str]:
        return {name: self.views[path].text for name, path in self.paths.items() if is_wanted(path)}
