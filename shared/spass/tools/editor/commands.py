"""Answer the commands of ``aider_edit`` from the versions of the workspace. No process is started.

Each edit is a version at once, so the commands have no index and no uncommitted changes: ``/diff`` and ``/git diff`` show the
newest version, ``/git restore`` takes paths back to the version before it, and ``HEAD`` is the newest version.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spass.core.errors import VersionNotFound, WorkspaceFileNotFound
from spass.tools.agent_workspace import NOT_TEXT, AgentWorkspace, path_not_allowed
from spass.tools.base import CallResult, Tool, ToolError
from spass.tools.editor.command_line import BLANKS, CommandLine, not_allowed, parse_command
from spass.tools.editor.history import History, changed_files, count_files, describe_tree, describe_version, is_version
from spass.tools.workspace_change import apply_change
from spass.tools.workspace_diffs import compare_files, edit_result, rich_diffs
from spass.workspaces.change import Body, Change, ChangedFile
from spass.workspaces.paths import WorkspacePath, parse_folder, parse_path, show
from spass.workspaces.text import decode_text
from spass.workspaces.tree import TreeAt, TreeFile, find_file
from spass.workspaces.versions import Version

_DEFAULT_LOG: Final = 20
_MAX_LOG: Final = 100
_MAX_COMPARED: Final = 50
"""Versions whose trees ``/git log`` with paths compares."""
_MAX_UNDONE: Final = 200
"""Versions among which ``/undo`` looks for one that was not taken back."""
_UNDO: Final = "/undo"


async def run_command(workspace: AgentWorkspace, call: Tool, message: str, files: Sequence[str]) -> CallResult:
    """Answer the command in the ``message`` of ``call``. ``files`` are checked, but the command itself names its paths.

    Raises:
        ToolError: the command is not allowed, or a path is outside the agent's globs.
        InvalidPath, WorkspaceFileNotFound, VersionNotFound, WorkspaceConflict: as for every other change.
    """
    for number, path in enumerate(files):
        parse_path(path, f"files.{number}")
    command = parse_command(message)
    at = await workspace.stored.newest()
    return await _Commands(workspace, call, message.strip(BLANKS), command, History(workspace, at)).run()


@dataclass(frozen=True, slots=True)
class _Commands:
    """One command."""

    workspace: AgentWorkspace
    call: Tool
    message: str
    command: CommandLine
    history: History

    @property
    def at(self) -> TreeAt:
        return self.history.newest

    async def run(self) -> CallResult:
        match self.command.name:
            case "undo":
                return await self._undo()
            case "git status":
                return self._text(describe_tree(self.at))
            case "git log":
                return await self._log()
            case "diff" | "git diff":
                return await self._diff()
            case "git show":
                return await self._show()
            case "git mv":
                return await self._move()
            case "git rm":
                return await self._remove()
            case "git restore":
                return await self._restore()
            case _:
                return await self._revert()

    # Commands that change the workspace

    async def _undo(self) -> CallResult:
        undone = 0
        for version in await self.history.versions(_MAX_UNDONE):
            if not version.files:
                continue  # a write over HTTP is a version even if it changes no file
            if version.message == _UNDO:
                undone += 1
            elif undone:
                undone -= 1
            else:
                return await self._take_back(version.version)
        raise ToolError("There is nothing to undo.", code="edit_failed")

    async def _revert(self) -> CallResult:
        (word,) = [*self.command.words, *self.command.paths]
        return await self._take_back(self.history.number(word))

    async def _take_back(self, number: int) -> CallResult:
        files = await self.history.changes(number)
        change = Change(
            {file.path: file.before for file in files},
            {file.path: file.after.sha256 if file.after else None for file in files},
            generation=self.at.generation,
        )
        return await self._change(change, f"Took back version {number}.", brings_back=True)

    async def _restore(self) -> CallResult:
        source = self.command.option("--source", "-s") or "HEAD~1"
        number = self.history.number(source)
        if number == 0:  # bringing back the empty tree would delete everything
            raise VersionNotFound("There is no version before the first one. To remove files, use /git rm.")
        tree = await self.history.tree(number)
        words = [*self.command.words, *self.command.paths]
        paths = None if "." in words else [parse_folder(word) for word in words]
        return await self._change(Change.restore(tree, paths), f"Restored from version {number}.", brings_back=True)

    async def _remove(self) -> CallResult:
        removed: dict[WorkspacePath, TreeFile] = {}
        for word in [*self.command.words, *self.command.paths]:
            removed |= self._files_at(word, is_recursive="-r" in self.command.options)
        change = Change(dict.fromkeys(removed), {path: file.sha256 for path, file in removed.items()})
        return await self._change(change, f"Removed {count_files(len(removed))}.")

    async def _move(self) -> CallResult:
        source, target = [*self.command.words, *self.command.paths]
        moved = self._files_at(source, is_recursive=True)
        source, into = source.removesuffix("/"), parse_folder(target)
        if target.endswith("/") or self.at.tree.is_folder(into):
            into = f"{into}/{source.rpartition('/')[2]}".removeprefix("/")
        places = {path: parse_path(into + path[len(source) :]) for path in moved}
        taken = [path for path in places.values() if path in self.at.tree.files]
        if taken:
            raise ToolError(f"There is a file {show(taken[0])} already. Move it or remove it first.", code="edit_failed")
        files: dict[WorkspacePath, Body | TreeFile | None] = dict.fromkeys(moved)
        files |= {places[path]: file for path, file in moved.items()}
        expected = {path: file.sha256 for path, file in moved.items()} | dict.fromkeys(places.values())
        return await self._change(Change(files, expected, generation=self.at.generation), f"Moved {count_files(len(moved))}.")

    async def _change(self, change: Change, answer: str, *, brings_back: bool = False) -> CallResult:
        return await apply_change(self.workspace, self.call, change, message=self.message, answer=answer, brings_back=brings_back)

    # Commands that show something

    async def _diff(self) -> CallResult:
        words, paths = self._versions_and_paths()
        numbers = [self.history.number(word) for word in words]
        if len(numbers) > 2:
            raise not_allowed(self.message, "It compares two versions at most.")
        new = await self.history.tree(numbers[1]) if len(numbers) > 1 else self.at
        old = await (self.history.tree(numbers[0]) if numbers else self.history.tree_before(self.at.version))
        return await self._comparison(
            changed_files(old, new), paths, f"Changes from version {old.version} to version {new.version}."
        )

    async def _show(self) -> CallResult:
        words, paths = self._versions_and_paths()
        word, separator, path = (words[0] if words else "HEAD").partition(":")
        if len(words) > 1 or (separator and paths):
            raise not_allowed(self.message, "It shows one version, or one file of a version as VERSION:PATH.")
        number = self.history.number(word)
        if separator:
            return await self._show_file(await self.history.tree(number), parse_path(path))
        version = await self.history.version(number)
        return await self._comparison(await self.history.changes(number), paths, describe_version(version))

    async def _show_file(self, at: TreeAt, path: WorkspacePath) -> CallResult:
        grants = self.workspace.grants
        if not grants.read.matches(path):
            raise path_not_allowed(path, grants.paths.read, "read")
        text = decode_text(await self.workspace.stored.read(at, path))
        if text is None:
            raise ToolError(f"{show(path)} is not a text file in UTF-8.", code=NOT_TEXT)
        return self._text(text)

    async def _log(self) -> CallResult:
        words = [*self.command.words, *self.command.paths]
        paths = [parse_folder(word) for word in words]
        wanted = self.command.option("-n") or str(_DEFAULT_LOG)
        if not re.fullmatch("[1-9][0-9]{0,3}", wanted):
            raise not_allowed(self.message, "The value of -n is a number.")
        limit = min(int(wanted), _MAX_LOG)
        versions = await self.history.versions(_MAX_COMPARED if paths else limit)
        if paths:
            versions = [version for version in versions if await self._touches(version, paths)][:limit]
        return self._text("\n".join(map(describe_version, versions)) or "There is no such version.")

    async def _touches(self, version: Version, folders: Sequence[str]) -> bool:
        read = self.workspace.grants.read
        changes = await self.history.changes(version.version)
        return any(read.matches(file.path) and _is_in(file.path, folders) for file in changes)

    async def _comparison(self, files: Sequence[ChangedFile], folders: Sequence[str], answer: str) -> CallResult:
        read = self.workspace.grants.read
        shown = [file for file in files if read.matches(file.path) and _is_in(file.path, folders)]
        diffs = await compare_files(self.workspace, self.at.generation, shown)
        return CallResult(edit_result(None, diffs, answer), rich_diffs(diffs))

    def _text(self, text: str) -> CallResult:
        return CallResult(edit_result(None, (), text))

    # Versions and paths

    def _versions_and_paths(self) -> tuple[list[str], list[str]]:
        """Return the words that name versions, ``a..b`` as two, and the paths."""
        words: list[str] = []
        paths = [*self.command.paths]
        for word in self.command.words:
            first, dots, second = word.partition("..")
            if dots and is_version(first) and is_version(second):
                words += [first, second]
            elif is_version(word.partition(":")[0]):
                words.append(word)
            elif word.rstrip("/") in self.at.tree.files or self.at.tree.is_folder(word.rstrip("/")):
                paths.append(word)
            else:
                self.history.number(word)  # refuses it
        return words, [parse_folder(path) for path in paths]

    def _files_at(self, word: str, *, is_recursive: bool) -> dict[WorkspacePath, TreeFile]:
        """Return the file or the files of the folder that ``word`` names."""
        tree, folder = self.at.tree, parse_folder(word)
        if folder in tree.files:
            path = WorkspacePath(folder)
            return {path: find_file(self.at, path)}
        below = {path: tree.files[path] for path in tree.below(folder)} if folder else {}
        if not below:
            raise WorkspaceFileNotFound(f"There is no file or folder {show(word)}.", param="path")
        if not is_recursive:
            raise ToolError(f"{show(word)} is a folder. Use -r to remove it with everything in it.", code="edit_failed")
        return below


def _is_in(path: str, folders: Sequence[str]) -> bool:
    return not folders or any(not folder or path == folder or path.startswith(f"{folder}/") for folder in folders)
