"""The tool calls of one model answer run side by side, their events arrive as they happen, and no call outlives the iterator."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from spass.calls.scope import Scope
from spass.core.effects import ToolOutcome
from spass.core.errors import StorageUnavailable
from spass.core.events import CallEvent, ToolCallFinished, ToolCallStarted, ToolProgress
from spass.core.messages import Json, ToolCall
from spass.tools.base import Tool, ToolError
from spass.tools.toolbox import MAX_CALLS
from tests.unit.tools.fakes import scope_for, table_of, toolbox_of

pytestmark = pytest.mark.anyio


@dataclass(slots=True)
class Running:
    """The calls of ``Wait`` that run now, the most that ran together, and how often one was cancelled."""

    now: int = 0
    most: int = 0
    cancelled: int = 0
    reporters: list[Callable[[str], None]] = field(default_factory=list)


RUNNING: ContextVar[Running] = ContextVar("RUNNING")


class Wait(Tool):
    """Waits for ``steps`` iterations of the event loop, and then fails as ``failure`` says."""

    category: ClassVar[str] = "reasoning"

    steps: int = 3
    failure: str = ""
    progress: str = ""

    async def run(self, scope: Scope, /) -> Json:
        running = RUNNING.get()
        running.now += 1
        running.most = max(running.most, running.now)
        running.reporters.append(scope.reports.progress)
        if self.progress:
            scope.reports.progress(self.progress.replace("?", "\ud800"))
        try:
            for _ in range(self.steps):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            running.cancelled += 1
            raise
        finally:
            running.now -= 1
        match self.failure:
            case "storage":
                raise StorageUnavailable("The storage did not answer in time; try again.")
            case "bug":
                raise KeyError("a name that nobody should read")
            case "tool":
                raise ToolError("Use other words.")
        return self.steps


@pytest.fixture
def scope() -> Scope:
    return scope_for()


@pytest.fixture
def running() -> Running:
    return Running()


BOX = toolbox_of(Wait)


def waits(*arguments: Mapping[str, Json]) -> list[ToolCall]:
    return [ToolCall(f"call_{at}", "wait", json.dumps(given)) for at, given in enumerate(arguments)]


def run_all(scope: Scope, running: Running, calls: Sequence[ToolCall]) -> AsyncGenerator[CallEvent, None]:
    RUNNING.set(running)
    return BOX.run_all(scope, calls, allowed=["wait", "calculator"])


async def collect(events: AsyncGenerator[CallEvent, None]) -> list[CallEvent]:
    return [event async for event in events]


def outcomes(events: Sequence[CallEvent]) -> dict[str, ToolOutcome]:
    return {event.outcome.call.id: event.outcome for event in events if isinstance(event, ToolCallFinished)}


def started(events: Sequence[CallEvent]) -> list[str]:
    return [event.call.id for event in events if isinstance(event, ToolCallStarted)]


def error_code(outcome: ToolOutcome) -> str:
    assert not outcome.ok
    assert isinstance(outcome.result, dict)
    assert json.loads(outcome.message.content) == outcome.result
    error = outcome.result["error"]
    assert isinstance(error, dict)
    return str(error["code"])


async def test_a_call_starts_reports_progress_and_finishes(scope: Scope, running: Running) -> None:
    (call,) = waits({"progress": "half ?", "steps": 2})
    first, progress, last = await collect(run_all(scope, running, [call]))
    assert first == ToolCallStarted(call)
    assert progress == ToolProgress("call_0", "half ?")
    assert isinstance(last, ToolCallFinished)
    assert (last.outcome.call, last.outcome.result, last.outcome.ok) == (call, 2, True)
    assert last.outcome.message.tool_call_id == "call_0"


async def test_a_fast_call_finishes_before_a_slow_one_that_was_written_first(scope: Scope, running: Running) -> None:
    events = await collect(run_all(scope, running, waits({"steps": 200}, {"steps": 1})))
    assert started(events) == ["call_0", "call_1"]
    assert list(outcomes(events)) == ["call_1", "call_0"]


async def test_a_finished_event_arrives_while_other_calls_run(scope: Scope, running: Running) -> None:
    async with aclosing(run_all(scope, running, waits({"steps": 10**9}, {"steps": 1}))) as events:
        async for event in events:
            if isinstance(event, ToolCallFinished):
                assert event.outcome.call.id == "call_1"
                assert running.now == 1
                break


async def test_eight_calls_run_at_the_same_time(scope: Scope, running: Running) -> None:
    events = await collect(run_all(scope, running, waits(*({"steps": 30 - at} for at in range(20)))))
    assert {name: one.result for name, one in outcomes(events).items()} == {f"call_{at}": 30 - at for at in range(20)}
    assert running.most == 8


async def test_the_failure_of_one_tool_leaves_the_others_alone(scope: Scope, running: Running) -> None:
    events = await collect(run_all(scope, running, waits({"failure": "tool"}, {"steps": 50}, {"steps": "many"})))
    results = outcomes(events)
    assert error_code(results["call_0"]) == "tool_failed"
    assert results["call_1"].result == 50
    assert error_code(results["call_2"]) == "invalid_arguments"


async def test_calls_beyond_the_limit_start_and_finish_with_an_error(scope: Scope, running: Running) -> None:
    calls = [ToolCall(f"c{at}", "calculator", f'{{"expression": "{at}"}}') for at in range(MAX_CALLS + 2)]
    calls.append(ToolCall("last", "calculator", "six \ud800"))
    events = await collect(run_all(scope, running, calls))
    assert sorted(started(events)) == sorted(outcomes(events)) == sorted(call.id for call in calls)
    refused = [outcomes(events)[call.id] for call in calls[MAX_CALLS:]]
    assert [error_code(one) for one in refused] == ["too_many_tool_calls"] * 3
    assert all(f"{MAX_CALLS}" in one.message.content and one.message.tool_call_id == one.call.id for one in refused)
    assert [one.arguments for one in (refused[0], refused[-1])] == [{"expression": f"{MAX_CALLS}"}, "six ?"]
    results = [outcomes(events)[call.id].result for call in calls[:MAX_CALLS]]
    assert results == [{"expression": f"{at}", "result": at} for at in range(MAX_CALLS)]
    assert table_of(scope).audited("tool") == [("calculator", "ok")] * MAX_CALLS


@pytest.mark.parametrize(
    ("failure", "error", "code"), [("storage", StorageUnavailable, "storage_unavailable"), ("bug", KeyError, "internal_error")]
)
async def test_a_fatal_error_is_raised_after_the_ends_of_all_started_calls(
    scope: Scope, running: Running, failure: str, error: type[Exception], code: str
) -> None:
    calls = waits({"failure": failure}, *({"steps": 10**9} for _ in range(12)))
    events: list[CallEvent] = []
    with pytest.raises(error):
        async for event in run_all(scope, running, calls):
            events.append(event)
    assert (running.now, running.cancelled) == (0, 7)
    assert started(events) == [f"call_{at}" for at in range(8)]
    results = outcomes(events)
    assert sorted(results) == started(events)
    assert [error_code(results[f"call_{at}"]) for at in range(8)] == [code, *["cancelled"] * 7]
    assert sorted(str(status) for _, status in table_of(scope).audited("tool")) == ["cancelled"] * 7 + [code]
    assert "nobody should read" not in results["call_0"].message.content


@pytest.mark.parametrize("steps", range(12))
async def test_closing_the_iterator_cancels_all_calls_and_waits_for_them(scope: Scope, running: Running, steps: int) -> None:
    calls = waits(*({"steps": at + 1} for at in range(4)), *({"steps": 10**9} for _ in range(6)))
    before = asyncio.all_tasks()
    events = run_all(scope, running, calls)
    for _ in range(steps):
        await anext(events)
    await events.aclose()
    assert running.now == 0
    assert asyncio.all_tasks() == before
    assert len(table_of(scope).audited("tool")) >= running.cancelled


async def test_a_cancelled_reader_leaves_no_call_behind(scope: Scope, running: Running) -> None:
    before = asyncio.all_tasks()
    reader = asyncio.create_task(collect(run_all(scope, running, waits({"steps": 10**9}, {"steps": 10**9}))))
    while running.now < 2:
        await asyncio.sleep(0)
    reader.cancel()
    await asyncio.sleep(0)
    reader.cancel()  # a second time, while the calls end
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert (running.now, running.cancelled) == (0, 2)
    assert asyncio.all_tasks() == before
    assert [status for _, status in table_of(scope).audited("tool")] == ["cancelled"] * 2


async def test_progress_is_bounded_and_ends_with_the_call(scope: Scope, running: Running) -> None:
    calls = waits({"progress": "x" * 10_000, "steps": 1}, {"steps": 500})
    seen: list[CallEvent] = []
    async for event in run_all(scope, running, calls):
        seen.append(event)
        if isinstance(event, ToolCallFinished) and event.outcome.call.id == "call_0":
            running.reporters[0]("too late")
    assert [event for event in seen if isinstance(event, ToolProgress)] == [ToolProgress("call_0", "x" * 500)]


async def test_no_calls_are_no_events(scope: Scope, running: Running) -> None:
    assert await collect(run_all(scope, running, [])) == []
