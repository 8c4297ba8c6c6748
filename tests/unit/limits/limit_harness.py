"""Workers that share one limit, and somebody who watches the table: calls begin and end in any order, replies get lost, the table
throttles, workers die between any two of their table calls. Time is simulated."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import TypeVar

from spass.aws.attributes import Item
from spass.aws.invocation import AwsCall
from spass.aws.keys import Key, backend_limit
from spass.aws.table import ConditionFailed
from spass.core.errors import StorageUnavailable
from spass.limits.shard import Reservation
from spass.limits.shard_state import Caps, NoCapacity, ShardState
from spass.limits.shared_limit import SharedLimit
from spass.testing.faults import Crash, Fault, FaultPlan
from tests.unit.aws.memory_table import MemoryTable

T = TypeVar("T")

TOKENS, PLACES, BUDGET = 1000, 4, Decimal(10)
CAPS = Caps(TOKENS, PLACES, BUDGET)
KEY = backend_limit("b", 0)
WORKERS = 4
CROWDED = 0.1  # what a worker says that was overtaken again and again


@dataclass
class Gate(FaultPlan):
    """Holds every table call of one worker back until the test lets it happen, with a fault or without. As
    ``aws.invocation`` does, it sees a call to its end when its caller is cancelled."""

    waiting: list[asyncio.Future[Fault | None]] = field(default_factory=list)

    async def around(self, call: AwsCall, run: Callable[[], T]) -> T:
        if self.crashed:
            raise Crash
        let: asyncio.Future[Fault | None] = asyncio.get_running_loop().create_future()
        self.waiting.append(let)
        cancelled = False
        while not let.done():
            try:
                await asyncio.wait({let})
            except asyncio.CancelledError:
                cancelled = True
        try:
            return self._happen(let.result(), run)
        finally:
            if cancelled and not self.crashed:
                raise asyncio.CancelledError

    def _happen(self, fault: Fault | None, run: Callable[[], T]) -> T:
        if fault is Fault.CRASH_BEFORE or self.crashed:
            self.crashed = True
            raise Crash
        if fault in (Fault.THROTTLE, Fault.TIMEOUT):
            raise StorageUnavailable("not now")
        if fault in (Fault.REPEATED, Fault.LOST_REPLY, Fault.CRASH_AFTER):
            with suppress(ConditionFailed):
                run()
        if fault is Fault.CRASH_AFTER:
            self.crashed = True
            raise Crash
        if fault is Fault.LOST_REPLY:
            raise StorageUnavailable("not heard")
        return run()


@dataclass
class Call:
    """One call as the world sees it: what it asked for, what it really takes, when its worker was told to make it (``let_in``),
    when it ended, when the table counted it (``admitted``) and when the table settled it, whoever heard of that."""

    asked_tokens: int
    asked_usd: Decimal
    real_tokens: int
    real_usd: Decimal
    gate: Gate
    hold: Reservation | None = None
    let_in: float | None = None
    ended_at: float | None = None
    admitted: float | None = None
    settled_at: float | None = None

    @property
    def ending(self) -> bool:
        return self.ended_at is not None

    @property
    def settled(self) -> bool:
        return self.settled_at is not None

    @property
    def tokens(self) -> int:
        """The tokens that count from the admission on. What a call takes beyond its reservation counts from its settlement on."""
        reserved = min(self.asked_tokens, TOKENS)
        return min(reserved, self._taken) if self.settled else reserved

    @property
    def surplus(self) -> int:
        return max(0, self._taken - min(self.asked_tokens, TOKENS)) if self.settled else 0

    @property
    def _taken(self) -> int:
        return self.real_tokens if self.ending else 0  # given back by whoever never heard that it was let in

    @property
    def usd(self) -> Decimal:
        if self.settled:
            return self.real_usd if self.ending else Decimal(0)
        return self.asked_usd


def holds_of(item: Item) -> dict[str, int]:
    return {call: lease for lease, calls in ShardState.of(item).leases.items() for call in calls}


@dataclass
class Worker:
    limit: SharedLimit
    gate: Gate


class LimitHarness:
    """A write that adds a hold admits its call, one that takes a hold and adds none settles it, one that does both reclaims what
    it takes."""

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
    def holds(self) -> dict[str, int]:
        """The calls under way, as the item has them: when the lease of each runs out."""
        return holds_of(self.item)

    @property
    def spent(self) -> Decimal:
        return sum((call.usd for call in self.calls.values() if call.admitted is not None), Decimal(0))

    def tokens_since(self, moment: float) -> int:
        """The tokens that the table has counted since."""
        calls = self.calls.values()
        admitted = sum(call.tokens for call in calls if call.admitted is not None and call.admitted > moment)
        return admitted + sum(call.surplus for call in calls if call.settled_at is not None and call.settled_at > moment)

    @property
    def running(self) -> list[Call]:
        return [call for call in self.calls.values() if call.hold and not call.ending and not call.gate.crashed]

    async def begin(self, worker: Worker, tokens: int, cents: int, share: float) -> None:
        usd = Decimal(cents) / 100
        name = f"c{len(self.calls)}"
        self.calls[name] = Call(tokens, usd, int(tokens * share), usd * Decimal(str(share)), worker.gate)
        await self._start(self._reserve(worker.limit, name))

    async def _reserve(self, limit: SharedLimit, name: str) -> None:
        call = self.calls[name]
        answer = await limit.reserve(name, tokens=call.asked_tokens, usd=call.asked_usd)
        if isinstance(answer, Reservation):
            assert name in self.holds, "let in without a place"
            call.hold, call.let_in = answer, self.time
            self._check_admission(call)
            return
        assert name not in self.holds, "refused, and holds a place all the same"
        assert answer.retry_after > 0
        if answer.retry_after != CROWDED:
            self._check_refusal(call, answer)

    def _check_refusal(self, call: Call, full: NoCapacity) -> None:
        """Whoever is refused must be told the truth: there is no room, and says when there is."""
        match full.by:
            case "tokens":
                assert self.tokens_since(self.time - 70) + min(call.asked_tokens, TOKENS) > TOKENS
            case "concurrent":
                assert sum(until > self.time for until in self.holds.values()) >= PLACES
            case "budget" | "reserved":
                assert self.spent + call.asked_usd > BUDGET
                living = [one for name, one in self.calls.items() if self.holds.get(name, 0) > self.time and not one.settled]
                alone = self.spent - sum(one.usd for one in living)
                assert full.by == "budget" or alone <= max(BUDGET - call.asked_usd, Decimal(0))

    async def end(self, call: Call) -> None:
        assert call.hold is not None
        call.ended_at = self.time
        await self._start(call.hold.settle(tokens=call.real_tokens, usd=call.real_usd))

    async def renew(self, call: Call) -> None:
        assert call.hold is not None
        await self._start(call.hold.renew())

    async def cancel(self, number: int) -> None:
        under_way = [task for task in self.tasks if not task.done()]
        if under_way:
            under_way[number % len(under_way)].cancel()
            await self._turn()

    async def let(self, number: int, fault: Fault | None) -> bool:
        """One of the table calls that are held back happens now. Gives whether there was one."""
        waiting = [(worker, let) for worker in self.workers for let in worker.gate.waiting]
        if not waiting:
            return False
        worker, let = waiting[number % len(waiting)]
        worker.gate.waiting.remove(let)
        let.set_result(fault)
        await self._turn()
        if worker.gate.crashed:
            for other in worker.gate.waiting:
                other.set_result(None)
            self.workers[self.workers.index(worker)] = self.new_worker()
            await self._turn()
        return True

    async def let_all(self) -> None:
        while await self.let(0, None):
            pass
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def close(self) -> None:
        """All workers die, so that nothing waits any more."""
        for worker in self.workers:
            worker.gate.crashed = True
            for let in worker.gate.waiting:
                let.set_result(None)
        await asyncio.wait(self.tasks)

    async def _start(self, work: Coroutine[None, None, None]) -> None:
        async def run() -> None:
            with suppress(Crash, StorageUnavailable):
                await work

        self.tasks.append(asyncio.create_task(run()))
        await self._turn()

    async def _turn(self) -> None:
        for _ in range(12):
            await asyncio.sleep(0)

    def _watch(self, item: Item, _: Item) -> None:
        before = holds_of(item)
        added, removed = self.holds.keys() - before.keys(), before.keys() - self.holds.keys()
        if not added:
            for name in removed:
                self.calls[name].settled_at = self.time
            return
        assert all(before[name] <= self.time for name in removed), "a living call lost its place"
        for name in added:
            call = self.calls[name]
            if call.admitted is not None and not call.settled:
                # Its first hold ran out before the worker, who was late, could give it back: it stays counted as a dead one's.
                self.calls[f"{name} before {self.time}"] = replace(call)
            call.admitted, call.settled_at = self.time, None
            assert len(self.holds) <= PLACES, "more calls at once than the limit"
            within = self.spent <= BUDGET or self.spent == call.asked_usd or not call.asked_usd
            assert within, "the budget is overshot by more than one reservation"

    def _check_admission(self, admitted: Call) -> None:
        assert admitted.admitted is not None
        recent = [call for call in self.calls.values() if call.let_in is not None and call.let_in > self.time - 60]
        # A call has used its tokens when it ends; its settlement may reach the table at any time after that.
        ended = [call for call in self.calls.values() if call.ended_at is not None and call.ended_at > self.time - 60]
        known = sum(call.surplus for call in ended if call.settled_at is not None and call.settled_at < admitted.admitted)
        assert sum(call.tokens for call in recent) + known <= TOKENS, "more tokens within 60 seconds than the limit"
