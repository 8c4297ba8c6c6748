"""Call servers that use OpenAI's format. Each provider is a subclass with its address and its differences."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import ClassVar

import httpx

from spass.core.messages import Json
from spass.llm.errors import BackendUnavailable
from spass.llm.providers.error_responses import error_from_status, parse_error_payload
from spass.llm.providers.http import Connection, malformed_response
from spass.llm.providers.openai_wire import (
    ChatPayload,
    ChatReader,
    EmbeddingPayload,
    chat_body,
    error_status,
    read_embeddings,
)
from spass.llm.providers.payloads import parse
from spass.llm.providers.sse import ServerSentEvent, SseParser
from spass.llm.providers.stream_fallback import stream_or_whole
from spass.llm.providers.unsupported_fields import reject_unsupported
from spass.llm.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest
from spass.tenancy.config import BackendConfig


class _Events(SseParser):
    """Parse the events of a stream, or one whole JSON answer, because some servers ignore ``stream``."""

    def __init__(self) -> None:
        super().__init__()
        self._is_json: bool | None = None  # None before the first visible byte
        self._json_pieces: list[bytes] = []

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        if self._is_json is None and (visible := chunk.lstrip()):
            self._is_json = visible.startswith(b"{")
        if not self._is_json:
            return super().feed(chunk)
        self._json_pieces.append(chunk)
        return []

    def close(self) -> list[ServerSentEvent]:
        if self._is_json:
            return [ServerSentEvent("message", b"".join(self._json_pieces).decode(errors="replace"))]
        return super().close()


def _is_done(event: ServerSentEvent) -> bool:
    return event.data.strip() == "[DONE]"


class OpenAiCompatible:
    """Call ``/chat/completions`` and ``/embeddings`` below ``base_url``, with the key as a bearer token.

    ``unsupported_fields`` are OpenAI's fields that the server would ignore; see ``llm.providers.unsupported_fields``.
    """

    base_url: ClassVar[str]
    unsupported_fields: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, backend: BackendConfig, key: str | None, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.backend = backend
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._connection = Connection(backend, self.address(), headers, key=key, transport=transport)

    def address(self) -> str:
        """Return the base URL of the provider."""
        return self.backend.base_url or self.base_url

    def body(self, request: ChatRequest) -> dict[str, Json]:
        """Return the body of a chat request for this server.

        Raises:
            BackendUnsupported: the server lacks something that the request asks for.
        """
        reject_unsupported(request, self.backend.provider, self.unsupported_fields)
        return chat_body(request, "max_tokens")

    def embedding_body(self, request: EmbeddingRequest) -> dict[str, Json]:
        return {"model": request.model, "input": request.texts}

    def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        body = self.body(request)
        if not request.stream:
            return self._complete(body, context)
        whole = partial(self.chat, replace(request, stream=False), context)
        return stream_or_whole(self._stream(body, context), whole, context)

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        body = await self._connection.post("/embeddings", self.embedding_body(request), context)
        return read_embeddings(parse(EmbeddingPayload, body))

    async def aclose(self) -> None:
        await self._connection.aclose()

    async def _complete(self, body: Mapping[str, Json], context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        payload = self._parse_chat(await self._connection.post("/chat/completions", body, context, generates=True))
        if not payload.choices or payload.choices[0].message is None:
            raise malformed_response("it holds no message")
        reader = ChatReader()
        yield _merge_deltas(reader.read(payload) or ChatDelta(), reader.end() or ChatDelta())

    async def _stream(self, body: Mapping[str, Json], context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        reader = ChatReader()
        done = False
        async with aclosing(
            self._connection.stream("/chat/completions", body, context, parser=_Events(), is_last=_is_done)
        ) as events:
            async for event in events:
                done = _is_done(event)
                if not done and (delta := reader.read(self._parse_chat(event.data))) is not None:
                    yield delta
        if not reader.began or not (done or reader.finish_reason):
            raise BackendUnavailable("The provider's stream broke off before its end.")
        if (delta := reader.end()) is not None:
            yield delta

    def _parse_chat(self, text: str | bytes) -> ChatPayload:
        payload = parse(ChatPayload, text)
        if payload.error:
            raise error_from_status(
                error_status(payload.error), parse_error_payload({"error": payload.error}), secrets=self._connection.secrets
            )
        return payload


def _merge_deltas(delta: ChatDelta, end: ChatDelta) -> ChatDelta:
    """Return one delta with the contents of both."""
    return ChatDelta(
        delta.content + end.content,
        delta.tool_calls + end.tool_calls,
        end.finish_reason or delta.finish_reason,
        delta.usage,
        delta.cost_usd,
        delta.refusal + end.refusal,
        reasoning_characters=delta.reasoning_characters + end.reasoning_characters,
    )
