"""The body of a chat's turn: ``POST /c1/agents/{name}/chat``."""

import hashlib
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from spass.agents.spec import MAX_MESSAGE_BYTES
from spass.calls.defence import is_blank
from spass.core.ids import CLIENT_ID
from spass.core.json import dump_canonical
from spass.core.messages import Json, Message, Role
from spass.core.text_checks import limit_bytes, reject_blank, reject_nul
from spass.runs.request import ChatSession, RunRequest, StreamIdentity
from spass.sessions.session import Title, WorkspaceIdField
from spass.tenancy.strict_body import StrictBody

MAX_MESSAGES: Final = 1000

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
