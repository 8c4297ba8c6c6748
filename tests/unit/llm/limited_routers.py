"""Routers of several workers over limited backends that share a table. Everything runs in virtual time."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from spass.aws.keys import backend_limit
from spass.core.messages import FinishReason, Message, Role, TokenUsage
from spass.core.time import Deadline
from spass.llm.errors import BackendError
from spass.llm.pool import ProviderOf
from spass.llm.retries import Timing
from spass.llm.router import ChatStream, Router
from spass.llm.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest, pack_rows
from spass.tenancy.config import BackendConfig, LlmConfig, ModelConfig
from tests.unit.aws.memory_table import MemoryTable

BEGIN = 1_800_000_000.0
"""The wall clock when the loop's shows 0: it begins a bucket of a window."""


@dataclass
class Model:
    """What stands behind a backend: takes ``seconds`` to each answer of ``usage``, or fails. It keeps the times of its calls."""

    seconds: float = 0.0
    usage: TokenUsage | None = None
    failures: list[BackendError] = field(default_factory=list)
    began: list[float] = field(default_factory=list)
    active: int = 0
    most_active: int = 0
    breaks: BackendError | None = None  # after the first token
    sent: bool = False  # each request reaches it whole

    async def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        context.attempt.sent = self.sent
        await self._begin()
        try:
            yield ChatDelta("Hel")
            if self.breaks:
                raise self.breaks
            await asyncio.sleep(self.seconds)
            yield ChatDelta("lo", finish_reason=FinishReason.STOP, usage=self.usage)
        finally:
            self.active -= 1

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        await self._begin()
        self.active -= 1
        return EmbeddingReply(pack_rows([[1.0]] * len(request.texts)), len(request.texts), 1, self.usage or TokenUsage())

    async def aclose(self) -> None:
        pass

    async def _begin(self) -> None:
        await asyncio.sleep(0)
        self.began.append(asyncio.get_running_loop().time())
        if self.failures:
            raise self.failures.pop(0)
        self.active += 1
        self.most_active = max(self.most_active, self.active)


class RouterFleet:
    """``limits`` are the fields of each backend; ``workers`` many processes have routers of their own."""

    def __init__(
        self,
        *limits: dict[str, object],
        workers: int = 1,
        dice: float = 0.5,
        provider_of: ProviderOf | None = None,
        **config: object,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.table = MemoryTable()
        self.models = {name: Model() for name, _ in zip("abcdefgh", limits, strict=False)}
        backends = [
            BackendConfig.model_validate(
                {"name": name, "provider": "openai", "base_url": "http://127.0.0.1:9", "supported_models": ("m",), **fields}
            )
            for name, fields in zip(self.models, limits, strict=True)
        ]
        chance = Timing(loop.time, lambda: BEGIN + loop.time(), asyncio.sleep, lambda: dice)
        self.routers = [
            Router(
                LlmConfig.model_validate({**config, "backends": backends}),
                [ModelConfig(name="m", context_window=10)],
                lambda _: None,
                limits=lambda: self.table,
                chance=chance,
                provider_of=provider_of or (lambda backend, _: self.models[backend.name]),
            )
            for _ in range(workers)
        ]

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def tries(self) -> dict[str, int]:
        return {name: len(model.began) for name, model in self.models.items()}

    def context(self, tokens: int, seconds: float) -> CallContext:
        return CallContext(Deadline(self.now + seconds), expected=TokenUsage(tokens // 2, tokens - tokens // 2))

    def chat(self, tokens: int = 0, *, seconds: float = 270.0, worker: int = 0, model: str = "m") -> ChatStream:
        request = ChatRequest(model, (Message(Role.USER, "Hi"),))
        return self.routers[worker].chat(request, self.context(tokens, seconds))

    async def say(self, tokens: int = 0, *, seconds: float = 270.0, worker: int = 0, model: str = "m") -> str | None:
        """Makes a call; gives the backend that answered."""
        chat = self.chat(tokens, seconds=seconds, worker=worker, model=model)
        async with aclosing(chat):
            assert "".join([delta.content async for delta in chat]) == "Hello"
        return chat.backend

    def used(self, backend: str = "a") -> object:
        """The tokens of the last minute, as the table has them."""
        return self.table.items[backend_limit(backend, 0)]["used"]

    def held(self, backend: str = "a") -> int:
        active = self.table.items[backend_limit(backend, 0)]["active"]
        assert isinstance(active, int)
        return active


def spread(backends: Sequence[str | None]) -> dict[str | None, int]:
    return dict(Counter(backends))
