"""The model routes of ``/v1``: translate between OpenAI's format and the pipeline."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spass.agents.render.chunks import ChunkWriter
from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.completions.answer import AnswerBuilder, pipeline_events
from spass.completions.augment import ALL_AUGMENTATIONS, Augment, add_tenant_messages
from spass.completions.chat_request import MAX_TOOLS, ChatCompletionRequest
from spass.completions.embeddings import EmbeddingsRequest, check_count, check_dimensions, embeddings_response
from spass.completions.responses import ChatCompletion, EmbeddingList
from spass.core.events import Event
from spass.core.ids import AGENT_MODEL_PREFIX
from spass.journal.frames import DONE, Frame
from spass.tenancy.config import GatewayConfig, model_not_found
from spass.tenancy.settings import Cascade
from spass.tenancy.stored_settings import ConfigValues

if TYPE_CHECKING:
    from spass.completions.agent_models import AgentModels
    from spass.completions.server_tools import ServerTools
    from spass.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class Completions:
    """Chat and embeddings in OpenAI's format.

    ``toolbox`` is called only if a tenant has server tools in its chats, and ``agent_models`` only if a chat names an agent: both
    import numpy.
    """

    calls: Calls
    config: GatewayConfig
    cascade: Cascade
    toolbox: "Callable[[], Toolbox]"
    agent_models: "Callable[[], AgentModels]"

    def prepare(self) -> None:
        """Load the toolbox and the driver if a tenant has server tools, so that its first chat does not wait for them."""
        all_defaults = (self.config.defaults, *(tenant.defaults for tenant in self.config.tenants))
        if any(defaults.tools_enabled_default for defaults in all_defaults):
            import spass.completions.server_tools  # noqa: F401

            self.toolbox()

    async def stream(
        self,
        scope: Scope,
        request: ChatCompletionRequest,
        augment: Augment = ALL_AUGMENTATIONS,
        answer: AnswerBuilder | None = None,
    ) -> AsyncGenerator[Frame, None]:
        """Yield the answer as chunks, and then ``DONE``. The last chunk has the usage with the cost of the whole request.
        ``augment`` selects what is added to the chat: the tenant's system prompt, its memory, and server tools. Nothing is added
        to an agent's. ``answer`` collects the answer, if it is given. Raise the errors of ``Calls.chat`` and
        ``AgentModels.events``; before the first chunk, unless an answer had started."""
        writer = ChunkWriter((answer or AnswerBuilder(request.model)).head, include_usage=request.include_usage)
        async with aclosing(await self._events(scope.streaming, request, augment)) as events:
            async for event in events:
                if answer is not None:
                    answer.add(event)
                for frame in writer.write(event):
                    yield frame
        yield DONE

    async def complete(
        self, scope: Scope, request: ChatCompletionRequest, augment: Augment = ALL_AUGMENTATIONS
    ) -> ChatCompletion:
        """Return the whole answer. Raise the errors of ``Calls.chat`` and ``AgentModels.events``."""
        answer = AnswerBuilder(request.model)
        async with aclosing(await self._events(scope, request, augment)) as events:
            async for event in events:
                answer.add(event)
        return answer.build()

    async def _events(self, scope: Scope, request: ChatCompletionRequest, augment: Augment) -> AsyncGenerator[Event, None]:
        if request.model.startswith(AGENT_MODEL_PREFIX):
            return self.agent_models().events(scope, request)
        if not self.config.has_model(request.model) and request.model in self.agent_models():
            raise model_not_found(request.model, names_agent=True)
        settings = (await self.cascade.effective(scope.store, bypass_cache=scope.bypass_cache)).config
        augmented = add_tenant_messages(request.chat_request(), settings, augment)
        server_tools = self._server_tools(scope, settings, request) if augment.server_tools else None
        if server_tools:
            return server_tools.events(self.calls, scope, augmented)
        return pipeline_events(self.calls.chat(scope, augmented), scope.tally)

    def _server_tools(self, scope: Scope, settings: ConfigValues, request: ChatCompletionRequest) -> "ServerTools | None":
        """Return the server tools of this chat, or None. There are none if the caller sets ``tool_choice``. A caller's tool
        replaces a server tool of the same name, and the caller's tools come first within ``MAX_TOOLS``."""
        if request.tool_choice not in (None, "auto"):
            return None
        caller_tools = {tool.function.name for tool in request.tools or ()}
        names = [name for name in dict.fromkeys(settings.tools_enabled_default) if name not in caller_tools]
        names = names[: MAX_TOOLS - len(caller_tools)]
        if not names:
            return None
        from spass.completions.server_tools import ServerTools

        toolbox = self.toolbox()
        specs = toolbox.specs(scope, names)
        return ServerTools(toolbox, specs) if specs else None

    async def embed(self, scope: Scope, request: EmbeddingsRequest) -> EmbeddingList:
        """Return one vector per text. Raise InvalidRequest if there are too many texts, or the model has other
        dimensions, and the errors of ``Calls.embed``."""
        check_count(request, self.config.limits)
        check_dimensions(request, self.calls.embedding_model(scope, request.model))
        return embeddings_response(request, await self.calls.embed(scope, request.input, request.model))
