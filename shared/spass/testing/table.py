"""A table in memory that evaluates conditions and updates directly. Each request is atomic.

It is fast, so that a test can make a hundred thousand requests. A property test compares it with an emulator of DynamoDB. Its
transactions never conflict, because a lock serializes all requests; a fault plan injects conflicts.
"""

import asyncio
import math
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from spass.core.errors import InternalError
from spass.store.evaluation import InvalidUpdate, apply_update, copy_as_stored, holds
from spass.store.keys import Key
from spass.store.table import ConditionFailed, Page, Query, Reply, TransactionFailed
from spass.store.writes import Delete, Item, Put, Update, Value, Write

ITEM_BYTES: Final = 400 * 1024
PAGE_BYTES: Final = 2**20
TRANSACTION_ITEMS: Final = 100
TRANSACTION_BYTES: Final = 4 * 2**20
TRANSACTION_TOKEN_SECONDS: Final = 600


@dataclass(frozen=True, slots=True)
class _StoredItem:
    """An item in the table, never changed in place. ``size`` is in bytes."""

    item: Item
    size: int


@dataclass(slots=True)
class _Partition:
    """The items by sort key, and the sort keys in ascending order. Code points sort as the UTF-8 bytes that DynamoDB compares."""

    items: dict[str, _StoredItem] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Change:
    """The effect of a write whose condition holds: ``after`` takes the place of ``before``."""

    key: Key
    before: _StoredItem | None
    after: _StoredItem | None

    @property
    def units(self) -> int:
        """Return the write capacity units."""
        return _capacity_units(max(self.before.size if self.before else 0, self.after.size if self.after else 0), 1024)


