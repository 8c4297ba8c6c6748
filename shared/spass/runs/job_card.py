"""The body of a job card, ``POST /c1/agents/{name}/job_card``, and its form as a message."""

import hashlib
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field

from spass.agents.spec import MAX_MESSAGE_BYTES
from spass.agents.visible_text import VisibleText
from spass.core.errors import InvalidRequest
from spass.core.ids import new_id
from spass.core.json import dump_canonical
from spass.core.messages import Json
from spass.core.text_checks import limit_bytes, reject_blank, reject_nul
from spass.runs.chat_body import MessageName, TurnBody
from spass.runs.request import ChatSession, RunRequest, StreamIdentity
from spass.workspaces.paths import parse_path

MAX_TITLE: Final = 200
"""Characters."""
MAX_FILES: Final = 100
MAX_ACCEPTANCE_LINES: Final = 50


def _split_lines(value: object) -> object:
    """Return the lines of a text, or of the texts in a list."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return value
    return [line for text in texts for line in str(text).splitlines()]


_Line = Annotated[str, AfterValidator(reject_nul), AfterValidator(limit_bytes(MAX_MESSAGE_BYTES))]


class JobCard(TurnBody):
    """A task for an agent, as one turn of a chat. Without `message_id`, the gateway makes one; the first event names it."""

    title: Annotated[
        str,
        Field(min_length=1, max_length=MAX_TITLE, json_schema_extra={"pattern": r"\S"}),
        AfterValidator(reject_blank),
        AfterValidator(limit_bytes(MAX_MESSAGE_BYTES)),
    ]
    task: VisibleText
    files: Annotated[
        tuple[str, ...], Field(strict=False, max_length=MAX_FILES, description="Paths of files in the workspace.")
    ] = ()
    acceptance: Annotated[
        tuple[_Line, ...],
        Field(strict=False, max_length=MAX_ACCEPTANCE_LINES, description="What must hold when the task is done: lines."),
        BeforeValidator(_split_lines, json_schema_input_type=str | list[str]),
    ] = ()
    message_id: Annotated[
        MessageName | None, Field(description="Names the stream of this turn. The gateway makes a missing one.")
    ] = None

    def render(self) -> str:
        """Return the card as the user's message. The same card always gives the same text.

        Raises:
            InvalidPath: one of ``files`` is not a path of a workspace.
            InvalidRequest: the card is too large.
        """
        for index, path in enumerate(self.files):
            parse_path(path, f"files.{index}")
        sections = [f"# Job card: {' '.join(self.title.split())}", f"## Task\n\n{self.task.strip()}"]
        if self.files:
            sections.append("## Files\n\n" + "\n".join(f"- {path}" for path in self.files))
        if lines := [line.strip() for line in self.acceptance if line.strip()]:
            sections.append("## Acceptance\n\n" + "\n".join(f"- {line}" for line in lines))
        text = "\n\n".join(sections)
        if len(text.encode()) > MAX_MESSAGE_BYTES:
            raise InvalidRequest(f"The job card must be at most {MAX_MESSAGE_BYTES} bytes of UTF-8 as a message.", param="task")
        return text

    def request(self, body: Json) -> RunRequest:
        """Return the request of the turn. ``body`` is the JSON of this object: requests with equal JSON are the same.

        Raises:
            InvalidPath, InvalidRequest: as in ``render``.
        """
        body_hash = hashlib.sha256(dump_canonical(body)).hexdigest()
        stream = StreamIdentity(self.message_id or new_id("msg"), body_hash)
        return RunRequest(self.render(), ChatSession(self.session_id), workspace=self.workspace, stream=stream)
