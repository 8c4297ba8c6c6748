"""Define the requests and the answers of model calls. They are the same for every provider."""

import json
import sys
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Final, Literal, Protocol, TypeAlias

from spass.core.ids import RequestId
from spass.core.messages import (
    NO_TOKENS,
    FinishReason,
    Json,
    Message,
    Role,
    TokenUsage,
    ToolCall,
    ToolCallDelta,
    ToolSpec,
    replayable_name,
)
from spass.core.time import Deadline
from spass.models.attempt import Attempt


@dataclass(frozen=True, slots=True)
class NamedTool:
    """A tool choice: the model must call the tool ``name``."""

    name: str


MAX_CALL_ID_CHARACTERS: Final = 16 * 1024
"""Characters of the id of a tool call. Some gateways put more than a name into it. A longer id is ignored: an event contains it,
and must fit in an item of the table."""

ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One call of a chat model. If a field is ``None``, the provider chooses its value.

    ``model`` is the name of the model in the catalogue. ``response_format`` and ``extra``, the request's other fields, are in
    OpenAI's format; other providers translate or reject them (``providers.unsupported_fields``). With ``stream``, the provider
    sends the answer in pieces. ``context_window`` is the model's window in the catalogue, in tokens, which the router sets.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    response_format: Mapping[str, Json] | None = None
    extra: Mapping[str, Json] = field(default_factory=dict)
    stream: bool = False
    context_window: int | None = None

    def count_characters(self) -> int:
        """Return the length of the messages, the tools and the schema of the answer."""
        characters = sum(message.count_characters() for message in self.messages)
        characters += sum(len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters)) for tool in self.tools)
        answer_format = self.response_format or {}
        if answer_format.get("type") == "json_schema":
            characters += len(json.dumps(answer_format))
        return characters


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """A piece of an answer. A blocking call yields one delta with the whole answer.

    ``refusal`` is the text that a model writes instead of an answer, if its provider separates the two.
    ``reasoning_characters`` is the length of the model's reasoning, which is billed but not sent to the client. A 0 in ``usage``
    means that the provider did not report that number. The pipeline sets ``failed_attempt_usage``: the part of ``usage`` that
    belongs to earlier attempts whose answers were lost.
    """

    content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    finish_reason: FinishReason | None = None
    usage: TokenUsage | None = None
    cost_usd: Decimal | None = None
    refusal: str = ""
    failed_attempt_usage: TokenUsage = NO_TOKENS
    reasoning_characters: int = 0

    @property
    def characters(self) -> int:
        """Return the length of everything that the model wrote in this piece."""
        calls = sum(len(call.name or "") + len(call.arguments) for call in self.tool_calls) if self.tool_calls else 0
        return len(self.content) + len(self.refusal) + calls + self.reasoning_characters


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A whole answer. ``usage`` and ``cost_usd`` are None if the provider reports none. ``refusal`` is not part of ``message``.
    ``failed_attempt_usage`` is the part of ``usage`` that belongs to earlier attempts whose answers were lost."""

    message: Message
    finish_reason: FinishReason = FinishReason.STOP
    usage: TokenUsage | None = None
    cost_usd: Decimal | None = None
    refusal: str = ""
    failed_attempt_usage: TokenUsage = NO_TOKENS

    @property
    def with_refusal_as_text(self) -> "ChatReply":
        """Return the reply for a format without refusals: its refusal is appended to the text, and the finish reason is
        ``content_filter``."""
        if not self.refusal:
            return self
        message = replace(self.message, content=self.message.content + self.refusal)
        return replace(self, message=message, finish_reason=FinishReason.CONTENT_FILTER, refusal="")

    @property
    def replayable_message(self) -> Message:
        """Return ``message`` as providers accept it in the next request, which refuse some tool names that a model invents."""
        calls = [replace(call, name=replayable_name(call.name)) for call in self.message.tool_calls]
        return replace(self.message, tool_calls=tuple(calls))


class ReplyBuilder:
    """Join deltas into a reply. ``reply`` is the answer so far.

    ``is_for_client`` tells by a tool's name whether its calls are left to the client, who reads them while they arrive.
    """

    def __init__(self, is_for_client: Callable[[str], bool] = lambda _: False) -> None:
        self._is_for_client = is_for_client
        self._content: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int, _PartialCall] = {}
        self._client_calls = 0
        self._finish_reason: FinishReason | None = None
        self._usage: TokenUsage | None = None
        self._cost_usd: Decimal | None = None
        self._failed_attempt_usage = NO_TOKENS

    def add(self, delta: ChatDelta) -> Sequence[ToolCallDelta]:
        """Add ``delta``. Return the pieces of calls that the client reads now. Their calls are numbered from 0 and begin with id
        and name: what arrives of a call before its name is held until then."""
        self._content.append(delta.content)
        self._refusal.append(delta.refusal)
        self._finish_reason = delta.finish_reason or self._finish_reason
        self._usage = delta.usage or self._usage
        if delta.cost_usd is not None or delta.characters:  # text after a reported cost makes that cost incomplete
            self._cost_usd = delta.cost_usd
        if delta.failed_attempt_usage is not NO_TOKENS:
            self._failed_attempt_usage += delta.failed_attempt_usage
        return [shown for piece in delta.tool_calls if (shown := self._add_piece(piece))] if delta.tool_calls else ()

    def _add_piece(self, piece: ToolCallDelta) -> ToolCallDelta | None:
        call = self._calls.setdefault(piece.index, _PartialCall(piece.index))
        call.add(piece)
        if call.client_index is not None:
            return ToolCallDelta(call.client_index, arguments=piece.arguments)
        if not call.name or not self._is_for_client(call.name):
            return None
        call.client_index, self._client_calls = self._client_calls, self._client_calls + 1
        call.id = call.id or call.default_id
        return ToolCallDelta(call.client_index, call.id, call.name, "".join(call.arguments))

    @property
    def reply(self) -> ChatReply:
        calls = tuple(call.build() for _, call in sorted(self._calls.items()))
        message = Message(Role.ASSISTANT, "".join(self._content), tool_calls=calls)
        reason = self._finish_reason or (FinishReason.TOOL_CALLS if calls else FinishReason.STOP)
        if reason is FinishReason.TOOL_CALLS and not calls:  # some providers send this reason without a tool call
            reason = FinishReason.STOP
        return ChatReply(message, reason, self._usage, self._cost_usd, "".join(self._refusal), self._failed_attempt_usage)


class _PartialCall:
    """A call so far. ``client_index`` is its number among the calls that are left to the client, once it is known to be one."""

    def __init__(self, index: int) -> None:
        self.default_id = f"call_{index}"
        self.client_index: int | None = None
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []

    def add(self, piece: ToolCallDelta) -> None:
        self.id = self.id or (piece.id if piece.id and len(piece.id) <= MAX_CALL_ID_CHARACTERS else "")
        self.name = self.name or piece.name or ""
        self.arguments.append(piece.arguments)

    def build(self) -> ToolCall:
        return ToolCall(self.id or self.default_id, self.name, "".join(self.arguments))


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Texts to embed. ``dimensions`` is the vector length that the catalogue states for the model; some providers need it."""

    model: str
    texts: tuple[str, ...]
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingReply:
    """The vectors of ``texts``, in the same order. ``data`` is (count, dimensions) float32, little-endian, row-major:
    ``numpy.frombuffer(data, "<f4")`` reads it."""

    data: bytes
    count: int
    dimensions: int
    usage: TokenUsage

    def rows(self) -> list[list[float]]:
        numbers = array("f", self.data)
        if sys.byteorder == "big":
            numbers.byteswap()
        return [list(numbers[start : start + self.dimensions]) for start in range(0, len(numbers), self.dimensions or 1)]


