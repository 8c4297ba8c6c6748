"""Many calls end at once while others read and reset: the usage is what the audit says."""

import asyncio
import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from spass.aws import keys
from spass.aws.attributes import Item
from spass.aws.clients import TenantStore
from spass.aws.invocation import AwsCall
from spass.core.ids import AgentName, RequestId
from spass.metering import audit
from spass.metering.audit import AuditRecord
from spass.metering.usage import UsageQuery, reset, spending_of_month, usage
from spass.testing.faults import Fault, FaultPlan, inject
from tests.unit.metering.ledger import TODAY, call, usd

if TYPE_CHECKING:
    from tests.integration.conftest import Emulator

T = TypeVar("T")

pytestmark = pytest.mark.anyio

SOAK = bool(os.environ.get("SPASS_SOAK"))
CALLS = 400 if SOAK else 60
MONTH = TODAY.isoformat()[:7]


@dataclass(slots=True)
class PeriodicFaults(FaultPlan):
    """Every so many calls one goes wrong in some way that leaves its worker alive."""

    dice: random.Random = field(default_factory=random.Random)

    async def around(self, call: AwsCall, run: Callable[[], T]) -> T:
        faults = [Fault.LOST_REPLY, Fault.THROTTLE, Fault.TIMEOUT, Fault.REPEATED]
        self.at = len(self.calls)
        self.fault = self.dice.choice(faults) if call.operation != "SendMessage" and self.dice.random() < 0.3 else None
        return await FaultPlan.around(self, call, run)


async def records(store: TenantStore) -> list[Item]:
    return await store.table.query(keys.audit_partition(store.tenant, RequestId("req_outer")))


async def total(store: TenantStore) -> Any:
    answer: Any = (await usage(store, UsageQuery(first=TODAY))).to_dict()
    return answer["total"]


async def queued(aws: Any, emulator: "Emulator", store: TenantStore) -> list[dict[str, Any]]:
    """What was left of this tenant's calls."""
    found: list[dict[str, Any]] = []
    while messages := aws._sqs.receive_message(QueueUrl=emulator.queue, MaxNumberOfMessages=10).get("Messages"):
        for message in messages:
            body = json.loads(message["Body"])
            if body.get("tenant") == store.tenant:
                aws._sqs.delete_message(QueueUrl=emulator.queue, ReceiptHandle=message["ReceiptHandle"])
                found.append(body["record"])
    return found


def made(dice: random.Random) -> AuditRecord:
    return call(agent=AgentName(dice.choice(["reader", "writer"])), cost=usd(dice.choice(["0.1", "0.000000000001", "2"])))


@pytest.mark.parametrize("seed", range(5 if SOAK else 1))
async def test_calls_that_end_at_once_are_each_counted_once_whatever_goes_wrong(
    aws: Any, emulator: "Emulator", store: TenantStore, seed: int
) -> None:
    dice = random.Random(seed)
    calls = [made(dice) for _ in range(CALLS)]
    with inject(PeriodicFaults(dice=dice)):
        await asyncio.gather(*(audit.record_call(store, record) for record in calls))
    left = await queued(aws, emulator, store)
    for record in left + left[: len(left) // 2]:  # some are delivered twice
        await audit.account(store, record)
    assert {record["request_id"] for record in await records(store)} == {record.request_id for record in calls}
    spent = sum(record.cost.usd for record in calls)
    assert (await total(store))["requests"] == CALLS
    assert Decimal((await total(store))["cost_usd"]) == spent == await spending_of_month(store, MONTH)


@pytest.mark.parametrize("seed", range(5 if SOAK else 1))
async def test_resets_between_calls_lose_none_of_the_months_money(store: TenantStore, seed: int) -> None:
    dice = random.Random(seed)
    calls = [made(dice) for _ in range(CALLS)]
    seen: list[Decimal] = []

    async def resets() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
            await reset(store, dice.choice([None, AgentName("reader")]))

    async def reads() -> None:
        for _ in range(10):
            seen.append(await spending_of_month(store, MONTH))

    await asyncio.gather(*(audit.record_call(store, record) for record in calls), resets(), reads())
    assert await spending_of_month(store, MONTH) == sum(record.cost.usd for record in calls)
    assert seen == sorted(seen), "the month's money never goes down"
    rows = await store.table.query(keys.usage_partition(store.tenant, MONTH))
    taken = sum(cast(int, row["requests"]) for row in rows)
    assert (await total(store))["requests"] == taken <= CALLS
    assert len(await records(store)) == CALLS


async def test_a_transaction_sent_again_under_its_token_counts_once(store: TenantStore) -> None:
    with inject(FaultPlan(Fault.REPEATED)):
        await audit.record_call(store, call())
    assert (await total(store))["requests"] == 1
