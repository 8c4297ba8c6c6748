"""Records of calls to account for, and ways for several AWS calls to go wrong."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

from spass.aws.clients import TenantStore
from spass.aws.invocation import AwsCall
from spass.core.cost import Cost, CostSource
from spass.core.ids import AgentName, RequestId, TenantId, UserId, new_id
from spass.core.messages import TokenUsage
from spass.core.time import timestamp
from spass.metering.audit import OK, AuditRecord, CallKind
from spass.testing.aws import MemoryAws
from spass.testing.faults import Fault, FaultPlan
from tests.simulated.memory import WITH_QUEUE

T = TypeVar("T")

TODAY = datetime.now(UTC).date()


def call(**fields: Any) -> AuditRecord:
    """A chat that was answered today, unless ``fields`` say otherwise."""
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
    """Several calls go wrong, each number as ``of`` says; ``always`` is what all others meet."""

    of: Mapping[int, Fault] = field(default_factory=dict)
    always: Fault | None = None

    async def around(self, call: AwsCall, run: Callable[[], T]) -> T:
        self.at = len(self.calls)
        self.fault = self.of.get(self.at, self.always)
        # Named, not super(): a slotted dataclass is made anew by its decorator, and super() would look in the class before that.
        return await FaultPlan.around(self, call, run)


@dataclass(frozen=True)
class LedgerHarness:
    """A tenant's store and the messages that it sent to the queue of jobs, all in memory."""

    aws: MemoryAws
    store: TenantStore
    sent: list[str] = field(default_factory=list)

    @classmethod
    def opened(cls) -> "LedgerHarness":
        aws = MemoryAws(WITH_QUEUE)
        ledger = cls(aws, aws.for_tenant(TenantId("acme")))
        aws.queues.on_message = lambda queue, body: ledger.sent.append(body)
        return ledger

    def queued(self) -> list[dict[str, Any]]:
        """What stands in the queue. It stays there."""
        return [json.loads(body) for body in self.sent]

    def without_queue(self) -> TenantStore:
        """The same store in a function that has no queue."""
        aws = MemoryAws()
        aws.__dict__["_table_client"] = self.aws._table_client
        return aws.for_tenant(self.store.tenant)
