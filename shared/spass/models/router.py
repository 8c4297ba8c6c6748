"""Route a model call to a backend; retry it, or fail over to another backend."""

import asyncio
import math
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Final, TypeVar

from spass.core.errors import SpassError
from spass.core.messages import TokenUsage
from spass.core.tasks import run_concurrently
from spass.limits.shard import LimitTable
from spass.models.attempt import Attempt, RoutingRecord, estimate_tokens
from spass.models.backend_limits import STRATEGIES, BackendLimits
from spass.models.backends import serves
from spass.models.batching import batches, embedding_limits
from spass.models.circuit_breaker import CircuitBreaker
from spass.models.errors import (
    AttemptFailed,
    BackendAuthError,
    BackendBadRequest,
    BackendForbidden,
    BackendLimitReached,
    BackendLimitUnknown,
    BackendRequestTooLarge,
    BackendTimeout,
    BackendUnavailable,
    BackendUnsupported,
)
from spass.models.pool import KeyOf, ProviderOf, ProviderPool
from spass.models.provider_registry import make_provider
from spass.models.retries import RetrySchedule, Timing
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest
from spass.tenancy.config import BackendConfig, LlmConfig, ModelConfig

R = TypeVar("R", ChatRequest, EmbeddingRequest)

_NOT_SENT_FAILURES: Final = (BackendLimitReached, BackendLimitUnknown, BackendUnsupported)
_REQUEST_ONLY_FAILURES: Final = (BackendForbidden, BackendRequestTooLarge)
_SAMPLING_FIELDS: Final = frozenset({"presence_penalty", "frequency_penalty", "logit_bias"})


class Router:
    """Route the model calls of a process. ``limits`` returns the table of the backends' limits; without it they have none."""

    def __init__(
        self,
        config: LlmConfig,
        models: Iterable[ModelConfig],
        key_of: KeyOf,
        *,
        limits: Callable[[], LimitTable] | None = None,
        timing: Timing | None = None,
        provider_of: ProviderOf = make_provider,
    ) -> None:
        self._config = config
        self._models = {model.name: model for model in models}
        self._timing = timing or Timing()
        self._strategy = STRATEGIES[config.strategy]()
        self._circuits = CircuitBreaker(config.retry_max_delay, self._timing.clock)
        self._limits = BackendLimits(limits, clock=self._timing.wall)
        self._pool = ProviderPool(key_of, provider_of)

    def serves(self, model: str) -> bool:
        """Return True if a backend is configured for ``model``. Its key may be missing."""
        return bool(self._serving(model))

    def keys(self) -> list[str]:
        """Return the provider keys in use. They must not leave the process."""
        return self._pool.keys()

    async def chat(
        self, request: ChatRequest, context: CallContext, routing: RoutingRecord | None = None
    ) -> AsyncGenerator[ChatDelta, None]:
        """Yield the answer to ``request``. Fill in ``routing``, also on failure. After the first delta the router does not retry.

        Raises:
            UpstreamRejected, ContextLengthExceeded, RateLimited, UpstreamError, UpstreamTimeout, NoBackendAvailable: no backend
                answered, or the answer ended too early.
        """
        routing = routing or RoutingRecord()
        schedule = await self._schedule(request.model, context)
        if model := self._models.get(request.model):
            request = _for_model(request, model)
        while True:
            backend = await schedule.next()
            attempt_context = context.new_attempt()
            attempt = attempt_context.attempt
            try:
                answer = self._pool[backend].chat(_with_backend_model(backend, request), attempt_context)
                async with self._attempt(backend, attempt_context, routing), aclosing(answer) as deltas:
                    with _unbill_on_error(attempt):
                        async for delta in deltas:
                            if not attempt.started:
                                self._circuits.record_success(backend.name, attempt.expected_usage.total_tokens)
                            attempt.record_chunk(delta.characters, delta.usage)
                            yield delta
            except AttemptFailed as failure:
                self._record_failure(schedule, backend, failure, attempt, started=attempt.started)
            else:
                return

    async def embed(
        self, request: EmbeddingRequest, context: CallContext, routing: RoutingRecord | None = None
    ) -> EmbeddingReply:
        """Return one vector per text: finite numbers, the catalogue's dimensions. Fill in ``routing``, also on failure.

        Raises:
            SpassError: the same as ``chat``.
        """
        routing = routing or RoutingRecord()
        schedule = await self._schedule(request.model, context)
        model_config = self._models.get(request.model)
        request = replace(request, dimensions=model_config.dimensions if model_config else None)
        while True:
            backend = await schedule.next()
            attempt_context = context.new_attempt()
            try:
                async with self._attempt(backend, attempt_context, routing):
                    reply = await self._pool[backend].embed(_with_backend_model(backend, request), attempt_context)
                    attempt_context.attempt.record_chunk(0, reply.usage)
                    _check_vectors(reply, len(request.texts), model_config)
                    self._circuits.record_success(backend.name, context.expected_usage.total_tokens)
            except AttemptFailed as failure:
                self._record_failure(schedule, backend, failure, attempt_context.attempt, started=False)
            else:
                return reply

    async def embed_texts(self, model: str, texts: Sequence[str], context: CallContext, routing: RoutingRecord) -> bytes:
        """Return the vectors of ``texts`` as the ``data`` of an ``EmbeddingReply``. Send as many requests as their number needs.

        Add the attempts and the tokens of all requests to ``routing``, also on failure. Its backend is the one of the request
        that failed first, or else of the newest request.

        Raises:
            SpassError: the first failure of ``embed``. No other request is in flight then.
        """
        model_config = self._models.get(model)
        limits = embedding_limits(self._serving(model), model_config.dimensions if model_config else None, model)
        parts = [*batches(texts, limits)]
        vectors: dict[int, bytes] = {}
        routings: list[RoutingRecord] = []
        failed: list[RoutingRecord] = []
        remaining = iter(enumerate(parts))

        async def embed_remaining() -> None:
            for number, batch in remaining:  # the concurrent workers share this iterator
                routings.append(own := RoutingRecord())
                expected = TokenUsage(sum(estimate_tokens(len(text)) for text in batch))
                try:
                    reply = await self.embed(EmbeddingRequest(model, batch), context.with_expected_usage(expected), own)
                except SpassError:
                    failed.append(own)
                    raise
                vectors[number] = reply.data

        try:
            await run_concurrently([embed_remaining() for _ in range(min(limits.concurrency, len(parts)))])
        finally:
            for one in routings:
                routing.add(one)
            routing.backend = next((one.backend for one in [*failed, *reversed(routings)]), None)
        if len(vectors) < len(parts):  # a task group ignores a task that raised CancelledError
            raise asyncio.CancelledError
        return b"".join(vectors[number] for number in range(len(parts)))

    async def aclose(self) -> None:
        await self._pool.aclose()

    @asynccontextmanager
    async def _attempt(self, backend: BackendConfig, attempt_context: CallContext, routing: RoutingRecord) -> AsyncIterator[None]:
        """Reserve capacity at ``backend`` for one attempt, and count it in ``routing`` and in the backend's limits."""
        attempt, seconds = attempt_context.attempt, attempt_context.deadline.at - self._timing.clock()
        with self._circuits.attempt(backend.name, attempt.expected_usage.total_tokens):
            async with self._limits.reservation(backend, attempt, seconds):
                with routing.count_attempt(backend.name, attempt):
                    yield

    def _serving(self, model: str) -> list[BackendConfig]:
        return [backend for backend in self._config.backends if serves(backend, model)]

    async def _schedule(self, model: str, context: CallContext) -> RetrySchedule:
        available = await self._pool.available(model, self._serving(model), context)
        size = context.expected_usage.total_tokens
        down = [backend for backend in available if self._circuits.open_until(backend.name, size) is not None]
        up = [backend for backend in available if backend not in down]
        ordered = await self._strategy.order(up, self._limits.load) + await self._strategy.order(down, self._limits.load)
        return RetrySchedule(self._config, ordered, context, self._timing, self._circuits)

    def _record_failure(
        self, schedule: RetrySchedule, backend: BackendConfig, failure: AttemptFailed, attempt: Attempt, *, started: bool
    ) -> None:
        size = attempt.expected_usage.total_tokens
        if isinstance(failure, BackendAuthError):
            self._pool.reread_key(backend)
        if isinstance(failure, BackendBadRequest):
            self._circuits.record_success(backend.name, size)
        elif not isinstance(failure, (*_NOT_SENT_FAILURES, *_REQUEST_ONLY_FAILURES)):
            self._circuits.record_failure(backend.name, failure, size)
        schedule.record_failure(backend, failure, started=started, sent=attempt.sent)


