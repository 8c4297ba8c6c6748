"""The state of one item (shard) of a shared limit, and the parts of its updates. No I/O.

An item holds

- a sliding window of tokens, in buckets of five seconds (``window``: bucket → tokens, ``used``: their sum, ``slot``: the newest);
- the calls in flight: ``active`` is their number, ``calls#<lease>`` the set of those whose lease ends at that second;
- the money spent in ``month`` of ``budget``, reservations included; ``money#<lease>`` is the part that the calls of that lease
  reserved and may give back.

DynamoDB bills each write by the size of the whole item, and calls in flight are most of it. So leases end in steps, which leaves
only the id of each call, and an item takes at most ``MAX_CALLS_PER_SHARD`` calls.
"""

import calendar
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, Literal, NamedTuple, Self, cast

from spass.aws.attributes import Item, Value
from spass.aws.keys import Key
from spass.aws.leases import LEASE_SECONDS
from spass.aws.writes import Absent, AllOf, Condition, Equals, Update

SLOT_SECONDS: Final = 5
SLOTS: Final = 13
"""Buckets in the window: one more than a minute has, so that it covers sixty seconds at any moment of a bucket."""

MARGIN_SECONDS: Final = 1.0
"""The longest time in seconds that a reservation's write may take. A bucket is chosen for the end of that time."""

MAX_CALLS_PER_SHARD: Final = 1000
"""Calls in flight in one item. Their ids take 7 KB, so a write takes 8 write units."""

_LEASE_STEP: Final = 20  # seconds
_CALLS: Final = "calls#"
_MONEY: Final = "money#"
_MONEY_DIGITS: Final = 12  # after the decimal point, of a US dollar


@dataclass(frozen=True, slots=True)
class Caps:
    """The caps of a limit, as a sum over all shards. None means unlimited."""

    tokens_per_minute: int | None = None
    concurrent: int | None = None
    usd_per_month: Decimal | None = None


@dataclass(frozen=True, slots=True)
class NoCapacity:
    """A limit is full. After ``retry_after`` seconds there may be room. ``by`` is "reserved" if calls in flight may give back
    enough of the budget."""

    retry_after: float
    by: Literal["tokens", "concurrent", "budget", "reserved"]


class ReservationRequest(NamedTuple):
    """The room that one call needs in a shard."""

    call_id: str
    tokens: int
    usd: Decimal


class OpeningBalance(NamedTuple):
    """The cost of ``month`` up to the moment when a shard began to count it, or its budget."""

    month: str
    usd: Decimal


