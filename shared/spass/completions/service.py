"""``/v1``'s model routes: OpenAI's requests in, OpenAI's answers out, and the pipeline between."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.completions.answers import ChatCompletion, EmbeddingList
from spass.completions.augment import ALL_AUGMENTATIONS, Augment, add_tenant_messages
from spass.completions.chat_request import MAX_TOOLS, ChatCompletionRequest
from spass.completions.chunks import Chunk, ChunkWriter, collect_chunks
from spass.completions.embeddings import EmbeddingsRequest, check_count, check_dimensions, embeddings_response
from spass.completions.server_tools import ServerTools
from spass.llm.types import ChatDelta
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade, TenantSettings

if TYPE_CHECKING:
    from spass.tools.toolbox import Toolbox


class Completions:
    """Chat and embeddings as OpenAI's clients expect them.

    ``toolbox`` is called when a tenant has tools of the gateway in its chats, and not before: it brings numpy along.
    """

    def __init__(self, calls: Calls, config: GatewayConfig, cascade: Cascade, toolbox: "Callable[[], Toolbox]") -> None:
        self._calls = calls
        self._config = config
        self._cascade = cascade
        self._toolbox = toolbox

    def prepare(self) -> None:
        """Makes what some tenant's first chat would have to wait for."""
        named = (self._config.defaults, *(tenant.defaults for tenant in self._config.tenants))
        if any(defaults.tools_enabled_default for defaults in named):
            self._toolbox()

    async def stream(
        self, scope: Scope, request: ChatCompletionRequest, augment: Augment = ALL_AUGMENTATIONS
    ) -> AsyncGenerator[Chunk, None]:
        """The answer as chunks. The last holds the usage and, in it, the cost of the whole request. ``augment`` says what of the
        tenant's goes into the chat: its system prompt, its memory, and tools of the gateway that the model may use.

        Raises:
            SpassError: as ``Calls.chat``; before the first chunk unless an answer had begun.
        """
        if request.stream:
            scope = scope.streaming
        writer = ChunkWriter(request.model, include_usage=request.include_usage)
        async with aclosing(await self._answer(scope, request, augment)) as deltas:
            async for delta in deltas:
                if delta.finish_reason is None or delta.usage is None:
                    for chunk in writer.write(delta):
                        yield chunk
                else:
                    for chunk in writer.end(delta.finish_reason, delta.usage, scope.tally.total):
                        yield chunk

    async def complete(
        self, scope: Scope, request: ChatCompletionRequest, augment: Augment = ALL_AUGMENTATIONS
    ) -> ChatCompletion:
        """The whole answer: the stream, collected.

        Raises:
            SpassError: as ``Calls.chat``.
        """
        return collect_chunks([chunk async for chunk in self.stream(scope, request, augment)])

    async def _answer(self, scope: Scope, request: ChatCompletionRequest, augment: Augment) -> AsyncGenerator[ChatDelta, None]:
        settings = await self._cascade.effective(scope.store, bypass_cache=scope.bypass_cache)
        asked = add_tenant_messages(request.chat_request(), settings, augment)
        offer = self._offer(scope, settings, request) if augment.server_tools else None
        return offer.chat(self._calls, scope, asked) if offer else self._calls.chat(scope, asked)

    def _offer(self, scope: Scope, settings: TenantSettings, request: ChatCompletionRequest) -> ServerTools | None:
        """The gateway's tools for this chat. A caller who says which tool to call, or that none may be, has decided what the
        answer is; a tool of the caller's takes the place of the gateway's of the same name; and of ``MAX_TOOLS`` the caller's
        come first."""
        if request.tool_choice not in (None, "auto"):
            return None
        own = {tool.function.name for tool in request.tools or ()}
        names = [name for name in dict.fromkeys(settings.tools_enabled_default) if name not in own][: MAX_TOOLS - len(own)]
        if not names:
            return None
        toolbox = self._toolbox()
        specs = toolbox.specs(names, scope.caller.identity)
        return ServerTools(toolbox, specs) if specs else None

    async def embed(self, scope: Scope, request: EmbeddingsRequest) -> EmbeddingList:
        """One vector per text.

        Raises:
            InvalidRequest: there are too many texts, or the model has other dimensions.
            SpassError: as ``Calls.embed``.
        """
        check_count(request, self._config.limits)
        check_dimensions(request, self._calls.embedding_model(scope, request.model))
        return embeddings_response(request, await self._calls.embed(scope, request.input, request.model))