@contextmanager
def _unbill_on_error(attempt: Attempt) -> Iterator[None]:
    """Mark ``attempt`` as not billed if an answer with status 200 contains only an error, as overloaded providers send it. A
    timeout of the model is billed."""
    try:
        yield
    except AttemptFailed as failure:
        if failure.status is not None and not isinstance(failure, BackendTimeout):
            attempt.sent = False
        raise


def _with_backend_model(backend: BackendConfig, request: R) -> R:
    return replace(request, model=backend.model_names.get(request.model, request.model))


def _for_model(request: ChatRequest, model: ModelConfig) -> ChatRequest:
    """Return ``request`` with the model's context window, and without sampling parameters if the model accepts none."""
    request = replace(request, context_window=model.context_window)
    if model.sampling:
        return request
    extra = {name: value for name, value in request.extra.items() if name not in _SAMPLING_FIELDS}
    return replace(request, temperature=None, top_p=None, extra=extra)


def _check_vectors(reply: EmbeddingReply, count: int, model: ModelConfig | None) -> None:
    """Raise BackendUnavailable if ``reply`` lacks the requested vectors: wrong vectors would corrupt an index permanently."""
    if reply.count != count:
        raise BackendUnavailable("The provider returned the wrong number of vectors.")
    if model and model.dimensions is not None and reply.dimensions != model.dimensions:
        raise BackendUnavailable("The provider returned vectors of the wrong dimension.")
    if len(reply.data) != 4 * reply.count * reply.dimensions:
        raise BackendUnavailable("The provider returned vectors of different lengths.")
    # A sum of this many float32 numbers fits into a double, and any infinity or NaN makes the sum non-finite.
    if not math.isfinite(sum(array("f", reply.data))):
        raise BackendUnavailable("The provider returned vectors with infinite numbers or NaN.")
