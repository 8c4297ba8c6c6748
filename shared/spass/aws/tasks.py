"""Run coroutines shielded from cancellation, or concurrently until the first failure."""

import asyncio
from collections.abc import Coroutine, Sequence
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
