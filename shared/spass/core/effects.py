"""The effects of an agent kind: what its generator asks the driver to do, and what the driver sends back.

Effects and results are frozen dataclasses of plain values, so they can be compared, recorded and replayed.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from spass.core.ids import ApprovalId
from spass.core.messages import NO_TOKENS, FinishReason, Json, Message, Role, TokenUsage, ToolCall

MAX_OUTPUT_CHARS: Final = 10_000
"""Characters of a cell's output that are kept by default."""


@dataclass(frozen=True, slots=True)
class NoText:
    """Show no text of the reply."""


@dataclass(frozen=True, slots=True)
class VisibleAfter:
    """Show the text from the first of ``markers`` (or the start, if there are none) to the first of ``until``. One of ``until``
    before any marker hides all text."""

    markers: tuple[str, ...]
    until: tuple[str, ...] = ()


HIDDEN: Final = NoText()
"""Show nothing."""

TextVisibility: TypeAlias = NoText | VisibleAfter | None
"""The part of a reply's text that is shown while it arrives. None shows all."""


@dataclass(frozen=True, slots=True)
class Infer:
    """Call a model with ``messages``. The result is an ``AssistantReply``.

    ``tools``: ``offered`` sends the agent's tools. ``named`` sends them but forbids calls, because some providers refuse a
    conversation that mentions tools which the request does not name. ``none`` omits them. A value of None is the agent's own
    value. ``aside`` marks a side call: it is not a step of the agent, it is never shown, and if it fails, its reply has
    ``error``.
    """

    messages: tuple[Message, ...]
    tools: Literal["offered", "named", "none"] = "offered"
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    model: str | None = None
    aside: bool = False
    show: TextVisibility = None


@dataclass(frozen=True, slots=True)
class CallError:
    """The error of a call, by the code and the message that a client would get."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class AssistantReply:
    """The reply of a model. ``tool_calls`` are those that may be executed. ``error`` is set only for a side call."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    usage: TokenUsage = NO_TOKENS
    error: CallError | None = None


