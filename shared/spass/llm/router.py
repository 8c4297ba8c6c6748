"""From a model's name to an answer: picks the backend, retries, fails over."""

import math
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from spass.core.messages import TokenUsage
from spass.limits.shared_limit import LimitTable
from spass.llm.attempt import Attempt
from spass.llm.backend_limits import BackendLimits
from spass.llm.backends import serves
from spass.llm.batching import EmbeddingLimits, embedding_limits
from spass.llm.circuit_breaker import CircuitBreaker
from spass.llm.errors import (
    BackendAuthError,
    BackendBadRequest,
    BackendError,
    BackendForbidden,
    BackendLimitReached,
    BackendLimitUnknown,
    BackendRequestTooLarge,
    BackendTimeout,
    BackendUnavailable,
    BackendUnsupported,
)
from spass.llm.pool import KeyOf, ProviderOf, ProviderPool
from spass.llm.providers import make_provider
from spass.llm.retries import RetrySchedule, Timing
from spass.llm.strategies import STRATEGIES
from spass.llm.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest
from spass.tenancy.config import BackendConfig, LlmConfig, ModelConfig

R = TypeVar("R", ChatRequest, EmbeddingRequest)

_NOT_SENT_FAILURES: Final = (BackendLimitReached, BackendLimitUnknown, BackendUnsupported)
_REQUEST_ONLY_FAILURES: Final = (BackendForbidden, BackendRequestTooLarge)
_SAMPLING_FIELDS: Final = frozenset({"presence_penalty", "frequency_penalty", "logit_bias"})


@dataclass(slots=True)
class RoutingRecord:
    """Records where a call went: the backend tried last, and how often any was tried. Right also after a failure.

    ``answered`` is what the try took whose answer came, or began to; ``lost`` is what those took whose answers never came, though
    the provider may bill them. ``estimated`` says that some of this is an estimate.
    """

    backend: str | None = None
    attempts: int = 0
    answered: TokenUsage = field(default_factory=TokenUsage)
    lost: TokenUsage = field(default_factory=TokenUsage)
    estimated: bool = False

    @property
    def usage(self) -> TokenUsage:
        """Return the tokens of all tries."""
        return self.answered + self.lost

    @contextmanager
    def trying(self, backend: BackendConfig, attempt: Attempt) -> Iterator[None]:
        """Count one try of ``backend`` and, when the body ends, what ``attempt`` took."""
        self.backend = backend.name
        self.attempts += 1
        try:
            yield
        finally:
            if attempt.begun:
                self.answered += attempt.usage
            else:
                self.lost += attempt.usage
            self.estimated |= attempt.estimated


class ChatStream:
    """An answer on its way. Closing it early closes the connection to the provider."""

    def __init__(self, deltas: AsyncGenerator[ChatDelta, None], route: RoutingRecord) -> None:
        self._deltas = deltas
        self.route = route

    @property
    def backend(self) -> str | None:
        return self.route.backend

    @property
    def attempts(self) -> int:
        return self.route.attempts

    def __aiter__(self) -> AsyncIterator[ChatDelta]:
        return self

    async def __anext__(self) -> ChatDelta:
        return await anext(self._deltas)

    async def aclose(self) -> None:
        await self._deltas.aclose()


@dataclass(frozen=True, slots=True)
class EmbeddingResult:
    reply: EmbeddingReply
    backend: str
    attempts: int


