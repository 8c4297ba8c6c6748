"""Call Anthropic's models with the Messages API (https://docs.claude.com/en/api/messages)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, Field

from spass.core.messages import FinishReason, Image, Json, Message, Role, TokenUsage, ToolSpec
from spass.models.errors import BackendAuthError, BackendUnavailable, BackendUnsupported
from spass.models.providers.content_blocks import (
    Block,
    BlockReader,
    ToolCallIds,
    alternate_roles,
    inline_image,
    message_blocks,
    strict_schema,
    system_texts,
    tools_from_history,
)
from spass.models.providers.error_responses import error_inside_answer
from spass.models.providers.http import malformed_response
from spass.models.providers.http_provider import HttpProvider, merge_deltas
from spass.models.providers.payloads import FewItems, LenientObject, LenientText, Tokens, parse
from spass.models.providers.sse import ServerSentEvent, SseParser
from spass.models.providers.unsupported_fields import clamp_temperature, effective_top_p, reasoning_effort, reject_unsupported
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest, NamedTool

_VERSION: Final = "2023-06-01"
DEFAULT_MAX_TOKENS: Final = 8192
"""The format requires a limit; every current model accepts this one."""

_NAME: Final = "Anthropic"
_UNSUPPORTED_FIELDS: Final = frozenset({"presence_penalty", "frequency_penalty", "logit_bias", "verbosity"})
_FINISH_REASONS: Final = {
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "tool_use": FinishReason.TOOL_CALLS,
    "refusal": FinishReason.CONTENT_FILTER,
}
"""All others (``end_turn``, ``stop_sequence``, ``pause_turn``) are a stop."""


class Anthropic(HttpProvider[ServerSentEvent]):
    """Call the Messages API at ``base_url``, which may end with ``/v1``."""

    base_url: ClassVar[str] = "https://api.anthropic.com"
    chat_path: ClassVar[str] = "/v1/messages"

    def address(self) -> str:
        return super().address().removesuffix("/v1")

    def headers(self) -> Mapping[str, str]:
        return {"anthropic-version": _VERSION, **({"x-api-key": self.key} if self.key else {})}

    def body(self, request: ChatRequest) -> dict[str, Json]:
        return messages_body(request)

    def reader(self) -> "_Reader":
        return _Reader(self.connection.secrets)

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:  # noqa: ARG002 - the protocol's shape
        raise BackendAuthError("Anthropic does not offer embedding models.")


class UsagePayload(BaseModel):
    """Token counts so far. 0 means unknown."""

    input_tokens: Tokens = 0
    cache_creation_input_tokens: Tokens = 0
    cache_read_input_tokens: Tokens = 0
    output_tokens: Tokens = 0

    def updated(self, later: "UsagePayload | None") -> "UsagePayload":
        return self.model_copy(update={name: count for name, count in later or () if count})

    @property
    def tokens(self) -> TokenUsage:
        """Return the usage. Prompt tokens include tokens read from and written to the cache."""
        cached = self.cache_creation_input_tokens + self.cache_read_input_tokens
        return TokenUsage(self.input_tokens + cached, self.output_tokens)


Usage = Annotated[UsagePayload | None, LenientObject]


class BlockPayload(BaseModel):
    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, object] = {}


class MessagePayload(BaseModel):
    """A whole answer, or its beginning in a stream."""

    content: Annotated[list[BlockPayload], FewItems]
    stop_reason: str | None = None
    usage: Usage = None


class DeltaPayload(BaseModel):
    """An addition to a content block or to the message."""

    type: str = ""
    text: str = ""
    thinking: LenientText = ""
    partial_json: str = ""
    stop_reason: str | None = None


class EventPayload(BaseModel):
    """Any event of a stream."""

    type: str
    index: Annotated[int, Field(ge=0)] = 0
    message: MessagePayload | None = None
    content_block: BlockPayload | None = None
    delta: DeltaPayload = DeltaPayload()
    usage: Usage = None
    error: object = None


class _Reader(BlockReader[ServerSentEvent]):
    """Read one answer. The first delta of a stream has the prompt's tokens: a caller who disconnects early pays for them."""

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__(SseParser(), secrets)
        self._usage = UsagePayload()
        self._stop_reason: str | None = None

    def is_last(self, event: ServerSentEvent) -> bool:
        return event.event == "message_stop"

    def read(self, event: ServerSentEvent) -> ChatDelta | None:
        began, delta = self._answer_began, self._next_delta(self._read(parse(EventPayload, event.data)))
        if delta is None or began:
            return delta
        return replace(delta, usage=TokenUsage(self._usage.tokens.prompt_tokens))

    def end(self) -> ChatDelta:
        if self._stop_reason is None:
            raise BackendUnavailable("The provider's stream broke off before its end.")
        return self._with_reasoning(self._end(self._stop_reason, self._usage))

    def read_whole(self, body: bytes) -> ChatDelta:
        payload = parse(MessagePayload, body)
        if not payload.stop_reason:
            raise malformed_response("it has no stop reason")
        deltas: list[ChatDelta | None] = []
        for index, block in enumerate(payload.content):
            deltas += [self._start_block(index, block), self.end_block(index)]
        return merge_deltas([*deltas, self._end(payload.stop_reason, payload.usage)])

    def _end(self, stop_reason: str, usage: UsagePayload | None) -> ChatDelta:
        finish_reason = _FINISH_REASONS.get(stop_reason, FinishReason.STOP)
        return replace(self._last_characters(), finish_reason=finish_reason, usage=usage.tokens if usage else None)

    def _read(self, payload: EventPayload) -> ChatDelta | None:
        match payload.type:
            case "message_start" if payload.message is not None:
                # The answer has not begun, so this output count must not be billed.
                self._usage = self._usage.updated(payload.message.usage).model_copy(update={"output_tokens": 0})
            case "content_block_start" if payload.content_block is not None:
                return self._start_block(payload.index, payload.content_block)
            case "content_block_delta":
                return self._add_to_block(payload)
            case "content_block_stop":
                return self.end_block(payload.index)
            case "message_delta":
                self._usage = self._usage.updated(payload.usage)
                self._stop_reason = payload.delta.stop_reason or self._stop_reason
            case "error":
                raise error_inside_answer(payload.error, secrets=self._secrets)
            case _:  # ping, message_stop, and future event types
                pass
        return None

    def _start_block(self, index: int, block: BlockPayload) -> ChatDelta | None:
        if block.type == "tool_use":
            return self.start_call(index, block.id, block.name, block.input)
        return self.text(block.text) if block.type == "text" else None

    def _add_to_block(self, payload: EventPayload) -> ChatDelta | None:
        delta = payload.delta
        if delta.type == "text_delta":
            return self.text(delta.text)
        self._reasoning_characters += len(delta.thinking)
        if delta.type == "input_json_delta" and delta.partial_json:
            return self.add_arguments(payload.index, delta.partial_json)
        return None


