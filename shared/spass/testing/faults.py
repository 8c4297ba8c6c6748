"""Faults of AWS calls. ``with inject(FaultPlan(...))`` applies the plan to all calls of the block and of its tasks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, TypeVar

from spass.core.errors import storage_timeout
from spass.store.invocation import CALL_PLAN, PendingCall, ServiceCall
from spass.store.shielded import run_shielded

T = TypeVar("T")


class Fault(StrEnum):
    """A failure of one AWS call."""

    CRASH_BEFORE = "crash-before"  # the process dies; the call was never made
    CRASH_AFTER = "crash-after"  # the process dies; the call took effect
    LOST_REPLY = "lost-reply"  # the call took effect; the caller gets no reply
    THROTTLE = "throttle"  # refused through all retries; nothing took effect
    TIMEOUT = "timeout"  # no answer, and nothing took effect
    REPEATED = "repeated"  # the client retried after a lost reply: the call was made twice, and the caller gets the second reply


class Crash(BaseException):
    """The process died. Not an ``Exception``, so that no ``except Exception`` handles it.

    Every later AWS call under the same plan raises it too: clean-up code, which a dead process would not run, has no effect.
    """


@dataclass(slots=True)
class FaultPlan:
    """Inject ``fault`` into ``times`` calls, beginning with call number ``at`` (from 0). Without a fault, only record the calls.

    The table retries once, so a caller gets an error if the fault happens twice. ``calls`` are the calls begun so far.
    ``capacity`` has the capacity units of each call that returned.
    """

    fault: Fault | None = None
    at: int = 0
    times: int = 1
    calls: list[ServiceCall] = field(default_factory=list)
    capacity: list[float] = field(default_factory=list)
    crashed: bool = False
    in_threads: ClassVar[bool] = True  # False: calls that block run on the event loop

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if self.crashed:
            raise Crash
        fault = self.next_fault(call)
        match fault:
            case Fault.CRASH_BEFORE:
                self.crashed = True
                raise Crash
            case Fault.THROTTLE | Fault.TIMEOUT:
                raise storage_timeout()
        if fault is Fault.REPEATED:
            await self.run_call(run)
        result = await self.run_call(run)
        self.capacity.append(getattr(result, "capacity_units", 0.0))
        match fault:
            case Fault.CRASH_AFTER:
                self.crashed = True
                raise Crash
            case Fault.LOST_REPLY:
                raise storage_timeout()
        if self.crashed:  # the process died during this call
            raise Crash
        return result

    def next_fault(self, call: ServiceCall) -> Fault | None:
        """Record ``call`` and return its fault."""
        number = len(self.calls)
        self.calls.append(call)
        return self.fault if self.at <= number < self.at + self.times else None

    async def run_call(self, run: PendingCall[T]) -> T:
        """Run the call as the library does. Override this to run it without a thread."""
        return await run_shielded(run())


@contextmanager
def inject(plan: FaultPlan) -> Iterator[FaultPlan]:
    """Apply ``plan`` to every AWS call in the block."""
    token = CALL_PLAN.set(plan)
    try:
        yield plan
    finally:
        CALL_PLAN.reset(token)
