"""Call models from code that runs beside the gateway: a function, a script, a notebook.

The calls use the router that ``gateway.yaml`` describes, with its strategies, retries and limits of backends. They have no token:
the allow-list, the budget and the input defence of tenants do not apply to them.
"""

import json
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from spass.calls.recorder import RecordedCall, record_call
from spass.calls.reply_redaction import build_redactor
from spass.calls.scope import REQUEST_SECONDS, Scope
from spass.calls.text_calls import text_call_reader
from spass.core.errors import InvalidRequest
from spass.core.ids import AGENT_NAME, AgentName
from spass.core.messages import Json, TokenUsage, ToolCall
from spass.core.time import Deadline
from spass.limits.shard import Reservation
from spass.llm.plain_messages import read_messages, read_tools
from spass.llm.usage_log import AgentUsage, UsageLog
from spass.metering.audit import CallKind
from spass.models.attempt import expected_usage
from spass.models.router import Router
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply
from spass.redaction.log import log_to_stderr
from spass.store.tenant_store import TenantStore
from spass.tenancy.config import GatewayConfig, ModelConfig

_UNKNOWN_WINDOW: Final = 2**31 - 1  # tokens: the context window of a model that is not in the catalogue


@dataclass(frozen=True, slots=True)
class CompletionReply:
    """The answer to ``complete``.

    ``model`` is the name that the provider reports, or else the requested one. ``usage`` has the keys ``prompt_tokens``,
    ``completion_tokens`` and ``total_tokens``. ``raw`` is the provider's own answer, as parsed JSON. ``tool_calls`` are the calls
    of tools that the model asks for; their ``arguments`` are JSON as the model wrote it.
    """

    content: str
    model: str
    usage: Mapping[str, int]
    finish_reason: str
    raw: Any
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class EmbeddingsReply:
    """The answer to ``embed``: one vector per text, in their order."""

    vectors: list[list[float]]
    model: str
    usage: Mapping[str, int]