def messages_body(request: ChatRequest) -> dict[str, Json]:
    """Return the body of POST /v1/messages, or raise ``BackendUnsupported``."""
    reject_unsupported(request, _NAME, _UNSUPPORTED_FIELDS)
    fields: dict[str, Json] = {
        "model": request.model,
        "max_tokens": request.max_tokens or DEFAULT_MAX_TOKENS,
        "system": "\n\n".join(system_texts(request)) or None,
        "messages": alternate_roles(request.messages, _blocks, _text_block),
        "tools": [_tool(tool) for tool in _tools(request)] or None,
        "tool_choice": _tool_choice(request),
        "temperature": clamp_temperature(request),
        "top_p": effective_top_p(request),
        "stop_sequences": _stop(request) or None,
        "output_config": _output_config(request) or None,
        "stream": request.stream or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def _image_block(image: Image) -> Block:
    data = inline_image(image)
    if data is None:
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": f"image/{data.format}", "data": data.data}}


def _blocks(message: Message, ids: ToolCallIds) -> list[Block]:
    if message.role is Role.TOOL:
        return [{"type": "tool_result", "tool_use_id": ids.for_result(message.tool_call_id or ""), "content": message.content}]
    calls = ids.rewrite_calls(message.tool_calls) if message.tool_calls else []
    return message_blocks(message, _text_block, _image_block) + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in calls
    ]


def _tools(request: ChatRequest) -> list[ToolSpec]:
    """Return the request's tools. If it has none, return the tools in the history: the format requires their definitions."""
    return list(request.tools) or tools_from_history(request.messages)


def _tool(tool: ToolSpec) -> Block:
    body: Block = {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
    return {**body, "strict": True} if tool.strict else body


def _tool_choice(request: ChatRequest) -> Json:
    if not _tools(request):
        return None
    if not request.tools:
        return {"type": "none"}
    choice: Block
    match request.tool_choice:
        case NamedTool(name=name):
            choice = {"type": "tool", "name": name}
        case "required":
            choice = {"type": "any"}
        case "none":
            return {"type": "none"}
        case _:
            choice = {"type": "auto"}
    if request.extra.get("parallel_tool_calls") is False:
        choice["disable_parallel_tool_use"] = True
    return choice if len(choice) > 1 or request.tool_choice else None


def _stop(request: ChatRequest) -> list[str]:
    if not all(stop.strip() for stop in request.stop):
        raise BackendUnsupported("Anthropic does not accept a blank text in 'stop'. Add a visible character.", param="stop")
    return list(request.stop)


def _output_config(request: ChatRequest) -> dict[str, Json]:
    """Return ``output_config`` (https://platform.claude.com/docs/en/build-with-claude/structured-outputs and …/effort)."""
    schema = strict_schema(request)
    config: dict[str, Json] = {}
    if schema is not None:
        config["format"] = {"type": "json_schema", "schema": schema["schema"]}
    if effort := reasoning_effort(request, _NAME):
        config["effort"] = effort
    return config
