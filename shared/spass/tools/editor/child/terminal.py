"""The terminal and the file system that Aider is given."""

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from aider.io import InputOutput
from aider.models import Model

from spass.tools.editor.child.connection import ChatMessage, Connection, EditFailed
from spass.tools.editor.child.texts import LineEnds

MAX_FILE: Final = 4 * 2**20
"""Bytes of a file of a workspace."""
_MAX_NEW_FILES: Final = 200
"""Files that an edit may propose. Each is a line to the gateway, which takes 2,000 lines of an edit."""


def is_file_name(name: str) -> bool:
    """Return True if this is the name of a file, not a sentence in which a model announces an example."""
    return " " not in name and ("/" in name or "." in name.strip("."))


def write_file(file: Path, body: bytes) -> None:
    """Write a file and its folders. Raise EditFailed if the file system refuses the name or the size."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
    except OSError as error:
        raise EditFailed(f"The editor cannot write {file.name[:100]}: {error.strerror}.") from None


class Terminal(InputOutput):
    """The terminal that Aider is given. It prints nothing, and writes files as they are."""

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
            if len(self._answers) >= _MAX_NEW_FILES:
                return False
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


class GatewayModel(Model):
    """A model whose answers come from the gateway. Its settings are Aider's defaults."""

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