class Router:
    """One for the process. Without a table of ``limits`` (asked for when first needed) nothing bounds what backends are asked."""

    def __init__(
        self,
        config: LlmConfig,
        models: Iterable[ModelConfig],
        key_of: KeyOf,
        *,
        limits: Callable[[], LimitTable] | None = None,
        chance: Timing | None = None,
        provider_of: ProviderOf = make_provider,
    ) -> None:
        self._config = config
        self._models = {model.name: model for model in models}
        self._chance = chance or Timing()
        self._strategy = STRATEGIES[config.strategy]()
        self._health = CircuitBreaker(config.retry_max_delay, self._chance.clock)
        self._limits = BackendLimits(limits, clock=self._chance.wall)
        self._pool = ProviderPool(key_of, provider_of)

    def serves(self, model: str) -> bool:
        """Whether any backend is configured for ``model``; its key may still be missing."""
        return bool(self._serving(model))

    def keys(self) -> list[str]:
        """The keys in use, which nobody outside may see."""
        return self._pool.keys()

    def embedding_limits(self, model: str) -> EmbeddingLimits:
        """What one ``embed`` may hold, wherever it is routed, and how many may be under way together."""
        known = self._models.get(model)
        return embedding_limits(self._serving(model), known.dimensions if known else None, model)

    def chat(self, request: ChatRequest, context: CallContext) -> ChatStream:
        """The answer to ``request`` as it comes. Nothing is tried before the first delta is asked for.

        Iterating raises UpstreamRejected, ContextLengthExceeded, RateLimited, UpstreamError, UpstreamTimeout, NoBackendAvailable.
        After a first delta nothing is retried.
        """
        route = RoutingRecord()
        return ChatStream(self._chat(request, context, route), route)

    async def embed(self, request: EmbeddingRequest, context: CallContext, route: RoutingRecord | None = None) -> EmbeddingResult:
        """One vector per text, of the catalogue's dimensions, every number finite. Fills ``route``, also on failure.

        Raises:
            SpassError: the same as ``chat``.
        """
        route = route or RoutingRecord()
        tries = await self._tries(request.model, context)
        known = self._models.get(request.model)
        request = replace(request, dimensions=known.dimensions if known else None)
        while True:
            backend = await tries.next()
            one_try = context.trying()
            try:
                async with self._trying(backend, one_try, route):
                    reply = await self._pool[backend].embed(_with_backend_model(backend, request), one_try)
                    one_try.attempt.record_chunk(0, reply.usage)
                    _check_vectors(reply, len(request.texts), known)
                    self._health.answered(backend.name, context.expected.total_tokens)
            except BackendError as failure:
                self._failed(tries, backend, failure, one_try.attempt, begun=False)
            else:
                return EmbeddingResult(reply, backend.name, route.attempts)

    async def aclose(self) -> None:
        """Gives all connections back."""
        await self._pool.aclose()

    async def _chat(self, request: ChatRequest, context: CallContext, route: RoutingRecord) -> AsyncGenerator[ChatDelta, None]:
        tries = await self._tries(request.model, context)
        if (model := self._models.get(request.model)) and not model.sampling:
            request = _without_sampling(request)
        while True:
            backend = await tries.next()
            one_try = context.trying()
            attempt = one_try.attempt
            try:
                answer = self._pool[backend].chat(_with_backend_model(backend, request), one_try)
                async with self._trying(backend, one_try, route), aclosing(answer) as deltas:
                    with _unbill_on_error(attempt):
                        async for delta in deltas:
                            if not attempt.begun:
                                self._health.answered(backend.name, attempt.expected.total_tokens)
                            attempt.record_chunk(delta.characters, delta.usage)
                            yield delta
            except BackendError as failure:
                self._failed(tries, backend, failure, attempt, begun=attempt.begun)
            else:
                return

    @asynccontextmanager
    async def _trying(self, backend: BackendConfig, one_try: CallContext, route: RoutingRecord) -> AsyncIterator[None]:
        """Keep a place at ``backend`` for one try, and count it in ``route`` and in the backend's limits."""
        attempt, seconds = one_try.attempt, one_try.deadline.at - self._chance.clock()
        with self._health.trying(backend.name, attempt.expected.total_tokens):
            async with self._limits.reservation(backend, attempt, seconds):
                with route.trying(backend, attempt):
                    yield

    def _serving(self, model: str) -> list[BackendConfig]:
        return [backend for backend in self._config.backends if serves(backend, model)]

    async def _tries(self, model: str, context: CallContext) -> RetrySchedule:
        available = await self._pool.available(model, self._serving(model), context)
        size = context.expected.total_tokens
        down = [backend for backend in available if self._health.open_until(backend.name, size) is not None]
        up = [backend for backend in available if backend not in down]
        row = await self._strategy.order(up, self._limits.load) + await self._strategy.order(down, self._limits.load)
        return RetrySchedule(self._config, row, context, self._chance, self._health)

    def _failed(
        self, tries: RetrySchedule, backend: BackendConfig, failure: BackendError, attempt: Attempt, *, begun: bool
    ) -> None:
        size = attempt.expected.total_tokens
        if isinstance(failure, BackendAuthError):
            self._pool.reread_key(backend)
        if isinstance(failure, BackendBadRequest):
            self._health.answered(backend.name, size)
        elif not isinstance(failure, (*_NOT_SENT_FAILURES, *_REQUEST_ONLY_FAILURES)):
            self._health.failed(backend.name, failure, size)
        tries.failed(backend, failure, begun=begun, sent=attempt.sent)


@contextmanager
def _unbill_on_error(attempt: Attempt) -> Iterator[None]:
    """Take back that ``attempt`` may be billed if the answer, though of status 200, only names an error: a provider that is
    overloaded often says so inside a stream. That its model took too long is no such error."""
    try:
        yield
    except BackendError as failure:
        if failure.status is not None and not isinstance(failure, BackendTimeout):
            attempt.sent = False
        raise


def _with_backend_model(backend: BackendConfig, request: R) -> R:
    """``request`` with the backend's own name for its model."""
    return replace(request, model=backend.model_names.get(request.model, request.model))


def _without_sampling(request: ChatRequest) -> ChatRequest:
    """``request`` without what steers how tokens are drawn."""
    extra = {name: value for name, value in request.extra.items() if name not in _SAMPLING_FIELDS}
    return replace(request, temperature=None, top_p=None, extra=extra)


def _check_vectors(reply: EmbeddingReply, count: int, model: ModelConfig | None) -> None:
    """Whether ``reply`` is what was asked for; wrong vectors would spoil an index for good."""
    if reply.count != count:
        raise BackendUnavailable("The provider returned the wrong number of vectors.")
    if model and model.dimensions is not None and reply.dimensions != model.dimensions:
        raise BackendUnavailable("The provider returned vectors of the wrong dimension.")
    if len(reply.data) != 4 * reply.count * reply.dimensions:
        raise BackendUnavailable("The provider returned vectors of different lengths.")
    # No sum of this many float32 leaves a double's range, and infinities and NaN survive any sum.
    if not math.isfinite(sum(array("f", reply.data))):
        raise BackendUnavailable("The provider returned vectors with numbers that are none.")