@dataclass(frozen=True, slots=True)
class ShardState:
    """An item as it was read. ``old_leases_end`` is the second at which the last lease of an earlier release ends: that release
    kept leases in a map, which only it counts."""

    slot: int | None = None
    window: Mapping[int, int] = field(default_factory=dict)
    active: int | None = None
    leases: Mapping[int, frozenset[str]] = field(default_factory=dict)
    month: str | None = None
    budget: Decimal | None = None
    spent: Decimal = Decimal(0)
    reserved: Mapping[int, Decimal] = field(default_factory=dict)
    old_leases_end: int | None = None
    exists: bool = True

    @classmethod
    def of(cls, item: Item | None) -> Self:
        if item is None:
            return cls(exists=False)
        budget = item.get("budget")
        return cls(
            slot=cast("int | None", item.get("slot")),
            window={int(slot): tokens for slot, tokens in cast("Mapping[str, int]", item.get("window") or {}).items()},
            active=cast("int | None", item.get("active")),
            leases={int(name[len(_CALLS) :]): cast("frozenset[str]", item[name]) for name in item if name.startswith(_CALLS)},
            month=cast("str | None", item.get("month")),
            budget=None if budget is None else Decimal(cast("int | Decimal", budget)),
            spent=Decimal(cast("int | Decimal", item.get("spent") or 0)),
            reserved={
                int(name[len(_MONEY) :]): Decimal(cast(int, item[name])).scaleb(-_MONEY_DIGITS)
                for name in item
                if name.startswith(_MONEY)
            },
            old_leases_end=max(cast("Mapping[str, int]", item.get("holds") or {}).values(), default=None),
        )

    @classmethod
    def assume_contention(cls, now: float, share: Caps) -> Self:
        """Return the state that an item probably has while other workers write to it."""
        return cls(int((now + MARGIN_SECONDS) // SLOT_SECONDS), active=0, month=month_of(now), budget=share.usd_per_month)

    def counts_money_of(self, month: str, budget: Decimal | None) -> bool:
        return (self.month, self.budget) == (month, budget)

    def lease_of(self, call_id: str) -> int | None:
        """Return the second at which the lease of a call ends, or None if the call is not in flight."""
        return next((lease for lease, calls in self.leases.items() if call_id in calls), None)

    def calls_in_flight(self, now: float) -> int:
        return sum(len(calls) for lease, calls in self.leases.items() if lease > now)

    def current_slot(self, now: float) -> int:
        """Return the bucket of a write sent at ``now``. It is never before the newest bucket, as the clocks of workers differ."""
        return max(self.slot or 0, int((now + MARGIN_SECONDS) // SLOT_SECONDS))

    def expired_buckets(self, now: float) -> dict[int, int]:
        """Return the buckets that have left the window, with their tokens."""
        return {slot: tokens for slot, tokens in self.window.items() if slot <= now // SLOT_SECONDS - SLOTS}


@dataclass(slots=True)
class Change:
    """Collect the parts of one update."""

    set: dict[str, Value] = field(default_factory=dict)
    add: dict[str, Value] = field(default_factory=dict)
    discard: dict[str, frozenset[str]] = field(default_factory=dict)
    remove: list[str] = field(default_factory=list)
    when: list[Condition] = field(default_factory=list)

    def update(self, key: Key) -> Update:
        """Return the update of the item under ``key``."""
        return Update(
            key, set=self.set, add=self.add, discard=self.discard, remove=tuple(self.remove), when=AllOf(tuple(self.when))
        )


def count_tokens(change: Change, state: ShardState, now: float, tokens: int) -> None:
    """Add ``tokens`` to the current bucket, and remove the buckets that have left the window."""
    slot = state.current_slot(now)
    if state.slot is None:
        change.when.append(Absent("slot"))
        change.set["window"] = {str(slot): tokens}
        change.set["used"] = tokens
        change.set["slot"] = slot
        return
    expired = state.expired_buckets(now)
    change.when.append(Equals("slot", state.slot))
    change.add["used"] = tokens - sum(expired.values())
    if slot == state.slot:
        change.add[f"window.{slot}"] = tokens
    else:
        change.set["slot"] = slot
        change.set[f"window.{slot}"] = tokens
    for old_slot, old_tokens in expired.items():
        change.remove.append(f"window.{old_slot}")
        change.when.append(Equals(f"window.{old_slot}", old_tokens))


def calls_attribute(lease: int) -> str:
    """Return the attribute with the calls of a lease."""
    return f"{_CALLS}{lease}"


def money_attribute(lease: int) -> str:
    """Return the attribute with the money that the calls of a lease reserved."""
    return f"{_MONEY}{lease}"


def money_units(usd: Decimal) -> int:
    """Return ``usd`` as a whole number of units, so that subtracting what was added leaves exactly 0."""
    return int(usd.scaleb(_MONEY_DIGITS))


def lease_end(now: float) -> int:
    """Return the second at which a lease taken ``now`` ends."""
    return math.ceil((now + LEASE_SECONDS) / _LEASE_STEP) * _LEASE_STEP


def month_of(now: float) -> str:
    """Return the month in UTC, such as ``2026-11``."""
    return time.strftime("%Y-%m", time.gmtime(now))


def end_of_month(month: str) -> int:
    """Return the Unix second at which ``month`` ends."""
    year, number = map(int, month.split("-"))
    return calendar.timegm((year + number // 12, number % 12 + 1, 1, 0, 0, 0))
