"""Call Anthropic's models with the Messages API."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from spass.core.messages import Json, TokenUsage
from spass.models.errors import BackendAuthError, BackendUnavailable
from spass.models.providers.anthropic_wire import (
    BlockPayload,
    EventPayload,
    MessagePayload,
    UsagePayload,
    finish_reason,
    messages_body,
)
from spass.models.providers.block_reader import BlockReader
from spass.models.providers.error_responses import error_inside_answer
from spass.models.providers.http import malformed_response
from spass.models.providers.http_provider import HttpProvider, merge_deltas
from spass.models.providers.payloads import parse
from spass.models.providers.sse import ServerSentEvent, SseParser
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest

_VERSION: Final = "2023-06-01"


class Anthropic(HttpProvider[ServerSentEvent]):
    """Call the Messages API at ``base_url``, which may end with ``/v1``."""

    base_url: ClassVar[str] = "https://api.anthropic.com"

    def address(self) -> str:
        return (self.backend.base_url or self.base_url).removesuffix("/v1")

    def headers(self) -> Mapping[str, str]:
        return {"anthropic-version": _VERSION, **({"x-api-key": self.key} if self.key else {})}

    def path(self, model: str, *, stream: bool) -> str:
        del model, stream
        return "/v1/messages"

    def body(self, request: ChatRequest) -> dict[str, Json]:
        return messages_body(request)

    def reader(self) -> "_Reader":
        return _Reader(self.connection.secrets)

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:  # noqa: ARG002 - the protocol's shape
        raise BackendAuthError("Anthropic does not offer embedding models.")


class _Reader(BlockReader):
    """Read one answer.

    The first delta of a stream has the prompt's tokens, so that a caller who disconnects early pays for them. Reasoning does not
    begin an answer: the next delta counts its characters.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__()
        self.parser = SseParser()
        self._secrets = secrets
        self._usage = UsagePayload()
        self._stop_reason: str | None = None
        self._answer_began = False
        self._reasoning_characters = 0  # characters of reasoning that are not in a delta yet

    def is_last(self, event: ServerSentEvent) -> bool:
        return event.event == "message_stop"

    def read(self, event: ServerSentEvent) -> ChatDelta | None:
        delta = self._read(parse(EventPayload, event.data))
        if delta is None and not (self._answer_began and self._reasoning_characters):
            return None
        characters, self._reasoning_characters = self._reasoning_characters, 0
        usage = None if self._answer_began else TokenUsage(self._usage.tokens.prompt_tokens)
        self._answer_began = True
        return replace(delta or ChatDelta(), reasoning_characters=characters, usage=usage)

    def end(self) -> ChatDelta:
        if self._stop_reason is None:
            raise BackendUnavailable("The provider's stream broke off before its end.")
        return replace(
            self.last_characters(),
            finish_reason=finish_reason(self._stop_reason),
            usage=self._usage.tokens,
            reasoning_characters=self._reasoning_characters,
        )

    def read_whole(self, body: bytes) -> ChatDelta:
        payload = parse(MessagePayload, body)
        if not payload.stop_reason:
            raise malformed_response("it has no stop reason")
        deltas: list[ChatDelta | None] = []
        for index, block in enumerate(payload.content):
            deltas += [self._start_block(index, block), self.end_block(index)]
        usage = payload.usage.tokens if payload.usage else None
        return merge_deltas(
            [*deltas, replace(self.last_characters(), finish_reason=finish_reason(payload.stop_reason), usage=usage)]
        )

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
