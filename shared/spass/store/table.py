"""The table as one tenant sees it: typed reads and conditional writes."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from spass.core.errors import StorageUnavailable
from spass.core.ids import TenantId
from spass.core.tasks import back_off, run_concurrently
from spass.core.time import now_s
from spass.store.invocation import ServiceCall, invoke, retry_once
from spass.store.keys import Key, tenant_prefix
from spass.store.writes import Delete, Item, Put, Update, Write

T = TypeVar("T")

TTL: Final = "ttl"
"""The attribute with the second after which an item has expired: reads omit it, and DynamoDB removes it later."""

_CONFLICT_ATTEMPTS: Final = 8
_CONFLICT_BASE_DELAY: Final = 0.02  # seconds; doubled per attempt, full jitter
_OPERATIONS: Final = {Put: "PutItem", Update: "UpdateItem", Delete: "DeleteItem"}


class ConditionFailed(Exception):
    """The condition of a write failed. ``item`` is the stored item, or None.

    After a lost reply the client retries, and the condition of the retry may fail because the first attempt took effect. So a
    writer that changes what its condition tests must check whether ``item`` is the result of its own write.
    """

    def __init__(self, item: Item | None) -> None:
        super().__init__("the condition of a write failed")
        self.item = item


class TransactionFailed(Exception):
    """Conditions of a transaction failed. ``failures`` maps the position of each failed write to the stored item."""

    def __init__(self, failures: Mapping[int, Item | None]) -> None:
        super().__init__(f"the conditions of writes {sorted(failures)} of a transaction failed")
        self.failures = failures


class TransactionConflict(Exception):
    """Another transaction is changing one of the items. The request had no effect, and a retry may succeed."""


@dataclass(frozen=True, slots=True)
class Query:
    """A range of a partition: at most ``limit`` items whose sort keys begin with ``prefix``, after the sort key ``after``, in
    ascending or descending order."""

    partition: str
    prefix: str = ""
    after: str | None = None
    limit: int | None = None
    newest_first: bool = False
    consistent: bool = True


class Page(NamedTuple):
    """Items of a query. ``last`` is the sort key after which the next page begins, or None on the last page."""

    items: list[Item]
    last: str | None


class Reply(NamedTuple, Generic[T]):
    """The reply to one request, and the capacity units that the request used."""

    value: T
    capacity_units: float


class TableClient(Protocol):
    """A table, one request per method: DynamoDB's, or one in memory. Each method runs on the event loop.

    Raises:
        StorageUnavailable: AWS throttled all retries or was unreachable; whether a write took effect is unknown.
        TransactionConflict: another transaction is changing one of the items.
    """

    async def get(self, *, key: Key, consistent: bool) -> Reply[Item | None]:
        """Return the item under ``key``, expired or not."""

    async def query(self, *, query: Query) -> Reply[Page]:
        """Return one page of ``query``. A page may be empty although more items follow."""

    async def write(self, *, write: Put | Update | Delete) -> Reply[Item | None]:
        """Return the item after an Update, the item before a Delete, None for a Put. Raise ``ConditionFailed`` if the condition
        failed."""

    async def transact(self, *, writes: Sequence[Write], token: str) -> Reply[None]:
        """Do all of ``writes`` or none, once per ``token`` within ten minutes. Raise ``TransactionFailed`` if conditions
        failed."""


class GuardedTable:
    """The part of the table whose keys begin with ``prefix``: other keys raise ``PermissionError``.

    A request whose outcome is unknown is retried once. So every write must be idempotent: a second request has no further effect,
    or its condition fails and the writer checks the stored item.

    Raises:
        StorageUnavailable: throttled, in conflict through all retries, or unreachable; whether a write took effect is unknown.
    """

    def __init__(self, client: TableClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    async def get(self, key: Key, *, consistent: bool = True) -> Item | None:
        """Return the item, or None if there is none or it has expired."""
        self._guard(key.pk)
        item = (await self._call("GetItem", self._client.get, {"key": key, "consistent": consistent})).value
        return item if item and _is_visible(item) else None

    async def query(
        self,
        partition: str,
        *,
        prefix: str = "",
        after: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        consistent: bool = True,
    ) -> list[Item]:
        """Return the items of a ``Query``. Read pages until there are ``limit`` items or no more pages."""
        self._guard(partition)
        items: list[Item] = []
        while True:
            remaining = None if limit is None else limit - len(items)
            query = Query(partition, prefix, after, remaining, newest_first, consistent)
            page = (await self._call("Query", self._client.query, {"query": query})).value
            items += filter(_is_visible, page.items)
            after = page.last
            if after is None or (limit is not None and len(items) >= limit):
                return items

    async def pages(
        self,
        partition: str,
        *,
        size: int,
        prefix: str = "",
        after: str | None = None,
        newest_first: bool = False,
        consistent: bool = True,
    ) -> AsyncIterator[list[Item]]:
        """Yield the items of a ``Query`` in lists of ``size``, of which the last may be shorter. Each costs one call."""
        while True:
            items = await self.query(
                partition, prefix=prefix, after=after, limit=size, newest_first=newest_first, consistent=consistent
            )
            if items:
                yield items
            if len(items) < size:
                return
            after = str(items[-1]["sk"])

    async def write(self, write: Put | Update | Delete) -> Item | None:
        """Do one idempotent write. Return the item after an Update, the item before a Delete, None for a Put. Raise
        ``ConditionFailed`` if its condition failed."""
        self._guard(write.key.pk)
        return (await self._call(_OPERATIONS[type(write)], self._client.write, {"write": write})).value

    async def delete(self, items: Iterable[Item]) -> None:
        """Delete ``items`` concurrently, whatever they hold by now."""
        await run_concurrently([self.write(Delete(Key(str(item["pk"]), str(item["sk"])))) for item in items])

    async def transact(self, writes: Sequence[Write], *, token: str) -> None:
        """Do all of ``writes`` or none.

        ``token`` (at most 36 characters) makes retries safe: within ten minutes, transactions with the same token take effect
        only once.

        Raises:
            TransactionFailed: conditions failed.
        """
        for write in writes:
            self._guard(write.key.pk)
        await self._call("TransactWriteItems", self._client.transact, {"writes": writes, "token": token})

    async def _call(self, operation: str, method: Callable[..., Coroutine[Any, Any, T]], parameters: Mapping[str, object]) -> T:
        call = ServiceCall("dynamodb", operation, parameters)
        for attempt in range(_CONFLICT_ATTEMPTS):
            try:
                return await retry_once(lambda: invoke(call, lambda: method(**call.parameters)))
            except TransactionConflict:
                await back_off(_CONFLICT_BASE_DELAY * 2**attempt)
        raise StorageUnavailable("Too many writers at once; try again.", retry_after=1)

    def _guard(self, partition: str) -> None:
        if not partition.startswith(self._prefix):
            raise PermissionError(f"a key outside {self._prefix}")


class TenantTable(GuardedTable):
    """The table as one tenant may see it: the keys that begin with ``T#<tenant>#``."""

    def __init__(self, client: TableClient, tenant: TenantId) -> None:
        super().__init__(client, tenant_prefix(tenant))


def _is_visible(item: Item) -> bool:
    expires = item.get(TTL)
    return not isinstance(expires, int) or expires > now_s()
