"""The seam through which every AWS call goes, so that a test can make any one of them go wrong.

In production no plan is set and a call costs one context-variable read more. A test writes ``with inject(FaultPlan(...))`` and
everything started inside (tasks included) is under the plan.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from spass.core.errors import StorageUnavailable

T = TypeVar("T")

_MOST_THREADS: Final = 40


class Fault(StrEnum):
    """What may go wrong with one AWS call."""

    CRASH_BEFORE = "crash-before"  # the process dies; the call was never made
    CRASH_AFTER = "crash-after"  # the process dies; the call took effect
    LOST_REPLY = "lost-reply"  # the call took effect; we never hear of it
    THROTTLE = "throttle"  # refused through all retries; nothing took effect
    TIMEOUT = "timeout"  # no answer, and nothing took effect
    REPEATED = "repeated"  # the client itself tried again after a lost reply: the call was made twice, and we hear of the second


class Crash(BaseException):
    """The process is dead. Not an ``Exception``: nobody may survive it.

    Every later AWS call under the same plan raises it too: clean-up code, which a dead process would not run, has no effect.
    """


@dataclass(frozen=True, slots=True)
class AwsCall:
    """One call: the service, its operation and its parameters: those of boto3, or, of the table, those of ``TableClient``."""

    service: str
    operation: str
    parameters: Mapping[str, object]


@dataclass(slots=True)
class FaultPlan:
    """Makes call number ``at`` (from 0) and the ``times`` - 1 calls after it go wrong with ``fault``; without a fault it only
    records. The table retries once, so a caller hears of a fault that happens twice.

    ``calls`` are the calls begun so far and ``capacity`` the capacity units the table said they used, call by call.
    """

    fault: Fault | None = None
    at: int = 0
    times: int = 1
    calls: list[AwsCall] = field(default_factory=list)
    capacity: list[float] = field(default_factory=list)
    crashed: bool = False

    async def around(self, call: AwsCall, run: Callable[[], T]) -> T:
        if self.crashed:
            raise Crash
        number = len(self.calls)
        self.calls.append(call)
        fault = self.fault if self.at <= number < self.at + self.times else None
        match fault:
            case Fault.CRASH_BEFORE:
                self.crashed = True
                raise Crash
            case Fault.THROTTLE | Fault.TIMEOUT:
                raise StorageUnavailable("The storage did not answer in time; try again.", retry_after=1)
        if fault is Fault.REPEATED:
            await _to_its_end(run)
        result = await _to_its_end(run)
        self.capacity.append(getattr(result, "capacity_units", 0.0))
        match fault:
            case Fault.CRASH_AFTER:
                self.crashed = True
                raise Crash
            case Fault.LOST_REPLY:
                raise StorageUnavailable("The storage did not answer in time; try again.", retry_after=1)
        if self.crashed:  # it died while this call was under way
            raise Crash
        return result


_plan: ContextVar[FaultPlan | None] = ContextVar("spass_fault_plan", default=None)


@contextmanager
def inject(plan: FaultPlan) -> Iterator[FaultPlan]:
    """Put every AWS call made inside under ``plan``."""
    token = _plan.set(plan)
    try:
        yield plan
    finally:
        _plan.reset(token)


_threads: Final = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="aws")  # none is started before the first call


async def invoke(call: AwsCall, run: Callable[[], T]) -> T:
    """Make one AWS call in a worker thread. A cancelled caller waits for the call to end, so that no write is left in doubt."""
    plan = _plan.get()
    if plan is None:
        return await _to_its_end(run)
    return await plan.around(call, run)


async def _to_its_end(run: Callable[[], T]) -> T:
    call = asyncio.get_running_loop().run_in_executor(_threads, copy_context().run, run)
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        while not call.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({call})
        if not call.cancelled():
            call.exception()  # marks it as seen
        raise
