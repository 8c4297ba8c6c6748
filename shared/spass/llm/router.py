"""From a model's name to an answer: picks the backend, retries, fails over."""

import asyncio
import math
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from spass.aws.log import write_line
from spass.core.errors import NoBackendAvailable, StorageUnavailable
from spass.core.time import now
from spass.llm.batching import EmbeddingLimits, embedding_limits
from spass.llm.errors import BackendFailed, BackendRefused, BackendUnavailable
from spass.llm.providers import make_provider
from spass.llm.retries import Chance, Tries
from spass.llm.serving import key_variable, serves
from spass.llm.strategies import STRATEGIES
from spass.llm.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest, Provider
from spass.tenancy.config import BackendConfig, LlmConfig, ModelConfig

R = TypeVar("R", ChatRequest, EmbeddingRequest)

_SAMPLING: Final = frozenset({"presence_penalty", "frequency_penalty", "logit_bias"})

KeyOf = Callable[[str], str | None]
"""The key in an environment variable, if it is set. It may block."""


@dataclass(slots=True)
class Route:
    """Where a call went, for its record: the backend tried last, and how often any was tried. Right also after a failure."""

    backend: str | None = None
    attempts: int = 0


class RoutedChat:
    """An answer on its way. Closing it early closes the connection to the provider."""

    def __init__(self, deltas: AsyncGenerator[ChatDelta, None], route: Route) -> None:
        self._deltas = deltas
        self._route = route

    @property
    def backend(self) -> str | None:
        return self._route.backend

    @property
    def attempts(self) -> int:
        return self._route.attempts

    def __aiter__(self) -> AsyncIterator[ChatDelta]:
        return self

    async def __anext__(self) -> ChatDelta:
        return await anext(self._deltas)

    async def aclose(self) -> None:
        await self._deltas.aclose()


@dataclass(frozen=True, slots=True)
class RoutedEmbedding:
    reply: EmbeddingReply
    backend: str
    attempts: int


