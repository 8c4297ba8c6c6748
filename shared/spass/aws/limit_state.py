"""What an item of a shared limit says, and what may be reserved there: no I/O.

An item holds a sliding window of tokens, in buckets of five seconds (``window``: bucket → tokens, ``used``: their sum,
``slot``: the newest bucket), the calls under way (``holds``: call → second at which its lease runs out), and what has been
spent in ``month`` out of ``budget``, reservations included (``reserved``: call → what of it a call under way may give back).
"""

import calendar
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, Literal, NamedTuple, Self, cast

from spass.aws.attributes import Item
from spass.aws.expression import Expression
from spass.aws.keys import Key
from spass.aws.leases import LEASE_SECONDS
from spass.aws.table import Update

SLOT_SECONDS: Final = 5
SLOTS: Final = 13
"""One more than a minute has: whenever in its bucket a call comes, all of the sixty seconds before it are covered."""

MARGIN_SECONDS: Final = 1.0
"""How long a reservation may be on its way: a bucket is chosen by the moment at which it has come back for certain."""

_PLACE_SECONDS: Final = 1.0  # when a place may fall free if all owners live: nobody knows, so one asks again soon
_MONEY_SECONDS: Final = 5.0  # the same of money, for which whole calls have to end
_SOONEST: Final = 0.05
_MOST_RECLAIMED: Final = 25  # at once, so that an expression stays short


@dataclass(frozen=True, slots=True)
class Caps:
    """What a limited thing may take, all shards together. None bounds nothing."""

    tokens_per_minute: int | None = None
    concurrent: int | None = None
    usd_per_month: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Full:
    """There is no room. ``retry_after`` is in seconds: when there will be, as far as the item says. Money is "reserved" where
    calls under way may give back enough of it."""

    retry_after: float
    by: Literal["tokens", "concurrent", "budget", "reserved"]


class Asked(NamedTuple):
    """What one call takes of a shard."""

    call_id: str
    tokens: int
    usd: Decimal


class Opening(NamedTuple):
    """What ``month`` had cost when it, or its budget, was first counted."""

    month: str
    usd: Decimal


