"""The storage of one tenant."""

from dataclasses import dataclass

from spass.core.ids import TenantId
from spass.store.bucket import TenantObjects, TenantUploads
from spass.store.jobs import TenantJobs
from spass.store.table import TenantTable
from spass.store.work_line import WorkLine


@dataclass(frozen=True, slots=True)
class TenantStore:
    """The storage of one tenant: its part of the table and of the bucket, its jobs, and its share of the workers."""

    tenant: TenantId
    table: TenantTable
    objects: TenantObjects
    uploads: TenantUploads
    jobs: TenantJobs
    line: WorkLine
