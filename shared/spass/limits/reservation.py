"""Reserve room for one call in an item of a shared limit: the check and the write, without I/O."""

from decimal import Decimal
from typing import Final

from spass.aws.expression import Expression
from spass.aws.keys import Key
from spass.aws.table import Update
from spass.limits.shard_state import (
    MAX_CALLS_PER_SHARD,
    SLOT_SECONDS,
    SLOTS,
    Caps,
    NoCapacity,
    OpeningBalance,
    ReservationRequest,
    ShardState,
    calls_attribute,
    count_tokens,
    end_of_month,
    lease_end,
    money_attribute,
    money_units,
    month_of,
)

_PLACE_SECONDS: Final = 1.0  # until a retry when all places are taken: no one can know when a living call ends
_MONEY_SECONDS: Final = 5.0  # until a retry when the budget is reserved: calls give money back only at their end
_SOONEST: Final = 0.05


class ReservationCheck:
    """The reservation of one call in one shard, whose part of the caps is ``share``: whether it fits, and the write that makes it
    at ``now`` if the item still is as ``state`` says. ``opening`` is the month's spending so far, for an item that does not count
    this month yet."""

    def __init__(
        self, share: Caps, asked: ReservationRequest, state: ShardState, now: float, opening: OpeningBalance | None = None
    ) -> None:
        self.share = share
        self.asked = asked
        self.state = state
        self.now = now
        self.slot = state.current_slot(now)
        self.month = max(state.month or "", month_of(now))
        self.opening = opening if opening and opening.month == self.month else None
        self.lease = lease_end(now)
        self._gone = state.expired_buckets(now)
        self._expired = {lease: calls for lease, calls in state.leases.items() if lease <= now}
        self._freed = sum(map(len, self._expired.values()))

    @property
    def needs_opening(self) -> bool:
        budget = self.share.usd_per_month
        return budget is not None and self.opening is None and not self.state.counts_money_of(self.month, budget)

    def full(self) -> NoCapacity | None:
        """Return why there is no room, or None if there is; of several reasons the one that lasts longest."""
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
        if self.share.usd_per_month is not None:
            self._begin_counting(expression, self.share.usd_per_month, Decimal(0))
        return expression.update(key)

    def _take_place(self, expression: Expression) -> None:
        expression.insert(calls_attribute(self.lease), self.asked.call_id)
        expression.require_member(calls_attribute(self.lease), self.asked.call_id, present=False)
        for lease, calls in self._expired.items():
            expression.remove((calls_attribute(lease),))
            expression.require_size(calls_attribute(lease), len(calls))
        if self.state.active is None:
            expression.require_presence(("active",), present=False)
            expression.set(("active",), 1)
        else:
            expression.require(("active",), "<=", self._places - 1 + self._freed)
            expression.add(("active",), 1 - self._freed)
        if self.state.old_leases_end is not None and self.state.old_leases_end <= self.now:
            expression.set(("holds",), {})
            expression.set(("reserved",), {})

    def _take_tokens(self, expression: Expression, cap: int) -> None:
        count_tokens(expression, self.state, self.now, self.asked.tokens)
        if self.state.slot is not None:
            expression.require(("used",), "<=", cap - self.asked.tokens + sum(self._gone.values()))

    def _take_money(self, expression: Expression, budget: Decimal) -> None:
        if not self.state.counts_money_of(self.month, budget):
            self._begin_counting(expression, budget, self.asked.usd)
        else:
            expression.require(("month",), "=", self.month)
            expression.require(("budget",), "=", budget)
            if self.asked.usd:  # a call without a price passes a spent budget
                expression.require(("spent",), "<=", self._most_spent(budget))
                expression.add(("spent",), self.asked.usd)
            self._reserve_money(expression, self.asked.usd)

    def _begin_counting(self, expression: Expression, budget: Decimal, usd: Decimal) -> None:
        if self.state.month is None:
            expression.require_presence(("month",), present=False)
        else:
            expression.require(("month",), "=", self.state.month)
            expression.require(("spent",), "=", self.state.spent)
        expression.set(("month",), self.month)
        expression.set(("budget",), budget)
        expression.set(("spent",), self._spent + usd)
        self._reserve_money(expression, usd)

    def _reserve_money(self, expression: Expression, usd: Decimal) -> None:
        """Note that this call may give back ``usd``, and forget what dead workers and the last month's calls may have."""
        stale = self.state.reserved.keys() - self._reserved.keys()
        for lease in stale - {self.lease}:
            expression.remove((money_attribute(lease),))
        if self.lease in stale:
            expression.set((money_attribute(self.lease),), money_units(usd))
        elif usd:
            expression.count(money_attribute(self.lease), money_units(usd))

    @property
    def _reserved(self) -> dict[int, Decimal]:
        """Return what calls under way may give back of this month's money, by lease."""
        if self.state.month != self.month:
            return {}
        return {lease: usd for lease, usd in self.state.reserved.items() if lease > self.now}

    @property
    def _places(self) -> int:
        """Return how many calls may be under way in this item."""
        return MAX_CALLS_PER_SHARD if self.share.concurrent is None else min(self.share.concurrent, MAX_CALLS_PER_SHARD)

    @property
    def _spent(self) -> Decimal:
        """This month's money, with what was spent before anybody counted it here."""
        counted = self.state.spent if self.state.month == self.month else Decimal(0)
        return max(counted, self.opening.usd if self.opening else Decimal(0))

    def _most_spent(self, budget: Decimal) -> Decimal:
        """Return the most that may be spent for this call to fit. A call dearer than the whole budget fits while nothing is
        spent."""
        return max(Decimal(0), budget - self.asked.usd) if budget else -self.asked.usd

    def _tokens_full(self) -> NoCapacity | None:
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
        return NoCapacity(max(_SOONEST, wait), "tokens") if wait else None

    def _places_full(self) -> NoCapacity | None:
        if (self.state.active or 0) - self._freed < self._places:
            return None
        earliest = min(self.state.leases, default=self.now) - self.now
        return NoCapacity(max(_SOONEST, min(earliest, _PLACE_SECONDS)), "concurrent")

    def _budget_full(self) -> NoCapacity | None:
        budget = self.share.usd_per_month
        if budget is None or not self.asked.usd or self._spent <= self._most_spent(budget):
            return None
        reserved = self._reserved
        if any(reserved.values()) and self._spent - sum(reserved.values()) <= self._most_spent(budget):
            leases_end = max(reserved) - self.now
            return NoCapacity(max(_SOONEST, min(leases_end, _MONEY_SECONDS)), "reserved")
        return NoCapacity(max(_SOONEST, end_of_month(self.month) - self.now), "budget")
