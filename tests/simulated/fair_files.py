"""Files of several tenants that share one queue and its workers, over AWS in memory and a loop with virtual time.

The bucket sends an event for each file directly to the queue, past every bound at sending.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from spass.aws import keys
from spass.aws.attributes import Item
from spass.aws.clients import TenantStore
from spass.aws.job_targets import JobTargets
from spass.calls.scope import Scope
from spass.core.errors import RateLimited, SpassError
from spass.core.ids import TenantId
from spass.core.jobs import MAX_RECEIVES, Delivery, WorkKind
from spass.core.time import Deadline
from spass.jobs.background import background_handler
from spass.jobs.dispatch import Dispatcher
from spass.llm.types import EmbeddingReply
from spass.rag.index.cache import ObjectCache
from spass.rag.ingest.settings import IngestSettings
from spass.rag.ingest.sweep import sweep_uploads
from spass.rag.ingest.upload_record import UploadRecord, record_of
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, FaultPlan, inject
from spass.testing.rag import build_rag
from tests.simulated.managed_world import VISIBILITY_SECONDS, WORKER_SECONDS, QueuedMessage
from tests.simulated.schedule import NO_FAULTS, Schedule
from tests.unit.rag.ingest.harness import Calls, jsonl_file, put_event

HEAVY: Final = TenantId("heavy")
LIGHT: Final = TenantId("light")
TENANTS: Final = (HEAVY, LIGHT)
LONGEST_FILE: Final = 20.0
_IDLE_SECONDS: Final = 100.0
_SEQUENCERS: Final = count(1)


@dataclass(frozen=True, slots=True)
class Begun:
    """A file whose documents a worker has begun to embed, ``at`` this second."""

    tenant: TenantId
    at: float


@dataclass(slots=True)
class SlowCalls(Calls):
    """Embedding calls that take as long as those of a model."""

    world: "FairFiles | None" = None

    async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
        assert self.world is not None
        await self.world.embed(scope.store.tenant)
        return await Calls.embed(self, scope, texts)


@dataclass
class FairFiles:
    """The gateway, whose tenants may have ``workers`` workers while they are alone.

    ``begun`` are the files that workers have begun to embed, ``most`` is how many of a
    tenant they embedded at a time. ``limited`` are the tenants at their rate limit. ``busy`` counts the workers that have a
    message, ``dead`` are messages of the dead-letter queue, and ``trespasses`` are writes that must not happen."""

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
    _arrival: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.schedule.fault_rates = NO_FAULTS
        self.aws = MemoryAws(JobTargets(queue="jobs", job_workers=self.workers), self.schedule.now, versioned=True)
        self.aws.queues.on_message = self._receive
        self.aws.table.watch = self._watch
        calls = SlowCalls(world=self)
        settings = IngestSettings(retry_pause_seconds=(), clock=lambda: int(self.schedule.now()))
        writer = build_rag(calls, calls.config, ObjectCache()).writer
        self.dispatcher = Dispatcher(TENANTS, self.store, background_handler(writer, ObjectCache(), settings))

    def store(self, tenant: TenantId) -> TenantStore:
        return self.aws.for_tenant(tenant)

    def put(self, tenant: TenantId, name: str) -> None:
        """Put a file of one document into the bucket, which sends its event."""
        key = f"uploads/{tenant}/{name}/a.jsonl"
        body = jsonl_file({"a": name})
        answer = self.aws.bucket.put_object(Bucket="spass", Key=key, Body=body)
        event = put_event(key, answer["VersionId"], sequencer=f"{next(_SEQUENCERS):018X}", size=len(body))
        self._receive("jobs", event)

    async def work(self, process: Callable[[TenantId], FaultPlan]) -> None:
        """Be one worker until all is over."""
        while not self.is_over:
            message = next((message for message in self.queue if message.visible_at <= self.schedule.now()), None)
            if message is None:
                await self._wait_for_message()
                continue
            message.receives += 1
            if message.receives > MAX_RECEIVES:
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
        tenant = next(tenant for tenant in TENANTS if f'"{tenant}"' in message.body or f"/{tenant}/" in message.body)
        plan, delivery = process(tenant), Delivery(str(id(message)), message.receives, message.sent)
        is_done = False
        with inject(plan), suppress(SpassError, Crash):
            is_done = await self.dispatcher.message(message.body, delivery, Deadline.after(WORKER_SECONDS))
        if is_done and not plan.crashed:
            self.queue.remove(message)

    async def sweep(self) -> None:
        for tenant in TENANTS:
            await sweep_uploads(self.store(tenant), int(self.schedule.now()), Deadline.after(60))

    def uploads(self, tenant: TenantId) -> list[UploadRecord]:
        prefix = f"{keys.tenant_prefix(tenant)}"
        return [
            record_of(item)
            for item in self.aws.table.items()
            if str(item["pk"]).startswith(prefix) and str(item["sk"]).startswith(keys.UPLOAD_PREFIX)
        ]

    def left(self) -> list[Item]:
        """Return what still has a place or waits."""
        partition = keys.work_partition(WorkKind.FILES)
        lines = [keys.waiting_partition(tenant, WorkKind.FILES) for tenant in TENANTS]
        items = self.aws.table.items()
        return [item for item in items if (item["pk"] == partition and item.get("count")) or item["pk"] in lines]

    def begun_at(self, tenant: TenantId) -> float | None:
        """Return when the first file of a tenant began."""
        return next((file.at for file in self.begun if file.tenant == tenant), None)

    async def embed(self, tenant: TenantId) -> None:
        """Act as the model."""
        if tenant in self.limited:
            raise RateLimited("slow", retry_after=30)
        self.begun.append(Begun(tenant, self.schedule.now()))
        self.working[tenant] += 1
        self.most[tenant] = max(self.most[tenant], self.working[tenant])
        try:
            await asyncio.sleep(LONGEST_FILE * (0.5 + 0.5 * self.schedule.rng.random()))
        finally:
            self.working[tenant] -= 1

    def _receive(self, queue: str, body: str) -> None:
        assert queue == "jobs"
        job = json.loads(body)
        if job.get("job") == "merge":
            return
        now = self.schedule.now()
        self.queue.append(QueuedMessage(body, now + self.aws.queues.last_delay, sent=now))
        self.aws.queues.last_delay = 0
        arrival, self._arrival = self._arrival, asyncio.Event()
        arrival.set()

    def _watch(self, _: Item | None, after: Item | None) -> None:
        if after is None or after["pk"] != keys.work_partition(WorkKind.FILES):
            return
        out: Any = after.get("out", frozenset())
        if after.get("count", 0) != len(out) or len(out) > self.workers:
            self.trespasses.append(f"places: {after!r}")
