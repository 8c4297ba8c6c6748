"""A client that sends its request again until it is answered, on a clock that moves when it waits."""

from collections.abc import Awaitable, Callable

import httpx

from spass.aws.leases import LEASE_SECONDS
from spass.core.time import now_s
from spass.testing.faults import Crash, FaultPlan, inject

Send = Callable[[], Awaitable[httpx.Response]]


class Clock:
    """The time by which leases are judged; it only moves when told."""

    def __init__(self) -> None:
        self.seconds = now_s()

    def __call__(self) -> int:
        return self.seconds


async def first_try(send: Send, plan: FaultPlan) -> httpx.Response | None:
    """What the client hears of it; nothing when the process dies."""
    with inject(plan):
        try:
            return await send()
        except Crash:
            return None


async def retried(send: Send, clock: Clock) -> httpx.Response:
    """What a client gets that sends the same request again until it is answered, waiting as long as it is told to."""
    for _ in range(LEASE_SECONDS):
        answer = await send()
        if answer.status_code not in (409, 503):
            return answer
        clock.seconds += int(answer.headers["Retry-After"])
    raise AssertionError("a minute was not enough")
