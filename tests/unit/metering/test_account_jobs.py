"""Test that a record in the queue is stored once, even if it is delivered several times."""

import json
from typing import Any, cast

import pytest

from spass.core.errors import StorageUnavailable
from spass.core.ids import TenantId
from spass.core.jobs import Delivery
from spass.core.time import Deadline
from spass.jobs.background import background_handler
from spass.jobs.dispatch import Dispatcher
from spass.metering.audit import record_call
from spass.metering.usage import UsageQuery, usage
from spass.rag.index.cache import ObjectCache
from spass.rag.write.writer import Writer
from spass.testing.faults import Fault, FaultPlan, inject
from tests.unit.metering.ledger import LedgerHarness, call

pytestmark = pytest.mark.anyio


@pytest.fixture
def dispatcher(ledger: LedgerHarness) -> Dispatcher:
    return Dispatcher({TenantId("acme")}, ledger.aws.for_tenant, background_handler(cast(Writer, None), ObjectCache()))


async def queued_body(ledger: LedgerHarness) -> str:
    """Return the body of the message for a call that the table did not store."""
    with inject(FaultPlan(Fault.THROTTLE, times=2)):
        await record_call(ledger.store, call())
    (message,) = ledger.queued()
    return json.dumps(message)


async def requests_of(ledger: LedgerHarness) -> Any:
    answer: Any = (await usage(ledger.store, UsageQuery())).to_dict()
    return answer["total"]["requests"]


async def deliver(dispatcher: Dispatcher, body: str) -> bool:
    return await dispatcher.message(body, Delivery("m-1", 1), Deadline.after(60))


async def test_a_delivered_call_is_counted_once(ledger: LedgerHarness, dispatcher: Dispatcher) -> None:
    body = await queued_body(ledger)
    assert await requests_of(ledger) == 0
    for _ in range(3):
        assert await deliver(dispatcher, body)
    assert await requests_of(ledger) == 1


async def test_a_call_that_still_cannot_be_stored_is_delivered_again(ledger: LedgerHarness, dispatcher: Dispatcher) -> None:
    body = await queued_body(ledger)
    with inject(FaultPlan(Fault.TIMEOUT, times=2)), pytest.raises(StorageUnavailable):
        await deliver(dispatcher, body)
    assert await deliver(dispatcher, body)
    assert await requests_of(ledger) == 1


async def test_a_call_of_an_unknown_tenant_is_dropped(
    ledger: LedgerHarness, dispatcher: Dispatcher, capsys: pytest.CaptureFixture[str]
) -> None:
    body = (await queued_body(ledger)).replace('"acme"', '"gone"')
    capsys.readouterr()
    assert await deliver(dispatcher, body)
    assert json.loads(capsys.readouterr().out)["event"] == "job_dropped"
    assert await requests_of(ledger) == 0
