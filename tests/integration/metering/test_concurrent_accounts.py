"""Concurrent calls, reads and resets leave a usage that agrees with the audit records."""

import asyncio
import json
import random
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from spass.core.ids import AgentName, RequestId
from spass.metering import audit
from spass.metering.audit import AuditRecord
from spass.metering.usage import UsageQuery, reset, spending_of_month, usage
from spass.store import keys
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item
from spass.testing.faults import Fault, FaultPlan, inject
from tests.sampling import SOAK
from tests.unit.metering.ledger import TODAY, call, usd

if TYPE_CHECKING:
    from tests.integration.conftest import Emulator

T = TypeVar("T")

pytestmark = pytest.mark.anyio

CALLS = 400 if SOAK else 60
MONTH = TODAY.isoformat()[:7]


@dataclass(slots=True)
class PeriodicFaults(FaultPlan):
    """Faults that do not crash the worker, in 30 percent of the calls."""

    dice: random.Random = field(default_factory=random.Random)

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        faults = [Fault.LOST_REPLY, Fault.THROTTLE, Fault.TIMEOUT, Fault.REPEATED]
        self.at = len(self.calls)
        self.fault = self.dice.choice(faults) if call.operation != "SendMessage" and self.dice.random() < 0.3 else None
        return await FaultPlan.around(self, call, run)


async def records(store: TenantStore) -> list[Item]:
    return await store.table.query(keys.audit_partition(store.tenant, RequestId("req_outer")))


async def usage_total(store: TenantStore) -> Any:
    answer: Any = (await usage(store, UsageQuery(first=TODAY))).to_dict()
    return answer["total"]


async def receive_records(aws: Any, emulator: "Emulator", store: TenantStore) -> list[dict[str, Any]]:
    """Receive and delete the audit records of this tenant from the queue, and return them."""
    records: list[dict[str, Any]] = []
    while messages := aws._sqs.receive_message(QueueUrl=emulator.queue, MaxNumberOfMessages=10).get("Messages"):
        for message in messages:
            body = json.loads(message["Body"])
            if body.get("tenant") == store.tenant:
                aws._sqs.delete_message(QueueUrl=emulator.queue, ReceiptHandle=message["ReceiptHandle"])
                records.append(body["record"])
    return records


def random_call(dice: random.Random) -> AuditRecord:
    return call(agent=AgentName(dice.choice(["reader", "writer"])), cost=usd(dice.choice(["0.1", "0.000000000001", "2"])))


@pytest.mark.parametrize("seed", range(5 if SOAK else 1))
async def test_each_of_many_concurrent_calls_is_counted_once_despite_faults(
    aws: Any, emulator: "Emulator", store: TenantStore, seed: int
) -> None:
    dice = random.Random(seed)
    calls = [random_call(dice) for _ in range(CALLS)]
    with inject(PeriodicFaults(dice=dice)):
        await asyncio.gather(*(audit.record_call(store, record) for record in calls))
    remaining = await receive_records(aws, emulator, store)
    for record in remaining + remaining[: len(remaining) // 2]:  # SQS may deliver a message twice
        await audit.account(store, record)
    assert {record["request_id"] for record in await records(store)} == {record.request_id for record in calls}
    spent = sum(record.cost.usd for record in calls)
    assert (await usage_total(store))["requests"] == CALLS
    assert Decimal((await usage_total(store))["cost_usd"]) == spent == await spending_of_month(store, MONTH)


@pytest.mark.parametrize("seed", range(5 if SOAK else 1))
async def test_resets_between_calls_do_not_change_the_spending_of_the_month(store: TenantStore, seed: int) -> None:
    dice = random.Random(seed)
    calls = [random_call(dice) for _ in range(CALLS)]
    spendings: list[Decimal] = []

    async def resets() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
            await reset(store, dice.choice([None, AgentName("reader")]))

    async def reads() -> None:
        for _ in range(10):
            spendings.append(await spending_of_month(store, MONTH))

    await asyncio.gather(*(audit.record_call(store, record) for record in calls), resets(), reads())
    assert await spending_of_month(store, MONTH) == sum(record.cost.usd for record in calls)
    assert spendings == sorted(spendings), "the spending of the month must never decrease"
    rows = await store.table.query(keys.usage_partition(store.tenant, MONTH))
    requests = sum(cast(int, row["requests"]) for row in rows)
    assert (await usage_total(store))["requests"] == requests <= CALLS
    assert len(await records(store)) == CALLS


async def test_a_repeated_transaction_with_the_same_token_counts_once(store: TenantStore) -> None:
    with inject(FaultPlan(Fault.REPEATED)):
        await audit.record_call(store, call())
    assert (await usage_total(store))["requests"] == 1