class MemoryTable:
    """A table in memory; ``MemoryTableClient`` makes it a ``TableClient``.

    ``clock`` gives seconds since the epoch: a transaction that is repeated with its token within ten minutes has no effect.
    ``watch`` is called with the item before and after each write that takes effect.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._partitions: dict[str, _Partition] = {}
        self._tokens: dict[str, tuple[float, Sequence[Write]]] = {}
        self._lock = threading.Lock()
        self.watch: Callable[[Item | None, Item | None], None] = lambda *_: None

    def items(self) -> Iterator[Item]:
        """Yield all stored items, in no particular order."""
        for partition in self._partitions.values():
            for stored in partition.items.values():
                yield dict(stored.item)

    def get(self, *, key: Key, consistent: bool) -> Reply[Item | None]:
        with self._lock:
            stored = self._find(key)
        units = _capacity_units(stored.size if stored else 0, 4096) * (1.0 if consistent else 0.5)
        return Reply(dict(stored.item) if stored else None, units)

    def query(self, *, query: Query) -> Reply[Page]:
        with self._lock:
            partition = self._partitions.get(query.partition, _Partition())
            sort_keys = _in_range(partition.order, query)
            page, size = list[Item](), 0
            for stored in map(partition.items.__getitem__, sort_keys):
                if len(page) == query.limit or (page and size + stored.size > PAGE_BYTES):
                    break
                size += stored.size
                page.append(dict(stored.item))
        more = page and (len(page) < len(sort_keys) or len(page) == query.limit)
        units = _capacity_units(size, 4096) * (1.0 if query.consistent else 0.5)
        return Reply(Page(page, str(page[-1]["sk"]) if more else None), units)

    def write(self, *, write: Put | Update | Delete) -> Reply[Item | None]:
        with self._lock:
            try:
                change = self._evaluate(write)
            except InvalidUpdate as invalid:
                raise _invalid_request(str(invalid)) from None
            self._apply(change)
        returned = {Put: None, Update: change.after, Delete: change.before}[type(write)]
        return Reply(dict(returned.item) if returned else None, float(change.units))

    def transact(self, *, writes: Sequence[Write], token: str) -> Reply[None]:
        with self._lock:
            if self._is_repeat(token, writes):
                return Reply(None, 0.0)
            changes = self._evaluate_all(writes)
            for change in changes:
                self._apply(change)
            self._tokens[token] = (self._clock(), writes)
        return Reply(None, float(sum(2 * change.units for change in changes)))

    def _evaluate_all(self, writes: Sequence[Write]) -> list[_Change]:
        if not 1 <= len(writes) <= TRANSACTION_ITEMS:
            raise _invalid_request("a transaction has 1 to 100 writes")
        if len({write.key for write in writes}) < len(writes):
            raise _invalid_request("a transaction cannot include multiple operations on one item")
        changes, failures, invalid = list[_Change](), dict[int, Item | None](), list[InvalidUpdate]()
        for number, write in enumerate(writes):
            try:
                changes.append(self._evaluate(write))
            except ConditionFailed as failure:
                failures[number] = failure.item
            except InvalidUpdate as error:
                invalid.append(error)
        if failures:
            raise TransactionFailed(failures)
        if invalid:
            raise _invalid_request(str(invalid[0]))
        if sum(change.after.size for change in changes if change.after) > TRANSACTION_BYTES:
            raise _invalid_request("a transaction has 4 MB at the most")
        return changes

    def _is_repeat(self, token: str, writes: Sequence[Write]) -> bool:
        at, earlier_writes = self._tokens.get(token, (-math.inf, ()))
        if self._clock() - at >= TRANSACTION_TOKEN_SECONDS:
            return False
        if earlier_writes != writes:
            raise _invalid_request("the token is in use for another transaction")
        return True

    def _evaluate(self, write: Write) -> _Change:
        """Return the effect of ``write``.

        Raises:
            ConditionFailed: its condition does not hold.
            InvalidUpdate: DynamoDB would reject the update for this item.
        """
        key, before = write.key, self._find(write.key)
        assert key.pk, "a key may not be empty"
        assert key.sk, "a key may not be empty"
        item = before.item if before else None
        if not holds(write.when, item):
            raise ConditionFailed(dict(item) if item else None)
        match write:
            case Put():
                after: Item = {name: copy_as_stored(value) for name, value in write.attributes.items()}
                after |= {"pk": key.pk, "sk": key.sk}
            case Update():
                after = apply_update(write, item)
            case Delete():
                return _Change(key, before, None)
            case _:  # a check changes nothing
                return _Change(key, before, before)
        size = sum(_text_bytes(name) + _bytes(value) for name, value in after.items())
        if size > ITEM_BYTES:
            raise _invalid_request("an item has 400 KB at the most")
        return _Change(key, before, _StoredItem(after, size))

    def _apply(self, change: _Change) -> None:
        before, after, key = change.before, change.after, change.key
        self.watch(before.item if before else None, after.item if after else None)
        if after is None:
            if before is not None:
                partition = self._partitions[key.pk]
                del partition.items[key.sk]
                del partition.order[bisect_left(partition.order, key.sk)]
            return
        partition = self._partitions.setdefault(key.pk, _Partition())
        if key.sk not in partition.items:
            insort(partition.order, key.sk)
        partition.items[key.sk] = after

    def _find(self, key: Key) -> _StoredItem | None:
        partition = self._partitions.get(key.pk)
        return partition.items.get(key.sk) if partition else None


class MemoryTableClient:
    """A ``TableClient`` of a table in memory. Other tasks run before a read. A write is never cancelled half-way."""

    def __init__(self, table: MemoryTable) -> None:
        self._table = table

    async def get(self, *, key: Key, consistent: bool) -> Reply[Item | None]:
        await asyncio.sleep(0)
        return self._table.get(key=key, consistent=consistent)

    async def query(self, *, query: Query) -> Reply[Page]:
        await asyncio.sleep(0)
        return self._table.query(query=query)

    async def write(self, *, write: Put | Update | Delete) -> Reply[Item | None]:
        return self._table.write(write=write)

    async def transact(self, *, writes: Sequence[Write], token: str) -> Reply[None]:
        return self._table.transact(writes=writes, token=token)


def _in_range(order: Sequence[str], query: Query) -> Sequence[str]:
    """Return the sort keys that match a query, in its order. ``order`` is all sort keys of the partition, ascending."""
    first = bisect_left(order, query.prefix)
    end = bisect_left(order, query.prefix + "\U0010ffff") if query.prefix else len(order)
    if query.after is not None:
        if query.newest_first:
            end = min(end, bisect_left(order, query.after))
        else:
            first = max(first, bisect_right(order, query.after))
    matches = order[first:end]
    return matches[::-1] if query.newest_first else matches


def _invalid_request(message: str) -> InternalError:
    """Return the error that ``DynamoDBTable`` raises when DynamoDB rejects a request as invalid."""
    return InternalError(f"The storage refused a request of ours ({message}).")


def _capacity_units(size: int, unit_bytes: int) -> int:
    return max(1, -(-size // unit_bytes))


def _bytes(value: Value) -> int:
    """Return the size of ``value`` in DynamoDB, in bytes.

    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/CapacityUnitCalculations.html
    """
    match value:
        case None | bool():
            return 1
        case int() | Decimal():
            digits = f"{value:f}" if isinstance(value, Decimal) else str(value)
            return (len(digits.strip("-").replace(".", "").strip("0")) + 1) // 2 + 1
        case str():
            return _text_bytes(value)
        case bytes():
            return len(value)
        case frozenset():
            return sum(map(_text_bytes, value))
        case Mapping():
            return 3 + sum(1 + _text_bytes(name) + _bytes(inner) for name, inner in value.items())
        case _:
            return 3 + sum(1 + _bytes(inner) for inner in value)


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
