"""Test that each model call publishes one START and one END, and that an END has what the audit has."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import pytest

from spass.calls.scope import Scope
from spass.core.bus import INFERENCE_END, INFERENCE_START, EventBus
from spass.core.errors import BudgetExceeded, SpassError, UpstreamError
from spass.core.ids import AgentName, RequestId, SessionId
from spass.core.messages import FinishReason, Message, Role, TokenUsage
from spass.metering import audit
from spass.models.errors import BackendUnavailable
from spass.models.types import ChatDelta, ChatRequest
from spass.store.tenant_store import TenantStore
from spass.testing.event_log import EventLog
from spass.testing.faults import Fault, FaultPlan, inject
from spass.testing.model import Deltas
from tests.unit.calls.scripted_provider import (
    CONFIG,
    audit_of,
    calls_of,
    failing_second_embedding,
    make_scope,
    scripted_model,
)

pytestmark = pytest.mark.anyio

QUESTION = ChatRequest("small", (Message(Role.USER, "What is it, then?"),))
ANSWER: Final[Deltas] = [ChatDelta("Hello"), ChatDelta(".", finish_reason=FinishReason.STOP, usage=TokenUsage(10, 5))]
BREAKING: Final[Deltas] = [ChatDelta("12345678"), BackendUnavailable("gone")]


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


@pytest.fixture
def log(bus: EventBus) -> EventLog:
    return EventLog(bus)


@pytest.fixture
def scope(store: TenantStore, bus: EventBus) -> Scope:
    return replace(make_scope(store), bus=bus)


async def compare_with_audit(log: EventLog, store: TenantStore) -> None:
    """Compare each END with the audit record of its call."""
    log.check()
    ends = {end.call_id: end for end in log.of(INFERENCE_END)}
    records = {str(record["request_id"]): record for record in await audit_of(store)}
    assert ends.keys() == records.keys()
    for call_id, end in ends.items():
        record = records[call_id]
        assert (end.model, end.status, end.backend) == (record["model"], record["status"], record.get("backend"))
        assert (end.attempts, end.duration_ms) == (record.get("attempts", 0), record["latency_ms"])
        assert (end.prompt_tokens, end.completion_tokens) == (record["prompt_tokens"], record["completion_tokens"])
        assert end.cost_usd == Decimal(str(record["cost_usd"]))
        assert (end.request_id, end.parent_request_id) == (record["outer_request_id"], record["parent_request_id"])


async def test_an_answered_chat_is_a_start_and_an_end(scope: Scope, store: TenantStore, log: EventLog) -> None:
    scope = scope.for_agent(AgentName("helper"), SessionId("ses_1"), kind="orchestrator").for_call(RequestId("req_tool"))
    _ = [delta async for delta in calls_of(scripted_model(ANSWER)).chat(scope, QUESTION)]
    (start,), (end,) = log.of(INFERENCE_START), log.of(INFERENCE_END)
    assert (start.call_id, start.model) == (end.call_id, "small")
    assert (end.backend, end.attempts, end.status) == ("scripted", 1, "ok")
    assert (end.prompt_tokens, end.completion_tokens, end.cost_usd) == (10, 5, Decimal("0.0000125"))
    for event in (start, end):
        assert (event.tenant, event.request_id, event.parent_request_id) == ("acme", "req_outer", "req_tool")
        assert (event.agent, event.kind, event.session_id) == ("helper", "orchestrator", "ses_1")
    assert start.at <= end.at
    await compare_with_audit(log, store)


@pytest.mark.parametrize(
    ("script", "status"), [(BackendUnavailable("down"), "upstream_error"), (BREAKING, "upstream_error"), (KeyError(), None)]
)
async def test_a_failed_chat_has_an_end(scope: Scope, store: TenantStore, log: EventLog, script: Any, status: str | None) -> None:
    with pytest.raises((UpstreamError, KeyError)):
        _ = [delta async for delta in calls_of(scripted_model(script)).chat(scope, QUESTION)]
    assert [end.status for end in log.of(INFERENCE_END)] == [status or audit.FAILED]
    await compare_with_audit(log, store)


async def test_a_chat_that_is_closed_early_has_an_end(scope: Scope, store: TenantStore, log: EventLog) -> None:
    answer = calls_of(scripted_model(ANSWER)).chat(scope, QUESTION)
    await anext(answer)
    assert log.names == ["inference_start"]
    await answer.aclose()
    assert [end.status for end in log.of(INFERENCE_END)] == [audit.CANCELLED]
    await compare_with_audit(log, store)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("fault", [None, Fault.THROTTLE, Fault.TIMEOUT])
async def test_a_cancelled_chat_has_an_end_even_if_its_record_cannot_be_stored(
    scope: Scope, log: EventLog, times: int, fault: Fault | None
) -> None:
    waiting = asyncio.Event()

    async def wait() -> None:
        waiting.set()
        await asyncio.sleep(60)

    async def read_answer() -> None:
        async for _ in calls_of(scripted_model(ANSWER, before_chat=wait)).chat(scope, QUESTION):
            pass

    with inject(FaultPlan(fault=fault)):
        reader = asyncio.create_task(read_answer())
        await waiting.wait()
        for _ in range(times):
            reader.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await reader
    assert [end.status for end in log.of(INFERENCE_END)] == [audit.CANCELLED]
    log.check()


async def test_a_chat_whose_accounting_fails_has_an_end(scope: Scope, log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("the audit failed")

    monkeypatch.setattr(audit, "record_call", fail)
    with pytest.raises(RuntimeError):
        _ = [delta async for delta in calls_of(scripted_model(ANSWER)).chat(scope, QUESTION)]
    log.check()
    assert log.names == ["inference_start", "inference_end"]


async def test_a_chat_whose_price_cannot_be_computed_has_an_end(scope: Scope, log: EventLog) -> None:
    endless = [ChatDelta("Hello", finish_reason=FinishReason.STOP, usage=TokenUsage(10**40, 5))]
    with pytest.raises(ArithmeticError):
        _ = [delta async for delta in calls_of(scripted_model(endless)).chat(scope, QUESTION)]
    assert log.names == ["inference_start", "inference_end"]


async def test_a_refused_call_publishes_nothing(scope: Scope, log: EventLog, store: TenantStore) -> None:
    full = CONFIG.model_copy(update={"defaults": CONFIG.defaults.model_copy(update={"monthly_budget_usd": Decimal(0)})})
    for refused in (replace(make_scope(store, allowed=["large"]), bus=scope.bus), replace(scope, depth=3)):
        with pytest.raises(SpassError):
            _ = [delta async for delta in calls_of(scripted_model()).chat(refused, QUESTION)]
    with pytest.raises(BudgetExceeded):
        _ = [delta async for delta in calls_of(scripted_model(), full).chat(scope, QUESTION)]
    assert log.events == []


async def test_several_requests_for_embeddings_are_one_start_and_one_end(scope: Scope, store: TenantStore, log: EventLog) -> None:
    await calls_of(scripted_model()).embed(scope, ["x"] * 150)
    (start,), (end,) = log.of(INFERENCE_START), log.of(INFERENCE_END)
    assert (start.model, end.model, end.attempts, end.prompt_tokens) == ("mini-embed", "mini-embed", 5, 300)
    await compare_with_audit(log, store)


async def test_failed_embeddings_have_one_end(scope: Scope, store: TenantStore, log: EventLog) -> None:
    with pytest.raises(UpstreamError):
        await calls_of(failing_second_embedding()).embed(scope, ["x"] * 64)
    assert [(end.status, end.prompt_tokens) for end in log.of(INFERENCE_END)] == [("upstream_error", 64)]
    await compare_with_audit(log, store)


async def test_no_embeddings_are_no_call(scope: Scope, log: EventLog) -> None:
    await calls_of(scripted_model()).embed(scope, [])
    assert log.events == []


async def test_a_failing_subscriber_does_not_change_the_answer_or_the_audit(
    scope: Scope, store: TenantStore, bus: EventBus
) -> None:
    def fail(_: object) -> None:
        raise asyncio.CancelledError

    bus.subscribe(INFERENCE_START, fail)
    bus.subscribe(INFERENCE_END, fail)
    log = EventLog(bus)
    deltas = [delta async for delta in calls_of(scripted_model(ANSWER)).chat(scope, QUESTION)]
    assert "".join(delta.content for delta in deltas) == "Hello."
    await compare_with_audit(log, store)


async def test_work_on_many_calls_at_once_keeps_the_pairs_apart(scope: Scope, store: TenantStore, log: EventLog) -> None:
    async def read(number: int) -> None:
        script = BREAKING if number % 3 == 0 else ANSWER
        async with aclosing(calls_of(scripted_model(script)).chat(scope, QUESTION)) as deltas:
            async for _ in deltas:
                await asyncio.sleep(0)
                if number % 5 == 0:
                    break

    await asyncio.gather(*map(read, range(30)), return_exceptions=True)
    assert len(log.of(INFERENCE_START)) == 30
    await compare_with_audit(log, store)
