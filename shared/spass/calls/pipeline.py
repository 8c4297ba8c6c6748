"""Call a model. Every call passes, in this order: allow-list, depth, admission, defence, router, recognition of calls in text,
redaction, cost and audit."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from decimal import Decimal
from typing import Final, Literal

from spass.calls.admission import Admission
from spass.calls.defence import MAX_CHARACTERS, sanitize_request
from spass.calls.recorder import RecordedCall, Recorder, price, record_call
from spass.calls.reply_redaction import ReplyRedactor, build_redactor, model_round_trip
from spass.calls.scope import MAX_CALLER_DEPTH, Scope
from spass.calls.text_calls import text_call_reader
from spass.core.cost import Cost, CostSource
from spass.core.errors import InvalidRequest, ModelNotAllowed, RecursionDepthExceeded, SpassError, UpstreamError
from spass.core.messages import NO_TOKENS, TokenUsage
from spass.core.tasks import run_in_worker_thread
from spass.limits.shard import Reservation
from spass.metering.audit import CallKind
from spass.models.attempt import estimate_tokens, expected_usage
from spass.models.router import Router
from spass.models.types import ChatDelta, ChatRequest, EmbeddingReply
from spass.redaction.redactor import Redactor
from spass.tenancy.config import GatewayConfig, ModelConfig
from spass.tenancy.settings import Cascade


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
        self.redactor = redactor or build_redactor(config, router.keys)

    @property
    def usd_to_eur(self) -> Decimal:
        return self._config.usd_to_eur

    def chat(self, scope: Scope, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Yield the answer in deltas. Close the iterator (``aclose``) to stop early: this closes the connection to the provider.

        The last delta has no text. It has the finish reason, the cost and the usage. The usage includes the attempts whose
        answers were lost, and is an estimate where the provider did not count. Before the last delta, the call is added to the
        tally and recorded in the audit. This method raises the first two errors itself; the iteration raises the others.

        Raises:
            ModelNotFound, ModelNotAllowed, InvalidRequest: this caller cannot use the model, or not for a chat.
            RecursionDepthExceeded: too many gateways have called each other.
            RateLimited, BudgetExceeded: the tenant or the backends have no capacity for the call.
            InputRefused: a message is too long or has no visible character.
            UpstreamError, UpstreamRejected, ContextLengthExceeded, UpstreamTimeout, NoBackendAvailable: the model failed.
        """
        model = self.chat_model(scope, request.model)
        return self._chat(scope, model, request)

    async def _chat(self, scope: Scope, model: ModelConfig, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        characters = request.count_characters()
        expected = expected_usage(characters, request.max_tokens, model.context_window)
        async with self._admission.admit(scope, expected, self._price(model, expected)) as reservation:
            sanitized = await run_in_worker_thread(characters, sanitize_request, request)
            redacted = ReplyRedactor(self.redactor)
            text_calls = text_call_reader(model, sanitized.request, sanitized.mark)
            # What came with the finish reason leaves with what is held until the end, so that a whole answer stays in one piece.
            last: ChatDelta | None = None
            received = 0

            def redact(delta: ChatDelta) -> ChatDelta:
                return redacted.feed(sanitized.feed(delta))

            try:
                async with (
                    self._recorded(scope, CallKind.CHAT, model, reservation) as call,
                    aclosing(
                        self._router.chat(sanitized.request, call.context.with_expected_usage(expected), call.routing)
                    ) as deltas,
                ):
                    async for raw in deltas:
                        received += (characters := _count_characters(raw))
                        if received > MAX_CHARACTERS:  # in a session, a longer message would have all further turns refused
                            raise UpstreamError(f"The answer of the model has more than {MAX_CHARACTERS:,} characters.")
                        delta = raw
                        if text_calls is not None:
                            delta = text_calls.feed(raw)
                            characters = _count_characters(delta)
                        call.builder.add(delta)
                        piece = _text_of(await run_in_worker_thread(characters, redact, delta))
                        if delta.finish_reason is not None:
                            last = _join(last, piece)
                        elif piece is not None:
                            text, last = _join(last, piece), None
                            yield text
                    if text_calls is not None:
                        call.builder.add(held := text_calls.flush())
                        last = _join(last, redact(held))
                    text, last = _join(last, redacted.flush()), None
                    if _text_of(text):
                        yield text
            except SpassError:
                if rest := _text_of(_join(last, redacted.flush(breaks_off=True))):
                    yield rest
                raise
        yield ChatDelta(
            finish_reason=call.builder.reply.finish_reason,
            usage=call.routing.usage,
            cost_usd=None if call.cost.source is CostSource.NONE else call.cost.usd,
            failed_attempt_usage=call.routing.failed_attempt_usage,
        )

    def admit_foreign_agent(self, scope: Scope, prompt: str) -> AbstractAsyncContextManager[Reservation | None]:
        """Reserve the tokens of ``prompt`` and one cent for a run that calls models itself, or raise ``RateLimited`` or
        ``BudgetExceeded``. Its cost is known only at its end."""
        return self._admission.admit(scope, TokenUsage(estimate_tokens(len(prompt))), _COST_OF_FOREIGN_AGENT)

    async def embed(self, scope: Scope, texts: Sequence[str], model: str | None = None) -> EmbeddingReply:
        """Return one vector per text, in the order of ``texts``, from ``model`` or the configured embedding model. The first
        request that fails after all its retries cancels the others. It raises the errors of ``chat``."""
        config = self.embedding_model(scope, model)
        dimensions = config.dimensions or 0
        if not texts:
            return EmbeddingReply(b"", 0, dimensions, NO_TOKENS)
        expected = TokenUsage(sum(estimate_tokens(len(text)) for text in texts))
        async with (
            self._admission.admit(scope, expected, self._price(config, expected)) as reservation,
            self._recorded(scope, CallKind.EMBEDDING, config, reservation) as call,
        ):
            data = await self._router.embed_texts(config.name, texts, call.context, call.routing)
        return EmbeddingReply(data, len(texts), dimensions, call.routing.usage)

    def model_round_trip(self, text: str) -> str:
        """Return ``text`` as a model reads it in a prompt of ``chat`` and as its repetition arrives. 2 MiB take a second."""
        return model_round_trip(text, self.redactor.secrets())

    def begins_thinking(self, model: str) -> bool:
        """Return True if ``model`` is known and begins its replies with think text."""
        return any(known.name == model and known.begins_thinking for known in self._config.models)

    def chat_model(self, scope: Scope, name: str) -> ModelConfig:
        """Return the model ``name``, or raise the error of ``chat``."""
        return self._allowed_model(scope, name, "chat")

    def embedding_model(self, scope: Scope, name: str | None = None) -> ModelConfig:
        """Return the model that ``embed`` uses, or raise the error of ``chat``."""
        return self._allowed_model(scope, name or self._config.defaults.embedding_model, "embedding")

    def _allowed_model(self, scope: Scope, name: str, kind: Literal["chat", "embedding"]) -> ModelConfig:
        model = self._config.model(name)
        if not scope.caller.identity.allows(name):
            raise ModelNotAllowed(f"This token may not use the model '{name}'.", param="model")
        if model.kind != kind:
            raise InvalidRequest(
                f"Model '{name}' is {_KIND_NAMES[model.kind]}. This call needs {_KIND_NAMES[kind]}.", param="model"
            )
        if scope.depth >= MAX_CALLER_DEPTH:
            raise RecursionDepthExceeded(
                f"This work is {scope.depth} sub-calls deep. At a depth of {MAX_CALLER_DEPTH} no model can be called."
            )
        return model

    def _recorded(
        self, scope: Scope, kind: CallKind, model: ModelConfig, reservation: Reservation | None
    ) -> AbstractAsyncContextManager[RecordedCall]:
        """Account for one call when the body ends, as ``record_call`` does."""
        recorder = Recorder(scope, kind, model=model.name, reservation=reservation)
        return record_call(recorder, kind, model, self.redactor, self.usd_to_eur)

    def _price(self, model: ModelConfig, usage: TokenUsage) -> Cost:
        return price(model, usage, reported_usd=None, usd_to_eur=self._config.usd_to_eur)


_COST_OF_FOREIGN_AGENT: Final = Cost(Decimal("0.01"))
_KIND_NAMES: Final = {"chat": "a chat model", "embedding": "an embedding model"}


def _count_characters(delta: ChatDelta) -> int:
    arguments = sum(len(call.arguments) for call in delta.tool_calls) if delta.tool_calls else 0
    return len(delta.content) + len(delta.refusal) + arguments


def _join(first: ChatDelta | None, second: ChatDelta | None) -> ChatDelta:
    """Return one delta with the text and the tool calls of both."""
    if first is None or second is None:
        return first or second or ChatDelta()
    calls = first.tool_calls + second.tool_calls
    return ChatDelta(first.content + second.content, calls, refusal=first.refusal + second.refusal)


def _text_of(delta: ChatDelta) -> ChatDelta | None:
    """Return the text and tool calls of ``delta`` without its totals, or None if it has neither."""
    if not (delta.content or delta.tool_calls or delta.refusal):
        return None
    if delta.finish_reason is None and delta.usage is None and delta.cost_usd is None:
        return delta
    return ChatDelta(delta.content, delta.tool_calls, refusal=delta.refusal)
