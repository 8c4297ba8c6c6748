"""Call Ollama: chat with its own API, embeddings with its OpenAI-compatible one (https://docs.ollama.com/api)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from spass.core.ids import new_id
from spass.core.messages import FinishReason, Json, ToolCallDelta
from spass.models.errors import BackendUnavailable
from spass.models.providers.error_responses import error_inside_answer
from spass.models.providers.http import malformed_response
from spass.models.providers.http_provider import HttpProvider, merge_deltas
from spass.models.providers.ndjson import JsonLine, NdjsonParser
from spass.models.providers.ollama_wire import AnswerPayload, MessagePayload, ToolCallPayload, chat_body
from spass.models.providers.openai_embeddings import read_embeddings
from spass.models.providers.payloads import SurrogateJoiner, join_surrogates, parse
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest


class Ollama(HttpProvider[JsonLine[AnswerPayload]]):
    """Call the server at ``base_url``, which may end with ``/v1``."""

    base_url: ClassVar[str] = "http://127.0.0.1:11434"

    def address(self) -> str:
        return (self.backend.base_url or self.base_url).rstrip("/").removesuffix("/v1")

    def path(self, model: str, *, stream: bool) -> str:
        del model, stream
        return "/api/chat"

    def body(self, request: ChatRequest) -> dict[str, Json]:
        return chat_body(request)

    def reader(self) -> "_Reader":
        return _Reader(self.connection.secrets)

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        body: dict[str, Json] = {"model": request.model, "input": request.texts}
        return read_embeddings(await self.connection.post("/v1/embeddings", body, context))


class _Reader:
    """Read one answer. Reasoning does not begin an answer: the next delta counts its characters.

    A line holds whole tool calls. They get ids of our own: most versions of Ollama send none.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self.parser = NdjsonParser(AnswerPayload)
        self._secrets = secrets
        self._texts = SurrogateJoiner()
        self._calls = 0  # tool calls so far
        self._reasoning_characters = 0  # characters of reasoning that are not in a delta yet
        self._answer_began = False
        self._last: AnswerPayload | None = None

    def is_last(self, event: JsonLine[AnswerPayload]) -> bool:
        return event.payload.done

    def read(self, event: JsonLine[AnswerPayload]) -> ChatDelta | None:
        return self._read(event.payload)

    def end(self) -> ChatDelta:
        if self._last is None:
            raise BackendUnavailable("The provider's stream broke off before its end.")
        finish = self._last.finish_reason
        if finish is FinishReason.STOP and self._calls:
            finish = FinishReason.TOOL_CALLS
        return replace(
            self._texts.end() or ChatDelta(),
            finish_reason=finish,
            usage=self._last.usage,
            reasoning_characters=self._take_reasoning_characters(),
        )

    def read_whole(self, body: bytes) -> ChatDelta:
        delta = self._read(parse(AnswerPayload, body))
        if self._last is None:
            raise malformed_response("it has no end")
        return merge_deltas([delta, self.end()])

    def _read(self, payload: AnswerPayload) -> ChatDelta | None:
        if payload.error:
            raise error_inside_answer(payload.error, secrets=self._secrets)
        if payload.done:
            self._last = payload
        message = payload.message or MessagePayload()
        self._reasoning_characters += len(message.thinking)
        content = self._texts.content(message.content or "")
        calls = tuple(self._call(call) for call in message.tool_calls or ())
        if not (content or calls or (self._answer_began and self._reasoning_characters)):
            return None
        self._answer_began = True
        return ChatDelta(content, calls, reasoning_characters=self._take_reasoning_characters())

    def _call(self, call: ToolCallPayload) -> ToolCallDelta:
        if not call.function.name:
            raise malformed_response("a tool call has no name")
        index, self._calls = self._calls, self._calls + 1
        return ToolCallDelta(index, new_id("call"), join_surrogates(call.function.name), join_surrogates(call.function.text))

    def _take_reasoning_characters(self) -> int:
        characters, self._reasoning_characters = self._reasoning_characters, 0
        return characters
