"""Aider as an engine: one conversation about the named files, with everything off that is not an edit."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from aider import utils
from aider.coders import editblock_coder, wholefile_coder
from aider.coders.base_coder import Coder

from spass.tools.editor.child.connection import Connection, Edit, Edited, EditFailed
from spass.tools.editor.child.edit_formats import FenceInListing, check_blocks, read_listings
from spass.tools.editor.child.terminal import GatewayModel, Terminal, is_file_name, write_file
from spass.tools.editor.child.texts import LineEnds, Shape

_MAX_REASON: Final = 2000
"""Characters of a message that is sent to the model that called the tool."""
_MAX_REFUSED_SHOWN: Final = 20
_aiders_find_filename: Final = editblock_coder.find_filename
_aiders_find_similar_lines: Final = editblock_coder.find_similar_lines
_EXAMPLE_FOLDER: Final = "path/to/"
_MAX_COMPARISONS: Final = 2_000_000
"""Lines compared to show the model what it may have meant. The time for more is better spent on its next answer."""


class _SortedSet(set[str]):
    """A set in the same order in every process, so that equal edits have equal prompts."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__()))


class _BlockEdit(NamedTuple):
    """An edit of Aider's format ``diff``."""

    path: str
    search: str
    replace: str


_SETTINGS: Final[dict[str, Any]] = {
    "auto_commits": False,
    "auto_lint": False,
    "auto_test": False,
    "detect_urls": False,
    "dirty_commits": False,
    "map_tokens": 0,
    "stream": False,
    "suggest_shell_commands": False,
    "use_git": False,
}


class Confined(Coder):
    """The part of a coder that does not depend on the edit format: the files that it may change."""

    io: Terminal
    abs_fnames: set[str]
    abs_read_only_fnames: set[str]
    abs_root_path_cache: dict[str, str]
    fences: list[tuple[str, str]]

    def confine(self, root: Path) -> None:
        """Let paths be relative to ``root``. Aider takes the innermost folder that has all files."""
        self.root = str(root)
        self.abs_root_path_cache = {}
        self.abs_fnames = _SortedSet(self.abs_fnames)
        self.abs_read_only_fnames = _SortedSet(self.abs_read_only_fnames)
        self.refused: set[str] = set()

    def choose_fence(self) -> None:
        texts = [self.io.read_text(name) or "" for name in [*self.abs_fnames, *self.abs_read_only_fnames]]
        lines = [line for text in texts for line in text.split("\n") if line.startswith(("`", "<"))]
        fences = iter([*self.fences, *((f"<file-{number}>", f"</file-{number}>") for number in range(len(lines) + 1))])
        self.fence = next(fence for fence in fences if not any(line.startswith(tuple(fence)) for line in lines))

    def get_platform_info(self) -> str:
        return "- No command can be run here.\n"

    def get_user_language(self) -> None:
        """Return None: the model answers in the language of the message."""

    def render_incremental_response(self, final: bool) -> str:
        return ""

    def apply_updates(self) -> set[str]:
        """Apply the edits of the answer and return their paths. Aider's own method also hides errors that are not the model's."""
        self.refused.clear()
        try:
            edits = self.prepare_to_edit(self.get_edits())
            self.apply_edits(edits)
        except ValueError as error:
            self.reflected_message = str(error)
            return set()
        return {edit[0] for edit in edits}

    def may_change(self, path: str) -> bool:
        """Return True if the model may edit the file at this path, as it wrote the path."""
        full = self.abs_root_path(path)
        if full in self.abs_fnames:
            return True
        allowed = not os.path.lexists(full) and self.io.may_create(path)
        if not allowed and is_file_name(path):
            self.refused.add(path)
        return allowed

    def permitted(self, edits: Sequence[_BlockEdit]) -> list[_BlockEdit]:
        """Return the edits of files that the model may change. If there are only others, raise ValueError."""
        allowed = [edit for edit in edits if self.may_change(edit[0])]
        if edits and not allowed:
            names = ", ".join(self.get_inchat_relative_files())
            raise ValueError(f"You may edit only these files: {names}. Send the edits again, for these files.")
        return allowed


