"""What an item of a shared limit says, and what may be reserved there: no I/O.

An item holds

- a sliding window of tokens, in buckets of five seconds (``window``: bucket → tokens, ``used``: their sum, ``slot``: the newest);
- the calls under way: ``active`` is their number, ``calls#<lease>`` the set of those whose lease runs out at that second;
- what has been spent in ``month`` out of ``budget``, reservations included; ``money#<lease>`` is what the calls of that lease
  reserved, and so may give back.

Each write of an item costs its whole size, and the calls under way make most of it. So leases end in steps, which makes a call
cost its name alone, and an item takes only so many calls.
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
"""One more than a minute has: whenever in its bucket a call comes, all of the sixty seconds before it are covered."""

MARGIN_SECONDS: Final = 1.0
"""How long a reservation may be on its way: a bucket is chosen by the moment at which it has come back for certain."""

MAX_CALLS_PER_SHARD: Final = 1000
"""Calls under way in one item. Their names take 7 KB: 8 write units for each write."""

_LEASE_STEP: Final = 20  # seconds
_CALLS: Final = "calls#"
_MONEY: Final = "money#"
_MONEY_DIGITS: Final = 12  # after the decimal point, of a US dollar


@dataclass(frozen=True, slots=True)
class Caps:
    """What a limited thing may take, all shards together. None bounds nothing."""

    tokens_per_minute: int | None = None
    concurrent: int | None = None
    usd_per_month: Decimal | None = None


@dataclass(frozen=True, slots=True)
class NoCapacity:
    """There is no room. ``retry_after`` is in seconds: when there will be, as far as the item says. Money is "reserved" where
    calls under way may give back enough of it."""

    retry_after: float
    by: Literal["tokens", "concurrent", "budget", "reserved"]


class ReservationRequest(NamedTuple):
    """What one call takes of a shard."""

    call_id: str
    tokens: int
    usd: Decimal


class OpeningBalance(NamedTuple):
    """What ``month`` had cost when it, or its budget, was first counted."""

    month: str
    usd: Decimal


@dataclass(frozen=True, slots=True)
class ShardState:
    """An item as it was last seen. ``old_leases_end`` is the second at which the last lease of an earlier release ends. Those
    leases are a map of calls, and only that release counts them."""

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
        """What an item says while others write to it all the time, as far as it matters to a reservation."""
        return cls(int((now + MARGIN_SECONDS) // SLOT_SECONDS), active=0, month=month_of(now), budget=share.usd_per_month)

    def counts_money_of(self, month: str, budget: Decimal | None) -> bool:
        return (self.month, self.budget) == (month, budget)

    def lease_of(self, call_id: str) -> int | None:
        """Return when the lease of a call runs out; None if it is not under way."""
        return next((lease for lease, calls in self.leases.items() if call_id in calls), None)

    def under_way(self, now: float) -> int:
        return sum(len(calls) for lease, calls in self.leases.items() if lease > now)

    def current_slot(self, now: float) -> int:
        """Return the bucket of a write that is sent at ``now``. Clocks differ: a bucket that another worker began is never turned
        back."""
        return max(self.slot or 0, int((now + MARGIN_SECONDS) // SLOT_SECONDS))

    def expired_buckets(self, now: float) -> dict[int, int]:
        """Return the buckets that have left the window, with their tokens."""
        return {slot: tokens for slot, tokens in self.window.items() if slot <= now // SLOT_SECONDS - SLOTS}


@dataclass(slots=True)
class Change:
    """The parts of one update, as they are put together."""

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
    for old, held in expired.items():
        change.remove.append(f"window.{old}")
        change.when.append(Equals(f"window.{old}", held))


def calls_attribute(lease: int) -> str:
    """Return the attribute with the calls of a lease."""
    return f"{_CALLS}{lease}"


def money_attribute(lease: int) -> str:
    """Return the attribute with what the calls of a lease reserved."""
    return f"{_MONEY}{lease}"


def money_units(usd: Decimal) -> int:
    """Return an amount as those attributes hold it: a whole number, so that taking away what was added leaves 0."""
    return int(usd.scaleb(_MONEY_DIGITS))


def lease_end(now: float) -> int:
    """Return the second at which a lease runs out that is taken now."""
    return math.ceil((now + LEASE_SECONDS) / _LEASE_STEP) * _LEASE_STEP


def month_of(now: float) -> str:
    """``2026-11``, in UTC."""
    return time.strftime("%Y-%m", time.gmtime(now))


def end_of_month(month: str) -> int:
    """The second at which ``month`` ends."""
    year, number = map(int, month.split("-"))
    return calendar.timegm((year + number // 12, number % 12 + 1, 1, 0, 0, 0))
