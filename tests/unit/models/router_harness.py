"""A router over scripted backends. Only ``sleep`` and answers advance its clock."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest

from spass.core.errors import SpassError
from spass.core.ids import RequestId
from spass.core.messages import FinishReason, Message, Role, TokenUsage
from spass.core.time import Deadline
from spass.models.attempt import RoutingRecord
from spass.models.errors import AttemptFailed, BackendUnavailable
from spass.models.retries import Timing
from spass.models.router import Router
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest
from spass.tenancy.config import BackendConfig, LlmConfig, ModelConfig
from spass.testing.model import Deltas, ScriptedModel

BUSY = BackendUnavailable("busy", status=503)
HELLO = (ChatDelta("Hel"), ChatDelta("lo", finish_reason=FinishReason.STOP))

EXPECTED = TokenUsage(10, 100)

Outcome = AttemptFailed | Deltas | EmbeddingReply


class ScriptedProvider(ScriptedModel):
    """A model that gives ``outcomes`` in their order and repeats the last one. Each attempt takes ``seconds``."""

    def __init__(self, harness: "RouterHarness", outcomes: list[Outcome]) -> None:
        super().__init__(lambda *_: self._next(), vectors=lambda _: self._next_vectors())
        self.harness = harness
        self.outcomes = outcomes
        self.seconds = 0.0

    @property
    def models(self) -> list[str]:
        """Return the name of the model in each attempt."""
        return [*(request.model for request in self.requests), *(request.model for request in self.embeddings)]

    async def aclose(self) -> None:
        self.closed += 1

    def _next(self) -> Deltas | AttemptFailed:
        outcome = self._outcome()
        assert not isinstance(outcome, EmbeddingReply)
        return outcome

    def _next_vectors(self) -> EmbeddingReply:
        outcome = self._outcome()
        if isinstance(outcome, AttemptFailed):
            raise outcome
        assert isinstance(outcome, EmbeddingReply)
        return outcome

    def _outcome(self) -> Outcome:
        self.harness.time += self.seconds
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]


def in_turn(*outcomes: Outcome) -> list[Outcome]:
    return list(outcomes)


class ChatStream:
    """The answer to one call, and its routing."""

    def __init__(self, router: Router, request: ChatRequest, context: CallContext) -> None:
        self.routing = RoutingRecord()
        self._deltas = router.chat(request, context, self.routing)

    def __aiter__(self) -> AsyncIterator[ChatDelta]:
        return self

    async def __anext__(self) -> ChatDelta:
        return await anext(self._deltas)

    async def aclose(self) -> None:
        await self._deltas.aclose()


class RouterHarness:
    """Backends a, b, … with scripted outcomes. Only ``sleep`` and answers advance the clock. ``random()`` gives
    ``random_value``."""

    def __init__(
        self, *scripts: Outcome | list[Outcome], random_value: float = 1.0, retries: int = 3, **config: float | str
    ) -> None:
        self.time = 1000.0
        self.pauses: list[float] = []
        self.keys: dict[str, str] = {}
        self.order: list[str] = []
        self.providers = {
            name: ScriptedProvider(self, script if isinstance(script, list) else [script])
            for name, script in zip("abcdefgh", scripts, strict=False)
        }
        self.backends = [
            BackendConfig(name=name, provider="openai", base_url="http://127.0.0.1:9", priority=1, supported_models=("m",))
            for name in self.providers
        ]
        self.config = {"retries": retries, "retry_base_delay": 1.0, "retry_max_delay": 60.0, **config}
        self.random_value = random_value
        self.models = [ModelConfig(name="m", context_window=10, dimensions=2, kind="embedding")]

    @property
    def router(self) -> Router:
        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)
            self.time += seconds

        return Router(
            LlmConfig.model_validate({**self.config, "backends": self.backends}),
            self.models,
            self.keys.get,
            timing=Timing(clock=lambda: self.time, sleep=sleep, random=lambda: self.random_value),
            provider_of=lambda backend, key: self.providers[backend.name],
        )

    def context(self, seconds: float = 270.0) -> CallContext:
        return CallContext(Deadline(self.time + seconds), request_id=RequestId("req_outer"), expected_usage=EXPECTED)

    def mark_sent(self) -> None:
        """Mark every request as sent."""
        for provider in self.providers.values():
            provider.sent = True

    def chat(self, model: str = "m", seconds: float = 270.0) -> ChatStream:
        return ChatStream(self.router, ChatRequest(model, (Message(Role.USER, "Hi"),)), self.context(seconds))

    async def embed(self, texts: int = 2, routing: RoutingRecord | None = None) -> EmbeddingReply:
        return await self.router.embed(EmbeddingRequest("m", ("text",) * texts), self.context(), routing)

    @property
    def attempts(self) -> dict[str, int]:
        return {name: len(provider.models) for name, provider in self.providers.items()}


async def text_of(chat: ChatStream | AsyncGenerator[ChatDelta, None]) -> str:
    async with aclosing(chat):
        return "".join([delta.content async for delta in chat])


async def error_from_response(chat: ChatStream | AsyncGenerator[ChatDelta, None]) -> SpassError:
    with pytest.raises(SpassError) as raised:
        await text_of(chat)
    return raised.value
