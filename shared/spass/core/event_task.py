"""An append-only list of events that any number of readers follow, and a task whose events are such a list.

A reader is an index into the list. So a slow reader costs nothing, several readers can read, and a reader can resume later.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, Generic, TypeVar

E = TypeVar("E")

_NEVER: Final = sys.maxsize
"""The index of an event that does not come. Who waits for it waits for the end of the list."""


class EventList(Generic[E]):
    """A list of events that grows until its writer ends it. ``events`` must be changed by ``append`` alone."""

    def __init__(self) -> None:
        self.events: list[E] = []
        self._ended = False
        self._error: BaseException | None = None
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []  # with the index of the event for which it waits

    def append(self, event: E) -> None:
        if self._ended:
            raise RuntimeError("the list of events has ended")
        self.events.append(event)
        self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """End the list. ``follow`` raises ``error`` after the last event. A second call has no effect."""
        if not self._ended:
            self._ended, self._error = True, error
            self._wake()

    @property
    def has_ended(self) -> bool:
        return self._ended

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for index, reader in waiting:
            if index >= len(self.events) and not self._ended:
                self._waiting.append((index, reader))
            elif not reader.done():
                reader.set_result(True)

    async def wait_for_event(self, index: int, seconds: float | None = None) -> bool:
        """Wait until event ``index`` exists or the list has ended. Return False if neither happened within ``seconds``."""
        if index < len(self.events) or self._ended:
            return True
        # A reader of a stream waits here for each event. ``asyncio.timeout`` would double the time that this takes.
        loop = asyncio.get_running_loop()
        reader: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((index, reader))
        timer = loop.call_later(seconds, _expire, reader) if seconds is not None else None
        try:
            return await reader
        finally:
            if timer is not None:
                timer.cancel()

    async def follow(self, start: int = 0) -> AsyncGenerator[E, None]:
        """Yield the events from index ``start`` on, as they arrive."""
        index = start
        while True:
            await self.wait_for_event(index)
            if index >= len(self.events):
                await self.result()
                return
            while index < len(self.events):
                yield self.events[index]
                index += 1

    async def result(self) -> list[E]:
        """Return all events once the list has ended, or raise its error."""
        await self.wait_for_event(_NEVER)
        if self._error is not None:
            raise self._error
        return self.events


def _expire(reader: asyncio.Future[bool]) -> None:
    if not reader.done():
        reader.set_result(False)


class EventTask(EventList[E]):
    """Run ``events`` to its end in a task, independently of its readers.

    An exception of the work ends the list. ``follow`` raises it after the last event, ``result`` as soon as the work ends.
    """

    def __init__(self, events: AsyncIterator[E]) -> None:
        super().__init__()
        self._task = asyncio.create_task(self._run(events))
        self._task.add_done_callback(self._handle_end)

    async def _run(self, events: AsyncIterator[E]) -> None:
        async for event in events:
            self.append(event)

    def _handle_end(self, task: asyncio.Task[None]) -> None:
        # Retrieve the exception: asyncio logs an error for a task whose exception is never retrieved.
        self.end(asyncio.CancelledError() if task.cancelled() else task.exception())

    def cancel(self) -> None:
        """Cancel the work, unless it has ended. It cleans up before it ends."""
        self._task.cancel()
