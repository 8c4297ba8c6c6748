"""A router over scripted backends, with a clock that only sleep and answers move."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest

from spass.core.errors import SpassError
from spass.core.ids import RequestId
from spass.core.messages import FinishReason, Message, Role, TokenUsage
from spass.core.time import Deadline
from spass.llm.errors import BackendError, BackendUnavailable
from spass.llm.retries import Timing
from spass.llm.router import ChatStream, EmbeddingResult, Router, RoutingRecord
from spass.llm.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest
from spass.tenancy.config import BackendConfig, LlmConfig, ModelConfig

BUSY = BackendUnavailable("busy", status=503)
HELLO = (ChatDelta("Hel"), ChatDelta("lo", finish_reason=FinishReason.STOP))

EXPECTED = TokenUsage(10, 100)

Outcome = BackendError | Sequence[ChatDelta | BackendError] | EmbeddingReply


@dataclass
class ScriptedProvider:
    """A provider that gives ``outcomes`` in their order, the last one for ever. Each try takes ``seconds``; ``sent``: its request
    reaches the model whole."""

    harness: "RouterHarness"
    outcomes: list[Outcome]
    seconds: float = 0.0
    sent: bool = False
    models: list[str] = field(default_factory=list)
    requests: list[ChatRequest] = field(default_factory=list)
    closed: int = 0

    def _next(self, model: str) -> Outcome:
        self.models.append(model)
        self.harness.time += self.seconds
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]

    async def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        self.requests.append(request)
        context.attempt.sent = self.sent
        outcome = self._next(request.model)
        if isinstance(outcome, BackendError):
            raise outcome
        assert not isinstance(outcome, EmbeddingReply)
        try:
            for delta in outcome:
                if isinstance(delta, BackendError):
                    raise delta
                yield delta
        finally:
            self.closed += 1

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        context.attempt.sent = self.sent
        outcome = self._next(request.model)
        if isinstance(outcome, BackendError):
            raise outcome
        assert isinstance(outcome, EmbeddingReply)
        return outcome

    async def aclose(self) -> None:
        self.closed += 1


def then(*outcomes: Outcome) -> list[Outcome]:
    return list(outcomes)


class RouterHarness:
    """Backends a, b, … with the given outcomes, a clock that only sleep and answers move, and dice that show ``dice``."""

    def __init__(self, *scripts: Outcome | list[Outcome], dice: float = 1.0, retries: int = 3, **config: float | str) -> None:
        self.time = 1000.0
        self.naps: list[float] = []
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
        self.dice = dice
        self.models = [ModelConfig(name="m", context_window=10, dimensions=2, kind="embedding")]

    @property
    def router(self) -> Router:
        async def sleep(seconds: float) -> None:
            self.naps.append(seconds)
            self.time += seconds

        return Router(
            LlmConfig.model_validate({**self.config, "backends": self.backends}),
            self.models,
            self.keys.get,
            chance=Timing(clock=lambda: self.time, sleep=sleep, random=lambda: self.dice),
            provider_of=lambda backend, key: self.providers[backend.name],
        )

    def context(self, seconds: float = 270.0) -> CallContext:
        return CallContext(Deadline(self.time + seconds), request_id=RequestId("req_outer"), expected=EXPECTED)

    def sends(self) -> None:
        """Have every request reach its model whole."""
        for provider in self.providers.values():
            provider.sent = True

    def chat(self, model: str = "m", seconds: float = 270.0) -> ChatStream:
        return self.router.chat(ChatRequest(model, (Message(Role.USER, "Hi"),)), self.context(seconds))

    async def embed(self, texts: int = 2, route: RoutingRecord | None = None) -> EmbeddingResult:
        return await self.router.embed(EmbeddingRequest("m", ("text",) * texts), self.context(), route)

    @property
    def tries(self) -> dict[str, int]:
        return {name: len(provider.models) for name, provider in self.providers.items()}


async def text_of(chat: ChatStream) -> str:
    async with aclosing(chat):
        return "".join([delta.content async for delta in chat])


async def error_from_response(chat: ChatStream) -> SpassError:
    with pytest.raises(SpassError) as raised:
        await text_of(chat)
    return raised.value
