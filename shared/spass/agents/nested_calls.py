"""Keep track of the calls within the calls of a turn, so that each that starts also ends, before the call that it is part of, and
the approvals that they wait for are known if that call has no result."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, assert_never

from spass.calls.scope import ForwardEvent
from spass.core.effects import ToolOutcome
from spass.core.events import Nested, ToolCallFinished, ToolCallStarted, ToolProgress
from spass.core.ids import ApprovalId
from spass.core.messages import ToolCall
from spass.tools.results import outcome_of_failure


class _OpenCall(NamedTuple):
    """A call that has started. ``started`` is in seconds of the monotonic clock."""

    agent: str
    parent_id: str
    call: ToolCall
    started: float


class NestedCalls:
    """The nested calls of a turn: those that have started and not ended, and the approvals that the others wait for."""

    def __init__(self) -> None:
        self._open: dict[str, _OpenCall] = {}
        self._outermost: dict[str, str] = {}  # by the id of a nested call
        self._waiting: dict[str, list[ApprovalId]] = {}  # by the id of a call of the turn

    def add(self, event: Nested) -> None:
        """Note the start or the end of a call."""
        match event.event:
            case ToolCallStarted(call=call):
                self._open[call.id] = _OpenCall(event.agent, event.parent_id, call, time.monotonic())
                self._outermost[call.id] = self._outermost.get(event.parent_id, event.parent_id)
            case ToolCallFinished(outcome=outcome):
                self._open.pop(outcome.call.id, None)
                if outcome.waiting:
                    self._waiting.setdefault(self._outermost.get(event.parent_id, event.parent_id), []).extend(outcome.waiting)
            case ToolProgress():
                pass
            case _:
                assert_never(event.event)

    def waiting(self, call_id: str) -> tuple[ApprovalId, ...]:
        """Return the approvals that calls within the turn's call ``call_id`` wait for."""
        return tuple(dict.fromkeys(self._waiting.get(call_id, ())))

    def end(self, outcome: Callable[[ToolCall, int], ToolOutcome]) -> Iterator[Nested]:
        """Yield the ends of all open calls, the innermost first. ``outcome`` returns that of a call after its milliseconds."""
        now = time.monotonic()
        while self._open:
            _, (agent, parent_id, call, started) = self._open.popitem()  # a call starts after the call that it is part of
            yield Nested(agent, parent_id, ToolCallFinished(outcome(call, round((now - started) * 1000))))


@contextmanager
def end_open_calls(forward: ForwardEvent) -> Iterator[ForwardEvent]:
    """Give a function that forwards events of calls. At the end, whatever happened, the calls that are still open end as
    cancelled."""
    calls = NestedCalls()

    def follow(event: Nested) -> None:
        calls.add(event)
        forward(event)

    try:
        yield follow
    finally:
        for end in calls.end(cancelled_outcome):
            forward(end)


def cancelled_outcome(call: ToolCall, duration_ms: int) -> ToolOutcome:
    """Return the outcome of a call that was cancelled after ``duration_ms``."""
    return outcome_of_failure(call, asyncio.CancelledError(), duration_ms)
