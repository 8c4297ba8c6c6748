"""The child's side of the two pipes: lines of JSON to the gateway, and its answers."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, Literal, TypedDict

Stage = Literal["applying", "correcting"]
"""The child's work between two model requests: it applies the edits of an answer, or asks for a correction."""


class ChatMessage(TypedDict):
    """A message as Aider represents it."""

    role: str
    content: str


class EditFailed(BaseException):
    """The edit cannot be made. ``args[0]`` is the message for the model that called the tool.

    Not a subclass of ``Exception``, because Aider catches those and continues.
    """


@dataclass(frozen=True, slots=True)
class Edit:
    """The edit that the gateway asks for."""

    message: str
    files: Mapping[str, str]
    read_only: Mapping[str, str]
    create: Sequence[str]
    format: Literal["diff", "whole"]
    seconds: float


@dataclass(frozen=True, slots=True)
class Edited:
    """``files``: the whole new text of each file that was written."""

    answer: str
    files: Mapping[str, str]


class Connection:
    """The two pipes to the gateway."""

    def __init__(self, source: BinaryIO, output: int) -> None:
        self._source: Final = source
        self._output: Final = output

    def receive_edit(self) -> Edit:
        """Read the edit: the first line."""
        line = self._receive()
        return Edit(**{name: line[name] for name in Edit.__slots__})

    def ask(self, messages: Sequence[ChatMessage]) -> str:
        """Send a conversation to the model and return its answer."""
        self.send({"type": "ask", "messages": [[message["role"], message["content"]] for message in messages]})
        answer: str = self._receive()["answer"]
        return answer.encode("utf-8", "replace").decode("utf-8")  # JSON can contain half of a surrogate pair, a file cannot

    def may_edit(self, path: str) -> bool:
        """Return True if the gateway permits a new file at this path."""
        self.send({"type": "may_edit", "path": path})
        return self._receive()["allowed"] is True

    def report(self, stage: Stage) -> None:
        self.send({"type": "progress", "stage": stage})

    def send(self, line: Mapping[str, object]) -> None:
        """Write one line. Block while the pipe is full."""
        rest = memoryview(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._output, rest) :]
        except BrokenPipeError:
            os._exit(1)  # the gateway has ended; Aider would catch the error and ask again

    def _receive(self) -> dict[str, Any]:
        line = self._source.readline()
        if not line:
            os._exit(1)  # the gateway has closed the pipe
        received: dict[str, Any] = json.loads(line)
        return received
