"""Aider as an engine: one conversation about the named files, with everything off that is not an edit."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from aider import utils
from aider.coders import editblock_coder, wholefile_coder
from aider.coders.base_coder import Coder
from aider.io import InputOutput
from aider.models import Model

from spass.tools.editor.child.answers import FenceInListing, check_blocks, read_listings
from spass.tools.editor.child.connection import ChatMessage, Connection, Edit, Edited, EditFailed
from spass.tools.editor.child.texts import LineEnds, Shape

MAX_FILE: Final = 4 * 2**20
"""Bytes of a file of a workspace."""
_MAX_REASON: Final = 2000
"""Characters of a message that is sent to the model that called the tool."""
_aiders_find_similar_lines: Final = editblock_coder.find_similar_lines
_MAX_COMPARISONS: Final = 2_000_000
"""Lines compared to show the model what it may have meant. The time for more is better spent on its next answer."""


def is_file_name(name: str) -> bool:
    """Return True if this is the name of a file, not a sentence in which a model announces an example."""
    return " " not in name and ("/" in name or "." in name.strip("."))


def write_file(file: Path, body: bytes) -> None:
    """Write a file and its folders.

    Raises:
        EditFailed: the file system refuses the name or the size.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
    except OSError as error:
        raise EditFailed(f"The editor cannot write {file.name[:100]}: {error.strerror}.") from None


class Terminal(InputOutput):
    """What Aider takes for a terminal: it prints nothing, and writes files as they are."""

    def __init__(self, connection: Connection, root: Path) -> None:
        super().__init__(pretty=False, yes=False, fancy_input=False)
        self.written: Final[set[str]] = set()
        self._connection: Final = connection
        self._folder: Final = root
        self._answers: Final[dict[str, bool]] = {}

    def read_text(self, filename: str, silent: bool = False) -> str | None:
        try:
            return Path(filename).read_bytes().decode("utf-8")
        except FileNotFoundError:
            return None

    def write_text(self, filename: str, content: str, max_retries: int = 0, initial_delay: float = 0) -> None:
        body = content.encode("utf-8")
        if len(body) > MAX_FILE:
            raise EditFailed(f"The edit makes a file larger than {MAX_FILE} bytes. Ask for a smaller change.")
        write_file(Path(filename), body)
        self.written.add(self.relative(filename))

    def relative(self, path: str) -> str:
        """Return the path within the workspace. It begins with ``..`` if it is outside."""
        return os.path.relpath(os.path.realpath(self._folder / path), self._folder)

    def may_create(self, path: str) -> bool:
        """Return True if the gateway permits a new file at this path."""
        relative = self.relative(path)
        if relative not in self._answers:
            self._answers[relative] = (
                is_file_name(relative) and ".." not in Path(relative).parts and self._connection.may_edit(relative)
            )
        return self._answers[relative]

    def confirm_ask(self, question: str, *args: object, subject: str | None = None, **options: object) -> bool:
        return question == "Create new file?" and subject is not None and self.may_create(subject)

    def prompt_ask(self, *args: object, **options: object) -> str:
        return ""

    def offer_url(self, *args: object, **options: object) -> bool:
        return False

    def _print_nothing(self, *args: object, **options: object) -> None:
        pass

    tool_output = tool_error = tool_warning = user_input = ai_output = assistant_output = _print_nothing
    append_chat_history = log_llm_history = print = _print_nothing


class AskedModel(Model):
    """A model that the gateway asks. Its settings are Aider's defaults."""

    def __init__(self, connection: Connection, line_ends: LineEnds, shows_crlf: bool) -> None:
        self._connection: Final = connection
        self._line_ends: Final = line_ends
        self._shows_crlf: Final = shows_crlf
        self._is_asked = False
        super().__init__("spass")
        self.overeager = True  # "Do what they ask, but no more."

    def get_model_info(self, model: str) -> dict[str, object]:
        return {}

    def validate_environment(self) -> dict[str, object]:
        return {"missing_keys": [], "keys_in_environment": True}

    def token_count(self, messages: object) -> int:
        return 0  # the gateway counts tokens

    def send_completion(
        self, messages: Sequence[ChatMessage], functions: object, stream: bool, temperature: float | None = None
    ) -> tuple[SimpleNamespace, SimpleNamespace]:
        if self._is_asked:
            self._connection.report("correcting")
        self._is_asked = True
        shown = [ChatMessage(role=message["role"], content=self._line_ends.show(message["content"])) for message in messages]
        answer = self._connection.ask(shown)
        self._connection.report("applying")
        if not self._shows_crlf:
            answer = answer.replace("\r\n", "\n")
        message = SimpleNamespace(content=self._line_ends.hide(answer))
        call = SimpleNamespace(hexdigest=lambda: "")
        return call, SimpleNamespace(choices=[SimpleNamespace(message=message)], usage=None)


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
        """Return the edits of files that the model may change.

        Raises:
            ValueError: there are edits, all of other files. The model reads the message.
        """
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
        path = Path(name)
        named = self.get_inchat_relative_files()
        if name not in named and path.name in named and not path.is_absolute() and ".." not in path.parts:
            name = path.name
        return name if self.may_change(name) else None


_CODERS: Final = {"diff": BlockCoder, "whole": ListingCoder}


def edit(edit: Edit, connection: Connection, root: Path) -> Edited:
    """Let Aider make the edit in the folder ``root``, which does not exist yet.

    Raises:
        EditFailed: the model's edits could not be applied, also after corrections.
    """
    utils.IMAGE_EXTENSIONS.clear()  # every file of an edit is text, whatever its name
    editblock_coder.find_similar_lines = _find_similar_lines
    editblock_coder.strip_quoted_wrapping = lambda text, *_: text  # it also removes a first line that ends with the file's name
    texts = {**edit.read_only, **edit.files}
    shapes = {path: Shape.of(text) for path, text in texts.items()}
    plain = {path: shapes[path].remove(text) for path, text in texts.items()}
    line_ends = LineEnds([edit.message, *texts.values()])
    for path, text in plain.items():
        write_file(root / path, line_ends.hide(text).encode("utf-8"))
    terminal = Terminal(connection, root)
    model = AskedModel(connection, line_ends, shows_crlf=any("\r\n" in text for text in plain.values()))
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
        answer += f"\n\n[Not applied, because these files may not be edited: {', '.join(sorted(coder.refused))}]"
    written = {path: line_ends.show(terminal.read_text(str(root / path)) or "") for path in sorted(terminal.written)}
    return Edited(answer, {path: shapes.get(path, Shape()).restore(text) for path, text in written.items()})


def _find_similar_lines(search: str, content: str, threshold: float = 0.6) -> str:
    """Return the lines that a search text probably means, or nothing if the comparison would take long."""
    if search.count("\n") * content.count("\n") > _MAX_COMPARISONS:
        return ""
    found: str = _aiders_find_similar_lines(search, content, threshold)
    return found
