"""Create records of calls, and inject faults into several AWS calls."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

from spass.core.cost import Cost, CostSource
from spass.core.ids import AgentName, RequestId, TenantId, UserId, new_id
from spass.core.messages import TokenUsage
from spass.core.time import timestamp
from spass.metering.audit import OK, AuditRecord, CallKind
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.tenant_store import TenantStore
from spass.testing.aws import MemoryAws
from spass.testing.faults import Fault, FaultPlan
from tests.simulated.memory import WITH_QUEUE

T = TypeVar("T")

TODAY = datetime.now(UTC).date()


def call(**fields: Any) -> AuditRecord:
    """Return the record of a chat that was answered today, with ``fields`` replaced."""
    record = AuditRecord(
        request_id=RequestId(new_id("req")),
        outer_request_id=RequestId("req_outer"),
        parent_request_id=RequestId("req_outer"),
        origin_request_id=None,
        at=timestamp(datetime.now(UTC).timestamp()),
        kind=CallKind.CHAT,
        status=OK,
        latency_ms=12,
        token_id="app",
        user=UserId("anna"),
        agent=AgentName("researcher"),
        session=None,
        route="/v1/chat/completions",
        model="small",
        usage=TokenUsage(10, 5),
        cost=usd("0.25"),
    )
    return replace(record, **fields)


def usd(amount: str) -> Cost:
    return Cost(Decimal(amount), Decimal(amount), CostSource.CATALOG, 1)


def days_ago(days: int) -> str:
    return timestamp((datetime.now(UTC) - timedelta(days=days)).timestamp())


@dataclass(slots=True)
class Faults(FaultPlan):
    """Inject the fault ``of[number]`` into the call with this number, and ``always`` into all other calls."""

    of: Mapping[int, Fault] = field(default_factory=dict)
    always: Fault | None = None

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        self.at = len(self.calls)
        self.fault = self.of.get(self.at, self.always)
        # not super(): the decorator replaces a slotted dataclass, and super() would use the replaced class
        return await FaultPlan.around(self, call, run)


@dataclass(frozen=True)
class LedgerHarness:
    """A tenant's store in memory, and the messages that it sent to the queue of jobs."""

    aws: MemoryAws
    store: TenantStore
    sent: list[str] = field(default_factory=list)

    @classmethod
    def create(cls) -> "LedgerHarness":
        aws = MemoryAws(WITH_QUEUE)
        ledger = cls(aws, aws.for_tenant(TenantId("acme")))
        aws.queues.on_message = lambda queue, body: ledger.sent.append(body)
        return ledger

    def queued(self) -> list[dict[str, Any]]:
        """Return the messages in the queue without removing them."""
        return [json.loads(body) for body in self.sent]

    def without_queue(self) -> TenantStore:
        """Return the same store in a function without a queue."""
        aws = MemoryAws()
        aws.__dict__["_table_client"] = self.aws._table_client
        return aws.for_tenant(self.store.tenant)
