"""Run coroutines concurrently, wait between attempts, process long texts in a thread, and follow the events of a task."""

import asyncio
import random
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

E = TypeVar("E")
S = TypeVar("S")
T = TypeVar("T")

MIN_THREAD_CHARACTERS: Final = 50_000
"""The slowest text of this length takes about 25 ms. For a shorter text, a thread costs more than it saves."""

# More than one thread would compete with the event loop for the interpreter's lock.
_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="texts")
_NEVER: Final = sys.maxsize
"""The index of an event that does not come. Who waits for it waits for the end of the list."""


async def run_concurrently(works: Sequence[Coroutine[Any, Any, object]]) -> None:
    """Run ``works`` concurrently. When one fails, cancel the others, wait for their end, and raise the first failure."""
    if len(works) == 1:
        await works[0]
        return
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def map_concurrently(call: Callable[[S], Awaitable[T]], values: Iterable[S], *, limit: int) -> list[T]:
    """Await ``call`` for each of ``values``, at most ``limit`` at the same time, and return the results in order. When one fails,
    cancel the others, wait for their end, and raise the first failure."""
    free = asyncio.Semaphore(limit)
    results: dict[int, T] = {}

    async def call_limited(number: int, value: S) -> None:
        async with free:
            results[number] = await call(value)

    await run_concurrently([call_limited(number, value) for number, value in enumerate(values)])
    return [results[number] for number in range(len(results))]


async def back_off(most_seconds: float) -> None:
    """Wait between two attempts, for a random part of ``most_seconds``, so that writers in conflict do not meet again."""
    await asyncio.sleep(random.uniform(0, most_seconds))  # noqa: S311 (jitter)


async def run_in_worker_thread(size: int, work: Callable[[S], T], value: S) -> T:
    """Return ``work(value)``. Use a thread if ``size``, the number of characters that ``work`` reads, is large, so that the event
    loop can serve other requests."""
    if size <= MIN_THREAD_CHARACTERS:
        return work(value)
    return await asyncio.get_running_loop().run_in_executor(_thread, work, value)


class EventList(Generic[E]):
    """A list of events that grows until its writer ends it, and that any number of readers follow. ``append`` alone changes
    ``events``.

    A reader is an index into the list. So a slow reader costs nothing, several readers can read, and a reader can resume later.
    """

    def __init__(self) -> None:
        self.events: list[E] = []
        self._ended = False
        self._error: BaseException | None = None
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[bool]]] = []  # with the condition for which it waits

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
        for is_due, reader in waiting:
            if not reader.done():
                if self._ended or is_due():
                    reader.set_result(True)
                else:
                    self._waiting.append((is_due, reader))

    async def wait_for_event(self, index: int, seconds: float | None = None) -> bool:
        """Wait until event ``index`` exists or the list has ended. Return False if neither happened within ``seconds``."""
        return await self.wait_until(lambda: index < len(self.events), seconds)

    async def wait_until(self, is_due: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until ``is_due``, which is called after each event, or the list has ended. Return False if neither happened within
        ``seconds``."""
        if self._ended or is_due():
            return True
        # A reader of a stream waits here for each event. ``asyncio.timeout`` would double the time that this takes.
        loop = asyncio.get_running_loop()
        reader: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((is_due, reader))
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

    async def wait_for_end(self) -> None:
        """Wait until the list has ended, whatever came of it."""
        await self.wait_for_event(_NEVER)

    async def result(self) -> list[E]:
        """Return all events once the list has ended, or raise its error."""
        await self.wait_for_end()
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
