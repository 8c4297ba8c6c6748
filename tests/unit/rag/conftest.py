"""The parts of rag over a table and a bucket in memory, with vectors computed from the bytes of texts."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from spass.aws.clients import Aws
from spass.calls.scope import Scope
from spass.core.ids import IndexId, RequestId, TenantId, random_suffix
from spass.core.messages import TokenUsage
from spass.models.types import EmbeddingReply, pack_rows
from spass.rag.index.cache import ObjectCache
from spass.rag.index.documents import NewDocument
from spass.store.invocation import PendingCall, ServiceCall
from spass.tenancy.config import GatewayConfig
from spass.tenancy.identity import Caller, Identity
from spass.testing.aws import MemoryAws
from spass.testing.faults import FaultPlan, inject
from spass.testing.rag import build_rag
from spass.tools.base import Rag
from tests.simulated.memory import WITH_QUEUE

T = TypeVar("T")
DIMENSIONS = 8


def vector_of(text: str) -> list[float]:
    """Return a vector with few different values, so that ties are common. A text that begins with ``zero`` gets only zeros."""
    if text.startswith("zero"):
        return [0.0] * DIMENSIONS
    return [float(sum(text.encode()) // 3**n % 3) - 1.0 for n in range(DIMENSIONS)]


@dataclass(slots=True)
class ArithmeticCalls:
    """Embedding calls that compute vectors and record the texts in ``texts``. If ``answer`` is set, they return it instead."""

    texts: list[str] = field(default_factory=list)
    answer: EmbeddingReply | None = None

    async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
        self.texts += texts
        if self.answer is not None:
            return self.answer
        return EmbeddingReply(pack_rows(map(vector_of, texts)), len(texts), DIMENSIONS, TokenUsage())


def config_with(model: str = "arithmetic", dimensions: int = DIMENSIONS) -> GatewayConfig:
    return GatewayConfig.model_validate(
        {
            "llm": {"backends": [{"provider": "embedded"}]},
            "models": [{"name": model, "kind": "embedding", "dimensions": dimensions, "context_window": 256}],
            "defaults": {"embedding_model": model},
            "usd_to_eur": "0.9",
            "tenants": [],
        }
    )


@dataclass(slots=True)
class RagHarness:
    """A tenant with a worker, ``rag``. ``cold()`` returns another worker with an empty cache over the same table and bucket."""

    aws: Aws
    calls: ArithmeticCalls = field(default_factory=ArithmeticCalls)
    suffix: str = field(default_factory=random_suffix)
    rag: Rag = field(init=False)
    scope: Scope = field(init=False)

    def __post_init__(self) -> None:
        self.rag = self.cold()
        self.scope = self.scope_of("demo")

    def cold(self, config: GatewayConfig | None = None, budget: int | None = None) -> Rag:
        return build_rag(self.calls, config or config_with(), ObjectCache(budget))

    def scope_of(self, name: str) -> Scope:
        """Return the scope of a tenant that only this test has."""
        tenant = TenantId(f"{name}-{self.suffix}")
        caller = Caller(Identity(tenant, "token", False, ()), None, RequestId("req_1"), None, 0, "/a1/rag")
        return Scope.for_request(caller, self.aws.for_tenant(tenant))


@pytest.fixture(scope="module")
def aws() -> Aws:
    """Return the AWS that the tests of a module share. Each test has its own tenants."""
    return MemoryAws(WITH_QUEUE)


@pytest.fixture
def harness(aws: Aws) -> RagHarness:
    return RagHarness(aws)


@pytest.fixture
def index() -> IndexId:
    return IndexId("berlin")


def documents(*pairs: tuple[str, str]) -> list[NewDocument]:
    return [NewDocument(id=name, text=text) for name, text in pairs]


class RacingWriters(FaultPlan):
    """A fault plan in which other writers win the race: before each swap, or another ``operation``, the next of ``rivals`` runs.
    Calls of the rivals are not recorded."""

    def __init__(self, *rivals: Callable[[], Awaitable[object]], operation: str = "TransactWriteItems") -> None:
        super().__init__()
        self.rivals = list(rivals)
        self.operation = operation

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if call.operation == self.operation and self.rivals:
            rival = self.rivals.pop(0)
            with inject(FaultPlan()):
                await rival()
        return await super().around(call, run)

    def count(self, operation: str) -> int:
        return sum(call.operation == operation for call in self.calls)


class ConcurrentReads(FaultPlan):
    """A fault plan that counts the concurrent reads of objects named ``name``. ``most`` is their maximum."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.now = self.most = 0

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if call.operation != "GetObject" or not str(call.parameters["Key"]).endswith(self.name):
            return await super().around(call, run)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0.005)
            return await super().around(call, run)
        finally:
            self.now -= 1


async def all_documents(harness: RagHarness, index: IndexId, limit: int = 100) -> dict[str, str]:
    texts: dict[str, str] = {}
    cursor = None
    while True:
        page = await harness.rag.reader.documents(harness.scope, index, cursor, limit)
        assert [document.id for document in page.documents] == sorted(document.id for document in page.documents)
        for document in page.documents:
            assert document.id not in texts
            texts[document.id] = document.text
        cursor = page.next_cursor
        if cursor is None:
            return texts
