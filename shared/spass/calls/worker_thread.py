"""Process long texts in a thread, so that the event loop can serve other requests."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

A = TypeVar("A")
R = TypeVar("R")

MIN_THREAD_CHARACTERS: Final = 50_000
"""The slowest text of this length takes about 25 ms. For a shorter text, a thread costs more than it saves."""

# More than one thread would compete with the event loop for the interpreter's lock.
_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="texts")


async def run_in_worker_thread(size: int, work: Callable[[A], R], value: A) -> R:
    """Return ``work(value)``. Use the thread if ``size``, the number of characters that ``work`` reads, is large."""
    if size <= MIN_THREAD_CHARACTERS:
        return work(value)
    return await asyncio.get_running_loop().run_in_executor(_thread, work, value)
