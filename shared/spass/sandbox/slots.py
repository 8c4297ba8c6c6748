"""A number of slots that tasks of any event loop and thread share."""

import asyncio
import threading
from collections import deque
from contextlib import suppress
from typing import Final


class NoFreeSlot(RuntimeError):
    """No slot became free in time."""


class Slots:
    """At most ``number`` holders at a time. The task that has waited longest gets the next slot.

    An ``asyncio.Semaphore`` belongs to one event loop; this belongs to none.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._lock: Final = threading.Lock()
        self._waiting: Final[deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]] = deque()

    async def acquire(self, seconds: float) -> None:
        """Take a slot, waiting at most ``seconds`` for it.

        Raises:
            NoFreeSlot: none became free in time.
        """
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._free:
                self._free -= 1
                return
            self._waiting.append((loop, turn))
        try:
            await asyncio.wait_for(asyncio.shield(turn), seconds)
        except BaseException as error:
            self._abandon(loop, turn)
            if isinstance(error, TimeoutError):
                raise NoFreeSlot from None
            raise

    def release(self) -> None:
        """Give the slot to the next task that waits, or free it."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._free += 1
                    return
                loop, turn = self._waiting.popleft()
            with suppress(RuntimeError):  # the loop has ended, with its tasks
                loop.call_soon_threadsafe(turn.set_result, None)
                return

    def _abandon(self, loop: asyncio.AbstractEventLoop, turn: "asyncio.Future[None]") -> None:
        """Stop waiting. A slot that was given meanwhile goes to the next one."""
        with self._lock:
            if (loop, turn) in self._waiting:
                self._waiting.remove((loop, turn))
                return
        self.release()