class Router:
    """One for the process. Providers are made when their backend is first used, and kept."""

    def __init__(
        self,
        config: LlmConfig,
        models: Iterable[ModelConfig],
        key_of: KeyOf,
        *,
        chance: Chance | None = None,
        provider_of: Callable[[BackendConfig, str | None], Provider] = make_provider,
    ) -> None:
        self._config = config
        self._models = {model.name: model for model in models}
        self._key_of = key_of
        self._chance = chance or Chance()
        self._provider_of = provider_of
        self._strategy = STRATEGIES[config.strategy]()
        self._providers: dict[str, Provider] = {}
        self._keys: dict[str, str | None] = {}
        self._doubted: set[str] = set()  # backends that refused their key

    def serves(self, model: str) -> bool:
        """Whether any backend is configured for ``model``; its key may still be missing."""
        return bool(self._serving(model))

    def keys(self) -> list[str]:
        """The keys in use, which nobody outside may see."""
        return [key for key in self._keys.values() if key]

    def embedding_limits(self, model: str) -> EmbeddingLimits:
        """What one ``embed`` may hold, wherever it is routed, and how many may be under way together."""
        known = self._models.get(model)
        return embedding_limits(self._serving(model), known.dimensions if known else None, model)

    def chat(self, request: ChatRequest, context: CallContext) -> RoutedChat:
        """The answer to ``request`` as it comes. Nothing is tried before the first delta is asked for.

        Iterating raises UpstreamRejected, ContextLengthExceeded, RateLimited, UpstreamError, UpstreamTimeout, NoBackendAvailable.
        After a first delta nothing is retried.
        """
        route = Route()
        return RoutedChat(self._chat(request, context, route), route)

    async def embed(self, request: EmbeddingRequest, context: CallContext, route: Route | None = None) -> RoutedEmbedding:
        """One vector per text, of the catalogue's dimensions, every number finite. Fills ``route``, also on failure.

        Raises:
            SpassError: the same as ``chat``.
        """
        route = route or Route()
        tries = await self._tries(request.model, context)
        while True:
            backend = await tries.next()
            route.backend, route.attempts = backend.name, route.attempts + 1
            try:
                reply = await self._providers[backend.name].embed(_as(backend, request), context)
                _check(reply, len(request.texts), self._models.get(request.model))
            except BackendFailed as failure:
                self._failed(tries, backend, failure)
            else:
                return RoutedEmbedding(reply, backend.name, route.attempts)

    async def aclose(self) -> None:
        """Gives all connections back."""
        for provider in self._providers.values():
            await provider.aclose()
        self._providers.clear()

    async def _chat(self, request: ChatRequest, context: CallContext, route: Route) -> AsyncGenerator[ChatDelta, None]:
        tries = await self._tries(request.model, context)
        if (model := self._models.get(request.model)) and not model.sampling:
            request = _without_sampling(request)
        while True:
            backend = await tries.next()
            route.backend, route.attempts = backend.name, route.attempts + 1
            begun = False
            try:
                async with aclosing(self._providers[backend.name].chat(_as(backend, request), context)) as deltas:
                    async for delta in deltas:
                        begun = True
                        yield delta
            except BackendFailed as failure:
                self._failed(tries, backend, failure, begun=begun)
            else:
                return

    def _serving(self, model: str) -> list[BackendConfig]:
        return [backend for backend in self._config.backends if serves(backend, model)]

    async def _tries(self, model: str, context: CallContext) -> Tries:
        serving = self._serving(model)
        if not serving:
            raise NoBackendAvailable(f"No backend is configured for the model '{model[:128]}'.", param="model")
        available: list[BackendConfig] = []
        trouble: StorageUnavailable | None = None
        for backend in serving:
            try:
                if await self._is_available(backend):
                    available.append(backend)
            except StorageUnavailable as error:  # its key could not be read now; another backend may need none
                trouble = error
        if not available:
            raise trouble or _no_key(model, serving, context)
        return Tries(self._config, self._strategy.order(available), context, self._chance)

    async def _is_available(self, backend: BackendConfig) -> bool:
        """Makes the backend's provider, unless its key is not set; and anew when a key that was refused has been replaced."""
        name = backend.name
        if name in self._providers and name not in self._doubted:
            return True
        variable = key_variable(backend)
        key = await asyncio.to_thread(self._key_of, variable) if variable else None
        if variable and not key:
            return False
        self._doubted.discard(name)
        if name not in self._providers or self._keys[name] != key:
            self._providers[name], self._keys[name] = self._provider_of(backend, key), key
        return True

    def _failed(self, tries: Tries, backend: BackendConfig, failure: BackendFailed, *, begun: bool = False) -> None:
        if isinstance(failure, BackendRefused):
            self._doubted.add(backend.name)
        tries.failed(backend, failure, begun=begun)


def _no_key(model: str, serving: Iterable[BackendConfig], context: CallContext) -> NoBackendAvailable:
    """The caller hears that a key is missing; which one, the operator reads in the log."""
    variables = sorted({variable for backend in serving if (variable := key_variable(backend))})
    write_line(
        {
            "at": now(),
            "level": "error",
            "request_id": context.request_id,
            "event": "key_missing",
            "model": model,
            "set": variables,
        }
    )
    return NoBackendAvailable(
        f"No backend for the model '{model[:128]}' is configured with a key. The operator finds the name of the missing variable "
        "in the log.",
        param="model",
    )


def _as(backend: BackendConfig, request: R) -> R:
    """``request`` with the backend's own name for its model."""
    return replace(request, model=backend.model_names.get(request.model, request.model))


def _without_sampling(request: ChatRequest) -> ChatRequest:
    """``request`` without what steers how tokens are drawn."""
    extra = {name: value for name, value in request.extra.items() if name not in _SAMPLING}
    return replace(request, temperature=None, top_p=None, extra=extra)


def _check(reply: EmbeddingReply, count: int, model: ModelConfig | None) -> None:
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
