"""Run the tool calls of one model answer side by side, and yield what happens to them as it happens."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from spass.aws.tasks import run_concurrently, run_shielded
from spass.core.effects import ToolOutcome
from spass.core.events import ToolCallFinished, ToolCallStarted, ToolEvent, ToolProgress
from spass.core.json import replace_surrogates
from spass.core.messages import ToolCall
from spass.tools.base import ReportProgress
from spass.tools.outcomes import outcome_of_failure

RunCall: TypeAlias = Callable[[ToolCall, ReportProgress], Awaitable[ToolOutcome]]
"""Run one call. An error that it raises ends all calls."""

_MAX_PROGRESS_CHARACTERS: Final = 500


async def run_side_by_side(calls: Sequence[ToolCall], run: RunCall, *, concurrency: int) -> AsyncGenerator[ToolEvent, None]:
    """Run ``calls``, at most ``concurrency`` at the same time, and yield their events as they happen.

    Every call that was started is finished. If ``run`` raises an error, cancel the other calls, start no further call, yield the
    ends of those that were started, and raise the error. Closing the iterator cancels the calls and waits for their ends.
    """
    events: asyncio.Queue[ToolEvent | None] = asyncio.Queue()
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


async def _run_in_turn(waiting: deque[ToolCall], run: RunCall, emit: Callable[[ToolEvent], None]) -> None:
    """Run the next call until none is ``waiting``. Several workers share the queue."""
    while waiting:
        call = waiting.popleft()
        progress = _Progress(call.id, emit)
        started = time.monotonic()
        emit(ToolCallStarted(call))
        try:
            outcome = await run(call, progress.report)
        except BaseException as error:
            waiting.clear()
            outcome = outcome_of_failure(call, error, round((time.monotonic() - started) * 1000))
            raise
        finally:
            progress.is_over = True
            emit(ToolCallFinished(outcome))


class _Progress:
    """Emit the progress of one call until ``is_over``."""

    def __init__(self, call_id: str, emit: Callable[[ToolEvent], None]) -> None:
        self._call_id = call_id
        self._emit = emit
        self.is_over = False

    def report(self, text: str) -> None:
        if not self.is_over:
            self._emit(ToolProgress(self._call_id, replace_surrogates(text[:_MAX_PROGRESS_CHARACTERS])))
