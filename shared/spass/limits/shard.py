"""One item (shard) of a shared limit: reserve room in it, renew the lease while a call runs, and settle."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from decimal import Decimal
from typing import Final, Protocol

from spass.core.errors import StorageUnavailable, storage_timeout
from spass.limits.reservation import ReservationCheck
from spass.limits.shard_state import (
    MARGIN_SECONDS,
    SLOT_SECONDS,
    Caps,
    Change,
    NoCapacity,
    OpeningBalance,
    ReservationRequest,
    ShardState,
    lease_end,
)
from spass.redaction.log import write_event
from spass.store.keys import Key
from spass.store.leases import RENEW_SECONDS
from spass.store.shielded import run_shielded
from spass.store.table import ConditionFailed
from spass.store.writes import Equals, Exists, Item, Update

_ATTEMPTS: Final = 10  # a write fails only if another one succeeded
_SETTLE_ATTEMPTS: Final = 5
_CONTENTION_RETRY_SECONDS: Final = 0.1  # after the last of ``_ATTEMPTS``


async def no_opening_balance(_month: str) -> Decimal:
    """Return 0 for every month."""
    return Decimal(0)


class LimitTable(Protocol):
    """The operations of a table that a limit uses."""

    async def get(self, key: Key, *, consistent: bool = True) -> Item | None: ...

    async def write(self, write: Update) -> Item | None: ...


class Shard:
    """One item of a limit. ``share`` is its part of the caps."""

    def __init__(self, table: LimitTable, key: Key, share: Caps, clock: Callable[[], float]) -> None:
        self.share = share
        self._table = table
        self._key = key
        self._clock = clock
        self._cached: ShardState | None = None
        self._cached_at = float("-inf")

    async def reserve(
        self, request: ReservationRequest, opening_of: Callable[[str], Awaitable[Decimal]] = no_opening_balance
    ) -> "Reservation | NoCapacity":
        """Reserve the room for one call. ``opening_of`` returns the opening balance of a month. A cancelled caller gives the room
        back. Raise the errors of ``write``."""
        cap = self.share.tokens_per_minute
        request = request._replace(tokens=0 if cap is None else min(request.tokens, cap))
        check = await self._check(request, self.cached_state, opening_of)
        if check.opening is not None and check.full():
            # The write that begins to count a month or a budget sets ``spent``, so it cannot have a condition on it.
            check = await self._check(request, await self.read(), opening_of)
            if full := check.full():
                return await self._refuse(check, full)
        for _ in range(_ATTEMPTS):
            reservation = Reservation(self, request, check)
            try:
                state = await self.write(check.change())
            except ConditionFailed as failed:
                state = self.cache_state(failed.item)
            except (StorageUnavailable, asyncio.CancelledError):
                await reservation.settle(tokens=0)
                raise
            if state.lease_of(request.call_id) is not None:
                if self._clock() <= check.now + MARGIN_SECONDS:
                    return reservation
                await reservation.settle(tokens=0)  # the write took so long that its bucket may leave the window too early
                state = await self.read()
                if state.lease_of(request.call_id) is not None:  # a second reservation would count the call's money twice
                    raise storage_timeout()
            check = await self._check(request, state, opening_of)
            if full := check.full():
                return await self._refuse(check, full)
        return NoCapacity(_CONTENTION_RETRY_SECONDS, "concurrent" if cap is None else "tokens")

    async def _refuse(self, check: ReservationCheck, full: NoCapacity) -> NoCapacity:
        """Return ``full``. Store an opening balance first, so that the next call does not compute it again."""
        if check.opening is not None:
            with suppress(ConditionFailed, StorageUnavailable):  # another worker stored it, or the next call does
                await self.write(check.opening_write())
        return full

    async def write(self, change: Change) -> ShardState:
        """Change the item and return it. The table may send the write twice: the call's id in the item makes it idempotent. After
        ``StorageUnavailable`` it is unknown whether the change took effect."""
        return self.cache_state(await self._table.write(change.update(self._key)))

    async def count_in_flight(self, max_age: float) -> int:
        now = self._clock()
        state = self._cached if self._cached and now - self._cached_at <= max_age else await self.read()
        return state.calls_in_flight(now)

    @property
    def now(self) -> float:
        return self._clock()

    @property
    def cached_state(self) -> ShardState:
        """Return the state last read. If it is too old, assume contention: a write with a wrong assumption fails and returns the
        item."""
        known, age = self._cached, self._clock() - self._cached_at
        if known is None or (known.active and age > SLOT_SECONDS):
            return ShardState.assume_contention(self._clock(), self.share)
        return known

    @property
    def budget(self) -> Decimal:
        return self.share.usd_per_month or Decimal(0)

    @property
    def spent(self) -> Decimal:
        return self._cached.spent if self._cached else Decimal(0)

    async def read(self) -> ShardState:
        return self.cache_state(await self._table.get(self._key))

    def cache_state(self, item: Item | None) -> ShardState:
        self._cached, self._cached_at = ShardState.of(item), self._clock()
        return self._cached

    async def _check(
        self, request: ReservationRequest, state: ShardState, opening_of: Callable[[str], Awaitable[Decimal]]
    ) -> ReservationCheck:
        check = ReservationCheck(self.share, request, state, self._clock())
        while check.needs_opening_balance:  # repeated if the month ends meanwhile
            opening = OpeningBalance(check.month, await opening_of(check.month))
            check = ReservationCheck(self.share, request, state, self._clock(), opening)
        return check


class Reservation:
    """The room that one call holds. Renew it while the call runs, and always settle it."""

    def __init__(self, shard: Shard, request: ReservationRequest, check: ReservationCheck) -> None:
        self._shard = shard
        self._request = request
        self._slot = check.slot
        self._month = check.month
        self._lease = check.lease
        self._settled = False
        self._timer: asyncio.TimerHandle | None = None
        self._renewals: asyncio.Task[None] | None = None

    def renew_until_settled(self, every: float = RENEW_SECONDS) -> None:
        """Renew the lease every ``every`` seconds from now on. A short call starts no task."""

        async def renew_repeatedly() -> None:
            while True:
                await self.renew()
                await asyncio.sleep(every)

        def start() -> None:
            self._renewals = loop.create_task(renew_repeatedly())

        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(every, start)

    async def renew(self) -> None:
        """Renew the lease. Log a failure and do not raise it: the next renewal may succeed, and after a lost lease the limit only
        counts one call too few."""
        lease = lease_end(self._shard.now)
        if lease == self._lease:
            return
        stored_state: ShardState | None = None
        for _ in range(2):
            try:
                await self._shard.write(self._renewal(stored_state, lease))
            except StorageUnavailable:
                write_event("limit_not_renewed", {})
                return
            except ConditionFailed as failed:
                stored_state = ShardState.of(failed.item)
                stored_lease = stored_state.lease_of(self._request.call_id)
                if stored_lease is None:
                    write_event("limit_lease_lost", {})
                    return
                if stored_lease == lease or stored_lease != self._lease:
                    self._lease = stored_lease  # a reply was lost, or another renewal of this call came first
                    return
                # The month ended meanwhile, so the item forgot the money that the call reserved.
            else:
                self._lease = lease
                return

    def _renewal(self, state: ShardState | None, lease: int) -> Change:
        change = Change()
        self._release(change, state)
        change.add_call(lease, self._request.call_id)
        if self._may_give_back(state):
            change.add_money(lease, self._request.usd)
        return change

    def _release(self, change: Change, state: ShardState | None) -> None:
        """Remove the call from its lease, on condition that it is there, and its money from the lease's reserved money."""
        change.remove_call(self._lease, self._request.call_id)
        if self._may_give_back(state):
            change.when.append(Equals("month", self._month))
            change.add_money(self._lease, -self._request.usd)

    async def settle(self, *, tokens: int, usd: Decimal = Decimal(0)) -> None:
        """Replace the reserved amounts by the used ones, and end the lease. Only the first call takes effect. A cancelled caller
        waits until it has. If the table does not answer, this only logs: the reservation counts until its lease has ended and its
        bucket has left the window."""
        if not self._settled:
            self._settled = True
            try:
                await self._settle(tokens, usd)
            except asyncio.CancelledError:
                await run_shielded(self._settle(tokens, usd))  # without effect if the first attempt had one
                raise

    async def _settle(self, tokens: int, usd: Decimal) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._renewals is not None:
            self._renewals.cancel()
            await asyncio.wait({self._renewals})
        stored_state: ShardState | None = None
        for _ in range(_SETTLE_ATTEMPTS):
            try:
                await self._shard.write(self._settlement(stored_state, tokens, usd))
            except ConditionFailed as failed:
                stored_state = self._shard.cache_state(failed.item)
                lease = stored_state.lease_of(self._request.call_id)
                if lease is None:
                    return  # an attempt whose reply was lost has settled it, or the lease has ended
                self._lease = lease
            except StorageUnavailable:
                break
            else:
                return
        write_event("limit_not_settled", {})

    def _settlement(self, state: ShardState | None, tokens: int, usd: Decimal) -> Change:
        """Return the write that settles the call. ``state`` is the item that refused the last attempt. The first attempt (None)
        assumes that the bucket and the month of the reservation have not changed."""
        caps = self._shard.share
        change = Change()
        self._release(change, state)
        change.add["active"] = -1
        if caps.tokens_per_minute is not None:
            self._settle_tokens(change, state, tokens - self._request.tokens)
        if caps.usd_per_month is not None and usd != self._request.usd and (state is None or state.month == self._month):
            if not self._may_give_back(state):
                change.when.append(Equals("month", self._month))
            change.add["spent"] = usd - self._request.usd
        return change

    def _settle_tokens(self, change: Change, state: ShardState | None, difference: int) -> None:
        """Adjust the window by ``difference``, the used tokens minus the reserved ones.

        Count extra tokens in the current bucket, as the reservation's bucket may have left the window. Return unused tokens to
        the reservation's bucket: in another one they would allow more than the cap.
        """
        if difference > 0:
            change.count_tokens(state or self._shard.cached_state, self._shard.now, difference)
        elif difference < 0 and (state is None or self._slot in state.window):
            bucket = f"window.{self._slot}"
            change.when.append(Exists(bucket))
            change.add[bucket] = difference
            change.add["used"] = difference

    def _may_give_back(self, state: ShardState | None) -> bool:
        """Return True if the item still counts the money that the call reserved. A new month resets that money.

        ``state`` is the item that refused the last attempt. The first attempt (None) assumes the same month and makes that a
        condition of its write. Do not use the cached state here, because replies may arrive out of order.
        """
        money = self._shard.share.usd_per_month is not None and bool(self._request.usd)
        return money and (state is None or state.month == self._month)
