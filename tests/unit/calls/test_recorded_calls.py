"""Test that an answer ends after its record is written, and that the record is written even if the caller is gone."""

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TypeVar

import anyio
import pytest

from spass.calls.recorder import Recorder
from spass.calls.scope import JOB_MAX_WAIT, REQUEST_MAX_WAIT
from spass.core.cost import CostSource
from spass.core.errors import UpstreamError
from spass.core.messages import FinishReason, Message, Role, TokenUsage
from spass.metering.audit import CallKind
from spass.metering.usage import UsageQuery, usage
from spass.models.errors import BackendUnavailable
from spass.models.types import ChatDelta, ChatRequest
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.tenant_store import TenantStore
from spass.testing.faults import Fault, FaultPlan, inject
from tests.unit.calls.scripted_provider import audit_of, calls_of, make_scope, scripted_model
from tests.unit.metering.ledger import LedgerHarness

T = TypeVar("T")

pytestmark = pytest.mark.anyio


QUESTION = ChatRequest("small", (Message(Role.USER, "What is it, then?"),))
ANSWER = [ChatDelta("Hello"), ChatDelta(".", finish_reason=FinishReason.STOP, usage=TokenUsage(10, 5))]


@dataclass(slots=True)
class Gate(FaultPlan):
    """A fault plan that delays the writes of records until the gate is open. Then it injects ``write_fault`` into the first
    ``times`` writes, retries included."""

    write_fault: Fault | None = None
    times: int = 2
    writes: int = 0
    write_started: asyncio.Event = field(default_factory=asyncio.Event)
    is_open: asyncio.Event = field(default_factory=asyncio.Event)

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if call.operation == "TransactWriteItems":
            self.writes += 1
            self.fault = self.write_fault if self.writes <= self.times else None
            self.at = len(self.calls)
            self.write_started.set()
            await self.is_open.wait()
        return await FaultPlan.around(self, call, run)


async def requests_of(store: TenantStore) -> int:
    return (await usage(store, UsageQuery())).total.requests


@pytest.mark.parametrize("act", ["chat", "tool"])
async def test_work_leaves_its_worker_until_it_has_called_a_chat_model_or_a_tool(store: TenantStore, act: str) -> None:
    calls, scope = calls_of(scripted_model(ANSWER)), replace(make_scope(store), max_wait=JOB_MAX_WAIT, can_be_put_back=True)
    await calls.embed(scope, ["x"])
    assert scope.seconds_to_wait == REQUEST_MAX_WAIT, "an embedding changes nothing"
    if act == "chat":
        async with aclosing(calls.chat(scope, QUESTION)) as deltas:
            assert [delta async for delta in deltas]
    else:
        Recorder(scope.nested(), CallKind.TOOL, tool="calculator")
    assert scope.seconds_to_wait == JOB_MAX_WAIT, "it must not act twice"


async def test_the_last_delta_of_a_stream_waits_for_the_record(store: TenantStore) -> None:
    deltas: list[ChatDelta] = []

    async def read_answer() -> None:
        async for delta in calls_of(scripted_model(ANSWER)).chat(make_scope(store), QUESTION):
            deltas.append(delta)

    with inject(gate := Gate()):
        reader = asyncio.create_task(read_answer())
        await gate.write_started.wait()
        assert "".join(delta.content for delta in deltas) == "Hello."
        assert all(delta.finish_reason is None for delta in deltas), "the stream ended before its record was written"
        gate.is_open.set()
        await reader
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert await requests_of(store) == 1


@pytest.mark.parametrize(
    ("fault", "times", "expected_events"),
    [
        (Fault.THROTTLE, 2, ["call", "audit_not_stored"]),
        (Fault.TIMEOUT, 2, ["call", "audit_not_stored"]),
        (Fault.LOST_REPLY, 1, ["call"]),  # the retry has the token of the first attempt
        (Fault.LOST_REPLY, 2, ["call", "audit_not_stored"]),
    ],
)
async def test_an_answer_is_returned_although_the_table_fails(
    store: TenantStore, fault: Fault, times: int, expected_events: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    gate = Gate(write_fault=fault, times=times)
    gate.is_open.set()
    with inject(gate):
        deltas = [delta async for delta in calls_of(scripted_model(ANSWER)).chat(make_scope(store), QUESTION)]
    assert (deltas[-1].usage, deltas[-1].finish_reason) == (TokenUsage(10, 5), FinishReason.STOP)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == expected_events
    assert "Hello" not in repr(events)


@pytest.mark.parametrize("fault", [None, Fault.THROTTLE])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_caller_cancelled_while_the_record_is_written_waits_for_it(
    store: TenantStore, fault: Fault | None, times: int
) -> None:
    ledger = LedgerHarness.create()

    async def read_answer() -> None:
        async for _ in calls_of(scripted_model(ANSWER)).chat(make_scope(ledger.store), QUESTION):
            pass

    with inject(gate := Gate(write_fault=fault)):
        reader = asyncio.create_task(read_answer())
        await gate.write_started.wait()
        for _ in range(times):
            reader.cancel()
            await asyncio.sleep(0)
        assert not reader.done()
        gate.is_open.set()
        with pytest.raises(asyncio.CancelledError):
            await reader
    assert await requests_of(ledger.store) + len(ledger.queued()) == 1


async def test_a_cancelled_anyio_scope_waits_for_the_record(store: TenantStore) -> None:
    with inject(gate := Gate()):
        async with anyio.create_task_group() as group:

            async def read_answer() -> None:
                async for _ in calls_of(scripted_model(ANSWER)).chat(make_scope(store), QUESTION):
                    pass

            group.start_soon(read_answer)
            await gate.write_started.wait()
            group.cancel_scope.cancel()
            gate.is_open.set()
    assert await requests_of(store) == 1


async def test_an_answer_that_breaks_off_is_charged(store: TenantStore) -> None:
    scope = make_scope(store)
    breaking_model = scripted_model([ChatDelta("12345678"), BackendUnavailable("gone")])
    with pytest.raises(UpstreamError):
        _ = [delta async for delta in calls_of(breaking_model).chat(scope, QUESTION)]
    failing_model = scripted_model(BackendUnavailable("down"))
    with pytest.raises(UpstreamError):
        _ = [delta async for delta in calls_of(failing_model).chat(scope, QUESTION)]
    total = scope.tally.total
    assert (total.sub_calls, total.source) == (1, CostSource.CATALOG), "a call without a cost does not change the source"
    assert f"{total.usd:f}" == "0.0000055"  # 5 tokens of the prompt and 2 of the answer
    assert await requests_of(store) == 1
    assert [record["status"] for record in await audit_of(store)] == ["upstream_error"] * 2


async def test_an_answer_that_is_closed_early_is_charged(store: TenantStore) -> None:
    scope = make_scope(store)
    answer = calls_of(scripted_model(ANSWER)).chat(scope, QUESTION)
    await anext(answer)
    await answer.aclose()
    assert (scope.tally.total.sub_calls, scope.tally.total.source) == (1, CostSource.CATALOG)
    assert await requests_of(store) == 1
