"""The one way to call a model: allow-list, depth, router, scrubbing, cost, audit, in this order, wherever the call starts."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, Literal

from spass.calls.embedding import EmbeddingRequests
from spass.calls.estimate import estimated_usage
from spass.calls.recorder import Recorder
from spass.calls.scope import MAX_DEPTH, Scope
from spass.core.cost import Cost, CostSource
from spass.core.errors import InvalidRequest, ModelNotAllowed, RecursionDepthExceeded, SpassError
from spass.core.messages import TokenUsage
from spass.llm.router import Router
from spass.llm.scrub import scrub
from spass.llm.types import ChatDelta, ChatReply, ChatRequest, EmbeddingReply, ReplyBuilder
from spass.metering import audit
from spass.metering.audit import CallKind
from spass.metering.cost import price
from spass.tenancy.config import GatewayConfig, ModelConfig

_NOTHING: Final = TokenUsage()


class Calls:
    """The pipeline of every model call."""

    def __init__(self, config: GatewayConfig, router: Router) -> None:
        self._config = config
        self._router = router

    def chat(self, scope: Scope, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """The answer in pieces. The last piece holds no text but the finish reason, the usage (estimated where the provider said
        none) and the cost; before it comes, the call is on the tally and in the audit.

        Refusals are raised at once; what goes wrong with the model is raised by the iteration. Who stops half-way closes the
        iterator (``aclose``), and with it the connection to the provider.

        Raises:
            ModelNotFound, ModelNotAllowed, InvalidRequest: this model cannot be called so.
            RecursionDepthExceeded: too many gateways have called each other to get here.
            UpstreamError, UpstreamRejected, ContextLengthExceeded, UpstreamTimeout, RateLimited, NoBackendAvailable: the model
                failed.
        """
        model = self._admit(scope, request.model, "chat")
        return self._chat(scope, model, request)

    async def _chat(self, scope: Scope, model: ModelConfig, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        recorder = Recorder(scope, CallKind.CHAT, model.name)
        built = ReplyBuilder()
        begun = False
        status = audit.FAILED
        routed = self._router.chat(request, recorder.context)
        try:
            async with aclosing(routed) as deltas:
                async for delta in deltas:
                    begun = True
                    built.add(delta)
                    if delta.content or delta.tool_calls or delta.refusal:
                        yield ChatDelta(delta.content, delta.tool_calls, refusal=delta.refusal)
            status = audit.OK
        except SpassError as error:
            status = error.code
            raise _scrubbed(error) from None
        except (GeneratorExit, asyncio.CancelledError):
            status = audit.CANCELLED
            raise
        finally:
            reply = built.reply
            usage = reply.usage or (estimated_usage(request, reply.spoken.message) if begun else _NOTHING)
            cost = self._price(model, usage, reply) if begun else Cost()
            await recorder.finish(
                status=status,
                backend=routed.backend,
                attempts=routed.attempts,
                usage=usage,
                estimated=begun and reply.usage is None,
                cost=cost,
                finish_reason=reply.finish_reason if status == audit.OK else None,
            )
        said = None if cost.source is CostSource.NONE else cost.usd
        yield ChatDelta(finish_reason=reply.finish_reason, usage=usage, cost_usd=said)

    async def embed(self, scope: Scope, texts: Sequence[str], model: str | None = None) -> EmbeddingReply:
        """One vector per text, in their order, by the configured embedding model or, where a caller names one, by that. All of
        them or none: the first request that fails for good ends the others.

        Raises:
            as ``chat``.
        """
        admitted = self.embedding_model(scope, model)
        if not texts:
            return EmbeddingReply(b"", 0, admitted.dimensions or 0, _NOTHING)
        recorder = Recorder(scope, CallKind.EMBEDDING, admitted.name)
        requests = EmbeddingRequests(self._router, admitted.name, recorder.context)
        status = audit.FAILED
        try:
            data = await requests.embed(texts)
            status = audit.OK
        except SpassError as error:
            status = error.code
            raise _scrubbed(error) from None
        except asyncio.CancelledError:
            status = audit.CANCELLED
            raise
        finally:
            await recorder.finish(
                status=status,
                backend=requests.backend,
                attempts=requests.attempts,
                usage=requests.usage,
                estimated=requests.estimated,
                cost=self._price(admitted, requests.usage, None) if requests.answered else Cost(),
            )
        return EmbeddingReply(data, len(texts), admitted.dimensions or 0, requests.usage)

    def embedding_model(self, scope: Scope, name: str | None = None) -> ModelConfig:
        """The model that ``embed`` takes.

        Raises:
            ModelNotFound, ModelNotAllowed, InvalidRequest, RecursionDepthExceeded: ``embed`` would refuse.
        """
        return self._admit(scope, name or self._config.defaults.embedding_model, "embedding")

    def _admit(self, scope: Scope, name: str, kind: Literal["chat", "embedding"]) -> ModelConfig:
        model = self._config.model(name)
        if not scope.caller.identity.allows(name):
            raise ModelNotAllowed(f"This token may not use the model '{name}'.", param="model")
        if model.kind != kind:
            raise InvalidRequest(f"'{name}' is no {kind} model.", param="model")
        if scope.depth > MAX_DEPTH:
            raise RecursionDepthExceeded(f"This call is {scope.depth} sub-calls deep; {MAX_DEPTH} are allowed.")
        return model

    def _price(self, model: ModelConfig, usage: TokenUsage, reply: ChatReply | None) -> Cost:
        said = reply.cost_usd if reply else None
        return price(model, usage, said_usd=said, usd_to_eur=self._config.usd_to_eur)


def _scrubbed(error: SpassError) -> SpassError:
    """The same error without keys, hosts, paths and ARNs in its words: the last gate for whatever comes from a provider."""
    return type(error)(scrub(error.message), param=error.param, details=error.details, retry_after=error.retry_after)
