"""What a message of the queue of jobs leads to."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from spass.aws.clients import TenantStore
from spass.aws.log import write_line
from spass.core.ids import IndexId, TenantId
from spass.core.time import Deadline, now
from spass.metering import audit
from spass.rag.ingest.events import AccountJob, IngestJob, Job, MergeJob, ObjectPut, Unknown, jobs_of
from spass.rag.ingest.location import locate
from spass.rag.ingest.worker import Delivery, Ingest


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Carries out messages for the known ``tenants``. A message that asks for nothing we can do leaves a line in the log, which
    holds nothing of it, and is done with: it may not keep the queue busy."""

    tenants: Collection[TenantId]
    store_of: Callable[[TenantId], TenantStore]
    ingest: Ingest
    merge: Callable[[TenantStore, IndexId, Deadline], Awaitable[object]]

    async def message(self, body: str, delivery: Delivery, deadline: Deadline) -> bool:
        """Whether the message is done with; else it shall be delivered again.

        Raises:
            Exception: what the first of its events met that nobody expected, once the others have been carried out.
        """
        done = True
        failures: list[Exception] = []
        for job in jobs_of(body):
            try:
                done = await self._job(job, delivery, deadline) and done
            except Exception as failure:  # noqa: BLE001 (what one event met shall not keep the next one waiting)
                failures.append(failure)
        if failures:
            raise failures[0]
        return done

    async def _job(self, job: Job, delivery: Delivery, deadline: Deadline) -> bool:
        match job:
            case Unknown():
                return _dropped(job.why, delivery)
            case ObjectPut() if job.is_folder:
                return True
            case ObjectPut():
                location = locate(job.key)
                if location is None:
                    return _dropped("the key names no index of a tenant", delivery)
                if location.tenant not in self.tenants:
                    return _dropped("the tenant is not known", delivery)
                return await self.ingest.put(self.store_of(location.tenant), location, job, delivery, deadline)
            case IngestJob() | MergeJob() | AccountJob() if job.tenant not in self.tenants:
                return _dropped("the tenant is not known", delivery)
            case IngestJob():
                return await self.ingest.go_on(self.store_of(job.tenant), job.index, job.upload, delivery, deadline)
            case MergeJob():
                await self.merge(self.store_of(job.tenant), job.index, deadline)
                return True
            case AccountJob():
                await audit.account(self.store_of(job.tenant), job.record)
                return True


def _dropped(why: str, delivery: Delivery) -> bool:
    write_line({"at": now(), "level": "warning", "event": "job_dropped", "message_id": delivery.message, "why": why})
    return True
