"""Retry calls whose outcome is unknown."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from spass.core.errors import StorageUnavailable

T = TypeVar("T")


async def retry_once(call: Callable[[], Awaitable[T]]) -> T:
    """Retry once when the outcome is unknown. The call must be idempotent.

    Raises:
        StorageUnavailable: both calls failed; whether either took effect is unknown.
    """
    try:
        return await call()
    except StorageUnavailable:
        return await call()
