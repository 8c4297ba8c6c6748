"""Run coroutines concurrently until the first failure."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any


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
