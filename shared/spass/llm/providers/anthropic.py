"""Anthropic, by its Messages API."""

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

# https://docs.claude.com/en/api/errors: what an error event means, in the status it would have had as an answer.
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
        return self._stream(body, context) if request.stream else self._answer(body, context)

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:  # noqa: ARG002 - the protocol's shape
        raise BackendAuthError("Anthropic does not offer embedding models.")

    async def aclose(self) -> None:
        await self._connection.aclose()

    async def _answer(self, body: Mapping[str, Json], context: CallContext) -> AsyncGenerator[ChatDelta, None]:
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
    """Turn the events of one stream into deltas. The first delta has the prompt's tokens, so that a caller who leaves early is
    charged for them. Characters of reasoning are counted too, but do not begin an answer."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        self._texts = SurrogateJoiner()
        self._usage = UsagePayload()
        self._stop_reason: str | None = None
        self._calls: dict[int, int] = {}  # content block -> number of the tool call
        self._silent: dict[int, BlockPayload] = {}  # tool calls whose arguments have not begun
        self._spoke = False
        self._thought = 0  # characters of reasoning that no delta has counted yet

    def read(self, event: ServerSentEvent) -> ChatDelta | None:
        """Return what is new with ``event``; None if nothing is."""
        delta = self._read(event)
        if delta is None and not (self._spoke and self._thought):
            return None
        thought, self._thought = self._thought, 0
        usage = None if self._spoke else TokenUsage(self._usage.tokens.prompt_tokens)
        self._spoke = True
        return replace(delta or ChatDelta(), reasoning_characters=thought, usage=usage)

    def _read(self, event: ServerSentEvent) -> ChatDelta | None:
        payload = parse(EventPayload, event.data)
        match payload.type:
            case "message_start" if payload.message is not None:
                # The answer has not begun, so its count is not the one to bill.
                self._usage = self._usage.updated(payload.message.usage).model_copy(update={"output_tokens": 0})
            case "content_block_start" if payload.content_block is not None:
                return self._block(payload.index, payload.content_block)
            case "content_block_delta":
                return self._more(payload)
            case "content_block_stop" if block := self._silent.pop(payload.index, None):
                return self._arguments(payload.index, block.arguments)
            case "message_delta":
                self._usage = self._usage.updated(payload.usage)
                self._stop_reason = payload.delta.stop_reason or self._stop_reason
            case "error":
                raise self._failure(payload.error)
            case _:  # ping, message_stop, and what may be added later
                pass
        return None

    def end(self) -> ChatDelta:
        """The last delta.

        Raises:
            BackendUnavailable: the model had not ended when its stream did.
        """
        if self._stop_reason is None:
            raise BackendUnavailable("The provider's stream broke off before its end.")
        left = self._texts.end() or ChatDelta()
        return replace(
            left, finish_reason=finish_reason(self._stop_reason), usage=self._usage.tokens, reasoning_characters=self._thought
        )

    def _block(self, index: int, block: BlockPayload) -> ChatDelta | None:
        if block.type == "tool_use":
            self._calls[index] = len(self._calls)
            self._silent[index] = block
            return ChatDelta(tool_calls=(_tool_call_start(self._calls[index], block),))
        return ChatDelta(self._texts.content(block.text)) if block.type == "text" and block.text else None

    def _more(self, payload: EventPayload) -> ChatDelta | None:
        delta = payload.delta
        if delta.type == "text_delta" and delta.text:
            return ChatDelta(self._texts.content(delta.text))
        self._thought += len(delta.thinking)
        if delta.type == "input_json_delta" and delta.partial_json:
            if payload.index not in self._calls:
                raise malformed_response("arguments without a tool call")
            self._silent.pop(payload.index, None)
            return self._arguments(payload.index, delta.partial_json)
        return None

    def _arguments(self, block: int, piece: str) -> ChatDelta:
        index = self._calls[block]
        return ChatDelta(tool_calls=(ToolCallDelta(index, arguments=self._texts.arguments(index, piece)),))

    def _failure(self, error: object) -> BackendError:
        kind = error.get("type") if isinstance(error, dict) else None
        return error_from_status(_STATUSES.get(str(kind), 500), parse_error_payload({"error": error}), secrets=self._secrets)
