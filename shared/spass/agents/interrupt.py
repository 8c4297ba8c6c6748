"""Cut a turn, or a call within one, before its end, so that what it did so far is valid: each call that starts also ends.

The list of a driver that is closed has no end. ``interruptible`` closes the driver and ends its list: results for the calls that
have none, the visible text as the answer, and ``TurnFinished``. A reader of the list need not know about cuts.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import NamedTuple, assert_never

from spass.calls.scope import ForwardEvent
from spass.core.cost import CostTally
from spass.core.effects import ToolOutcome
from spass.core.events import (
    Event,
    Failed,
    InferenceFinished,
    InferenceStarted,
    MessageWritten,
    Nested,
    Token,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnFinished,
    TurnStarted,
)
from spass.core.ids import ApprovalId
from spass.core.messages import FinishReason, Message, Role, ToolCall
from spass.core.time import Deadline
from spass.redaction.log import failure_line, write_line
from spass.tools.results import outcome_of_failure


class StopSignal:
    """A request to stop one turn. It may come before, during or after the turn. Only the first request counts.

    ``reason`` is the finish reason of the turn, or None as long as nothing has stopped it.
    """

    def __init__(self) -> None:
        self.reason: FinishReason | None = None
        self._waiting: asyncio.Task[object] | None = None
        self._has_cancelled = False

    def stop(self, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """Request the stop, and return at once. The turn ends when its running work has been closed."""
        if self.reason is not None:
            return
        self.reason = reason
        if self._waiting is not None and self._waiting is not asyncio.current_task():
            # Cancel now, and not in the next iteration of the loop: the driver may run before that and begin another effect.
            self._has_cancelled = self._waiting.cancel()

    async def next_event(self, events: AsyncGenerator[Event, None]) -> Event | None:
        """Return the next event, or None if the stop was requested or the list has ended. Raise CancelledError if the task was
        cancelled, but not by this signal."""
        task = asyncio.current_task()
        if self.reason is not None or task is None:
            return None
        self._waiting, earlier_cancellations = task, task.cancelling()
        try:
            return await anext(events, None)
        except asyncio.CancelledError:
            self._take_back(task)
            if self.reason is None or task.cancelling() > earlier_cancellations:
                raise
        except Exception as error:
            if self.reason is None:
                raise
            _log(error)
        finally:
            self._waiting = None
            self._take_back(task)
        return None

    def _take_back(self, task: asyncio.Task[object]) -> None:
        if self._has_cancelled:
            self._has_cancelled = False
            task.uncancel()


async def interruptible(
    events: AsyncGenerator[Event, None], *, signal: StopSignal, deadline: Deadline | None, tally: CostTally
) -> AsyncGenerator[Event, None]:
    """Yield the ``events`` of a driver until ``signal`` fires or ``deadline`` passes. Then close the driver, which begins no
    further effect, and end the list with the finish reason ``cancelled`` or ``deadline``.

    A call without a result gets the error ``cancelled``. The answer is the visible text so far; it may be empty. A turn whose
    last event has been yielded is not changed. ``tally`` counts the cost and the tokens of the turn; it is read after the driver
    is closed, because a call that was cut adds to it when it ends.
    """
    turn = _TurnSoFar()
    timer: asyncio.TimerHandle | None = None
    if deadline is not None and deadline.remaining():
        timer = asyncio.get_running_loop().call_later(deadline.remaining(), signal.stop, FinishReason.DEADLINE)
    elif deadline is not None:
        signal.stop(FinishReason.DEADLINE)
    try:
        async with aclosing(events):
            while (event := await signal.next_event(events)) is not None:
                if isinstance(event, Failed) and signal.reason is not None:
                    break  # its cause may be the cancellation
                turn.add(event)
                yield event
                if isinstance(event, TurnFinished | Failed):
                    return
            reason = signal.reason
            if reason is None:
                return
            try:
                await events.aclose()
            except Exception as error:  # noqa: BLE001 (an error of the cleanup must not undo what the turn did so far)
                _log(error)
    finally:
        if timer is not None:
            timer.cancel()
    for event in turn.end(reason):
        yield event
    yield TurnFinished(reason, tally.usage, tally.total)


class _TurnSoFar:
    """The state of a turn after some of its events: open calls and shown text."""

    def __init__(self) -> None:
        self._has_started = False
        self._has_open_step = False
        self._step = 0
        self._shown: list[str] = []
        self._last_message: Message | None = None
        self._calls: dict[str, ToolCall] = {}
        self._started_at: dict[str, float] = {}
        self._nested = NestedCalls()

    def add(self, event: Event) -> None:
        match event:
            case Token(text=text, step=step):
                if step != self._step:
                    self._step, self._shown = step, []
                self._shown.append(text)
            case InferenceStarted():
                self._has_open_step = True
            case InferenceFinished(message=message):
                self._has_open_step = False
                self._record(message)
            case MessageWritten(message=message):
                self._record(message)
            case ToolCallStarted(call=call):
                self._started_at[call.id] = time.monotonic()
            case ToolCallFinished(outcome=outcome):
                self._calls.pop(outcome.call.id, None)
            case Nested():
                self._nested.add(event)
            case TurnStarted():
                self._has_started = True
            case _:  # it opens, ends and shows nothing
                pass

    def _record(self, message: Message) -> None:
        self._last_message = message
        self._calls = {call.id: call for call in message.tool_calls}

    def end(self, reason: FinishReason) -> Iterator[Event]:
        """Yield what is missing before the last event of a valid turn."""
        if not self._has_started:
            yield TurnStarted()
        yield from self._nested.end(cancelled_outcome)
        now = time.monotonic()
        for call in self._calls.values():
            duration_ms = round((now - self._started_at.get(call.id, now)) * 1000)
            yield ToolCallFinished(replace(cancelled_outcome(call, duration_ms), waiting=self._nested.waiting(call.id)))
        answer = Message(Role.ASSISTANT, "".join(self._shown))
        if self._has_open_step:
            yield InferenceFinished(answer, reason)
        elif answer != self._last_message:
            yield MessageWritten(answer)


def _log(error: Exception) -> None:
    write_line(failure_line(error, ""))


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
