"""Two tenants that share one queue and its workers, over AWS in memory and a loop with virtual time."""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from spass.core.errors import SpassError
from spass.core.ids import TenantId
from spass.core.jobs import Delivery, WorkKind
from spass.core.time import Deadline
from spass.store import keys
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, FaultPlan, inject
from tests.simulated.managed_world import VISIBILITY_SECONDS, WORKER_SECONDS, QueuedMessage
from tests.simulated.schedule import NO_FAULTS, Schedule

HEAVY: Final = TenantId("heavy")
LIGHT: Final = TenantId("light")
TENANTS: Final = (HEAVY, LIGHT)
_IDLE_SECONDS: Final = 100.0


@dataclass(frozen=True, slots=True)
class Begun:
    """A piece of work that a worker has begun, ``at`` this second."""

    tenant: TenantId
    at: float


@dataclass
class FairWorld(ABC):
    """The gateway with one worker more than ``workers``, half of which a tenant may have.

    ``begun`` is the work that has begun, ``most`` is how much of a tenant was worked on at a time. ``limited`` are the tenants at
    their rate limit. ``busy`` counts the workers that have a message, ``dead`` are messages of the dead-letter queue, and
    ``trespasses`` are writes that must not happen.
    """

    kind: ClassVar[WorkKind]
    max_receives: ClassVar[int]
    longest: ClassVar[float]
    """The longest time that a piece of work takes, in seconds."""

    schedule: Schedule
    workers: int
    queue: list[QueuedMessage] = field(default_factory=list)
    begun: list[Begun] = field(default_factory=list)
    working: Counter[TenantId] = field(default_factory=Counter)
    most: Counter[TenantId] = field(default_factory=Counter)
    limited: set[TenantId] = field(default_factory=set)
    dead: list[str] = field(default_factory=list)
    trespasses: list[str] = field(default_factory=list)
    busy: int = 0
    is_over: bool = False
    aws: MemoryAws = field(init=False)
    _arrival: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.schedule.fault_rates = NO_FAULTS
        self.aws = self.open_aws()
        self.aws.queues.on_message = self.receive
        self.aws.table.watch = self._watch
        self.serve()

    @abstractmethod
    def open_aws(self) -> MemoryAws: ...

    @abstractmethod
    def serve(self) -> None:
        """Create the gateway's services over ``aws``."""

    @abstractmethod
    def receive(self, queue: str, body: str) -> None:
        """Receive a message that the gateway or the bucket sends."""

    @abstractmethod
    def tenant_of(self, body: str) -> TenantId: ...

    @abstractmethod
    async def handle(self, tenant: TenantId, body: str, delivery: Delivery, deadline: Deadline) -> bool:
        """Handle a message as a worker does. Return whether it is done."""

    @property
    def share(self) -> int:
        """Return how many workers a tenant may have."""
        return self.workers // 2

    def work_bound(self, tenant: TenantId, kind: WorkKind) -> int:
        return self.share

    def store(self, tenant: TenantId) -> TenantStore:
        return self.aws.for_tenant(tenant)

    async def work(self, process: Callable[[TenantId], FaultPlan]) -> None:
        """Be one worker until all is over."""
        while not self.is_over:
            message = next((message for message in self.queue if message.visible_at <= self.schedule.now()), None)
            if message is None:
                await self._wait_for_message()
                continue
            message.receives += 1
            if message.receives > self.max_receives:
                self.queue.remove(message)
                self.dead.append(message.body)
                continue
            message.visible_at = self.schedule.now() + VISIBILITY_SECONDS
            self.busy += 1
            await self._deliver(message, process)
            self.busy -= 1

    async def _wait_for_message(self) -> None:
        """Wait until a message is sent, or until a hidden one may be visible."""
        visible = min((message.visible_at for message in self.queue), default=self.schedule.now() + _IDLE_SECONDS)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._arrival.wait(), max(0.01, visible - self.schedule.now()))

    async def _deliver(self, message: QueuedMessage, process: Callable[[TenantId], FaultPlan]) -> None:
        tenant = self.tenant_of(message.body)
        plan, delivery = process(tenant), Delivery(str(id(message)), message.receives, message.sent)
        is_done = False
        with inject(plan), suppress(SpassError, Crash):
            is_done = await self.handle(tenant, message.body, delivery, Deadline.after(WORKER_SECONDS))
        if is_done and not plan.crashed:
            self.queue.remove(message)

    def enqueue(self, body: str) -> None:
        """Add a message, which is visible after the delay with which the gateway sends it."""
        now = self.schedule.now()
        self.queue.append(QueuedMessage(body, now + self.aws.queues.last_delay, sent=now))
        self.aws.queues.last_delay = 0
        arrival, self._arrival = self._arrival, asyncio.Event()
        arrival.set()

    @asynccontextmanager
    async def working_for(self, tenant: TenantId) -> AsyncGenerator[None, None]:
        """Record that the work of a tenant begins, and let it take its time."""
        self.begun.append(Begun(tenant, self.schedule.now()))
        self.working[tenant] += 1
        self.most[tenant] = max(self.most[tenant], self.working[tenant])
        try:
            await asyncio.sleep(self.longest * (0.5 + 0.5 * self.schedule.rng.random()))
            yield
        finally:
            self.working[tenant] -= 1

    def begun_at(self, tenant: TenantId) -> float | None:
        """Return when the first work of a tenant began."""
        return next((begun.at for begun in self.begun if begun.tenant == tenant), None)

    def left(self) -> list[Item]:
        """Return what still has a place or waits."""
        partition = keys.work_partition(self.kind)
        lines = [keys.waiting_partition(tenant, self.kind) for tenant in TENANTS]
        items = self.aws.table.items()
        return [item for item in items if (item["pk"] == partition and item.get("count")) or item["pk"] in lines]

    def _watch(self, _: Item | None, after: Item | None) -> None:
        if after is None or after["pk"] != keys.work_partition(self.kind):
            return
        out: Any = after.get("out", frozenset())
        if after.get("count", 0) != len(out) or len(out) > self.share:
            self.trespasses.append(f"places: {after!r}")
