"""The bodies of a chat's turn: ``POST /c1/agents/{name}/chat`` and, of a job card, ``/job_card``."""

import hashlib
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from spass.agents.spec import MAX_MESSAGE_BYTES
from spass.agents.visible_text import VisibleText
from spass.calls.defence import is_blank
from spass.core.errors import InvalidRequest
from spass.core.ids import CLIENT_ID, new_id
from spass.core.json import dump_canonical
from spass.core.messages import Json, Message, Role
from spass.core.text_checks import limit_bytes, reject_blank, reject_nul
from spass.runs.run import ChatSession, RunRequest, StreamIdentity
from spass.sessions.session import Title, WorkspaceIdField
from spass.tenancy.strict_body import StrictBody
from spass.workspaces.paths import parse_path

MAX_MESSAGES: Final = 1000
MAX_TITLE: Final = 200
"""Characters."""
MAX_FILES: Final = 100
MAX_ACCEPTANCE_LINES: Final = 50

_Text = Annotated[
    str,
    AfterValidator(reject_nul),
    AfterValidator(limit_bytes(MAX_MESSAGE_BYTES)),
    WithJsonSchema(
        {"type": "string", "maxLength": MAX_MESSAGE_BYTES, "description": f"At most {MAX_MESSAGE_BYTES} bytes of UTF-8."}
    ),
]


def _reject_dots(message_id: str) -> str:
    if message_id in {".", ".."}:
        raise ValueError("must not be . or .., because HTTP clients remove them from a path")
    return message_id


_ClientId = Annotated[str, Field(pattern=CLIENT_ID)]
MessageName = Annotated[_ClientId, AfterValidator(_reject_dots)]
"""A ``message_id``, which the client chooses."""


class ChatMessage(StrictBody):
    """A message of the conversation."""

    role: Literal["user", "assistant", "tool"]
    content: _Text
    tool_call_id: Annotated[
        Annotated[str, Field(min_length=1, max_length=128), AfterValidator(reject_nul)] | None,
        Field(description="Of a `tool` message."),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.role == "user":
            reject_blank(self.content)
        if self.role != "tool" and self.tool_call_id is not None:
            raise ValueError("only a message of the role 'tool' has a tool_call_id")
        return self


class TurnBody(StrictBody):
    """The session, the model and the workspace of a turn."""

    session_id: Annotated[
        _ClientId | None,
        Field(description="The id of a session, or the client's own name for one. Without it, a session is created."),
    ] = None
    model: Annotated[
        Annotated[str, Field(min_length=1, max_length=128)] | None, Field(description="The default is the agent's model.")
    ] = None
    workspace: Annotated[
        WorkspaceIdField | None, Field(description="The workspace of a new session. The default is the agent's.")
    ] = None


class ChatBody(TurnBody):
    """One turn of a chat. The last of `messages` is the user's; the others open the history of a new session."""

    message_id: Annotated[
        MessageName, Field(description="Names the stream of this turn. The client chooses it. Not `.` or `..`.")
    ]
    messages: Annotated[tuple[ChatMessage, ...], Field(strict=False, max_length=MAX_MESSAGES, json_schema_extra={"minItems": 1})]
    agent_id: Annotated[str | None, Field(description="If sent, the name of the agent in the path.")] = None
    title: Annotated[
        Title | None, Field(description="The title of a new session. The default is the client's own name for it.")
    ] = None

    @model_validator(mode="after")
    def _check_last_message(self) -> Self:
        if not self.messages or self.messages[-1].role != "user":
            raise ValueError("messages must end with a message of the role 'user'")
        if is_blank(self.messages[-1].content):
            raise ValueError("the last message must hold a visible character")
        return self

    def request(self, body: Json) -> RunRequest:
        """Return the request of the turn. ``body`` is the JSON of this object: requests with equal JSON are the same."""
        *earlier, last = (Message(Role(entry.role), entry.content, (), entry.tool_call_id) for entry in self.messages)
        body_hash = hashlib.sha256(dump_canonical(body)).hexdigest()
        session = ChatSession(self.session_id, tuple(earlier), self.title)
        stream = StreamIdentity(self.message_id, body_hash)
        return RunRequest(last.content, session, workspace=self.workspace, stream=stream)


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
