"""Renew a lease: a right in the table that expires if its owner dies."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from spass.core.errors import StorageUnavailable

LEASE_SECONDS: Final = 60
RENEW_SECONDS: Final = 20.0
RETRY_SECONDS: Final = 2
"""Seconds after which a request may retry when another one has the lease. Most owners release it long before it expires."""


class LeaseLost(StorageUnavailable):
    """A renewal failed. Another owner may have the lease, so the work of this owner was stopped."""


@asynccontextmanager
async def renewing(renew: Callable[[], Awaitable[None]], *, every: float = RENEW_SECONDS) -> AsyncIterator[None]:
    """Call ``renew`` every ``every`` seconds while the body runs. Cancel the body when a renewal fails. Raise ``LeaseLost`` if a
    renewal failed."""
    body = asyncio.current_task()
    if body is None:
        raise RuntimeError("a lease must be renewed inside a task")
    failure: list[BaseException] = []

    async def renew_repeatedly() -> None:
        try:
            while True:
                await asyncio.sleep(every)
                await renew()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 (after any failure, the lease may be lost)
            failure.append(error)
            body.cancel()

    renewer = asyncio.create_task(renew_repeatedly())
    try:
        yield
    except asyncio.CancelledError:
        if not failure:
            raise
    finally:
        renewer.cancel()
        try:
            await asyncio.wait({renewer})
        except asyncio.CancelledError:
            if not failure:
                raise
    if failure:
        body.uncancel()
        if not isinstance(failure[0], Exception):
            raise failure[0]
        raise LeaseLost("This request lost its place to another one and was stopped; try again.", retry_after=1) from failure[0]
