"""The one way to call a model: allow-list, depth, admission, defence, router, redaction, cost, audit, in this order, wherever the
call starts."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from decimal import Decimal
from typing import Final, Literal

from spass.calls.admission import Admission
from spass.calls.answer_redaction import AnswerRedactor, redactor_of
from spass.calls.defence import count_request_characters, sanitize_request
from spass.calls.embedding import EmbeddingRequests
from spass.calls.estimate import estimate_tokens, expected_usage
from spass.calls.recorder import Recorder
from spass.calls.scope import MAX_CALLER_DEPTH, Scope
from spass.calls.worker_thread import run_in_worker_thread
from spass.core.cost import Cost, CostSource
from spass.core.errors import InvalidRequest, ModelNotAllowed, RecursionDepthExceeded, SpassError
from spass.core.messages import TokenUsage
from spass.llm.router import Router, RoutingRecord
from spass.llm.types import ChatDelta, ChatRequest, EmbeddingReply, ReplyBuilder
from spass.metering import audit
from spass.metering.audit import CallKind
from spass.metering.pricing import price
from spass.redaction.redactor import Redactor
from spass.tenancy.config import GatewayConfig, ModelConfig
from spass.tenancy.settings import Cascade

_NOTHING: Final = TokenUsage()


class Calls:
    """The pipeline of every model call."""

    def __init__(
        self,
        config: GatewayConfig,
        router: Router,
        cascade: Cascade,
        *,
        admission: Admission | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        self._config = config
        self._router = router
        self._admission = admission or Admission(cascade)
        self._redactor = redactor or redactor_of(config, router.keys)

    def chat(self, scope: Scope, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """The answer in pieces. The last piece holds no text but the finish reason, the usage (estimated where the provider said
        none, and with what tries took whose answers were lost) and the cost; before it comes, the call is on the tally and in
        the audit.

        The first two of these are raised at once, the others by the iteration. Who stops half-way closes the iterator
        (``aclose``), and with it the connection to the provider.

        Raises:
            ModelNotFound, ModelNotAllowed, InvalidRequest: this model cannot be called so.
            RecursionDepthExceeded: too many gateways have called each other to get here.
            RateLimited, BudgetExceeded: the tenant or the backends have no room for it.
            InputRefused: what it holds may not be sent to a model.
            UpstreamError, UpstreamRejected, ContextLengthExceeded, UpstreamTimeout, NoBackendAvailable: the model failed.
            StorageUnavailable: whether there is room for it cannot be known now.
        """
        model = self._admit(scope, request.model, "chat")
        return self._chat(scope, model, request)

    async def _chat(self, scope: Scope, model: ModelConfig, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        expected = expected_usage(request, model.context_window)
        admitted = await self._admission.admit(scope, expected, self._price(model, expected))
        try:
            harmless = await run_in_worker_thread(count_request_characters(request), sanitize_request, request)
        except BaseException:
            await admitted.settle(_NOTHING, Cost())
            raise
        recorder = Recorder(scope, CallKind.CHAT, model=model.name, admitted=admitted)
        heard, redacted = ReplyBuilder(), AnswerRedactor(self._redactor)
        status, cost = audit.FAILED, Cost()

        def passed(delta: ChatDelta) -> ChatDelta:
            return redacted.feed(harmless.heard(delta))

        routed = self._router.chat(harmless.request, recorder.context.with_expected(expected))
        try:
            async with aclosing(routed) as deltas:
                async for delta in deltas:
                    heard.add(delta)
                    if said := _without_totals(await run_in_worker_thread(_characters(delta), passed, delta)):
                        yield said
            if said := _without_totals(redacted.flush()):
                yield said
            status = audit.OK
        except SpassError as error:
            status = error.code
            if said := _without_totals(redacted.flush()):
                yield said
            raise self._redactor.redact_error(error) from None
        except (GeneratorExit, asyncio.CancelledError):
            status = audit.CANCELLED
            raise
        finally:
            reply, route = heard.reply, routed.route
            cost = self._cost(model, route, status, reply.cost_usd)
            await recorder.finish(
                status, route=route, cost=cost, finish_reason=reply.finish_reason if status == audit.OK else None
            )
        price_said = None if cost.source is CostSource.NONE else cost.usd
        yield ChatDelta(finish_reason=reply.finish_reason, usage=route.usage, cost_usd=price_said, lost=route.lost)

    async def embed(self, scope: Scope, texts: Sequence[str], model: str | None = None) -> EmbeddingReply:
        """One vector per text, in their order, by the configured embedding model or, where a caller names one, by that. All of
        them or none: the first request that fails for good ends the others.

        Raises:
            as ``chat``.
        """
        by = self.embedding_model(scope, model)
        if not texts:
            return EmbeddingReply(b"", 0, by.dimensions or 0, _NOTHING)
        expected = TokenUsage(sum(estimate_tokens(len(text)) for text in texts))
        admitted = await self._admission.admit(scope, expected, self._price(by, expected))
        recorder = Recorder(scope, CallKind.EMBEDDING, model=by.name, admitted=admitted)
        requests = EmbeddingRequests(self._router, by.name, recorder.context)
        status = audit.FAILED
        try:
            data = await requests.embed(texts)
            status = audit.OK
        except SpassError as error:
            status = error.code
            raise self._redactor.redact_error(error) from None
        except asyncio.CancelledError:
            status = audit.CANCELLED
            raise
        finally:
            route = requests.route
            await recorder.finish(status, route=route, cost=self._cost(by, route, status, None))
        return EmbeddingReply(data, len(texts), by.dimensions or 0, route.usage)

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
        if scope.depth >= MAX_CALLER_DEPTH:
            raise RecursionDepthExceeded(
                f"This work is {scope.depth} sub-calls deep; at {MAX_CALLER_DEPTH} it may call no further."
            )
        return model

    def _cost(self, model: ModelConfig, route: RoutingRecord, status: str, said_usd: Decimal | None) -> Cost:
        """Return the cost of one call, that of its lost tries included. ``said_usd`` is what the provider said of the answer; a 0
        beside tokens that it did not count says nothing."""
        if status != audit.OK and route.usage == _NOTHING:
            return Cost()
        if route.estimated and not said_usd:
            said_usd = None
        cost = self._price(model, route.answered, said_usd)
        return cost if route.lost == _NOTHING else replace(cost + self._price(model, route.lost), sub_calls=1)

    def _price(self, model: ModelConfig, usage: TokenUsage, said_usd: Decimal | None = None) -> Cost:
        return price(model, usage, said_usd=said_usd, usd_to_eur=self._config.usd_to_eur)


def _characters(delta: ChatDelta) -> int:
    return len(delta.content) + len(delta.refusal) + sum(len(call.arguments) for call in delta.tool_calls)


def _without_totals(delta: ChatDelta) -> ChatDelta | None:
    """``delta`` without the figures that come last; None if nothing is left of it."""
    if delta.content or delta.tool_calls or delta.refusal:
        return ChatDelta(delta.content, delta.tool_calls, refusal=delta.refusal)
    return None
