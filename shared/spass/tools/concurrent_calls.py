"""Run the tool calls of one model answer side by side, and yield what happens to them as it happens."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from spass.calls.scope import CallReports
from spass.core.effects import ToolOutcome
from spass.core.events import CallEvent, Nested, ToolCallFinished, ToolCallStarted, ToolProgress
from spass.core.json import replace_surrogates
from spass.core.messages import ToolCall
from spass.core.tasks import run_concurrently
from spass.store.shielded import run_shielded
from spass.tools.results import outcome_of_failure

RunCall: TypeAlias = Callable[[ToolCall, CallReports], Awaitable[ToolOutcome]]
"""Run one call. An error that it raises ends all calls."""

_MAX_PROGRESS_CHARACTERS: Final = 500


async def run_calls(calls: Sequence[ToolCall], run: RunCall, *, concurrency: int) -> AsyncGenerator[CallEvent, None]:
    """Run ``calls``, at most ``concurrency`` at the same time, and yield their events as they happen.

    Every call that was started is finished. If ``run`` raises an error, cancel the other calls, start no further call, yield the
    ends of those that were started, and raise the error. Closing the iterator cancels the calls and waits for their ends.
    """
    events: asyncio.Queue[CallEvent | None] = asyncio.Queue()
    waiting = deque(calls)

    async def work() -> None:
        try:
            workers = min(concurrency, len(calls))
            await run_concurrently([_run_in_turn(waiting, run, events.put_nowait) for _ in range(workers)])
        finally:
            events.put_nowait(None)

    task = asyncio.create_task(work())
    try:
        while (event := await events.get()) is not None:
            yield event
        await task
    finally:
        waiting.clear()
        if not task.done():
            task.cancel()
            await run_shielded(asyncio.gather(task, return_exceptions=True))
        elif not task.cancelled():
            task.exception()  # retrieve it: asyncio logs an error for an exception that is never retrieved


async def _run_in_turn(waiting: deque[ToolCall], run: RunCall, emit: Callable[[CallEvent], None]) -> None:
    """Run the next call until none is ``waiting``. Several workers share the queue."""
    while waiting:
        call = waiting.popleft()
        started, running = time.monotonic(), _Running(call.id, emit)
        emit(ToolCallStarted(call))
        try:
            outcome = await run(call, CallReports(call.id, running.progress, running.forward))
        except BaseException as error:
            waiting.clear()
            outcome = outcome_of_failure(call, error, round((time.monotonic() - started) * 1000))
            raise
        finally:
            running.emit = lambda _: None
            emit(ToolCallFinished(outcome))


@dataclass(slots=True)
class _Running:
    """A call whose reports are events as long as it runs."""

    call_id: str
    emit: Callable[[CallEvent], None]

    def forward(self, event: Nested) -> None:
        self.emit(event)

    def progress(self, text: str) -> None:
        self.emit(ToolProgress(self.call_id, replace_surrogates(text[:_MAX_PROGRESS_CHARACTERS])))
