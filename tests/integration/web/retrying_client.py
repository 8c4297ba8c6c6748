"""A client that obeys `Retry-After`. It advances a test clock instead of waiting."""

from collections.abc import Awaitable, Callable

import httpx

from spass.core.time import now_s
from spass.store.leases import LEASE_SECONDS
from spass.testing.faults import Crash, FaultPlan, inject

Send = Callable[[], Awaitable[httpx.Response]]


class Clock:
    """The clock of the leases, in seconds since the epoch. It moves only when a test changes ``seconds``."""

    def __init__(self) -> None:
        self.seconds = now_s()

    def __call__(self) -> int:
        return self.seconds


async def send_with_faults(send: Send, plan: FaultPlan) -> httpx.Response | None:
    """Send once, with the faults of ``plan``. Return the response, or None if the process crashed."""
    with inject(plan):
        try:
            return await send()
        except Crash:
            return None


async def retry(send: Send, clock: Clock) -> httpx.Response:
    """Send the same request until the status is not 409 or 503, and return that response. Advance the clock by `Retry-After`."""
    for _ in range(LEASE_SECONDS):
        answer = await send()
        if answer.status_code not in (409, 503):
            return answer
        clock.seconds += int(answer.headers["Retry-After"])
    raise AssertionError(f"the request still fails after {LEASE_SECONDS} attempts")