class InProcessCalls:
    """The calls of one process. ``store`` is that of the tenant to charge, or None without a deployment. ``key_of`` returns the
    key in a variable."""

    def __init__(
        self,
        config: GatewayConfig,
        router: Router,
        log: UsageLog,
        store: TenantStore | None = None,
        key_of: Callable[[str], str | None] = os.environ.get,
    ) -> None:
        self.config = config
        self.store = store
        self.key_of = key_of
        self._models = {model.name: model for model in config.models}
        self._router = router
        self._log = log
        self.redactor = build_redactor(config, router.keys)

    async def complete(
        self,
        model: str,
        messages: Sequence[Mapping[str, object]],
        *,
        agent_id: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        tools: Sequence[Mapping[str, Json]] = (),
    ) -> CompletionReply:
        """See ``spass.llm.complete``."""
        config = self._model(model, "chat")
        request = ChatRequest(model, read_messages(messages), read_tools(tools), temperature=temperature, max_tokens=max_tokens)
        window = config.context_window if config else _UNKNOWN_WINDOW
        expected = expected_usage(request.count_characters(), max_tokens, window)
        bodies: list[bytes] = []
        async with self._call(CallKind.CHAT, model, agent_id) as call:
            context = replace(call.context, expected_usage=expected, on_body=bodies.append)
            async with aclosing(self._chat(request, context, call)) as deltas:
                async for _ in deltas:
                    pass
        reply = call.builder.reply.with_refusal_as_text
        raw = json.loads(bodies[-1].decode(errors="replace")) if bodies else None
        return CompletionReply(
            reply.message.content,
            _reported_model(raw) or model,
            _tokens(call.routing.usage),
            reply.finish_reason.value,
            raw,
            reply.message.tool_calls,
        )

    async def chat(self, scope: Scope, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Yield the answer to ``request`` in deltas, before the deadline of ``scope``. Its cost and its tokens are added to its
        tally, and its usage is counted for the agent. Raise the errors of ``complete``."""
        config = self._model(request.model, "chat")
        window = config.context_window if config else _UNKNOWN_WINDOW
        expected = expected_usage(request.count_characters(), request.max_tokens, window)
        call: RecordedCall | None = None
        try:
            async with (
                self._call(CallKind.CHAT, request.model, scope.agent, scope.deadline) as call,
                aclosing(self._chat(request, replace(call.context, expected_usage=expected), call)) as deltas,
            ):
                async for delta in deltas:
                    yield delta
        finally:
            if call is not None:
                scope.tally.add(call.cost, call.routing.usage)

    @property
    def usd_to_eur(self) -> Decimal:
        """Return the euros of one US dollar."""
        return self.config.usd_to_eur

    def begins_thinking(self, model: str) -> bool:
        """Return whether ``model`` begins its replies with think text."""
        config = self._models.get(model)
        return config is not None and config.begins_thinking

    def model_round_trip(self, text: str) -> str:
        """Return ``text`` as a model reads it: these calls send it as it is."""
        return text

    def admit_foreign_agent(self, scope: Scope, prompt: str) -> AbstractAsyncContextManager[Reservation | None]:
        """Admit every run of a foreign agent: the operator's own code has no budget."""
        del scope, prompt
        return nullcontext(None)

    async def embed(self, model: str, texts: Sequence[str], *, agent_id: str | None = None) -> EmbeddingsReply:
        """Return one vector per text. Raise the errors of ``complete``."""
        config = self._model(model, "embedding")
        if isinstance(texts, str) or not all(texts):
            raise InvalidRequest("texts is a list of texts, none of which is empty.", param="texts")
        if not texts:
            return EmbeddingsReply([], model, _tokens(TokenUsage()))
        async with self._call(CallKind.EMBEDDING, model, agent_id) as call:
            data = await self._router.embed_texts(model, texts, call.context, call.routing)
        dimensions = (config.dimensions if config else None) or len(data) // 4 // len(texts)
        reply = EmbeddingReply(data, len(texts), dimensions, call.routing.usage)
        return EmbeddingsReply(reply.rows(), model, _tokens(call.routing.usage))

    def get_agent_usage(self, agent_id: str) -> AgentUsage:
        """Return the usage of ``agent_id``, which is 0 if it made no call."""
        return self._log.get_agent_usage(_agent(agent_id))

    def get_all_usage(self) -> dict[str, AgentUsage]:
        """Return the usage of every agent that made a call."""
        return self._log.get_all_usage()

    def reset_agent_usage(self, agent_id: str | None = None) -> None:
        """Set the usage of ``agent_id``, or of all agents, to 0."""
        self._log.reset_agent_usage(None if agent_id is None else _agent(agent_id))

    async def aclose(self) -> None:
        """Close the connections to all backends and to the table. Later calls open new ones."""
        await self._router.aclose()
        await self._log.aclose()

    async def _chat(self, request: ChatRequest, context: CallContext, call: RecordedCall) -> AsyncGenerator[ChatDelta, None]:
        """Yield the answer of a backend, with the calls that it writes as text."""
        config = self._models.get(request.model)
        reader = text_call_reader(config, request, None) if config else None
        async with aclosing(self._router.chat(request, context, call.routing)) as deltas:
            async for raw in deltas:
                call.builder.add(delta := raw if reader is None else reader.feed(raw))
                yield delta
        if reader is not None:
            call.builder.add(rest := reader.flush())
            yield rest

    def _model(self, name: str, kind: str) -> ModelConfig | None:
        """Return the catalogue's entry for a model, or None: a backend may serve a model that the catalogue does not list."""
        config = self._models.get(name)
        if config is not None and config.kind != kind:
            function = "embed" if config.kind == "embedding" else "complete"
            raise InvalidRequest(f"Model '{name}' is of the kind {config.kind}. Call {function} with it.", param="model")
        return config

    @asynccontextmanager
    async def _call(
        self, kind: CallKind, model: str, agent_id: str | None, deadline: Deadline | None = None
    ) -> AsyncIterator[RecordedCall]:
        """Count one call when the body ends. Errors are those of ``record_call``."""
        agent = None if agent_id is None else _agent(agent_id)
        opened = self._log.begin(kind, model, agent, deadline or Deadline.after(REQUEST_SECONDS))
        with log_to_stderr():
            async with record_call(opened, kind, self._models.get(model), self.redactor, self.usd_to_eur) as call:
                yield call


def _agent(name: str) -> AgentName:
    if not re.fullmatch(AGENT_NAME, name):
        raise InvalidRequest(f"agent_id is {name!r:.140}. Use 1 to 128 of: A-Z a-z 0-9 _ -", param="agent_id")
    return AgentName(name)


def _tokens(usage: TokenUsage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def _reported_model(raw: object) -> str | None:
    model = raw.get("model") if isinstance(raw, dict) else None
    return model if isinstance(model, str) and model else None
