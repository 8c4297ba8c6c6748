"""Work at the end of something, which nobody may cut off."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
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
