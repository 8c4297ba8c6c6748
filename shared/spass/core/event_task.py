"""Run work in a separate task and keep its events in one append-only list.

A reader is an index into that list. So a slow reader costs nothing, several readers can read, and a reader can resume later.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Generic, TypeVar

E = TypeVar("E")


class EventTask(Generic[E]):
    """Run ``events`` to its end, independently of its readers.

    An exception of the work ends the list. ``follow`` raises it after the last event, ``result`` as soon as the work ends.
    """

    def __init__(self, events: AsyncIterator[E]) -> None:
        self.events: list[E] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._task = asyncio.create_task(self._run(events))
        self._task.add_done_callback(self._handle_end)

    async def _run(self, events: AsyncIterator[E]) -> None:
        async for event in events:
            self.events.append(event)
            self._wake()

    def _handle_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # retrieve it: asyncio logs an error for a task whose exception is never retrieved
        self._wake()

    def _wake(self) -> None:
        for reader in self._waiting:
            if not reader.done():
                reader.set_result(None)
        self._waiting.clear()

    def cancel(self) -> None:
        """Cancel the work, unless it has ended. It cleans up before it ends."""
        self._task.cancel()

    async def wait_for_event(self, index: int, seconds: float | None = None) -> bool:
        """Wait until event ``index`` exists or the work has ended. Return False if neither happened within ``seconds``."""
        if index < len(self.events) or self._task.done():
            return True
        reader = asyncio.get_running_loop().create_future()
        self._waiting.append(reader)
        try:
            async with asyncio.timeout(seconds):
                await reader
        except TimeoutError:
            return False
        return True

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
        """Return all events once the work has ended. Cancelling the wait does not cancel the work."""
        await asyncio.shield(self._task)
        return self.events
