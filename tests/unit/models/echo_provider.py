"""An example of a new provider: one class in one file."""

from collections.abc import AsyncGenerator

from spass.core.messages import FinishReason, TokenUsage
from spass.models.errors import BackendBadRequest
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest
from spass.tenancy.config import BackendConfig


class Echo:
    """A provider that repeats the last message."""

    def __init__(self, backend: BackendConfig, key: str | None) -> None:
        pass

    async def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        yield ChatDelta(request.messages[-1].content, finish_reason=FinishReason.STOP, usage=TokenUsage(1, 1))

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        raise BackendBadRequest("This provider has no embedding model.")

    async def aclose(self) -> None:
        pass
