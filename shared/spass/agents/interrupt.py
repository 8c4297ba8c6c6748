"""Cut a turn before its end, so that what it did so far is a valid turn.

The list of a driver that is closed has no end. ``interruptible`` closes the driver and ends its list: results for the calls that
have none, the visible text as the answer, and ``TurnFinished``. A reader of the list need not know about cuts.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import assert_never

from spass.agents.nested_calls import NestedCalls, cancelled_outcome
from spass.core.cost import CostTally
from spass.core.events import (
    Event,
    Failed,
    InferenceFinished,
    InferenceStarted,
    MessageWritten,
    Nested,
    RefusalDelta,
    ResultRecorded,
    Status,
    Token,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnFinished,
    TurnStarted,
)
from spass.core.messages import FinishReason, Message, Role, ToolCall, ToolCallDelta
from spass.core.time import Deadline
from spass.redaction.log import failure_line, write_line


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
        """Return the next event, or None if the stop was requested or the list has ended.

        Raises:
            CancelledError: the task was cancelled, but not by this signal.
        """
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
            await _close(events)
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
            case RefusalDelta() | ToolCallDelta() | ToolProgress() | ResultRecorded() | Status() | TurnFinished() | Failed():
                pass
            case _:
                assert_never(event)

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


async def _close(events: AsyncGenerator[Event, None]) -> None:
    """Close the driver. An error of its cleanup is logged, because it must not undo what the turn did so far."""
    try:
        await events.aclose()
    except Exception as error:  # noqa: BLE001 (whatever a performer does, the turn is kept)
        _log(error)


def _log(error: Exception) -> None:
    write_line(failure_line(error, ""))
