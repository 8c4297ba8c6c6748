"""Routers of several workers over limited backends that share a table. Everything runs in virtual time."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from spass.core.messages import FinishReason, Message, Role, TokenUsage
from spass.core.time import Deadline
from spass.models.errors import AttemptFailed
from spass.models.pool import ProviderOf
from spass.models.retries import Timing
from spass.models.router import Router
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest, pack_rows
from spass.store.keys import backend_limit
from spass.tenancy.config import BackendConfig, LlmConfig, ModelConfig
from spass.testing.model import ScriptedModel
from tests.unit.models.router_harness import ChatStream
from tests.unit.store.memory_table import MemoryTable

BEGIN = 1_800_000_000.0
"""The wall clock, in seconds, at the start of the event loop and of a window of a limit."""


class Model(ScriptedModel):
    """The model behind a backend. An answer takes ``seconds`` and has ``usage``. A call may fail before its answer
    (``failures``) or after the first token (``breaks``). ``began`` has the times of the calls."""

    def __init__(self) -> None:
        super().__init__(self._answer, vectors=self._vectors)
        self.seconds = 0.0
        self.usage: TokenUsage | None = None
        self.failures: list[AttemptFailed] = []
        self.breaks: AttemptFailed | None = None
        self.began: list[float] = []
        self.active = self.most_active = 0

    async def _answer(self, _: ChatRequest, __: CallContext) -> AsyncGenerator[ChatDelta, None]:
        await asyncio.sleep(0)
        self._begin_call()
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            yield ChatDelta("Hel")
            if self.breaks:
                raise self.breaks
            await asyncio.sleep(self.seconds)
            yield ChatDelta("lo", finish_reason=FinishReason.STOP, usage=self.usage)
        finally:
            self.active -= 1

    def _vectors(self, request: EmbeddingRequest) -> EmbeddingReply:
        self._begin_call()
        return EmbeddingReply(pack_rows([[1.0]] * len(request.texts)), len(request.texts), 1, self.usage or TokenUsage())

    def _begin_call(self) -> None:
        self.began.append(asyncio.get_running_loop().time())
        if self.failures:
            raise self.failures.pop(0)


class RouterFleet:
    """One router per worker. ``limits`` are the fields of each backend."""

    def __init__(
        self,
        *limits: dict[str, object],
        workers: int = 1,
        random_value: float = 0.5,
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
        timing = Timing(loop.time, lambda: BEGIN + loop.time(), asyncio.sleep, lambda: random_value)
        self.routers = [
            Router(
                LlmConfig.model_validate({**config, "backends": backends}),
                [ModelConfig(name="m", context_window=10)],
                lambda _: None,
                limits=lambda: self.table,
                timing=timing,
                provider_of=provider_of or (lambda backend, _: self.models[backend.name]),
            )
            for _ in range(workers)
        ]

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def attempts(self) -> dict[str, int]:
        return {name: len(model.began) for name, model in self.models.items()}

    def context(self, tokens: int, seconds: float) -> CallContext:
        return CallContext(Deadline(self.now + seconds), expected_usage=TokenUsage(tokens // 2, tokens - tokens // 2))

    def chat(self, tokens: int = 0, *, seconds: float = 270.0, worker: int = 0, model: str = "m") -> ChatStream:
        request = ChatRequest(model, (Message(Role.USER, "Hi"),))
        return ChatStream(self.routers[worker], request, self.context(tokens, seconds))

    async def call(self, tokens: int = 0, *, seconds: float = 270.0, worker: int = 0, model: str = "m") -> str | None:
        """Make a call and return the backend that answered."""
        chat = self.chat(tokens, seconds=seconds, worker=worker, model=model)
        async with aclosing(chat):
            assert "".join([delta.content async for delta in chat]) == "Hello"
        return chat.routing.backend

    def used(self, backend: str = "a") -> object:
        """Return the tokens of the last minute from the table."""
        return self.table.items[backend_limit(backend, 0)]["used"]

    def active_calls(self, backend: str = "a") -> int:
        active = self.table.items[backend_limit(backend, 0)]["active"]
        assert isinstance(active, int)
        return active


def count_by_backend(backends: Sequence[str | None]) -> dict[str | None, int]:
    return dict(Counter(backends))
