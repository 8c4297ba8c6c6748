"""Call servers that use OpenAI's format. Each provider is a subclass with its address and its differences."""

from typing import ClassVar

from spass.core.messages import Json
from spass.models.providers.http_provider import HttpProvider
from spass.models.providers.openai_embeddings import read_embeddings
from spass.models.providers.openai_reader import OpenAiReader
from spass.models.providers.openai_wire import chat_body
from spass.models.providers.sse import ServerSentEvent
from spass.models.providers.unsupported_fields import reject_unsupported
from spass.models.types import CallContext, ChatRequest, EmbeddingReply, EmbeddingRequest


class OpenAiCompatible(HttpProvider[ServerSentEvent]):
    """Call ``/chat/completions`` and ``/embeddings`` below ``base_url``, with the key as a bearer token.

    ``unsupported_fields`` are OpenAI's fields that the server would ignore; see ``llm.providers.unsupported_fields``.
    """

    base_url: ClassVar[str]
    unsupported_fields: ClassVar[frozenset[str]] = frozenset()

    def address(self) -> str:
        return self.backend.base_url or self.base_url

    def path(self, model: str, *, stream: bool) -> str:
        del model, stream
        return "/chat/completions"

    def body(self, request: ChatRequest) -> dict[str, Json]:
        reject_unsupported(request, self.backend.provider, self.unsupported_fields)
        return chat_body(request, "max_tokens")

    def reader(self) -> OpenAiReader:
        return OpenAiReader(self.connection.secrets)

    def embedding_body(self, request: EmbeddingRequest) -> dict[str, Json]:
        return {"model": request.model, "input": request.texts}

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        return read_embeddings(await self.connection.post("/embeddings", self.embedding_body(request), context))
