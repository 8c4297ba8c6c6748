"""Define requests to models and their answers, the same for every provider."""

import re
import sys
from array import array
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Final, Literal, Protocol, TypeAlias

from spass.core.ids import RequestId
from spass.core.messages import FinishReason, Json, Message, Role, TokenUsage, ToolCall, ToolSpec
from spass.core.time import Deadline
from spass.llm.attempt import Attempt

MAX_OUTPUT_TOKENS: Final = 2**31 - 1
"""Tokens. Providers accept a 32-bit integer, and the table no larger sums."""

_NO_TOKENS: Final = TokenUsage()
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The model must call this tool."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One call of a chat model. ``None`` leaves a choice to the provider.

    ``model`` is the catalogue's name. ``response_format`` and ``extra`` are in OpenAI's words; ``extra`` holds further fields,
    which other providers translate or reject (``llm.providers.unsupported_fields``). ``stream`` says whether the provider
    streams; the answer is an iterator either way.
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


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of tool call number ``index``. ``id`` and ``name`` come once, whole; ``arguments`` come in pieces to join."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """A piece of an answer. A blocking call yields one delta that holds everything.

    ``refusal`` is the text that a model writes instead of an answer, where its provider tells them apart.
    ``reasoning_characters`` is the length of the model's reasoning, which is billed and not passed on. A 0 in ``usage`` means
    that the provider did not count. The pipeline sets ``lost_usage``: the part of ``usage`` that lost tries took.
    """

    content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    finish_reason: FinishReason | None = None
    usage: TokenUsage | None = None
    cost_usd: Decimal | None = None
    refusal: str = ""
    lost_usage: TokenUsage = _NO_TOKENS
    reasoning_characters: int = 0

    @property
    def characters(self) -> int:
        """Return the length of all that the model wrote in this piece."""
        calls = sum(len(call.name or "") + len(call.arguments) for call in self.tool_calls)
        return len(self.content) + len(self.refusal) + calls + self.reasoning_characters


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A whole answer. ``usage`` and ``cost_usd`` are None where the provider said none. ``refusal`` is not part of ``message``.
    ``lost_usage`` is the part of ``usage`` that earlier tries took whose answers were lost."""

    message: Message
    finish_reason: FinishReason = FinishReason.STOP
    usage: TokenUsage | None = None
    cost_usd: Decimal | None = None
    refusal: str = ""
    lost_usage: TokenUsage = _NO_TOKENS

    @property
    def refusal_as_text(self) -> "ChatReply":
        """Return the reply with its refusal as text and finish reason, for formats without a field for refusals."""
        if not self.refusal:
            return self
        message = replace(self.message, content=self.message.content + self.refusal)
        return replace(self, message=message, finish_reason=FinishReason.CONTENT_FILTER, refusal="")

    @property
    def replayable(self) -> Message:
        """Return ``message`` as a provider accepts it back.

        A model may invent a tool's name with characters that providers refuse, which would fail every later call.
        """
        calls = [replace(call, name=_NOT_IN_A_NAME.sub("_", call.name)[:64] or "_") for call in self.message.tool_calls]
        return replace(self.message, tool_calls=tuple(calls))


class ReplyBuilder:
    """Join deltas into a reply. ``reply`` may be read at any time."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int, _PartialCall] = {}
        self._finish_reason: FinishReason | None = None
        self._usage: TokenUsage | None = None
        self._cost_usd: Decimal | None = None
        self._lost_usage = _NO_TOKENS

    def add(self, delta: ChatDelta) -> None:
        self._content.append(delta.content)
        self._refusal.append(delta.refusal)
        for piece in delta.tool_calls:
            self._calls.setdefault(piece.index, _PartialCall()).add(piece)
        self._finish_reason = delta.finish_reason or self._finish_reason
        self._usage = delta.usage or self._usage
        if delta.cost_usd is not None or delta.characters:  # a cost covers only the text up to it
            self._cost_usd = delta.cost_usd
        self._lost_usage += delta.lost_usage

    @property
    def reply(self) -> ChatReply:
        calls = tuple(call.build(index) for index, call in sorted(self._calls.items()))
        message = Message(Role.ASSISTANT, "".join(self._content), tool_calls=calls)
        reason = self._finish_reason or (FinishReason.TOOL_CALLS if calls else FinishReason.STOP)
        if reason is FinishReason.TOOL_CALLS and not calls:  # some providers send this without calls
            reason = FinishReason.STOP
        return ChatReply(message, reason, self._usage, self._cost_usd, "".join(self._refusal), self._lost_usage)


class _PartialCall:
    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []

    def add(self, piece: ToolCallDelta) -> None:
        self.id = self.id or piece.id or ""
        self.name = self.name or piece.name or ""
        self.arguments.append(piece.arguments)

    def build(self, index: int) -> ToolCall:
        return ToolCall(self.id or f"call_{index}", self.name, "".join(self.arguments))


def collect_deltas(deltas: Iterable[ChatDelta]) -> ChatReply:
    """Return the reply that the deltas of a finished stream make up."""
    builder = ReplyBuilder()
    for delta in deltas:
        builder.add(delta)
    return builder.reply


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Texts to embed. ``dimensions`` are the model's in the catalogue, for providers that need them."""

    model: str
    texts: tuple[str, ...]
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingReply:
    """Vectors of ``texts``, in their order.

    ``data`` is (count, dimensions) float32, little-endian, row-major: what ``numpy.frombuffer(data, "<f4")`` and OpenAI's base64
    form read as it is.
    """

    data: bytes
    count: int
    dimensions: int
    usage: TokenUsage

    def rows(self) -> list[list[float]]:
        """Return the vectors as lists of numbers."""
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
    """The deadline of a model call, further headers to send (such as ``SPASS-Caller-Depth``), the id of the request that it is
    made for, the tokens that it should take (``expected``, for which a backend must have room), and this ``attempt``."""

    deadline: Deadline
    headers: Mapping[str, str] = field(default_factory=dict)
    request_id: RequestId | None = None
    expected: TokenUsage = field(default_factory=TokenUsage)
    attempt: Attempt = field(default_factory=Attempt)

    def with_expected(self, usage: TokenUsage) -> "CallContext":
        return replace(self, expected=usage)

    def new_attempt(self) -> "CallContext":
        """Return the context of one more try."""
        return replace(self, attempt=Attempt(self.expected))


class Provider(Protocol):
    """Call one backend. It is made as ``Class(backend: BackendConfig, key: str | None)`` when the backend is first used.

    ``request.model`` is the provider's own name for the model. Every error is an ``llm.errors.BackendError``. A provider tries
    once; the router retries. It sets ``context.attempt.sent`` when its request has left whole and no error status refused it:
    from then on the try counts, even if its answer is lost.
    """

    def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        """Return the answer in pieces. It ends only when the model has ended; closing it closes the connection.

        Nothing is sent before the first piece is read.

        Raises:
            BackendUnsupported: at once, if this provider lacks something that the request asks for.
        """
        ...

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        """Return one vector per text."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...
