"""The state of one item (shard) of a shared limit, and the parts of its updates. No I/O.

An item holds

- a sliding window of tokens, in buckets of five seconds (``window``: bucket → tokens, ``used``: their sum, ``slot``: the newest);
- the calls in flight: ``active`` is their number, ``calls#<lease>`` the set of those whose lease ends at that second;
- ``spent``, the cost of ``month`` including reservations, and the ``budget`` of that month; ``money#<lease>`` is the part of
  ``spent`` that the calls of that lease reserved and may give back.

DynamoDB bills each write by the size of the whole item, most of which is calls in flight. So all leases end at one of a few
seconds, the item stores only the id of each call, and it holds at most ``MAX_CALLS_PER_SHARD`` calls.
"""

import calendar
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from secrets import token_urlsafe
from typing import Final, Literal, NamedTuple, Self, cast

from spass.store.keys import Key
from spass.store.leases import LEASE_SECONDS
from spass.store.writes import Absent, AllOf, Condition, Contains, Equals, HasSize, Item, Lacks, Update, Value

SLOT_SECONDS: Final = 5
SLOTS: Final = 13
"""Buckets in the window: one more than a minute has, so that it covers sixty seconds at any moment of a bucket."""

MARGIN_SECONDS: Final = 1.0
"""The longest time in seconds that a reservation's write may take. A bucket is chosen for the end of that time."""

MAX_CALLS_PER_SHARD: Final = 1000
"""Calls in flight in one item. Their ids take 7 KB, so a write takes 8 write units."""

_LEASE_STEP: Final = 5
"""Seconds between the ends of leases. A lease has 55 to 60 seconds left after a renewal, and 35 before the next one. So a worker
whose clock is 30 seconds ahead does not take it for expired, and the place of a dead worker is free within 60 seconds."""
_CALLS: Final = "calls#"
_MONEY: Final = "money#"
_MONEY_DIGITS: Final = 12  # after the decimal point, of a US dollar


@dataclass(frozen=True, slots=True)
class Caps:
    """The caps of a limit or of one of its shards. None means unlimited."""

    tokens_per_minute: int | None = None
    concurrent: int | None = None
    usd_per_month: Decimal | None = None


@dataclass(frozen=True, slots=True)
class NoCapacity:
    """A refusal: the cap ``by`` is full. After ``retry_after`` seconds there may be room. "reserved" means that calls in flight
    may give back enough of the budget."""

    retry_after: float
    by: Literal["tokens", "concurrent", "budget", "reserved"]


class ReservationRequest(NamedTuple):
    """The room that one call needs in a shard."""

    call_id: str
    tokens: int
    usd: Decimal


class OpeningBalance(NamedTuple):
    """The cost of ``month`` up to the moment at which a shard began to count it."""

    month: str
    usd: Decimal


