"""A piece of work that runs in its own task and leaves its events in one append-only list.

Every reader is an index into that list: a slow one costs nothing, several may follow, and one that went away may come back.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Generic, TypeVar

E = TypeVar("E")


class EventTask(Generic[E]):
    """Runs ``events`` to its end in a task of its own, whoever reads and whoever stops reading.

    An exception of the work ends the list; ``follow`` raises it to each reader after the last event, ``result`` to whoever waits.
    """

    def __init__(self, events: AsyncIterator[E]) -> None:
        self.events: list[E] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._task = asyncio.create_task(self._run(events))
        self._task.add_done_callback(self._ended)

    async def _run(self, events: AsyncIterator[E]) -> None:
        async for event in events:
            self.events.append(event)
            self._wake()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # marks it as seen, so that work whose reader went away does not complain at garbage collection
        self._wake()

    def _wake(self) -> None:
        for reader in self._waiting:
            if not reader.done():
                reader.set_result(None)
        self._waiting.clear()

    def cancel(self) -> None:
        """Cancel the work, unless it has ended. It cleans up before it ends."""
        self._task.cancel()

    async def grown(self, index: int, seconds: float | None = None) -> bool:
        """Waits until there is an event ``index`` or there will be none, but no longer than ``seconds``; says which it was."""
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
        """Events from index ``start`` on, as they come."""
        index = start
        while True:
            await self.grown(index)
            if index >= len(self.events):
                await self.result()
                return
            while index < len(self.events):
                yield self.events[index]
                index += 1

    async def result(self) -> list[E]:
        """All events, once the work has ended. Cancelling the wait does not cancel the work."""
        await asyncio.shield(self._task)
        return self.events
