"""Write and read OpenAI's chat and embeddings formats (https://platform.openai.com/docs/api-reference); servers differ."""

import base64
import binascii
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, Field

from spass.core.ids import new_id
from spass.core.messages import FinishReason, Image, Json, Message, TokenUsage, ToolSpec
from spass.llm.providers.http import malformed_response
from spass.llm.providers.payloads import LenientObject, LenientText, SurrogateJoiner, Tokens, join_surrogates
from spass.llm.types import ChatDelta, ChatRequest, EmbeddingReply, NamedTool, ToolCallDelta, ToolChoice, pack_rows

_FINISH_REASONS: Final = {
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "content_filter": FinishReason.CONTENT_FILTER,
}

# The HTTP status that fits the code or type of an error inside a successful answer.
_STATUSES: Final = {
    "context_length_exceeded": 400,
    "invalid_api_key": 401,
    "insufficient_quota": 429,
    "rate_limit_exceeded": 429,
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
}
_UNKNOWN_ERROR: Final = 502


def _money(value: object) -> Decimal | None:
    """Return a price in US dollars, given as a number or as ``{"usd": …}``. A wrong price must not fail a good answer."""
    if isinstance(value, dict):
        value = value.get("usd")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        money = Decimal(str(value))
    except InvalidOperation:
        return None
    return money if money.is_finite() and money >= 0 else None


Money = Annotated[Decimal | None, BeforeValidator(_money)]


class UsagePayload(BaseModel):
    prompt_tokens: Tokens = 0
    completion_tokens: Tokens = 0
    total_tokens: Tokens = 0
    cost: Money = None
    cost_in_usd_ticks: Money = None  # xAI: 10^10 ticks are a dollar

    @property
    def tokens(self) -> TokenUsage:
        """Return the tokens, 0 where unknown. Some servers (xAI, Google) count reasoning only in the total."""
        written = self.total_tokens - self.prompt_tokens if self.prompt_tokens else 0
        return TokenUsage(self.prompt_tokens, max(self.completion_tokens, written))

    @property
    def cost_usd(self) -> Decimal | None:
        if self.cost_in_usd_ticks is not None:
            return self.cost_in_usd_ticks / 10**10
        return self.cost


Usage = Annotated[UsagePayload | None, LenientObject]


class FunctionPayload(BaseModel):
    name: str | None = None
    arguments: str | dict[str, object] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.arguments, dict):
            return json.dumps(self.arguments, ensure_ascii=False)
        return self.arguments or ""


class ToolCallPayload(BaseModel):
    index: Annotated[int, Field(ge=0)] | None = None
    id: str | None = None
    function: FunctionPayload = FunctionPayload()


class MessagePayload(BaseModel):
    """A whole message or a delta of one. Servers use one of two fields for the reasoning, or both."""

    content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallPayload] | None = None
    reasoning: LenientText = ""
    reasoning_content: LenientText = ""

    @property
    def reasoning_characters(self) -> int:
        """Return the number of characters of the reasoning."""
        return max(len(self.reasoning), len(self.reasoning_content))


class ChoicePayload(BaseModel):
    message: MessagePayload | None = None
    delta: MessagePayload | None = None
    finish_reason: str | None = None


class ChatPayload(BaseModel):
    """A blocking answer or a chunk of a stream."""

    choices: list[ChoicePayload] | None = None
    usage: Usage = None
    cost: Money = None
    error: object = None

    @property
    def cost_usd(self) -> Decimal | None:
        cost = self.usage.cost_usd if self.usage else None
        return cost if cost is not None else self.cost


class VectorPayload(BaseModel):
    index: Annotated[int, Field(ge=0)] | None = None
    embedding: list[float] | str


class EmbeddingPayload(BaseModel):
    data: list[VectorPayload]
    usage: Usage = None
    error: object = None


def chat_body(request: ChatRequest, max_tokens_field: str) -> dict[str, Json]:
    """Return the body of POST /chat/completions. A stream must report its usage, because costs are computed from it."""
    tools = [_tool(tool) for tool in request.tools]
    fields: dict[str, Json] = {
        "model": request.model,
        "messages": [message_body(message) for message in request.messages],
        "tools": tools or None,
        "tool_choice": _tool_choice(request.tool_choice) if tools else None,
        "temperature": request.temperature,
        "top_p": request.top_p,
        max_tokens_field: request.max_tokens,
        "stop": request.stop or None,
        "seed": request.seed,
        "response_format": request.response_format,
        "stream": request.stream or None,
        "stream_options": {"include_usage": True} if request.stream else None,
    }
    # Without tools OpenAI refuses parallel_tool_calls and tool_choice.
    extra = {name: value for name, value in request.extra.items() if tools or name != "parallel_tool_calls"}
    return {**extra, **{name: value for name, value in fields.items() if value is not None}}


