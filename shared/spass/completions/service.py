"""``/v1``'s model routes: OpenAI's requests in, OpenAI's answers out, and the pipeline between."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.completions.chat_request import ChatCompletionRequest
from spass.completions.chunks import Answer, Chunk, ChunkWriter, collect_chunks
from spass.completions.embeddings import EmbeddingsRequest, check_dimensions, embeddings_answer
from spass.core.messages import Json
from spass.llm.types import ChatDelta


class Completions:
    """Chat and embeddings as OpenAI's clients expect them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def stream(self, scope: Scope, request: ChatCompletionRequest) -> AsyncGenerator[Chunk, None]:
        """The answer as chunks. The last holds the usage and, in it, the cost of the whole request.

        Refusals are raised at once; what goes wrong with the model is raised by the iteration, before the first chunk unless an
        answer had begun.

        Raises:
            SpassError: as ``Calls.chat``.
        """
        if request.stream:
            scope = scope.streaming
        return _chunks(scope, request, self._calls.chat(scope, request.chat_request()))

    async def complete(self, scope: Scope, request: ChatCompletionRequest) -> Answer:
        """The whole answer: the stream, collected.

        Raises:
            SpassError: as ``Calls.chat``.
        """
        return collect_chunks([chunk async for chunk in self.stream(scope, request)])

    async def embed(self, scope: Scope, request: EmbeddingsRequest) -> dict[str, Json]:
        """One vector per text.

        Raises:
            InvalidRequest: the model has other dimensions.
            SpassError: as ``Calls.embed``.
        """
        check_dimensions(request, self._calls.embedding_model(scope, request.model))
        return embeddings_answer(request, await self._calls.embed(scope, request.input, request.model))


async def _chunks(
    scope: Scope, request: ChatCompletionRequest, answer: AsyncGenerator[ChatDelta, None]
) -> AsyncGenerator[Chunk, None]:
    writer = ChunkWriter(request.model, include_usage=request.include_usage)
    async with aclosing(answer) as deltas:
        async for delta in deltas:
            if delta.finish_reason is None or delta.usage is None:
                for chunk in writer.write(delta):
                    yield chunk
            else:
                for chunk in writer.end(delta.finish_reason, delta.usage, scope.tally.total):
                    yield chunk
