"""Limit the time of each of many waits, without a timer for each."""

import asyncio
import math
from collections.abc import Awaitable
from typing import Final, TypeVar

T = TypeVar("T")

_NOT_WAITING: Final = math.inf


class WaitLimit:
    """Limit the waits of one task at a time. Call ``close`` after the last one.

    One timer serves all waits, because most of them end early: if it fires before the current wait must end, it is started again.
    A wait may not have to end before an earlier one had to.
    """

    __slots__ = ("_has_expired", "_task", "_timer", "_until")

    def __init__(self) -> None:
        self._until = _NOT_WAITING
        self._task: asyncio.Task[object] | None = None
        self._has_expired = False
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, awaitable: Awaitable[T], seconds: float) -> T:
        """Return the result of ``awaitable``.

        Raises:
            TimeoutError: it did not end within ``seconds``, and was cancelled.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (only a callback of the event loop runs outside of a task)
        self._task, earlier_cancellations = task, task.cancelling()
        loop = asyncio.get_running_loop()
        self._until = loop.time() + seconds
        if self._timer is None:
            self._timer = loop.call_at(self._until, self._check)
        try:
            return await awaitable
        except asyncio.CancelledError as error:
            if self._has_expired and task.cancelling() == earlier_cancellations + 1:
                raise TimeoutError from error
            raise
        finally:
            self._until = _NOT_WAITING
            if self._has_expired:
                self._has_expired = False
                task.uncancel()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        if self._until == _NOT_WAITING or self._task is None:
            return  # the next wait starts the timer
        loop = asyncio.get_running_loop()
        if loop.time() < self._until:
            self._timer = loop.call_at(self._until, self._check)
        else:
            self._has_expired = True
            self._task.cancel()
