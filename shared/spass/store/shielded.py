"""Run coroutines shielded from cancellation."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def run_shielded(work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """Return the result of ``work``. A cancelled caller waits until ``work`` has ended, and is then cancelled."""
    loop = asyncio.get_running_loop()
    task = work if isinstance(work, asyncio.Future) else loop.create_task(work)
    ended = loop.create_future()  # not asyncio.shield, which takes longer: every write of the table waits here

    def wake(_: asyncio.Future[T]) -> None:
        if not ended.done():
            ended.set_result(None)

    task.add_done_callback(wake)
    try:
        await ended
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            while not task.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # retrieve it: asyncio logs an error for an exception that is never retrieved
        raise
    return task.result()
