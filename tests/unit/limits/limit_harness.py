"""Simulate workers that share one limit, and check each write to the table.

Calls begin and end in any order, replies get lost, the table throttles, and workers die between any two of their table calls.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import TypeVar

from spass.core.errors import StorageUnavailable
from spass.limits.shard import Reservation
from spass.limits.shard_state import Caps, NoCapacity, ShardState
from spass.limits.shared_limit import SharedLimit
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.keys import Key, backend_limit
from spass.store.table import ConditionFailed
from spass.store.writes import Item
from spass.testing.faults import Crash, Fault, FaultPlan
from tests.unit.store.memory_table import MemoryTable

T = TypeVar("T")

TOKENS, CONCURRENCY, BUDGET = 1000, 4, Decimal(10)
CAPS = Caps(TOKENS, CONCURRENCY, BUDGET)
KEY = backend_limit("b", 0)
WORKERS = 4
CONTENTION_SECONDS = 0.1  # ``retry_after`` of a refusal because other workers won every race


@dataclass
class Gate(FaultPlan):
    """Delay every table call of one worker until the test releases it, with or without a fault. Complete
    a call even if its caller is cancelled, like ``store.invocation``."""

    in_threads = False

    waiting: list[asyncio.Future[Fault | None]] = field(default_factory=list)

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if self.crashed:
            raise Crash
        release: asyncio.Future[Fault | None] = asyncio.get_running_loop().create_future()
        self.waiting.append(release)
        cancelled = False
        while not release.done():
            try:
                await asyncio.wait({release})
            except asyncio.CancelledError:
                cancelled = True
        try:
            return await self._run_with(release.result(), run)
        finally:
            if cancelled and not self.crashed:
                raise asyncio.CancelledError

    async def _run_with(self, fault: Fault | None, run: PendingCall[T]) -> T:
        if fault is Fault.CRASH_BEFORE or self.crashed:
            self.crashed = True
            raise Crash
        if fault in (Fault.THROTTLE, Fault.TIMEOUT):
            raise StorageUnavailable("throttled")
        if fault in (Fault.REPEATED, Fault.LOST_REPLY, Fault.CRASH_AFTER):
            with suppress(ConditionFailed):
                await run()
        if fault is Fault.CRASH_AFTER:
            self.crashed = True
            raise Crash
        if fault is Fault.LOST_REPLY:
            raise StorageUnavailable("lost reply")
        return await run()


@dataclass
class Call:
    """One call, with the amounts that it reserves and uses. The table counted it at ``admitted_at`` and settled it at
    ``settled_at``, even if the replies were lost. Its worker received the reservation at ``reserved_at``."""

    expected_tokens: int
    expected_usd: Decimal
    used_tokens: int
    used_usd: Decimal
    gate: Gate
    reservation: Reservation | None = None
    reserved_at: float | None = None
    ended_at: float | None = None
    admitted_at: float | None = None
    settled_at: float | None = None

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    @property
    def settled(self) -> bool:
        return self.settled_at is not None

    @property
    def tokens(self) -> int:
        """Return the tokens that count from the admission on. Extra tokens count from the settlement on."""
        reserved = min(self.expected_tokens, TOKENS)
        return min(reserved, self._settled_tokens) if self.settled else reserved

    @property
    def extra_tokens(self) -> int:
        return max(0, self._settled_tokens - min(self.expected_tokens, TOKENS)) if self.settled else 0

    @property
    def _settled_tokens(self) -> int:
        return self.used_tokens if self.ended else 0  # a worker that did not receive the reservation settles zero tokens

    @property
    def usd(self) -> Decimal:
        if self.settled:
            return self.used_usd if self.ended else Decimal(0)
        return self.expected_usd


def leases_of(item: Item) -> dict[str, int]:
    """Return the calls in flight, and the second at which the lease of each ends."""
    return {call: lease for lease, calls in ShardState.of(item).leases.items() for call in calls}


@dataclass
class Worker:
    limit: SharedLimit
    gate: Gate


class LimitHarness:
    """Workers, their calls and their table. A write that adds a call admits it. A write that only removes a call settles it. A
    write that does both removes expired calls."""

    def __init__(self) -> None:
        self.time = 1_800_000_000.0
        self.items: dict[Key, Item] = {}
        self.calls: dict[str, Call] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.workers = [self.new_worker() for _ in range(WORKERS)]

    def new_worker(self) -> Worker:
        gate = Gate()
        table = MemoryTable(self.items, gate, watch=self._watch)
        return Worker(SharedLimit(table, partial(backend_limit, "b"), CAPS, clock=lambda: self.time), gate)

    @property
    def item(self) -> Item:
        return self.items.get(KEY, {})

    @property
    def leases(self) -> dict[str, int]:
        return leases_of(self.item)

    @property
    def spent(self) -> Decimal:
        return sum((call.usd for call in self.calls.values() if call.admitted_at is not None), Decimal(0))

    def tokens_since(self, moment: float) -> int:
        """Return the tokens that the table has counted since ``moment``."""
        calls = self.calls.values()
        tokens = sum(call.tokens for call in calls if call.admitted_at is not None and call.admitted_at > moment)
        return tokens + sum(call.extra_tokens for call in calls if call.settled_at is not None and call.settled_at > moment)

    @property
    def running(self) -> list[Call]:
        return [call for call in self.calls.values() if call.reservation and not call.ended and not call.gate.crashed]

    async def begin(self, worker: Worker, tokens: int, cents: int, share: float) -> None:
        usd = Decimal(cents) / 100
        name = f"c{len(self.calls)}"
        self.calls[name] = Call(tokens, usd, int(tokens * share), usd * Decimal(str(share)), worker.gate)
        await self._start(self._reserve(worker.limit, name))

    async def _reserve(self, limit: SharedLimit, name: str) -> None:
        call = self.calls[name]
        answer = await limit.reserve(name, tokens=call.expected_tokens, usd=call.expected_usd)
        if isinstance(answer, Reservation):
            assert name in self.leases, "the call is admitted but not in flight"
            call.reservation, call.reserved_at = answer, self.time
            self._check_admission(call)
            return
        assert name not in self.leases, "the call is refused but in flight"
        assert answer.retry_after > 0
        if answer.retry_after != CONTENTION_SECONDS:
            self._check_refusal(call, answer)

    def _check_refusal(self, call: Call, full: NoCapacity) -> None:
        """Check that there is indeed no room for ``call``."""
        match full.by:
            case "tokens":
                assert self.tokens_since(self.time - 70) + min(call.expected_tokens, TOKENS) > TOKENS
            case "concurrent":
                assert sum(until > self.time for until in self.leases.values()) >= CONCURRENCY
            case "budget" | "reserved":
                assert self.spent + call.expected_usd > BUDGET
                in_flight = [one for name, one in self.calls.items() if self.leases.get(name, 0) > self.time and not one.settled]
                not_reserved = self.spent - sum(one.usd for one in in_flight)
                assert full.by == "budget" or not_reserved <= max(BUDGET - call.expected_usd, Decimal(0))

    async def end(self, call: Call) -> None:
        assert call.reservation is not None
        call.ended_at = self.time
        await self._start(call.reservation.settle(tokens=call.used_tokens, usd=call.used_usd))

    async def renew(self, call: Call) -> None:
        assert call.reservation is not None
        await self._start(call.reservation.renew())

    async def cancel(self, number: int) -> None:
        running = [task for task in self.tasks if not task.done()]
        if running:
            running[number % len(running)].cancel()
            await self._run_tasks()

    async def release(self, number: int, fault: Fault | None) -> bool:
        """Make one of the delayed table calls with ``fault``. Return False if there is none."""
        waiting = [(worker, release) for worker in self.workers for release in worker.gate.waiting]
        if not waiting:
            return False
        worker, release = waiting[number % len(waiting)]
        worker.gate.waiting.remove(release)
        release.set_result(fault)
        await self._run_tasks()
        if worker.gate.crashed:
            for other in worker.gate.waiting:
                other.set_result(None)
            self.workers[self.workers.index(worker)] = self.new_worker()
            await self._run_tasks()
        return True

    async def release_all(self) -> None:
        while await self.release(0, None):
            pass
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def close(self) -> None:
        """Crash all workers, so that all tasks end."""
        for worker in self.workers:
            worker.gate.crashed = True
            for release in worker.gate.waiting:
                release.set_result(None)
        await asyncio.wait(self.tasks)

    async def _start(self, work: Coroutine[None, None, None]) -> None:
        async def run() -> None:
            with suppress(Crash, StorageUnavailable):
                await work

        self.tasks.append(asyncio.create_task(run()))
        await self._run_tasks()

    async def _run_tasks(self) -> None:
        """Run all tasks until each of them waits for a table call."""
        for _ in range(12):
            await asyncio.sleep(0)

    def _watch(self, item: Item, _: Item) -> None:
        before = leases_of(item)
        added, removed = self.leases.keys() - before.keys(), before.keys() - self.leases.keys()
        if not added:
            for name in removed:
                self.calls[name].settled_at = self.time
            return
        assert all(before[name] <= self.time for name in removed), "a call was removed before its lease ended"
        for name in added:
            call = self.calls[name]
            if call.admitted_at is not None and not call.settled:
                # The first lease of the call ended before its slow worker could settle it: count it as a dead worker's call.
                self.calls[f"{name} before {self.time}"] = replace(call)
            call.admitted_at, call.settled_at = self.time, None
            assert len(self.leases) <= CONCURRENCY, "more calls are in flight than the limit"
            within_budget = self.spent <= BUDGET or self.spent == call.expected_usd or not call.expected_usd
            assert within_budget, "the budget is exceeded by more than one reservation"

    def _check_admission(self, admitted: Call) -> None:
        assert admitted.admitted_at is not None
        recent = [call for call in self.calls.values() if call.reserved_at is not None and call.reserved_at > self.time - 60]
        # A call has used its tokens when it ends; its settlement may reach the table at any time after that.
        ended = [call for call in self.calls.values() if call.ended_at is not None and call.ended_at > self.time - 60]
        extra = sum(call.extra_tokens for call in ended if call.settled_at is not None and call.settled_at < admitted.admitted_at)
        assert sum(call.tokens for call in recent) + extra <= TOKENS, "more tokens within 60 seconds than the limit"
