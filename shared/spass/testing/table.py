"""A table in memory. It evaluates conditions and updates as they are; each request is one step.

It is fast, so that a test can make a hundred thousand requests. A property test compares it with an emulator of DynamoDB. It
knows no conflicts of transactions, since nothing is ever half done; a schedule makes them up.
"""

import math
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from spass.aws.attributes import Item, Value
from spass.aws.keys import Key
from spass.aws.table import ConditionFailed, Page, Query, Reply, TransactionFailed
from spass.aws.writes import Delete, Put, Update, Write
from spass.core.errors import InternalError
from spass.testing.evaluation import InvalidUpdate, apply, holds, stored

ITEM_BYTES: Final = 400 * 1024
PAGE_BYTES: Final = 2**20
TRANSACTION_ITEMS: Final = 100
TRANSACTION_BYTES: Final = 4 * 2**20
TOKEN_SECONDS: Final = 600


@dataclass(frozen=True, slots=True)
class _Stored:
    """An item as it lies in the table; nobody changes it. ``size`` is in bytes."""

    item: Item
    size: int


@dataclass(slots=True)
class _Partition:
    """Items by sort key, and the sort keys in order: of UTF-8's bytes, which is that of code points."""

    items: dict[str, _Stored] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Change:
    """The effect of a write whose condition holds: ``after`` takes the place of ``before``."""

    key: Key
    before: _Stored | None
    after: _Stored | None

    @property
    def units(self) -> int:
        return _kilobytes(max(self.before.size if self.before else 0, self.after.size if self.after else 0), 1024)


class MemoryTable:
    """A ``TableClient`` in memory. ``clock`` gives seconds since the epoch: transactions are known by their tokens for ten
    minutes. ``watch`` sees each item before and after each write that takes effect."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._partitions: dict[str, _Partition] = {}
        self._tokens: dict[str, tuple[float, Sequence[Write]]] = {}
        self._lock = threading.Lock()
        self.watch: Callable[[Item | None, Item | None], None] = lambda *_: None

    def items(self) -> Iterator[Item]:
        """Return everything stored, in no order."""
        for partition in self._partitions.values():
            for held in partition.items.values():
                yield dict(held.item)

    def get(self, *, key: Key, consistent: bool) -> Reply[Item | None]:
        with self._lock:
            held = self._stored(key)
        units = _kilobytes(held.size if held else 0, 4096) * (1.0 if consistent else 0.5)
        return Reply(dict(held.item) if held else None, units)

    def query(self, *, query: Query) -> Reply[Page]:
        with self._lock:
            partition = self._partitions.get(query.partition, _Partition())
            found = _in_range(partition.order, query)
            page, size = list[Item](), 0
            for held in map(partition.items.__getitem__, found):
                if len(page) == query.limit or (page and size + held.size > PAGE_BYTES):
                    break
                size += held.size
                page.append(dict(held.item))
        more = page and (len(page) < len(found) or len(page) == query.limit)
        units = _kilobytes(size, 4096) * (1.0 if query.consistent else 0.5)
        return Reply(Page(page, str(page[-1]["sk"]) if more else None), units)

    def write(self, *, write: Put | Update | Delete) -> Reply[Item | None]:
        with self._lock:
            try:
                change = self._change(write)
            except InvalidUpdate as invalid:
                raise _refused(str(invalid)) from None
            self._make(change)
        shown = {Put: None, Update: change.after, Delete: change.before}[type(write)]
        return Reply(dict(shown.item) if shown else None, float(change.units))

    def transact(self, *, writes: Sequence[Write], token: str) -> Reply[None]:
        with self._lock:
            if self._sent_before(token, writes):
                return Reply(None, 0.0)
            changes = self._changes(writes)
            for change in changes:
                self._make(change)
            self._tokens[token] = (self._clock(), writes)
        return Reply(None, float(sum(2 * change.units for change in changes)))

    def _changes(self, writes: Sequence[Write]) -> list[_Change]:
        if not 1 <= len(writes) <= TRANSACTION_ITEMS:
            raise _refused("a transaction has 1 to 100 writes")
        if len({write.key for write in writes}) < len(writes):
            raise _refused("a transaction cannot include multiple operations on one item")
        changes, failures, invalid = list[_Change](), dict[int, Item | None](), list[InvalidUpdate]()
        for number, write in enumerate(writes):
            try:
                changes.append(self._change(write))
            except ConditionFailed as failure:
                failures[number] = failure.item
            except InvalidUpdate as error:
                invalid.append(error)
        if failures:
            raise TransactionFailed(failures)
        if invalid:
            raise _refused(str(invalid[0]))
        if sum(change.after.size for change in changes if change.after) > TRANSACTION_BYTES:
            raise _refused("a transaction has 4 MB at the most")
        return changes

    def _sent_before(self, token: str, writes: Sequence[Write]) -> bool:
        at, sent = self._tokens.get(token, (-math.inf, ()))
        if self._clock() - at >= TOKEN_SECONDS:
            return False
        if sent != writes:
            raise _refused("the token is in use for another transaction")
        return True

    def _change(self, write: Write) -> _Change:
        """Return the effect of ``write``.

        Raises:
            ConditionFailed: its condition does not hold.
            InvalidUpdate: the update does not fit the item.
        """
        key, before = write.key, self._stored(write.key)
        assert key.pk, "a key may not be empty"
        assert key.sk, "a key may not be empty"
        item = before.item if before else None
        if not holds(write.when, item):
            raise ConditionFailed(dict(item) if item else None)
        match write:
            case Put():
                after: Item = {name: stored(value) for name, value in write.attributes.items()}
                after |= {"pk": key.pk, "sk": key.sk}
            case Update():
                after = apply(write, item)
            case Delete():
                return _Change(key, before, None)
            case _:
                return _Change(key, before, before)
        size = sum(_text_bytes(name) + _bytes(value) for name, value in after.items())
        if size > ITEM_BYTES:
            raise _refused("an item has 400 KB at the most")
        return _Change(key, before, _Stored(after, size))

    def _make(self, change: _Change) -> None:
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

    def _stored(self, key: Key) -> _Stored | None:
        partition = self._partitions.get(key.pk)
        return partition.items.get(key.sk) if partition else None


def _in_range(order: Sequence[str], query: Query) -> Sequence[str]:
    """Return the sort keys that a query looks at, in its order."""
    first = bisect_left(order, query.prefix)
    end = bisect_left(order, query.prefix + "\U0010ffff") if query.prefix else len(order)
    if query.after is not None:
        if query.newest_first:
            end = min(end, bisect_left(order, query.after))
        else:
            first = max(first, bisect_right(order, query.after))
    found = order[first:end]
    return found[::-1] if query.newest_first else found


def _refused(message: str) -> InternalError:
    """Return the error of a request that DynamoDB finds invalid, as ``DynamoDBTable`` raises it."""
    return InternalError(f"The storage refused a request of ours ({message}).")


def _kilobytes(size: int, unit: int) -> int:
    return max(1, -(-size // unit))


def _bytes(value: Value) -> int:
    """https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/CapacityUnitCalculations.html"""
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
