"""A table in memory as tenants see it, whose replicas lag: the item of the settings, alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from spass.aws.attributes import Item, Value
from spass.aws.clients import TenantStore
from spass.aws.job_targets import NO_JOB_TARGETS
from spass.aws.jobs import TenantJobs
from spass.aws.keys import Key, tenant_config
from spass.aws.objects import TenantObjects
from spass.aws.table import ConditionFailed, TenantTable, Update, Write
from spass.aws.uploads import TenantUploads
from spass.core.errors import StorageUnavailable
from spass.core.ids import TenantId

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
        """An update as ``change_of`` writes it: SET, REMOVE, ADD #version."""
        assert isinstance(write, Update)
        if self.silent:
            raise StorageUnavailable("The table does not answer.")
        if write.key != tenant_config(TENANT):  # an item of a limit, which nothing was counted in
            raise ConditionFailed(None)
        assert write.condition is None
        item: Item = dict(self.row.as_of(self.row.clock.now) or {})
        for clause, names in _clauses(write.expression):
            for name in names:
                if clause == "SET":
                    left, right = name.split(" = ")
                    item[write.names[left]] = write.values[right]
                elif clause == "REMOVE":
                    item.pop(write.names[name], None)
        version: Value = item.get("version", 0)
        assert isinstance(version, int)
        item["version"] = version + 1
        self.row.history.append((self.row.clock.now, item))
        return dict(item)


def _clauses(expression: str) -> list[tuple[str, Sequence[str]]]:
    found: list[tuple[str, Sequence[str]]] = []
    for word in ("SET", "REMOVE", "ADD"):
        _, keyword, rest = expression.partition(f"{word} ")
        if keyword:
            for other in (" REMOVE ", " ADD "):
                rest = rest.partition(other)[0]
            found.append((word, rest.split(", ")))
    return found


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