@dataclass(frozen=True, slots=True)
class ShardState:
    """An item as it was read."""

    slot: int | None = None
    window: Mapping[int, int] = field(default_factory=dict)
    active: int | None = None
    leases: Mapping[int, frozenset[str]] = field(default_factory=dict)
    month: str | None = None
    budget: Decimal | None = None
    spent: Decimal = Decimal(0)
    reserved: Mapping[int, Decimal] = field(default_factory=dict)
    exists: bool = True

    @classmethod
    def of(cls, item: Item | None) -> Self:
        if item is None:
            return cls(exists=False)
        leases, reserved = {}, {}
        for name, value in item.items():
            if name.startswith(_CALLS):
                leases[int(name[len(_CALLS) :])] = cast("frozenset[str]", value)
            elif name.startswith(_MONEY):
                reserved[int(name[len(_MONEY) :])] = Decimal(cast(int, value)).scaleb(-_MONEY_DIGITS)
        budget, spent = item.get("budget"), item.get("spent")
        return cls(
            slot=cast("int | None", item.get("slot")),
            window={int(slot): tokens for slot, tokens in cast("Mapping[str, int]", item.get("window") or {}).items()},
            active=cast("int | None", item.get("active")),
            leases=leases,
            month=cast("str | None", item.get("month")),
            budget=None if budget is None else Decimal(cast("int | Decimal", budget)),
            spent=Decimal(cast("int | Decimal", spent or 0)),
            reserved=reserved,
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
    """Collect the parts of one update. A call is added on condition that it is not there yet, and removed if it is there."""

    set: dict[str, Value] = field(default_factory=dict)
    add: dict[str, Value] = field(default_factory=dict)
    discard: dict[str, frozenset[str]] = field(default_factory=dict)
    remove: list[str] = field(default_factory=list)
    when: list[Condition] = field(default_factory=list)

    def add_call(self, lease: int, call_id: str) -> None:
        self.add[f"{_CALLS}{lease}"] = frozenset({call_id})
        self.when.append(Lacks(f"{_CALLS}{lease}", call_id))

    def remove_call(self, lease: int, call_id: str) -> None:
        self.discard[f"{_CALLS}{lease}"] = frozenset({call_id})
        self.when.append(Contains(f"{_CALLS}{lease}", call_id))

    def remove_lease(self, lease: int, calls: int) -> None:
        """Remove all calls of a lease, on condition that there are ``calls`` of them."""
        self.remove.append(f"{_CALLS}{lease}")
        self.when.append(HasSize(f"{_CALLS}{lease}", calls))

    def add_money(self, lease: int, usd: Decimal) -> None:
        self.add[f"{_MONEY}{lease}"] = _money_units(usd)

    def set_money(self, lease: int, usd: Decimal | None) -> None:
        """Replace the money that the calls of a lease reserved. None removes it."""
        if usd is None:
            self.remove.append(f"{_MONEY}{lease}")
        else:
            self.set[f"{_MONEY}{lease}"] = _money_units(usd)

    def count_tokens(self, state: ShardState, now: float, tokens: int) -> None:
        """Add ``tokens`` to the current bucket, and remove the buckets that have left the window."""
        slot = state.current_slot(now)
        if state.slot is None:
            self.when.append(Absent("slot"))
            self.set |= {"window": {str(slot): tokens}, "used": tokens, "slot": slot}
            return
        expired = state.expired_buckets(now)
        self.when.append(Equals("slot", state.slot))
        self.add["used"] = tokens - sum(expired.values())
        if slot == state.slot:
            self.add[f"window.{slot}"] = tokens
        else:
            self.set |= {"slot": slot, f"window.{slot}": tokens}
        for old_slot, old_tokens in expired.items():
            self.remove.append(f"window.{old_slot}")
            self.when.append(Equals(f"window.{old_slot}", old_tokens))

    def update(self, key: Key) -> Update:
        return Update(
            key, set=self.set, add=self.add, discard=self.discard, remove=tuple(self.remove), when=AllOf(tuple(self.when))
        )


def new_call_id() -> str:
    """Return an id for a reservation. It is short because an item holds the id of each call in flight. With 1,000 calls in
    flight, the chance that a new id equals one of them is one in seventy million; the two then count as one call."""
    return token_urlsafe(5)[:6]


def _money_units(usd: Decimal) -> int:
    """Return ``usd`` as a whole number of units, so that subtracting an amount that was added leaves exactly 0."""
    return int(usd.scaleb(_MONEY_DIGITS))


def lease_end(now: float) -> int:
    """Return the second at which a lease ends that is taken or renewed now. All leases end at one of a few seconds."""
    return math.floor((now + LEASE_SECONDS) / _LEASE_STEP) * _LEASE_STEP


def month_of(now: float) -> str:
    """Return the month in UTC, such as ``2026-11``."""
    return time.strftime("%Y-%m", time.gmtime(now))


def end_of_month(month: str) -> int:
    """Return the Unix second at which ``month`` ends."""
    year, number = map(int, month.split("-"))
    return calendar.timegm((year + number // 12, number % 12 + 1, 1, 0, 0, 0))