def pack_rows(rows: Iterable[Iterable[float]]) -> bytes:
    """Return rows of numbers as the ``data`` of an ``EmbeddingReply``. Numbers too large for float32 become infinite."""
    numbers = array("f")
    for row in rows:
        numbers.extend(row)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


@dataclass(frozen=True, slots=True)
class CallContext:
    """The deadline, headers and expected tokens of a model call.

    ``headers`` are sent with the provider's own headers, for example ``SPASS-Caller-Depth``. ``request_id`` is the id of the
    client's request. ``expected_usage`` estimates the tokens of one attempt. The router uses only backends with that capacity.
    ``on_body`` is called with the body of each successful answer that was not streamed, before it is parsed or redacted.
    ``sleep`` (seconds) is used in place of the router's own while nothing was sent.
    """

    deadline: Deadline
    headers: Mapping[str, str] = field(default_factory=dict)
    request_id: RequestId | None = None
    expected_usage: TokenUsage = field(default_factory=TokenUsage)
    attempt: Attempt = field(default_factory=Attempt)
    on_body: Callable[[bytes], None] | None = None
    sleep: Callable[[float], Awaitable[None]] | None = None

    def with_expected_usage(self, usage: TokenUsage) -> "CallContext":
        return replace(self, expected_usage=usage)

    def new_attempt(self) -> "CallContext":
        return replace(self, attempt=Attempt(self.expected_usage))


class Provider(Protocol):
    """Call one backend. The constructor is ``Class(backend: BackendConfig, key: str | None)``, called at the backend's first use.

    ``request.model`` is the provider's own name for the model. Every error is an ``AttemptFailed``. A provider makes one attempt,
    and sets ``context.attempt.sent``; the router retries.
    """

    def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        """Yield the answer in pieces. Reading the first one sends the request. Closing the iterator closes the connection.

        Raises:
            BackendUnsupported: this provider cannot do what the request asks for. The call raises it, not the iterator.
        """
        ...

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        """Return one vector per text."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...