class BlockCoder(Confined, editblock_coder.EditBlockCoder):
    """Aider's format ``diff``."""

    def get_edits(self) -> list[_BlockEdit]:
        check_blocks(self.partial_response_content)
        return self.permitted(super().get_edits())

    def apply_edits_dry_run(self, edits: list[_BlockEdit]) -> list[_BlockEdit]:
        return edits

    def apply_edits(self, edits: list[_BlockEdit], dry_run: bool = False) -> None:
        # Aider tries the other files when a search text is not in the named file. Without names it has no other files.
        names, self.abs_fnames = self.abs_fnames, _SortedSet()
        try:
            super().apply_edits(edits)
        finally:
            self.abs_fnames = names


class ListingCoder(Confined, wholefile_coder.WholeFileCoder):
    """Aider's format ``whole``."""

    def get_edits(self, mode: str = "update") -> list[tuple[str, str, list[str]]]:
        try:
            return read_listings(self.partial_response_content, self.fence, self._find_name)
        except FenceInListing:
            self.fences = [fence for fence in self.fences if fence != self.fence]
            raise

    def _find_name(self, name: str) -> str | None:
        """Return the path that a model means. Small models write the folder of the prompt's example before a name."""
        named = self.get_inchat_relative_files()
        if name not in named and name.removeprefix(_EXAMPLE_FOLDER) in named:
            name = name.removeprefix(_EXAMPLE_FOLDER)
        return name if self.may_change(name) else None


_CODERS: Final = {"diff": BlockCoder, "whole": ListingCoder}


def edit(edit: Edit, connection: Connection, root: Path) -> Edited:
    """Let Aider make the edit in the folder ``root``, which does not exist yet. Raise EditFailed if the model's edits could not
    be applied, also after corrections."""
    utils.IMAGE_EXTENSIONS.clear()  # every file of an edit is text, whatever its name
    editblock_coder.find_similar_lines = _find_similar_lines
    # An edit of another file with a similar name, which is refused, would otherwise change a named one.
    editblock_coder.difflib = SimpleNamespace(get_close_matches=lambda *_, **__: [])
    editblock_coder.find_filename = _find_filename
    editblock_coder.strip_quoted_wrapping = lambda text, *_: text  # it also removes a first line that ends with the file's name
    texts = {**edit.read_only, **edit.files}
    shapes = {path: Shape.of(text) for path, text in texts.items()}
    plain = {path: shapes[path].remove(text) for path, text in texts.items()}
    line_ends = LineEnds([edit.message, *texts.values()])
    for path, text in plain.items():
        write_file(root / path, line_ends.hide(text).encode("utf-8"))
    terminal = Terminal(connection, root)
    model = GatewayModel(connection, line_ends, shows_crlf=any("\r\n" in text for text in plain.values()))
    coder = _CODERS[edit.format](
        model,
        terminal,
        fnames=[str(root / path) for path in (*edit.files, *edit.create)],
        read_only_fnames=[str(root / path) for path in edit.read_only if path not in edit.files],
        **_SETTINGS,
    )
    coder.confine(root)
    coder.run(with_message=line_ends.hide(edit.message), preproc=False)
    if coder.reflected_message:
        raise EditFailed(f"The model's edits could not be applied: {line_ends.show(coder.reflected_message)[:_MAX_REASON]}")
    answer = line_ends.show(coder.partial_response_content)
    if coder.refused:
        names = sorted(coder.refused)
        others = f" and {len(names) - _MAX_REFUSED_SHOWN} others" if len(names) > _MAX_REFUSED_SHOWN else ""
        shown = ", ".join(names[:_MAX_REFUSED_SHOWN])
        answer += f"\n\n[Not applied, because these files may not be edited: {shown}{others}]"
    written = {path: line_ends.show(terminal.read_text(str(root / path)) or "") for path in sorted(terminal.written)}
    return Edited(answer, {path: shapes.get(path, Shape()).restore(text) for path, text in written.items()})


def _find_similar_lines(search: str, content: str, threshold: float = 0.6) -> str:
    """Return the lines that a search text probably means, or nothing if the comparison would take long."""
    if search.count("\n") * content.count("\n") > _MAX_COMPARISONS:
        return ""
    found: str = _aiders_find_similar_lines(search, content, threshold)
    return found


def _find_filename(lines: list[str], fence: tuple[str, str], named: Sequence[str] | None) -> str | None:
    """Return the path that the last of ``lines`` name. Of a name without its folder, Aider takes the first file. Here there must
    be only one.
    """
    found: str | None = _aiders_find_filename([*lines], fence, named)
    if found and named and found in named and not any(found in line for line in lines):
        name = Path(found).name
        if sum(Path(path).name == name for path in named) > 1:
            return name
    return found
