"""The events of the event bus.

They have a module of their own, which is loaded when somebody subscribes: defining them takes milliseconds of every cold start.
"""

from dataclasses import dataclass
from decimal import Decimal

from spass.core.ids import AgentName, RequestId, SessionId, TenantId
from spass.core.messages import FinishReason
from spass.core.time import Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class BusEvent:
    """The fields that all events have.

    ``request_id`` is the client's request. ``parent_request_id`` is the call for which the work is done (its ``call_id``), or the
    client's request. ``agent`` is the name of the agent and ``kind`` the key of its kind; both are None outside an agent's work.
    """

    at: Timestamp
    tenant: TenantId
    request_id: RequestId
    parent_request_id: RequestId
    agent: AgentName | None
    kind: str | None
    session_id: SessionId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurnStart(BusEvent):
    """An agent begins to answer an input of ``input_chars`` characters."""

    input_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurnEnd(BusEvent):
    """An agent's turn ended: with ``finish_reason``, or with ``error``, the code of an error or ``cancelled``.

    ``turns`` counts the agent's own model calls. The tokens and the cost include side calls.
    """

    turns: int
    tool_calls: int
    finish_reason: FinishReason | None = None
    error: str | None = None
    prompt_tokens: int
    completion_tokens: int
    cost_usd: Decimal
    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStart(BusEvent):
    """A tool is called. ``tool`` is None if the model called a tool that does not exist."""

    call_id: RequestId
    tool: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallEnd(BusEvent):
    """A call of a tool ended. ``status`` is ``ok``, ``cancelled`` or the code of an error; ``ok`` is True only for ``ok``."""

    call_id: RequestId
    tool: str | None
    ok: bool
    status: str
    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceStart(BusEvent):
    """A model is called, for a chat or for embeddings."""

    call_id: RequestId
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceEnd(BusEvent):
    """A call of a model ended. ``status`` is ``ok``, ``cancelled`` or the code of an error. ``backend`` is the one that answered,
    after ``attempts`` requests. Tokens and cost are in the audit record ``call_id`` too."""

    call_id: RequestId
    model: str
    backend: str | None
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: Decimal
    status: str
    duration_ms: int
