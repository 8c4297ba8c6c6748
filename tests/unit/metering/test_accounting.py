"""Test that each call is in the audit and in the usage once under every fault, or else in the log."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from spass.core.cost import Cost
from spass.core.ids import RequestId
from spass.core.messages import TokenUsage
from spass.metering import audit
from spass.metering.audit import CallKind, record_call
from spass.metering.usage import UsageQuery, usage
from spass.store import keys
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.metering.ledger import Faults, LedgerHarness, call, usd

pytestmark = pytest.mark.anyio

ONE = {"requests": 1, "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "cost_usd": "0.25"}
NO_USAGE = {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost_usd": "0"}


async def records(store: TenantStore) -> list[Item]:
    return await store.table.query(keys.audit_partition(store.tenant, RequestId("req_outer")))


async def total(store: TenantStore) -> Any:
    return (await usage(store, UsageQuery())).total.to_dict()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


async def test_one_transaction_writes_the_audit_record_and_the_usage(store: TenantStore) -> None:
    with inject(FaultPlan()) as plan:
        await record_call(store, call())
    assert [table_call.operation for table_call in plan.calls] == ["TransactWriteItems"]
    assert len(await records(store)) == 1
    assert await total(store) == ONE


async def test_every_record_is_one_line_of_the_log(store: TenantStore, capsys: pytest.CaptureFixture[str]) -> None:
    chat = call()
    tool = replace(chat, kind=CallKind.TOOL, model=None, tool="calculator", request_id=RequestId("req_tool"))
    await record_call(store, chat)
    await record_call(store, tool)
    first, second = lines(capsys)
    assert first == {"level": "info", "event": "call", "tenant": "acme", **audit.attributes(chat)}
    assert (second["tool"], second["request_id"], "cost_usd" in second) == ("calculator", "req_tool", False)


@pytest.mark.parametrize("kind", [CallKind.CHAT, CallKind.EMBEDDING])
async def test_a_call_that_broke_off_is_counted_with_its_tokens(store: TenantStore, kind: CallKind) -> None:
    await record_call(store, call(kind=kind, status="upstream_error"))
    await record_call(store, call(kind=kind, status="cancelled"))
    assert (await total(store))["requests"] == 2
    assert (await total(store))["cost_usd"] == "0.5"


@pytest.mark.parametrize("status", ["upstream_error", "cancelled", "no_backend_available"])
async def test_a_call_that_failed_before_its_answer_is_audited_but_not_counted(store: TenantStore, status: str) -> None:
    with inject(FaultPlan()) as plan:
        await record_call(store, call(status=status, usage=TokenUsage(), cost=Cost()))
    assert [table_call.operation for table_call in plan.calls] == ["PutItem"]
    assert [record["status"] for record in await records(store)] == [status]
    assert await total(store) == NO_USAGE


async def test_an_answer_without_tokens_is_counted(store: TenantStore) -> None:
    await record_call(store, call(usage=TokenUsage(), cost=Cost(sub_calls=1)))
    assert await total(store) == {**NO_USAGE, "requests": 1}


async def test_a_tool_call_is_audited_but_not_counted(store: TenantStore) -> None:
    await record_call(store, call(kind=CallKind.TOOL, model=None, tool="calculator"))
    assert len(await records(store)) == 1
    assert await total(store) == NO_USAGE


@pytest.mark.parametrize("status", ["ok", "upstream_error"])
async def test_recording_a_call_twice_counts_it_once(store: TenantStore, status: str) -> None:
    record = audit.attributes(call(status=status))
    for _ in range(3):
        await audit.account(store, record)
    assert len(await records(store)) == 1
    assert await total(store) == ONE


@pytest.mark.parametrize("fault", list(Fault))
async def test_audit_and_usage_agree_under_every_fault(ledger: LedgerHarness, fault: Fault) -> None:
    with inject(FaultPlan(fault)):
        try:
            await record_call(ledger.store, call())
        except Crash:
            assert fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
    for message in ledger.queued():
        assert message["job"] == "account"
        await audit.account(ledger.store, message["record"])
    there = 0 if fault is Fault.CRASH_BEFORE else 1
    assert len(await records(ledger.store)) == there
    assert await total(ledger.store) == (ONE if there else NO_USAGE)


async def test_a_record_that_cannot_be_stored_is_sent_to_the_queue(
    ledger: LedgerHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    record = call()
    with inject(FaultPlan(Fault.THROTTLE, times=2)):
        await record_call(ledger.store, record)
    assert ledger.queued() == [{"job": "account", "tenant": "acme", "record": audit.attributes(record)}]
    said, queued = lines(capsys)
    assert (said["event"], said["request_id"]) == ("call", record.request_id)
    assert (queued["event"], queued["request_id"], queued["call"]) == ("audit_queued", "req_outer", record.request_id)


async def test_a_record_that_cannot_be_sent_either_is_in_the_log(
    ledger: LedgerHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    record = call()
    with inject(Faults(always=Fault.TIMEOUT)):
        await record_call(ledger.store, record)
    assert ledger.queued() == []
    said, lost = lines(capsys)
    assert said["cost_usd"] == "0.25"
    assert (lost["level"], lost["event"], lost["call"]) == ("error", "audit_not_stored", record.request_id)
    assert "_aws" not in lost, "a gateway without a namespace has no metrics"


async def test_a_lost_record_counts_in_the_metric_that_an_alarm_watches(
    ledger: LedgerHarness, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPASS_METRICS_NAMESPACE", "Spass/prod")
    with inject(Faults(always=Fault.TIMEOUT)):
        await record_call(ledger.store, call())
    (_, lost) = lines(capsys)
    (directive,) = lost["_aws"]["CloudWatchMetrics"]
    assert directive == {
        "Namespace": "Spass/prod",
        "Dimensions": [[]],
        "Metrics": [{"Name": "audit_not_stored", "Unit": "Count"}],
    }
    assert lost["audit_not_stored"] == 1


async def test_a_missing_queue_is_logged(ledger: LedgerHarness, capsys: pytest.CaptureFixture[str]) -> None:
    jobless = ledger.without_queue()
    with inject(FaultPlan(Fault.THROTTLE, times=2)):
        await record_call(jobless, call())
    assert [line["event"] for line in lines(capsys)] == ["call", "audit_not_stored"]


async def test_usage_rows_have_the_utc_day_of_the_call_and_outlive_records(store: TenantStore) -> None:
    at = datetime.now(UTC).date().isoformat()
    await record_call(store, call(cost=usd("0.1")))
    (row,) = await store.table.query(keys.usage_partition(store.tenant, at[:7]))
    (record,) = await records(store)
    assert (row["day"], row["agent"], row["model"], row["user"]) == (at, "researcher", "small", "anna")
    assert row["cost"] == 10**11
    assert isinstance(row["ttl"], int)
    assert isinstance(record["ttl"], int)
    assert (row["ttl"] - record["ttl"]) // 86400 in (310, 311)
