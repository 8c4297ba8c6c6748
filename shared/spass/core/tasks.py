"""Run coroutines concurrently, until the first failure, and wait between attempts."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")


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
