"""A table in memory as tenants see it, whose replicas lag: the item of the settings, alone."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from spass.aws.attributes import Item
from spass.aws.clients import TenantStore
from spass.aws.job_targets import NO_JOB_TARGETS
from spass.aws.jobs import TenantJobs
from spass.aws.keys import Key, tenant_config
from spass.aws.objects import TenantObjects
from spass.aws.table import ConditionFailed, TenantTable
from spass.aws.uploads import TenantUploads
from spass.aws.writes import Update, Write
from spass.core.errors import StorageUnavailable
from spass.core.ids import TenantId
from spass.testing.evaluation import apply_update

TENANT = TenantId("acme")


@dataclass
class Clock:
    """Seconds, as the test has them pass."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Row:
    """The one item, with all that it ever was: (since when, the item)."""

    clock: Clock
    history: list[tuple[float, Item | None]] = field(default_factory=lambda: [(float("-inf"), None)])

    def as_of(self, second: float) -> Item | None:
        return next(item for since, item in reversed(self.history) if since <= second)


class LaggingTable(TenantTable):
    """One process's view of ``row``. A read that need not be consistent is answered as the row was ``lag()`` seconds ago.
    ``silent`` answers nothing. ``reads`` counts the consistent ones and the others."""

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
        """Apply an update as ``change_of`` makes it."""
        assert isinstance(write, Update)
        if self.silent:
            raise StorageUnavailable("The table does not answer.")
        if write.key != tenant_config(TENANT):  # an item of a limit, which nothing was counted in
            raise ConditionFailed(None)
        assert write.when is None
        item = apply_update(write, self.row.as_of(self.row.clock.now))
        self.row.history.append((self.row.clock.now, item))
        return dict(item)


def store_over(table: TenantTable) -> TenantStore:
    return TenantStore(
        TENANT,
        table,
        TenantObjects(_nothing, "bucket", TENANT),
        TenantUploads(_nothing, "bucket", TENANT, _nothing),
        TenantJobs(_nothing, _nothing, NO_JOB_TARGETS, TENANT),
    )


def _nothing() -> NoReturn:
    raise AssertionError("settings are in the table alone")
