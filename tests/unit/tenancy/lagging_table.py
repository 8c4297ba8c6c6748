"""A table in memory whose replicas lag. It has only the item of a tenant's settings."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from spass.aws.bucket import S3Access, S3Objects, S3Uploads
from spass.aws.job_targets import NO_JOB_TARGETS
from spass.aws.jobs import AwsJobs
from spass.core.errors import StorageUnavailable
from spass.core.ids import TenantId
from spass.store.evaluation import apply_update
from spass.store.keys import Key, tenant_config
from spass.store.table import ConditionFailed, TenantTable
from spass.store.tenant_store import TenantStore
from spass.store.work_line import WorkLine, default_work_bound
from spass.store.writes import Item, Update, Write

TENANT = TenantId("acme")


@dataclass
class Clock:
    """A clock that a test sets, in seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Row:
    """The history of the one item: pairs of the time from which on it was valid, and the item."""

    clock: Clock
    history: list[tuple[float, Item | None]] = field(default_factory=lambda: [(float("-inf"), None)])

    def as_of(self, second: float) -> Item | None:
        return next(item for since, item in reversed(self.history) if since <= second)


class LaggingTable(TenantTable):
    """The table as one process sees it. A read that is not consistent returns the item of ``lag()`` seconds ago.

    While ``silent``, the table does not answer. ``reads`` counts reads by whether they are consistent.
    """

    def __init__(self, row: Row, lag: Callable[[], float] = lambda: 0.0) -> None:
        self.tenant = TENANT
        self.row = row
        self.lag = lag
        self.silent = False
        self.reads = {True: 0, False: 0}

    async def get(self, key: Key, *, consistent: bool = True) -> Item | None:
        assert key == tenant_config(TENANT)
        self.reads[consistent] += 1
        if self.silent:
            raise StorageUnavailable("The table does not answer.")
        return self.row.as_of(self.row.clock.now - (0.0 if consistent else self.lag()))

    async def write(self, write: Write) -> Item | None:
        """Apply an update of ``settings_update``."""
        assert isinstance(write, Update)
        if self.silent:
            raise StorageUnavailable("The table does not answer.")
        if write.key != tenant_config(TENANT):  # the item of a limit, which does not exist
            raise ConditionFailed(None)
        assert write.when is None
        item = apply_update(write, self.row.as_of(self.row.clock.now))
        self.row.history.append((self.row.clock.now, item))
        return dict(item)


def build_store(table: TenantTable) -> TenantStore:
    jobs = AwsJobs(_fail, _fail, NO_JOB_TARGETS, TENANT)
    return TenantStore(
        TENANT,
        table,
        S3Objects(S3Access(_fail, _fail), "bucket", TENANT),
        S3Uploads(S3Access(_fail, _fail), "bucket", TENANT),
        jobs,
        WorkLine(TENANT, table, table, jobs, default_work_bound),
    )


def _fail() -> NoReturn:
    raise AssertionError("settings use only the table")
