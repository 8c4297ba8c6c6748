"""Run many tasks under one seed. Every AWS call has a random latency, some calls fail, and time passes only while all tasks wait.

There are no threads. The schedule provides time and randomness, so that a seed always gives the same run.
"""

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import pytest
from botocore.exceptions import ClientError

from spass.core.errors import storage_timeout
from spass.core.ids import AscendingNumbers
from spass.journal.follower import follow
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.table import ConditionFailed, TransactionConflict, TransactionFailed
from spass.testing.faults import Crash, FaultPlan, inject
from tests.unit.virtual_time import VirtualLoop

T = TypeVar("T")

EPOCH: Final = 1_800_000_000.0
# Seconds after which boto3 stops retrying a call to the table.
_RETRY_SECONDS: Final = 12.0
# The latency of requests alone orders calls in every way; latency of each reply would double the time of the test.
_REPLY_LATENCY_ODDS: Final = 0.3
# In seconds. A timer that is due within a loop's clock resolution fires at once, and the time of the schedule does not advance.
_SHORTEST_SLEEP: Final = 1e-8
# The greatest delay of a duplicate call.
_MAX_DELAY: Final = 150.0


class CallFault(StrEnum):
    """The fault of one call."""

    CRASH_BEFORE = "crash-before"  # the process dies before the call
    CRASH_AFTER = "crash-after"  # the process dies, but the call takes effect
    THROTTLE = "throttle"  # the call and all its retries are refused
    LOST_REPLY = "lost-reply"  # the call takes effect, but the caller gets no reply
    LATE = "late"  # the caller gets an error; the call takes effect later, perhaps much later
    # The client retries after a lost reply: the call runs twice, with other calls in between. The caller gets the second reply.
    REPEATED = "repeated"
    GHOST = "ghost"  # the client retries; the first attempt arrives after the second, perhaps much later
    CONFLICT = "conflict"  # the transaction conflicts with another one
    PAUSE = "pause"  # the process pauses after the call, for longer than any lease


@dataclass(frozen=True, slots=True)
class FaultRates:
    """The probability of each fault for one call, and the greatest latency of a call without a fault, in seconds."""

    odds: Mapping[CallFault, float] = field(default_factory=dict)
    latency: float = 0.02


NO_FAULTS: Final = FaultRates()
MANY_FAULTS: Final = FaultRates(
    {
        CallFault.CRASH_BEFORE: 0.003,
        CallFault.CRASH_AFTER: 0.003,
        CallFault.THROTTLE: 0.005,
        CallFault.LOST_REPLY: 0.005,
        CallFault.LATE: 0.005,
        CallFault.REPEATED: 0.005,
        CallFault.GHOST: 0.005,
        CallFault.CONFLICT: 0.01,
        CallFault.PAUSE: 0.003,
    }
)