@dataclass(frozen=True, slots=True)
class State:
    """An item as somebody last saw it."""

    slot: int | None = None
    window: Mapping[int, int] = field(default_factory=dict)
    holds: Mapping[str, int] = field(default_factory=dict)
    month: str | None = None
    budget: Decimal | None = None
    spent: Decimal = Decimal(0)
    reserved: Mapping[str, Decimal] = field(default_factory=dict)
    exists: bool = True

    @classmethod
    def of(cls, item: Item | None) -> Self:
        if item is None:
            return cls(exists=False)
        budget = item.get("budget")
        return cls(
            slot=cast("int | None", item.get("slot")),
            window={int(slot): tokens for slot, tokens in cast("Mapping[str, int]", item.get("window") or {}).items()},
            holds=cast("Mapping[str, int]", item.get("holds") or {}),
            month=cast("str | None", item.get("month")),
            budget=None if budget is None else Decimal(cast("int | Decimal", budget)),
            spent=Decimal(cast("int | Decimal", item.get("spent") or 0)),
            reserved={
                call: Decimal(usd) for call, usd in cast("Mapping[str, int | Decimal]", item.get("reserved") or {}).items()
            },
        )

    @classmethod
    def of_others_at_work(cls, now: float, share: Caps) -> Self:
        """What an item says while others write to it all the time, as far as it matters to a reservation."""
        return cls(int((now + MARGIN_SECONDS) // SLOT_SECONDS), month=month_of(now), budget=share.usd_per_month)

    def counts_money_of(self, month: str, budget: Decimal | None) -> bool:
        return (self.month, self.budget) == (month, budget)

    def current_slot(self, now: float) -> int:
        """Return the bucket of a write that is sent at ``now``. Clocks differ: a bucket that another worker began is never turned
        back."""
        return max(self.slot or 0, int((now + MARGIN_SECONDS) // SLOT_SECONDS))

    def expired_buckets(self, now: float) -> dict[int, int]:
        """Return the buckets that have left the window, with their tokens."""
        return {slot: tokens for slot, tokens in self.window.items() if slot <= now // SLOT_SECONDS - SLOTS}


def count_tokens(expression: Expression, state: State, now: float, tokens: int) -> None:
    """Add ``tokens`` to the current bucket, and remove the buckets that have left the window."""
    slot = state.current_slot(now)
    if state.slot is None:
        expression.require_presence(("slot",), present=False)
        expression.set(("window",), {str(slot): tokens})
        expression.set(("used",), tokens)
        expression.set(("slot",), slot)
        return
    expired = state.expired_buckets(now)
    expression.require(("slot",), "=", state.slot)
    expression.add(("used",), tokens - sum(expired.values()))
    if slot == state.slot:
        expression.add(("window", str(slot)), tokens)
    else:
        expression.set(("slot",), slot)
        expression.set(("window", str(slot)), tokens)
    for old, held in expired.items():
        expression.remove(("window", str(old)))
        expression.require(("window", str(old)), "=", held)


class Reservation:
    """What one call would take of one shard, whose part of the caps is ``share``, and how that is written down at ``now`` if the
    item is as ``state`` says. ``opening`` is what this month's spending begins with where the item does not count it yet."""

    def __init__(self, share: Caps, asked: Asked, state: State, now: float, opening: Opening | None = None) -> None:
        self.share = share
        self.asked = asked
        self.state = state
        self.now = now
        self.slot = state.current_slot(now)
        self.month = max(state.month or "", month_of(now))
        self.opening = opening if opening and opening.month == self.month else None
        self.lease = lease_from(now)
        self._gone = state.expired_buckets(now)
        expired = sorted((until, call) for call, until in state.holds.items() if until <= now)
        self._expired = {call: until for until, call in expired[:_MOST_RECLAIMED]}

    @property
    def needs_opening(self) -> bool:
        budget = self.share.usd_per_month
        return budget is not None and self.opening is None and not self.state.counts_money_of(self.month, budget)

    def full(self) -> Full | None:
        """Why there is no room, if there is none; of several reasons the one that lasts longest."""
        reasons = filter(None, (self._tokens_full(), self._places_full(), self._budget_full()))
        return max(reasons, key=lambda reason: reason.retry_after, default=None)

    def update(self, key: Key) -> Update:
        """The one write that reserves it, on condition that there is room."""
        expression = Expression()
        expression.require_presence(("pk",), present=self.state.exists)
        self._take_place(expression)
        if self.share.tokens_per_minute is not None:
            self._take_tokens(expression, self.share.tokens_per_minute)
        if self.share.usd_per_month is not None:
            self._take_money(expression, self.share.usd_per_month)
        return expression.update(key)

    def opened(self, key: Key) -> Update:
        """The write that only begins to count the month's money, for a call that found no room."""
        expression = Expression()
        expression.require_presence(("pk",), present=self.state.exists)
        if not self.state.exists:
            expression.set(("holds",), {})
        if self.share.usd_per_month is not None:
            self._begin_counting(expression, self.share.usd_per_month, Decimal(0))
        return expression.update(key)

    def _take_place(self, expression: Expression) -> None:
        if not self.state.exists:
            expression.set(("holds",), {self.asked.call_id: self.lease})
            return
        expression.set(("holds", self.asked.call_id), self.lease)
        expression.require_presence(("holds", self.asked.call_id), present=False)
        for call, until in self._expired.items():
            expression.remove(("holds", call))
            expression.require(("holds", call), "=", until)
        if self.share.concurrent is not None:
            expression.require_fewer(("holds",), self.share.concurrent + len(self._expired))

    def _take_tokens(self, expression: Expression, cap: int) -> None:
        count_tokens(expression, self.state, self.now, self.asked.tokens)
        if self.state.slot is not None:
            expression.require(("used",), "<=", cap - self.asked.tokens + sum(self._gone.values()))

    def _take_money(self, expression: Expression, budget: Decimal) -> None:
        if self.state.counts_money_of(self.month, budget):
            expression.require(("month",), "=", self.month)
            expression.require(("budget",), "=", budget)
            if self.asked.usd:  # a call without a price passes a spent budget
                expression.require(("spent",), "<=", self._most_spent(budget))
                expression.add(("spent",), self.asked.usd)
                expression.set(("reserved", self.asked.call_id), self.asked.usd)
            for call in self._expired.keys() & self.state.reserved.keys():
                expression.remove(("reserved", call))
        else:
            self._begin_counting(expression, budget, self.asked.usd)

    def _begin_counting(self, expression: Expression, budget: Decimal, usd: Decimal) -> None:
        if self.state.month is None:
            expression.require_presence(("month",), present=False)
        else:
            expression.require(("month",), "=", self.state.month)
            expression.require(("spent",), "=", self.state.spent)
        expression.set(("month",), self.month)
        expression.set(("budget",), budget)
        expression.set(("spent",), self._spent + usd)
        expression.set(("reserved",), {**self._reserved, **({self.asked.call_id: usd} if usd else {})})

    @property
    def _reserved(self) -> dict[str, Decimal]:
        """What calls under way may give back of this month's money."""
        if self.state.month != self.month:
            return {}
        return {call: usd for call, usd in self.state.reserved.items() if self.state.holds.get(call, 0) > self.now}

    @property
    def _spent(self) -> Decimal:
        """This month's money, with what was spent before anybody counted it here."""
        counted = self.state.spent if self.state.month == self.month else Decimal(0)
        return max(counted, self.opening.usd if self.opening else Decimal(0))

    def _most_spent(self, budget: Decimal) -> Decimal:
        """What may have been spent for this to fit. A call that is dearer than the whole budget fits once, if there is one."""
        return max(Decimal(0), budget - self.asked.usd) if budget else -self.asked.usd

    def _tokens_full(self) -> Full | None:
        cap = self.share.tokens_per_minute
        if cap is None:
            return None
        over = sum(self.state.window.values()) - sum(self._gone.values()) + self.asked.tokens - cap
        wait = 0.0
        for slot in sorted(self.state.window.keys() - self._gone.keys()):
            if over <= 0:
                break
            over -= self.state.window[slot]
            wait = (slot + SLOTS) * SLOT_SECONDS - self.now
        return Full(max(_SOONEST, wait), "tokens") if wait else None

    def _places_full(self) -> Full | None:
        cap = self.share.concurrent
        if cap is None or len(self.state.holds) - len(self._expired) < cap:
            return None
        earliest = min(self.state.holds.values()) - self.now
        return Full(max(_SOONEST, min(earliest, _PLACE_SECONDS)), "concurrent")

    def _budget_full(self) -> Full | None:
        budget = self.share.usd_per_month
        if budget is None or not self.asked.usd or self._spent <= self._most_spent(budget):
            return None
        reserved = self._reserved
        if reserved and self._spent - sum(reserved.values()) <= self._most_spent(budget):
            leases_end = max(self.state.holds[call] for call in reserved) - self.now
            return Full(max(_SOONEST, min(leases_end, _MONEY_SECONDS)), "reserved")
        return Full(max(_SOONEST, end_of(self.month) - self.now), "budget")


def lease_from(now: float) -> int:
    return math.ceil(now + LEASE_SECONDS)


def month_of(now: float) -> str:
    """``2026-11``, in UTC."""
    return time.strftime("%Y-%m", time.gmtime(now))


def end_of(month: str) -> int:
    """The second at which ``month`` ends."""
    year, number = map(int, month.split("-"))
    return calendar.timegm((year + number // 12, number % 12 + 1, 1, 0, 0, 0))
