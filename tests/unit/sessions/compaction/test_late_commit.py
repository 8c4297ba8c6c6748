"""An abandoned commit that arrives while its job holds the session again takes effect as a whole."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from spass.core.errors import StorageUnavailable, storage_timeout
from spass.core.ids import TenantId
from spass.sessions import record
from spass.sessions.compaction.commit import commit_compaction
from spass.sessions.compaction.plan import CompactionPlan, Summary
from spass.sessions.record import load_turns
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.overflow import Overflow
from spass.testing.faults import FaultPlan, inject
from tests.unit.sessions.session_chains import ChainBuilder, memory_store, plain_turn

pytestmark = pytest.mark.anyio
T = TypeVar("T")


@dataclass(slots=True)
class DelayedTransactions(FaultPlan):
    """A fault that delays transactions: they get no reply, and take effect when the test runs ``pending``."""

    pending: list[PendingCall[Any]] = field(default_factory=list)

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if call.operation == "TransactWriteItems":
            self.pending.append(run)
            raise storage_timeout()
        return await run()


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChainBuilder]:
    monkeypatch.setattr(record, "BODY", Overflow("body", 10))
    with memory_store() as aws:
        yield ChainBuilder(aws.for_tenant(TenantId("demo")))


async def test_a_late_commit_creates_a_whole_successor_that_the_retry_returns(chains: ChainBuilder) -> None:
    source = await chains.session(plain_turn("one"), plain_turn("two"))
    live, plan = await load_turns(chains.store, source, 1), CompactionPlan.new(source, 3)
    summary, at = Summary("they counted", "scripted"), chains.now
    head = await chains.hold(source, "job_1")
    with inject(DelayedTransactions()) as fault, pytest.raises(StorageUnavailable):
        await commit_compaction(chains.store, head, live, plan, summary, owner="job_1", at=at)
    assert isinstance(fault, DelayedTransactions)
    retry_head = await chains.hold(source, "job_1")
    await fault.pending[0]()
    result = await commit_compaction(chains.store, retry_head, live, plan, summary, owner="job_1", at=at)
    assert result.session.id == plan.successor
    texts = await chains.texts(plan.successor)
    assert texts == [f"[compaction summary from session {source}] they counted", "two", "yes"]
    assert [stored.message.content for stored in result.first.messages] == texts
    assert len(await chains.store.objects.list_keys(f"sessions/{plan.successor}/")) == 1
