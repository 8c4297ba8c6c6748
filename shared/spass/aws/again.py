"""One more try of a call whose end we did not hear."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from spass.core.errors import StorageUnavailable

T = TypeVar("T")


async def again(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call that does the same when made twice, and once more if we did not hear how it ended."""
    try:
        return await call()
    except StorageUnavailable:
        return await call()
