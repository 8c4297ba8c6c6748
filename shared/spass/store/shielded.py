"""Run coroutines shielded from cancellation."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def run_shielded(work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """Return the result of ``work``. A cancelled caller waits until ``work`` has ended, and is then cancelled."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            while not task.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # retrieve it: asyncio logs an error for an exception that is never retrieved
        raise
