"""Test that each tool call publishes one START and one END, however it ends."""

import asyncio
from dataclasses import replace
from typing import ClassVar

import pytest

from spass.calls.scope import Scope
from spass.core.bus import TOOL_CALL_END, TOOL_CALL_START, EventBus
from spass.core.errors import InvalidRequest, SpassError, StorageUnavailable, UpstreamError
from spass.core.ids import AgentName, SessionId
from spass.core.messages import Json, ToolCall
from spass.metering import audit
from spass.testing.event_log import EventLog
from spass.tools.base import Tool, ToolError
from spass.tools.toolbox import Toolbox
from tests.unit.calls.scripted_provider import calls_of, scripted_model
from tests.unit.tools.fakes import scope_for, table_of, toolbox_of

pytestmark = pytest.mark.anyio


class Behave(Tool):
    """Ends as ``how`` says."""

    timeout: ClassVar[float] = 0.05

    how: str = "answer"

    async def run(self, scope: Scope, /) -> Json:
        match self.how:
            case "wait":
                await asyncio.sleep(60)
            case "embed":
                await calls_of(scripted_model()).embed(scope, ["text"], "mini-embed")
            case "fail":
                raise ToolError("Use other words.")
            case "model fails":
                raise UpstreamError("The model side failed.")
            case "storage fails":
                raise StorageUnavailable("The storage did not answer in time; try again.")
            case "crash":
                raise KeyError("how")
        return {}


@pytest.fixture
def box() -> Toolbox:
    return toolbox_of(Behave)


@pytest.fixture
def scope() -> Scope:
    return replace(scope_for(), bus=EventBus()).for_agent(AgentName("helper"), SessionId("ses_1"), kind="simple")


@pytest.fixture
def log(scope: Scope) -> EventLog:
    return EventLog(scope.bus)


def call(how: str) -> ToolCall:
    return ToolCall("call_1", "behave", f'{{"how": "{how}"}}')


def statuses(log: EventLog) -> list[tuple[str | None, bool, str]]:
    return [(end.tool, end.ok, end.status) for end in log.of(TOOL_CALL_END)]


async def test_an_answered_call_is_a_start_and_an_end(box: Toolbox, scope: Scope, log: EventLog) -> None:
    outcome = await box.execute(scope, call("answer"), allowed=["behave"])
    (start,), (end,) = log.of(TOOL_CALL_START), log.of(TOOL_CALL_END)
    assert (start.call_id, start.tool) == (end.call_id, "behave")
    assert (end.ok, end.status, end.duration_ms) == (True, "ok", outcome.duration_ms)
    (record,) = (put.attributes for put in table_of(scope).written)
    assert (start.call_id, start.parent_request_id) == (record["request_id"], record["parent_request_id"])
    for event in (start, end):
        assert (event.agent, event.kind, event.session_id) == ("helper", "simple", "ses_1")


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("wait", "tool_timeout"),
        ("fail", "tool_failed"),
        ("model fails", "upstream_error"),
        ("storage fails", "storage_unavailable"),
        ("crash", audit.FAILED),
    ],
)
async def test_a_failed_call_has_one_end(box: Toolbox, scope: Scope, log: EventLog, how: str, status: str) -> None:
    if how in ("storage fails", "crash"):
        with pytest.raises((StorageUnavailable, KeyError)):
            await box.execute(scope, call(how), allowed=["behave"])
    else:
        await box.execute(scope, call(how), allowed=["behave"])
    log.check()
    assert statuses(log) == [("behave", False, status)]


@pytest.mark.parametrize("broken_table", [False, True])
async def test_a_cancelled_call_has_one_end(box: Toolbox, scope: Scope, log: EventLog, broken_table: bool) -> None:
    table_of(scope).broken = broken_table
    task = asyncio.create_task(box.execute(scope, call("wait"), allowed=["behave"]))
    await asyncio.sleep(0)
    assert log.names == ["tool_call_start"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    log.check()
    assert statuses(log) == [("behave", False, audit.CANCELLED)]


async def test_a_call_with_bad_arguments_has_one_end(box: Toolbox, scope: Scope, log: EventLog) -> None:
    for arguments in ("{", '{"how": 1}', '{"else": "x"}'):
        await box.execute(scope, ToolCall("call_1", "behave", arguments), allowed=["behave"])
    log.check()
    assert statuses(log) == [("behave", False, "invalid_arguments")] * 3


async def test_a_name_that_the_model_made_up_is_not_published(box: Toolbox, scope: Scope, log: EventLog) -> None:
    await box.execute(scope, ToolCall("call_1", "my-secret", "{}"), allowed=["behave"])
    log.check()
    assert statuses(log) == [(None, False, "tool_not_found")]
    assert "my-secret" not in repr(log.events)


async def test_calls_of_a_tool_are_nested_in_its_call(box: Toolbox, scope: Scope, log: EventLog) -> None:
    await box.execute(scope, call("embed"), allowed=["behave"])
    log.check()
    assert log.names == ["tool_call_start", "inference_start", "inference_end", "tool_call_end"]
    events = [event for _, event in log.events]
    assert {event.parent_request_id for event in events[1:3]} == {log.of(TOOL_CALL_START)[0].call_id}


async def test_calls_of_one_answer_are_paired(box: Toolbox, scope: Scope, log: EventLog) -> None:
    hows = ["answer", "wait", "fail", "embed"] * 10
    async for _ in box.run_all(scope, [call(how) for how in hows], allowed=["behave"]):
        pass
    log.check()
    assert len(log.of(TOOL_CALL_END)) == 32, "calls that are not run publish nothing"


async def test_a_direct_call_that_is_refused_publishes_nothing(box: Toolbox, scope: Scope, log: EventLog) -> None:
    for name, arguments in (("nothing", {}), ("behave", {"how": 1})):
        with pytest.raises((SpassError, InvalidRequest)):
            await box.execute_direct(scope, name, arguments)
    assert log.events == []
    await box.execute_direct(scope, "behave", {})
    assert log.names == ["tool_call_start", "tool_call_end"]
