"""An editor with a model that gives prepared answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from spass.core.messages import Message
from spass.tools.editor.aider import AiderEditor
from spass.tools.editor.protocol import EditRequest, EditResult

PACKAGES = Path(__file__).resolve().parents[4] / ".venv-editor"


@dataclass
class Scripted:
    """Make edits with ``answers``, the last of them repeatedly. Record the conversations, the progress and the new files' paths.

    An answer may be a function of the conversation. ``may_edit`` decides about files that an edit does not name.
    """

    temporary: Path
    answers: Sequence[str | Callable[[Sequence[Message]], str]]
    may_edit: Callable[[str], bool] = lambda _: False
    asked: list[Sequence[Message]] = field(default_factory=list)
    progress: list[str] = field(default_factory=list)
    proposed: list[str] = field(default_factory=list)

    async def edit(
        self,
        files: Mapping[str, str],
        *,
        format: Literal["diff", "whole"] = "diff",
        read_only: Mapping[str, str] | None = None,
        create: tuple[str, ...] = (),
        message: str = "Change it.",
        seconds: float = 30.0,
    ) -> EditResult:
        request = EditRequest("tenant", message, files, read_only or {}, create, format, "run", "log", seconds)
        return await AiderEditor(PACKAGES, temporary=self.temporary).edit(request, self._ask, self._propose, self.progress.append)

    async def _ask(self, messages: Sequence[Message]) -> str:
        self.asked.append(messages)
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        return answer if isinstance(answer, str) else answer(messages)

    def _propose(self, path: str) -> bool:
        self.proposed.append(path)
        return self.may_edit(path)

    def left(self) -> list[str]:
        """Return the names of what the edits left in the temporary folder."""
        return [path.name for path in self.temporary.iterdir()]

    def prompt(self) -> str:
        """Return all texts of the last conversation."""
        return "\n".join(message.content for message in self.asked[-1])


def block(path: str, search: str, new: str) -> str:
    """Return an edit in the format ``diff``."""
    return f"{path}\n```\n<<<<<<< SEARCH\n{search}=======\n{new}>>>>>>> REPLACE\n```\n"


def listing(path: str, text: str, fence: tuple[str, str] = ("```", "```")) -> str:
    """Return a file in the format ``whole``."""
    return f"{path}\n{fence[0]}\n{text}{fence[1]}\n"
