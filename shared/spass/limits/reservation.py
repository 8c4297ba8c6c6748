"""Check whether one call fits into one item of a shared limit, and build the write that reserves its room. No I/O."""

from decimal import Decimal
from typing import Final

from spass.limits.shard_state import (
    MAX_CALLS_PER_SHARD,
    SLOT_SECONDS,
    SLOTS,
    Caps,
    Change,
    NoCapacity,
    OpeningBalance,
    ReservationRequest,
    ShardState,
    end_of_month,
    lease_end,
    month_of,
)
from spass.store.writes import ITEM_ABSENT, ITEM_EXISTS, Absent, AtMost, Equals

_CONCURRENCY_SECONDS: Final = 1.0  # until a retry when too many calls are in flight: their ends cannot be predicted
_MONEY_SECONDS: Final = 5.0  # until a retry when the budget is reserved: calls give money back at their end
_MIN_RETRY_SECONDS: Final = 0.05  # seconds until a retry, at least


class ReservationCheck:
    """Check one call against one shard, and build the write that reserves it.

    ``share`` is the shard's part of the caps. The write is for the time ``now`` and conditional on ``state``, the last known
    state of the item. ``opening`` is the month's cost so far, for an item that does not count this month yet.
    """

    def __init__(
        self, share: Caps, request: ReservationRequest, state: ShardState, now: float, opening: OpeningBalance | None = None
    ) -> None:
        self.share = share
        self.request = request
        self.state = state
        self.now = now
        self.slot = state.current_slot(now)
        self.month = max(state.month or "", month_of(now))
        self.opening = opening if opening and opening.month == self.month else None
        self.lease = lease_end(now)
        self._expired_buckets = state.expired_buckets(now)
        self._expired_leases = {lease: calls for lease, calls in state.leases.items() if lease <= now}
        self._expired_calls = sum(map(len, self._expired_leases.values()))

    @property
    def needs_opening_balance(self) -> bool:
        budget = self.share.usd_per_month
        return budget is not None and self.opening is None and not self.state.counts_money_of(self.month, budget)

    def full(self) -> NoCapacity | None:
        """Return None if there is room, otherwise the refusal with the longest ``retry_after``."""
        reasons = filter(None, (self._tokens_full(), self._concurrency_full(), self._budget_full()))
        return max(reasons, key=lambda reason: reason.retry_after, default=None)

    def change(self) -> Change:
        """Return the change that reserves the room, on condition that there is room."""
        change = self._new_change()
        self._take_place(change)
        if self.share.tokens_per_minute is not None:
            self._take_tokens(change, self.share.tokens_per_minute)
        if self.share.usd_per_month is not None:
            self._take_money(change, self.share.usd_per_month)
        return change

    def opening_write(self) -> Change:
        """Return the change that only stores the opening balance of the month, for a call that is refused."""
        change = self._new_change()
        if self.share.usd_per_month is not None:
            self._begin_counting(change, self.share.usd_per_month, Decimal(0))
        return change

    def _new_change(self) -> Change:
        return Change(when=[ITEM_EXISTS if self.state.exists else ITEM_ABSENT])

    def _take_place(self, change: Change) -> None:
        change.add_call(self.lease, self.request.call_id)
        for lease, calls in self._expired_leases.items():
            change.remove_lease(lease, len(calls))
        if self.state.active is None:
            change.when.append(Absent("active"))
            change.set["active"] = 1
        else:
            change.when.append(AtMost("active", self._concurrency - 1 + self._expired_calls))
            change.add["active"] = 1 - self._expired_calls

    def _take_tokens(self, change: Change, cap: int) -> None:
        change.count_tokens(self.state, self.now, self.request.tokens)
        if self.state.slot is not None:
            change.when.append(AtMost("used", cap - self.request.tokens + sum(self._expired_buckets.values())))

    def _take_money(self, change: Change, budget: Decimal) -> None:
        if not self.state.counts_money_of(self.month, budget):
            self._begin_counting(change, budget, self.request.usd)
        else:
            change.when.append(Equals("month", self.month))
            change.when.append(Equals("budget", budget))
            if self.request.usd:  # a spent budget does not stop a call without a price
                change.when.append(AtMost("spent", self._max_spent(budget)))
                change.add["spent"] = self.request.usd
            self._reserve_money(change, self.request.usd)

    def _begin_counting(self, change: Change, budget: Decimal, usd: Decimal) -> None:
        if self.state.month is None:
            change.when.append(Absent("month"))
        else:
            change.when.append(Equals("month", self.state.month))
            change.when.append(Equals("spent", self.state.spent))
        change.set |= {"month": self.month, "budget": budget, "spent": self._spent + usd}
        self._reserve_money(change, usd)

    def _reserve_money(self, change: Change, usd: Decimal) -> None:
        """Record that this call may give back ``usd``. Remove the records of dead workers and of last month's calls."""
        stale = self.state.reserved.keys() - self._reserved.keys()
        for lease in stale - {self.lease}:
            change.set_money(lease, None)
        if self.lease in stale:
            change.set_money(self.lease, usd)
        elif usd:
            change.add_money(self.lease, usd)

    @property
    def _reserved(self) -> dict[int, Decimal]:
        """Return the money of this month that calls in flight may give back, by lease."""
        if self.state.month != self.month:
            return {}
        return {lease: usd for lease, usd in self.state.reserved.items() if lease > self.now}

    @property
    def _concurrency(self) -> int:
        return MAX_CALLS_PER_SHARD if self.share.concurrent is None else min(self.share.concurrent, MAX_CALLS_PER_SHARD)

    @property
    def _spent(self) -> Decimal:
        counted = self.state.spent if self.state.month == self.month else Decimal(0)
        return max(counted, self.opening.usd if self.opening else Decimal(0))

    def _max_spent(self, budget: Decimal) -> Decimal:
        """Return the highest cost of the month, in US dollars, at which this call still fits. A call that costs more than the
        budget fits while nothing is spent."""
        return max(Decimal(0), budget - self.request.usd) if budget else -self.request.usd

    def _tokens_full(self) -> NoCapacity | None:
        cap = self.share.tokens_per_minute
        if cap is None:
            return None
        over = sum(self.state.window.values()) - sum(self._expired_buckets.values()) + self.request.tokens - cap
        wait = 0.0
        for slot in sorted(self.state.window.keys() - self._expired_buckets.keys()):
            if over <= 0:
                break
            over -= self.state.window[slot]
            wait = (slot + SLOTS) * SLOT_SECONDS - self.now
        return NoCapacity(max(_MIN_RETRY_SECONDS, wait), "tokens") if wait else None

    def _concurrency_full(self) -> NoCapacity | None:
        if (self.state.active or 0) - self._expired_calls < self._concurrency:
            return None
        earliest = min(self.state.leases, default=self.now) - self.now
        return NoCapacity(max(_MIN_RETRY_SECONDS, min(earliest, _CONCURRENCY_SECONDS)), "concurrent")

    def _budget_full(self) -> NoCapacity | None:
        budget = self.share.usd_per_month
        if budget is None or not self.request.usd or self._spent <= self._max_spent(budget):
            return None
        reserved = self._reserved
        if any(reserved.values()) and self._spent - sum(reserved.values()) <= self._max_spent(budget):
            leases_end = max(reserved) - self.now
            return NoCapacity(max(_MIN_RETRY_SECONDS, min(leases_end, _MONEY_SECONDS)), "reserved")
        return NoCapacity(max(_MIN_RETRY_SECONDS, end_of_month(self.month) - self.now), "budget")
