"""Work whose end matters: nobody may cut it off, or the first of several that fails ends the others."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` comes to. A cancelled caller waits until it has ended, and is cancelled then."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            while not task.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # marks it as seen
        raise


async def run_concurrently(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Runs ``works`` side by side. The first that fails ends the others, and its failure is raised when they have."""
    if len(works) == 1:
        return await works[0]
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