@dataclass(frozen=True, slots=True)
class CallTools:
    """Execute tool calls side by side. The result is a tuple with one ``ToolOutcome`` per call, in the order of ``calls``.

    ``text`` is the text that is recorded beside the calls; None means the text shown so far. The driver gives an id to a call
    that has none.
    """

    calls: tuple[ToolCall, ...]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The outcome of a tool call. ``arguments`` and ``result`` are parsed JSON; a failed call has the result ``{"error": …}``.
    ``message`` is the tool message for the model.

    ``rich`` are blocks for people, which no model receives. ``approval`` is the approval that the call waits for, as a client
    sees it. ``waiting`` are the approvals that ``result`` mentions: of the call, or of a delegate's calls. So are ``versions``:
    the numbers of the versions of the workspace that were committed.
    """

    call: ToolCall
    arguments: Json
    result: Json
    message: Message
    duration_ms: int
    ok: bool = True
    rich: tuple[Json, ...] = ()
    approval: Mapping[str, Json] | None = None
    waiting: tuple[ApprovalId, ...] = ()
    versions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordResult:
    """Record ``content`` as the tool message of the call ``call_id``, because the model reads it instead of the whole result. The
    call is one of the last ``CallTools``, and its result does not wait for a person. The result of this effect is None. The reply
    has the whole result."""

    call_id: str
    content: str


@dataclass(frozen=True, slots=True)
class ReportStatus:
    """Tell the client about the progress of the work. The result is None."""

    detail: str


@dataclass(frozen=True, slots=True)
class Queries:
    """The model of ``llm_query`` and ``llm_batch``, its sampling values, and the number of its calls in one turn. A model of None
    is the agent's own."""

    model: str | None
    temperature: float
    max_tokens: int
    max_calls: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of Python code. All cells of a turn share one interpreter.

    ``variables`` are set before the first cell of the turn; later cells have the same. With ``queries`` the code can call a
    model, and with ``tools`` the agent's tools. The first ``max_output_chars`` characters of the output are kept.
    """

    code: str
    variables: Mapping[str, Json] = field(default_factory=dict)
    queries: Queries | None = None
    tools: bool = False
    max_output_chars: int = MAX_OUTPUT_CHARS


@dataclass(frozen=True, slots=True)
class CellResult:
    """The result of a cell. ``truncated`` counts the characters of the output that were not kept. ``error`` is None if the cell
    ran to its end. ``final`` is the answer that the code gave with ``FINAL``."""

    output: str
    error: str | None = None
    truncated: int = 0
    final: str | None = None


@dataclass(frozen=True, slots=True)
class RunCode:
    """Run a cell. The result is a ``CellResult``. It is recorded as a call of the tool ``code_interpreter``, beside the text
    ``text``; None means the text shown so far."""

    cell: Cell
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """The text of a page, or the reason why there is none."""

    text: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FetchPage:
    """Fetch the page at ``url``, which the input of the turn must contain. The result is a ``Page``."""

    url: str


ForeignRunner: TypeAlias = Literal["openhands", "claude_code"]


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """A run of a foreign agent. ``workspace`` is a folder of this machine, and ``timeout`` is in seconds. ``allowed_tools`` None
    allows all. ``session_id`` continues an earlier run, unless it is empty. Without ``api_key``, the key of the process is
    used."""

    runner: ForeignRunner
    prompt: str
    system_prompt: str
    workspace: str
    timeout: float
    allowed_tools: tuple[str, ...] | None = None
    session_id: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ForeignResult:
    """The answer of a foreign agent, the results of its own tools, and what it reports about the run.

    A result is an object with ``tool_name``, ``arguments`` (JSON as text), ``content`` and ``success``. ``model`` is the one that
    answered, if the foreign agent selected it.
    """

    content: str
    tool_results: tuple[Json, ...] = ()
    metadata: Mapping[str, Json] = field(default_factory=dict)
    model: str | None = None


@dataclass(frozen=True, slots=True)
class RunForeign:
    """Let a foreign agent do the work of the turn. The result is a ``ForeignResult``. This counts as one model call."""

    spec: ForeignRun


@dataclass(frozen=True, slots=True)
class Note:
    """A note of an operator. ``score`` is its score in the search that found it. ``ends`` are the texts under which it is
    filed."""

    key: str
    content: str
    score: float = 0.0
    created_at: str = ""
    ends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recalled:
    """The notes that were found, best first. ``error`` is the error of a failed call of the embedding model."""

    notes: tuple[Note, ...] = ()
    error: CallError | None = None


@dataclass(frozen=True, slots=True)
class SearchNotes:
    """Find at most ``limit`` notes of the operator. The result is ``Recalled``. Without an operator there are none.

    ``by``: ``key`` finds the note with the key ``query``; the key ``state`` is the operator's state. ``keyword`` ranks by the
    words of ``query``, and ``semantic`` by its meaning. ``ends`` finds the notes that are filed under ``query``.
    """

    query: str
    by: Literal["key", "keyword", "semantic", "ends"]
    limit: int


@dataclass(frozen=True, slots=True)
class StoreNote:
    """Store a note of the operator now. The result is its key. A note with the same key is replaced. Without ``key``, the key is
    derived from the content. Without an operator, nothing is stored."""

    content: str
    key: str | None = None
    ends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SetState:
    """Let the commit of the turn write the operator's state. The result is None. Of several, the last one counts."""

    value: Json


Effect: TypeAlias = (
    Infer | CallTools | RecordResult | ReportStatus | RunCode | FetchPage | RunForeign | SearchNotes | StoreNote | SetState
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a turn. Without ``finish_reason``, the last reply has it. ``calls`` are left to the client.
    ``model`` is the one that answered, if a foreign agent selected it."""

    content: str
    finish_reason: FinishReason | None = None
    calls: tuple[ToolCall, ...] = ()
    metadata: Mapping[str, Json] = field(default_factory=dict)
    model: str | None = None


Steps: TypeAlias = Generator[Effect, Any, Answer]
"""The work of a kind. Each effect is sent its result."""


def user(text: str, *, data: bool = False, heading: str = "") -> Message:
    """Return a user's message. ``data`` marks text that was looked up and that no participant wrote; ``heading`` is our own line
    in front of it."""
    return Message(Role.USER, text, data=data, heading=heading)


class MaxTurns(Exception):
    """The agent has made all model calls that it may make. The driver raises this in the generator instead of performing the next
    model call or tool call; the generator may return an ``Answer``."""
