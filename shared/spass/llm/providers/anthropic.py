"""Call Anthropic's models with the Messages API."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import ClassVar, Final

import httpx

from spass.core.messages import Json, TokenUsage
from spass.llm.errors import BackendAuthError, BackendError, BackendUnavailable
from spass.llm.providers.anthropic_wire import (
    BlockPayload,
    EventPayload,
    MessagePayload,
    UsagePayload,
    finish_reason,
    messages_body,
)
from spass.llm.providers.error_responses import error_from_status, parse_error_payload
from spass.llm.providers.http import Connection, malformed_response
from spass.llm.providers.payloads import SurrogateJoiner, join_surrogates, parse
from spass.llm.providers.sse import ServerSentEvent, SseParser
from spass.llm.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest, ToolCallDelta
from spass.tenancy.config import BackendConfig

_PATH: Final = "/v1/messages"
_VERSION: Final = "2023-06-01"

# The HTTP status that fits the type of an error event (https://docs.claude.com/en/api/errors).
_STATUSES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class Anthropic:
    """Call the Messages API at ``base_url``, which may end with ``/v1``."""

    base_url: ClassVar[str] = "https://api.anthropic.com"

    def __init__(self, backend: BackendConfig, key: str | None, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        headers = {"anthropic-version": _VERSION, **({"x-api-key": key} if key else {})}
        address = (backend.base_url or self.base_url).removesuffix("/v1")
        self._connection = Connection(backend, address, headers, key=key, transport=transport)

    def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        body = messages_body(request)
        return self._stream(body, context) if request.stream else self._complete(body, context)

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:  # noqa: ARG002 - the protocol's shape
        raise BackendAuthError("Anthropic does not offer embedding models.")

    async def aclose(self) -> None:
        await self._connection.aclose()

    async def _complete(self, body: Mapping[str, Json], context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        payload = parse(MessagePayload, await self._connection.post(_PATH, body, context, generates=True))
        if not payload.stop_reason:
            raise malformed_response("it has no stop reason")
        text = "".join(block.text for block in payload.content if block.type == "text")
        uses = [block for block in payload.content if block.type == "tool_use"]
        calls = tuple(_tool_call_start(index, block, block.arguments) for index, block in enumerate(uses))
        yield ChatDelta(
            join_surrogates(text), calls, finish_reason(payload.stop_reason), payload.usage.tokens if payload.usage else None
        )

    async def _stream(self, body: Mapping[str, Json], context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        reader = _StreamReader(self._connection.secrets)
        async with aclosing(self._connection.stream(_PATH, body, context, parser=SseParser(), is_last=_is_last)) as events:
            async for event in events:
                if (delta := reader.read(event)) is not None:
                    yield delta
        yield reader.end()


def _is_last(event: ServerSentEvent) -> bool:
    return event.event == "message_stop"


def _tool_call_start(index: int, block: BlockPayload, arguments: str = "") -> ToolCallDelta:
    if not (block.id and block.name):
        raise malformed_response("a tool call has no name")
    return ToolCallDelta(index, join_surrogates(block.id), join_surrogates(block.name), join_surrogates(arguments))


class _StreamReader:
    """Turn the events of one stream into deltas.

    The first delta has the prompt's tokens, so that a caller who disconnects early pays for them. Reasoning characters are
    counted, but do not begin an answer.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        self._texts = SurrogateJoiner()
        self._usage = UsagePayload()
        self._stop_reason: str | None = None
        self._calls: dict[int, int] = {}  # content block -> number of the tool call
        self._calls_without_arguments: dict[int, BlockPayload] = {}  # tool calls whose arguments have not begun
        self._answer_began = False
        self._reasoning_characters = 0  # characters of reasoning that are not in a delta yet

    def read(self, event: ServerSentEvent) -> ChatDelta | None:
        """Return the delta that ``event`` adds, or None."""
        delta = self._read(event)
        if delta is None and not (self._answer_began and self._reasoning_characters):
            return None
        thought, self._reasoning_characters = self._reasoning_characters, 0
        usage = None if self._answer_began else TokenUsage(self._usage.tokens.prompt_tokens)
        self._answer_began = True
        return replace(delta or ChatDelta(), reasoning_characters=thought, usage=usage)

    def _read(self, event: ServerSentEvent) -> ChatDelta | None:
        payload = parse(EventPayload, event.data)
        match payload.type:
            case "message_start" if payload.message is not None:
                # The answer has not begun, so this output count must not be billed.
                self._usage = self._usage.updated(payload.message.usage).model_copy(update={"output_tokens": 0})
            case "content_block_start" if payload.content_block is not None:
                return self._read_block(payload.index, payload.content_block)
            case "content_block_delta":
                return self._read_delta(payload)
            case "content_block_stop" if block := self._calls_without_arguments.pop(payload.index, None):
                return self._arguments(payload.index, block.arguments)
            case "message_delta":
                self._usage = self._usage.updated(payload.usage)
                self._stop_reason = payload.delta.stop_reason or self._stop_reason
            case "error":
                raise self._failure(payload.error)
            case _:  # ping, message_stop, and future event types
                pass
        return None

    def end(self) -> ChatDelta:
        """Return the last delta.

        Raises:
            BackendUnavailable: the stream ended before the model did.
        """
        if self._stop_reason is None:
            raise BackendUnavailable("The provider's stream broke off before its end.")
        last = self._texts.end() or ChatDelta()
        return replace(
            last,
            finish_reason=finish_reason(self._stop_reason),
            usage=self._usage.tokens,
            reasoning_characters=self._reasoning_characters,
        )

    def _read_block(self, index: int, block: BlockPayload) -> ChatDelta | None:
        if block.type == "tool_use":
            self._calls[index] = len(self._calls)
            self._calls_without_arguments[index] = block
            return ChatDelta(tool_calls=(_tool_call_start(self._calls[index], block),))
        return ChatDelta(self._texts.content(block.text)) if block.type == "text" and block.text else None

    def _read_delta(self, payload: EventPayload) -> ChatDelta | None:
        delta = payload.delta
        if delta.type == "text_delta" and delta.text:
            return ChatDelta(self._texts.content(delta.text))
        self._reasoning_characters += len(delta.thinking)
        if delta.type == "input_json_delta" and delta.partial_json:
            if payload.index not in self._calls:
                raise malformed_response("arguments without a tool call")
            self._calls_without_arguments.pop(payload.index, None)
            return self._arguments(payload.index, delta.partial_json)
        return None

    def _arguments(self, block: int, piece: str) -> ChatDelta:
        index = self._calls[block]
        return ChatDelta(tool_calls=(ToolCallDelta(index, arguments=self._texts.arguments(index, piece)),))

    def _failure(self, error: object) -> BackendError:
        kind = error.get("type") if isinstance(error, dict) else None
        return error_from_status(_STATUSES.get(str(kind), 500), parse_error_payload({"error": error}), secrets=self._secrets)
