"""The stand-in as a provider in process, for benches and tests without a server."""

from collections.abc import AsyncGenerator
from typing import cast

from local.standin.wire import complete
from spass.core.messages import FinishReason, TokenUsage, ToolCallDelta
from spass.models.providers.openai_compatible import chat_body
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest


class StandIn:
    """A ``Provider`` that gives the same answers as the stand-in's server."""

    async def chat(self, request: ChatRequest, _: CallContext, /) -> AsyncGenerator[ChatDelta, None]:
        answer = complete(cast("dict[str, object]", chat_body(request, "max_tokens")))
        calls = tuple(
            ToolCallDelta(at, call["id"], call["function"]["name"], call["function"]["arguments"])
            for at, call in enumerate(answer.tool_calls)
        )
        usage = TokenUsage(answer.usage["prompt_tokens"], answer.usage["completion_tokens"])
        yield ChatDelta(answer.content or "", calls, FinishReason(answer.finish_reason), usage)

    async def embed(self, request: EmbeddingRequest, _: CallContext, /) -> EmbeddingReply:
        raise NotImplementedError("The stand-in embeds nothing; the gateway does that in process.")

    async def aclose(self) -> None:
        pass
