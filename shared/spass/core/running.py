"""A piece of work that runs in its own task and leaves its events in one append-only list.

Every reader is an index into that list: a slow one costs nothing, several may follow, and one that went away may come back.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Generic, TypeVar

E = TypeVar("E")


class Running(Generic[E]):
    """Runs ``events`` to its end in a task of its own, whoever reads and whoever stops reading.

    An exception of the work ends the list; ``follow`` raises it to each reader after the last event, ``result`` to whoever waits.
    """

    def __init__(self, events: AsyncIterator[E]) -> None:
        self.events: list[E] = []
        self._grew = asyncio.Event()
        self._task = asyncio.create_task(self._run(events))
        # Marks the exception as seen, so that work whose reader went away does not complain at garbage collection.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _run(self, events: AsyncIterator[E]) -> None:
        try:
            async for event in events:
                self.events.append(event)
                self._wake()
        finally:
            self._wake()

    def _wake(self) -> None:
        self._grew.set()
        self._grew = asyncio.Event()

    async def follow(self, start: int = 0) -> AsyncGenerator[E, None]:
        """Events from index ``start`` on, as they come."""
        index = start
        while True:
            grew = self._grew
            while index < len(self.events):
                yield self.events[index]
                index += 1
            if self._task.done():
                await self._task
                return
            await asyncio.wait({self._task, wait := asyncio.ensure_future(grew.wait())}, return_when=asyncio.FIRST_COMPLETED)
            wait.cancel()

    async def result(self) -> list[E]:
        """All events, once the work has ended. Cancelling the wait does not cancel the work."""
        await asyncio.shield(self._task)
        return self.events
