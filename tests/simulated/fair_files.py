"""Files of several tenants that share one queue and its workers.

The bucket sends an event for each file directly to the queue, past every bound at sending.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from spass.aws.job_targets import JobTargets
from spass.calls.scope import Scope
from spass.core.errors import RateLimited
from spass.core.ids import TenantId
from spass.core.jobs import MAX_RECEIVES, Delivery, WorkKind
from spass.core.time import Deadline
from spass.jobs.background import background_handler
from spass.jobs.dispatch import Dispatcher
from spass.models.types import EmbeddingReply
from spass.rag.index.cache import ObjectCache
from spass.rag.ingest.lease import IngestSettings
from spass.rag.ingest.sweep import sweep_uploads
from spass.rag.ingest.upload_record import UploadRecord, record_of
from spass.store import keys
from spass.testing.aws import MemoryAws
from spass.testing.rag import build_rag
from tests.simulated.fair_world import TENANTS, FairWorld
from tests.unit.rag.ingest.harness import Calls, jsonl_file, put_event

LONGEST_FILE: Final = 20.0
_SEQUENCERS: Final = count(1)


@dataclass(slots=True)
class SlowCalls(Calls):
    """Embedding calls that take as long as those of a model."""

    world: "FairFiles | None" = None

    async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
        assert self.world is not None
        tenant = scope.store.tenant
        if tenant in self.world.limited:
            raise RateLimited("slow", retry_after=30)
        async with self.world.working_for(tenant):
            pass
        return await Calls.embed(self, scope, texts)


class FairFiles(FairWorld):
    """The gateway and the files that its workers embed."""

    kind = WorkKind.FILES
    max_receives = MAX_RECEIVES
    longest = LONGEST_FILE

    def open_aws(self) -> MemoryAws:
        return MemoryAws(JobTargets(queue="jobs"), self.schedule.now, versioned=True, work_bound=self.work_bound)

    def serve(self) -> None:
        calls = SlowCalls(world=self)
        settings = IngestSettings(retry_pause_seconds=(), clock=lambda: int(self.schedule.now()))
        writer = build_rag(calls, calls.config, ObjectCache()).writer
        self.dispatcher = Dispatcher(TENANTS, self.store, background_handler(writer, ObjectCache(), settings))

    def put(self, tenant: TenantId, name: str) -> None:
        """Put a file of one document into the bucket, which sends its event."""
        key = f"uploads/{tenant}/{name}/a.jsonl"
        body = jsonl_file({"a": name})
        answer = self.aws.bucket.put_object(Bucket="spass", Key=key, Body=body)
        event = put_event(key, answer["VersionId"], sequencer=f"{next(_SEQUENCERS):018X}", size=len(body))
        self.receive("jobs", event)

    def receive(self, queue: str, body: str) -> None:
        assert queue == "jobs"
        if json.loads(body).get("job") != "merge":
            self.enqueue(body)

    def tenant_of(self, body: str) -> TenantId:
        return next(tenant for tenant in TENANTS if f'"{tenant}"' in body or f"/{tenant}/" in body)

    async def handle(self, tenant: TenantId, body: str, delivery: Delivery, deadline: Deadline) -> bool:
        return await self.dispatcher.message(body, delivery, deadline)

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
