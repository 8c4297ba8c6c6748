"""Operators with a memory over AWS in memory, and an embedding model that compares letters."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from spass.calls.scope import Scope
from spass.core.errors import UpstreamError
from spass.core.ids import AgentName, Operator, OperatorId, SessionId, TenantId, UserId, new_id
from spass.core.messages import TokenUsage
from spass.core.time import timestamp
from spass.memory.operator_memory import OperatorMemory
from spass.memory.state import OperatorState, read_state, state_creation
from spass.models.types import EmbeddingReply, pack_rows
from spass.rag.index.embedding import Embedder
from spass.rag.index.manifest import EmbeddingModel
from spass.store.tenant_store import TenantStore
from spass.testing.aws import MemoryAws
from tests.unit.scopes import scope_of

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ANA = UserId("ana")
NEWS = Operator(ANA, OperatorId("news"))


def vector_of(text: str) -> list[float]:
    """Return how often each letter occurs: texts of the same letters are alike, whatever their words."""
    counts = Counter(text.lower())
    return [float(counts[letter]) for letter in LETTERS]


@dataclass(slots=True)
class LetterCalls:
    """Embedding calls that record their texts. While ``broken``, they fail."""

    texts: list[str] = field(default_factory=list)
    broken: bool = False

    async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
        await asyncio.sleep(0)
        if self.broken:
            raise UpstreamError("The embedding model is down.")
        self.texts += texts
        return EmbeddingReply(pack_rows(map(vector_of, texts)), len(texts), len(LETTERS), TokenUsage())


@dataclass(slots=True)
class Operators:
    """Operators of any tenant. ``now`` is the time in seconds; each note is a second younger than the one before."""

    aws: MemoryAws = field(default_factory=MemoryAws)
    calls: LetterCalls = field(default_factory=LetterCalls)
    now: float = 1_800_000_000.0
    model: str = "letters"

    def clock(self) -> float:
        self.now += 1
        return self.now

    def store(self, tenant: str = "demo") -> TenantStore:
        return self.aws.for_tenant(TenantId(tenant))

    def scope(self, tenant: str = "demo") -> Scope:
        return scope_of(self.store(tenant), ANA, route="/v1/ask")

    def memory(self, operator: Operator = NEWS, *, tenant: str = "demo") -> OperatorMemory:
        """Return the memory of another turn of ``operator``."""
        embedder = Embedder(self.calls, EmbeddingModel(self.model, len(LETTERS)))
        return OperatorMemory(self.scope(tenant), operator, lambda: embedder, self.clock)

    async def begin(self, operator: Operator = NEWS, *, tenant: str = "demo") -> OperatorState:
        """Begin the operator, unless it exists."""
        store = self.store(tenant)
        if (state := await read_state(store, operator)) is not None:
            return state
        session, agent = SessionId(new_id("ses")), AgentName("reader")
        await store.table.write(state_creation(store, operator, session, agent, timestamp(self.now)))
        state = await read_state(store, operator)
        assert state is not None
        return state

    async def started(self, operator: Operator = NEWS, *, tenant: str = "demo") -> OperatorMemory:
        """Begin the operator and return its memory."""
        await self.begin(operator, tenant=tenant)
        return self.memory(operator, tenant=tenant)
