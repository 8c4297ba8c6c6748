"""Random tool calls, closed after any number of events: the laws of the events hold and nothing keeps running."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.calls.scope import CallReports
from spass.core.effects import ToolOutcome
from spass.core.errors import StorageUnavailable
from spass.core.events import CallEvent, Nested, ToolCallFinished, ToolCallStarted, ToolProgress
from spass.core.messages import ToolCall
from spass.tools.base import CallResult
from spass.tools.concurrent_calls import run_calls
from spass.tools.results import outcome_of

pytestmark = pytest.mark.anyio

CONCURRENCY: Final = 3
STUBBORN_STEPS: Final = 5


@dataclass(frozen=True)
class Plan:
    """What one call does: it waits, reports its progress, and returns, fails or takes its time to be cancelled."""

    steps: int
    reports: int
    fails: bool
    is_stubborn: bool


PLANS = st.lists(
    st.builds(Plan, st.integers(0, 6), st.integers(0, 2), st.sampled_from([False] * 7 + [True]), st.booleans()), max_size=9
)


class Runner:
    """Runs the calls of ``plans``, whose ids are indices, and counts those that run."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = plans
        self.running = 0
        self.most = 0

    async def run(self, call: ToolCall, reports: CallReports) -> ToolOutcome:
        plan = self._plans[int(call.id)]
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(plan.steps):
                await asyncio.sleep(0)
            for number in range(plan.reports):
                reports.progress(f"{number}")
                reports.forward(Nested("helper", call.id, ToolProgress(f"{call.id}.{number}", "half")))
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            for _ in range(STUBBORN_STEPS if plan.is_stubborn else 0):
                await asyncio.sleep(0)
            raise
        finally:
            self.running -= 1
            asyncio.get_running_loop().call_soon(reports.forward, Nested("helper", call.id, ToolProgress("late", "")))
        if plan.fails:
            raise StorageUnavailable("The storage did not answer in time; try again.")
        return outcome_of(call, CallResult({}))


@given(plans=PLANS, stop_after=st.none() | st.integers(0, 30))
async def test_every_started_call_finishes_once_and_none_outlives_the_iterator(plans: list[Plan], stop_after: int | None) -> None:
    runner = Runner(plans)
    calls = [ToolCall(str(index), "tool", "{}") for index in range(len(plans))]
    before = asyncio.all_tasks()
    iterator = run_calls(calls, runner.run, concurrency=CONCURRENCY)
    events: list[CallEvent] = []
    failed = False
    try:
        while stop_after is None or len(events) < stop_after:
            events.append(await anext(iterator))
    except StopAsyncIteration:
        stop_after = None
    except StorageUnavailable:
        failed, stop_after = True, None
    await iterator.aclose()

    assert (runner.running, asyncio.all_tasks()) == (0, before)
    assert runner.most <= CONCURRENCY
    open_calls: set[str] = set()
    started: list[str] = []
    for event in events:
        match event:
            case ToolCallStarted(call=call):
                open_calls.add(call.id)
                started.append(call.id)
            case ToolProgress(call_id=call_id) | Nested(parent_id=call_id):
                assert call_id in open_calls
            case ToolCallFinished(outcome=outcome):
                open_calls.remove(outcome.call.id)
    assert started == [call.id for call in calls[: len(started)]]
    if stop_after is None:
        assert not open_calls
        assert failed == any(plans[int(call)].fails for call in started if not _was_cancelled(events, call))
        assert failed or len(started) == len(calls)


def _was_cancelled(events: Sequence[CallEvent], call: str) -> bool:
    outcomes = (event.outcome for event in events if isinstance(event, ToolCallFinished))
    return any(outcome.call.id == call and "cancelled" in outcome.message.content for outcome in outcomes)