def _tool(tool: ToolSpec) -> Json:
    function: dict[str, Json] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def message_body(message: Message) -> dict[str, Json]:
    content = [_part(part) for part in message.parts] or message.content
    body: dict[str, Json] = {"role": message.role.value, "content": content}
    if message.name is not None:
        body["name"] = message.name
    if message.tool_calls:
        body["content"] = content or None
        body["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    return body


def _part(part: str | Image) -> Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    detail = {"detail": part.detail} if part.detail else {}
    return {"type": "image_url", "image_url": {"url": part.url, **detail}}


def _tool_choice(choice: ToolChoice | None) -> Json:
    return {"type": "function", "function": {"name": choice.name}} if isinstance(choice, NamedTool) else choice


class ChatReader:
    """Turn the payloads of one answer into deltas."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, str], int] = {}  # the provider's index and id of a call -> our index
        self._latest: dict[int, int] = {}  # the provider's index -> our index of the last call that had it
        self._names: dict[int, str] = {}
        self._texts = SurrogateJoiner()
        self._reasoning_characters = 0  # characters of reasoning that are not in a delta yet
        self._answer_began = False
        self.finish_reason: FinishReason | None = None
        self.began = False

    def read(self, payload: ChatPayload) -> ChatDelta | None:
        """Return the delta that ``payload`` adds, or None. Reasoning does not begin an answer: the next delta counts it."""
        self.began = True
        choice = payload.choices[0] if payload.choices else ChoicePayload()
        message = choice.message or choice.delta or MessagePayload()
        calls = tuple(self._call(position, call) for position, call in enumerate(message.tool_calls or ()))
        finish = self._finish(choice.finish_reason)
        content = self._texts.content(message.content or "")
        refusal = self._texts.refusal(message.refusal or "")
        usage = payload.usage.tokens if payload.usage else None
        self._reasoning_characters += message.reasoning_characters
        is_part_of_answer = (
            content or refusal or calls or finish or (usage and usage.total_tokens) or payload.cost_usd is not None
        )
        if not is_part_of_answer and not (self._answer_began and self._reasoning_characters):
            return None
        self._answer_began = True
        return ChatDelta(
            content, calls, finish, usage, payload.cost_usd, refusal, reasoning_characters=self._take_reasoning_characters()
        )

    def end(self) -> ChatDelta | None:
        """Return the last delta or None. It has an incomplete character, and a finish reason if the provider gave none."""
        if not all(self._names.get(index) for index in self._numbers.values()):
            raise malformed_response("a tool call has no name")
        last = self._texts.end()
        if self.finish_reason is None:
            return replace(
                last or ChatDelta(), finish_reason=self._finish("stop"), reasoning_characters=self._take_reasoning_characters()
            )
        return last

    def _take_reasoning_characters(self) -> int:
        characters, self._reasoning_characters = self._reasoning_characters, 0
        return characters

    def _call(self, position: int, call: ToolCallPayload) -> ToolCallDelta:
        provider_index = position if call.index is None else call.index
        is_known_call = not call.id or (provider_index, call.id) in self._numbers
        if provider_index in self._latest and is_known_call:
            index = self._numbers.get((provider_index, call.id or ""), self._latest[provider_index])
            return ToolCallDelta(
                index, None, self._name(index, call.function.name), self._texts.arguments(index, call.function.text)
            )
        # A new id starts a new call, even at the index of an earlier call: some servers give every call the index 0.
        index = len(self._numbers)
        identity = join_surrogates(call.id or new_id("call"))
        self._numbers[provider_index, call.id or identity] = self._latest[provider_index] = index
        return ToolCallDelta(
            index, identity, self._name(index, call.function.name), self._texts.arguments(index, call.function.text)
        )

    def _name(self, index: int, name: str | None) -> str | None:
        if not name or index in self._names:
            return None
        self._names[index] = join_surrogates(name)
        return self._names[index]

    def _finish(self, reason: str | None) -> FinishReason | None:
        if not reason:
            return None
        finish = _FINISH_REASONS.get(reason, FinishReason.STOP)
        # Some servers, and OpenAI for a named tool, send "stop" after tool calls, but the caller must run the tools.
        self.finish_reason = FinishReason.TOOL_CALLS if finish is FinishReason.STOP and self._numbers else finish
        return self.finish_reason


def read_embeddings(payload: EmbeddingPayload) -> EmbeddingReply:
    """Return the vectors in the order of their texts. A vector is a list of numbers or base64."""
    positions = [position if vector.index is None else vector.index for position, vector in enumerate(payload.data)]
    if sorted(positions) != list(range(len(positions))):
        raise malformed_response("vectors are missing or doubled")
    rows = [
        _vector(vector.embedding) for _, vector in sorted(zip(positions, payload.data, strict=True), key=lambda pair: pair[0])
    ]
    data = _pack_vectors(rows)
    dimensions = len(data) // 4 // len(rows) if rows else 0
    usage = payload.usage or UsagePayload()
    tokens = TokenUsage(prompt_tokens=usage.prompt_tokens or usage.total_tokens)
    return EmbeddingReply(data, len(rows), dimensions, tokens)


def _vector(embedding: Sequence[float] | str) -> bytes:
    if not isinstance(embedding, str):
        return pack_rows([embedding])
    try:
        data = base64.b64decode(embedding, validate=True)
    except (binascii.Error, ValueError) as error:
        raise malformed_response("a vector is not base64") from error
    if len(data) % array("f").itemsize:
        raise malformed_response("a vector is not float32")
    return data


def _pack_vectors(rows: Sequence[bytes]) -> bytes:
    if len({len(row) for row in rows}) > 1 or not all(rows):
        raise malformed_response("vectors have different lengths")
    return b"".join(rows)


def error_status(error: object) -> int:
    """Return the HTTP status of an error inside a successful answer.

    Use the status number in the error. If it has none, derive the status from its code or type.
    """
    if not isinstance(error, Mapping):
        return _UNKNOWN_ERROR
    values = [error.get(name) for name in ("status_code", "code", "status", "type")]
    names = [str(value).lower() for value in values if isinstance(value, str | int)]
    numbers = [int(name) for name in names if name.isascii() and name.isdecimal() and len(name) == 3]
    statuses = [*numbers, *(_STATUSES[name] for name in names if name in _STATUSES)]
    return next((status for status in statuses if 400 <= status <= 599), _UNKNOWN_ERROR)