class _TimerSelector(selectors.SelectSelector):
    """Never wait: advance the time to the next timer. Without a timer, no task could ever continue."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock: all tasks wait, and there is no timer")
        if timeout > 0:
            self.loop.moment += timeout
        return []


class SeededLoop(VirtualLoop):
    def __init__(self) -> None:
        selector = _TimerSelector()
        selector.loop = self
        self.moment = 0.0
        asyncio.SelectorEventLoop.__init__(self, selector)


@dataclass(slots=True)
class Schedule:
    """The state of one seed: its random numbers, its clock, and its faults so far."""

    seed: int
    fault_rates: FaultRates = MANY_FAULTS
    rng: random.Random = field(init=False)
    calls: int = 0
    fault_counts: dict[CallFault, int] = field(default_factory=dict)
    under_way: set[asyncio.Task[None]] = field(default_factory=set)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def now(self) -> float:
        """Seconds since the epoch."""
        return EPOCH + asyncio.get_running_loop().time()

    def process(self, *, without_faults: bool = False) -> "Process":
        """Return a new process for ``spass.testing.faults.inject``. With ``without_faults``, its calls do not fail."""
        return Process(schedule=self, without_faults=without_faults)

    async def calm(self) -> None:
        """Stop the faults, and wait until all calls in flight have arrived."""
        self.fault_rates = NO_FAULTS
        while self.under_way:
            await asyncio.wait(self.under_way)
        assert not self.errors, self.errors

    def draw_fault(self, call: ServiceCall) -> CallFault | None:
        number = self.rng.random()
        for fault, odds in self.fault_rates.odds.items():
            number -= odds
            if number < 0:
                if fault is CallFault.CONFLICT and not _may_conflict(call):
                    return None
                self.fault_counts[fault] = self.fault_counts.get(fault, 0) + 1
                return fault
        return None

    def latency(self) -> float:
        return self.random_delay(self.fault_rates.latency)

    def random_delay(self, longest: float) -> float:
        """Return a random delay of at most ``longest`` seconds, most often a short one."""
        return longest * self.rng.random() ** 3

    def later(self, run: PendingCall[object]) -> None:
        """Run a call after a delay, when its caller no longer waits."""

        async def arrive() -> None:
            await asyncio.sleep(self.random_delay(_MAX_DELAY))
            with suppress(ConditionFailed, TransactionFailed, ClientError):  # the last one: a read of a deleted object
                await run()

        def on_arrival(arrival: asyncio.Task[None]) -> None:
            self.under_way.discard(arrival)
            if not arrival.cancelled() and (error := arrival.exception()):
                self.errors.append(error)

        arrival = asyncio.get_running_loop().create_task(arrive())
        self.under_way.add(arrival)
        arrival.add_done_callback(on_arrival)


@dataclass(slots=True)
class Process(FaultPlan):
    """One process, whose calls have the schedule's faults. After a crash, its calls have no effect. During a pause, no call of it
    starts or ends.
    """

    in_threads = False

    schedule: Schedule = field(kw_only=True)
    without_faults: bool = False
    paused_until: float = 0.0

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        schedule, in_flight = self.schedule, _InFlightCall(self, call.is_read)
        await in_flight.wait(0.0)
        schedule.calls += 1
        fault = schedule.draw_fault(call) if not self.without_faults else None
        if fault is CallFault.CRASH_BEFORE:
            self.crashed = True
            raise Crash
        await in_flight.wait(schedule.latency())
        try:
            return await self._run_call(call, run, fault, in_flight)
        finally:
            await in_flight.wait(schedule.latency() if schedule.rng.random() < _REPLY_LATENCY_ODDS else 0.0)
            if in_flight.cancelled:
                raise asyncio.CancelledError

    async def _run_call(self, call: ServiceCall, run: PendingCall[T], fault: CallFault | None, in_flight: "_InFlightCall") -> T:
        schedule = self.schedule
        match fault:
            case CallFault.THROTTLE:
                raise storage_timeout()
            case CallFault.CONFLICT:
                raise TransactionConflict
            case CallFault.LATE:
                await in_flight.wait(schedule.random_delay(_RETRY_SECONDS))
                schedule.later(run)
                raise storage_timeout()
            case CallFault.REPEATED:
                with suppress(ConditionFailed, TransactionFailed):
                    await run()
                await in_flight.wait(schedule.random_delay(_RETRY_SECONDS))
            case CallFault.GHOST:
                schedule.later(run)
            case CallFault.CRASH_AFTER:
                self.crashed = True
            case CallFault.PAUSE:
                self.paused_until = asyncio.get_running_loop().time() + 30.0 + schedule.random_delay(_MAX_DELAY)
        result = await run()
        if fault is CallFault.LOST_REPLY:
            await in_flight.wait(schedule.random_delay(_RETRY_SECONDS))
            raise storage_timeout()
        return result


@dataclass(slots=True)
class _InFlightCall:
    """A call in flight. As in ``aws.invocation``, a write runs to its end even if its caller is cancelled."""

    process: Process
    is_read: bool
    cancelled: bool = False

    async def wait(self, seconds: float) -> None:
        """Wait for ``seconds``, and longer if the process pauses.

        Raises:
            Crash: the process has crashed.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (rest := max(until, self.process.paused_until) - loop.time()) > 0 and not self.process.crashed:
            try:
                await asyncio.sleep(max(rest, _SHORTEST_SLEEP))
            except asyncio.CancelledError:
                if self.is_read:
                    raise
                self.cancelled = True
        if self.process.crashed:
            raise Crash


def _may_conflict(call: ServiceCall) -> bool:
    return call.operation in ("TransactWriteItems", "PutItem", "UpdateItem", "DeleteItem")


def run_schedule(schedule: Schedule, story: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run ``story`` with the schedule's clock and random numbers, and return its result. Its own calls have no faults."""

    async def run_story() -> T:
        asyncio.get_running_loop().set_exception_handler(_ignore_crashes)
        with inject(schedule.process(without_faults=True)):
            return await story()

    with asyncio.Runner(loop_factory=SeededLoop) as runner, _patch_clock_and_randomness(schedule, runner.get_loop()):
        return runner.run(run_story())


def _ignore_crashes(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report errors of tasks except crashes, whose processes no longer await their tasks."""
    if not isinstance(context.get("exception"), Crash):
        loop.default_exception_handler(context)


@contextmanager
def _patch_clock_and_randomness(schedule: Schedule, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    def time() -> float:
        return EPOCH + loop.time()

    clock = SimpleNamespace(time=time, monotonic=loop.time, time_ns=lambda: int(time() * 1e9))
    rng = random.Random(schedule.seed + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spass.core.time.time", clock)
        patch.setattr("spass.core.ids.time", clock)
        patch.setattr("spass.runs.following.time", clock)
        patch.setattr("spass.managed.following.time", clock)
        patch.setattr("spass.runs.following.follow", partial(follow, clock=time))
        patch.setattr("spass.core.ids._ascending", AscendingNumbers())
        patch.setattr("spass.core.ids.os", SimpleNamespace(urandom=rng.randbytes))
        patch.setattr(random, "uniform", rng.uniform)
        patch.setattr("anyio.to_thread.run_sync", _run_inline)
        yield


async def _run_inline(work: Callable[..., T], *arguments: object) -> T:
    """Run what production computes in a thread: the time of the schedule would advance while the thread computes."""
    return work(*arguments)
