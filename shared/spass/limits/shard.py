"""One item of a shared limit at work: what is reserved in it, kept while a call runs, and settled."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from typing import Final, Protocol

import anyio

from spass.aws.attributes import Item
from spass.aws.keys import Key
from spass.aws.leases import RENEW_SECONDS
from spass.aws.log import write_line
from spass.aws.table import ConditionFailed
from spass.aws.writes import Contains, Equals, Exists, Update
from spass.core.errors import StorageUnavailable
from spass.core.time import now
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
    calls_attribute,
    count_tokens,
    lease_end,
    money_attribute,
    money_units,
)

_ATTEMPTS: Final = 10  # each is overtaken only by another's that succeeds
_SETTLING_ATTEMPTS: Final = 5
_CROWDED: Final = 0.1  # seconds until it is worth trying again after all those


class LimitTable(Protocol):
    """What a limit needs of a table."""

    async def get(self, key: Key, *, consistent: bool = True) -> Item | None: ...

    async def write(self, write: Update) -> Item | None: ...


class Shard:
    """One item of a limit."""

    def __init__(self, table: LimitTable, key: Key, share: Caps, clock: Callable[[], float]) -> None:
        self.share = share
        self._table = table
        self._key = key
        self._clock = clock
        self._seen: ShardState | None = None
        self._seen_at = float("-inf")

    async def reserve(
        self, asked: ReservationRequest, opening_of: Callable[[str], Awaitable[Decimal]]
    ) -> "Reservation | NoCapacity":
        cap = self.share.tokens_per_minute
        asked = asked._replace(tokens=0 if cap is None else min(asked.tokens, cap))
        reservation = await self._reservation(asked, self.seen, opening_of)
        if reservation.opening is not None and reservation.full():
            # The write that begins to count a month or a budget sets what is spent, and so cannot ask whether it is too much.
            reservation = await self._reservation(asked, await self.read(), opening_of)
            if full := reservation.full():
                return await self._refused(reservation, full)
        for _ in range(_ATTEMPTS):
            hold = Reservation(self, asked, reservation)
            try:
                state = await self._take(reservation)
            except (StorageUnavailable, asyncio.CancelledError):
                with anyio.CancelScope(shield=True):
                    await hold.settle(tokens=0)
                raise
            if state.lease_of(asked.call_id) is not None:
                if self._clock() <= reservation.now + MARGIN_SECONDS:
                    return hold
                await hold.settle(tokens=0)  # it was under way for so long that its bucket may pass too early
                state = await self.read()
            reservation = await self._reservation(asked, state, opening_of)
            if full := reservation.full():
                return await self._refused(reservation, full)
        return NoCapacity(_CROWDED, "concurrent" if cap is None else "tokens")

    async def _take(self, reservation: ReservationCheck) -> ShardState:
        """The item after the write that makes ``reservation``, or, where it was refused, as it is."""
        try:
            return await self.write(reservation.change())
        except ConditionFailed as failed:
            return self.remember(failed.item)

    async def _refused(self, reservation: ReservationCheck, full: NoCapacity) -> NoCapacity:
        """``full``. What was summed up to know it is written down, or the next call would sum it up again."""
        if reservation.opening is not None:
            with suppress(ConditionFailed, StorageUnavailable):  # somebody else has done it; the next call does it
                await self.write(reservation.opened())
        return full

    async def write(self, change: Change) -> ShardState:
        """Change the item and return it. The table may send the write twice: the call's name in the item makes it idempotent.

        Raises:
            ConditionFailed: the item is not as ``change`` requires.
            StorageUnavailable: the table does not answer; whether the change took effect is unknown.
        """
        return self.remember(await self._table.write(change.update(self._key)))

    async def count_in_flight(self, max_age: float) -> int:
        now = self._clock()
        state = self._seen if self._seen and now - self._seen_at <= max_age else await self.read()
        return state.under_way(now)

    @property
    def now(self) -> float:
        return self._clock()

    @property
    def seen(self) -> ShardState:
        """Return the item as it was last seen. Where that says nothing about now, guess that others are at work: a write that
        assumes the wrong thing is refused, and shows how it is."""
        known, age = self._seen, self._clock() - self._seen_at
        if known is None or (known.active and age > SLOT_SECONDS):
            return ShardState.assume_contention(self._clock(), self.share)
        return known

    @property
    def budget(self) -> Decimal:
        """Its share of the money."""
        return self.share.usd_per_month or Decimal(0)

    @property
    def spent(self) -> Decimal:
        return self._seen.spent if self._seen else Decimal(0)

    async def read(self) -> ShardState:
        return self.remember(await self._table.get(self._key))

    def lease(self) -> int:
        return lease_end(self._clock())

    def remember(self, item: Item | None) -> ShardState:
        self._seen, self._seen_at = ShardState.of(item), self._clock()
        return self._seen

    async def _reservation(
        self, asked: ReservationRequest, state: ShardState, opening_of: Callable[[str], Awaitable[Decimal]]
    ) -> ReservationCheck:
        reservation = ReservationCheck(self.share, asked, state, self._clock())
        while reservation.needs_opening:  # again, if the month ends meanwhile
            opening = OpeningBalance(reservation.month, await opening_of(reservation.month))
            reservation = ReservationCheck(self.share, asked, state, self._clock(), opening)
        return reservation


class Reservation:
    """A reservation that was made. Renew it every ``RENEW_SECONDS`` (``renew_while_running`` does) and settle it, however the
    call ended."""

    def __init__(self, shard: Shard, asked: ReservationRequest, reservation: ReservationCheck) -> None:
        self._shard = shard
        self._asked = asked
        self._slot = reservation.slot
        self._month = reservation.month
        self._lease = reservation.lease
        self._settled = False

    async def renew(self) -> None:
        """Never raises: where a renewal fails, the next one may not, and a place that was lost is only counted no more."""
        lease = self._shard.lease()
        if lease == self._lease:
            return
        refused: ShardState | None = None
        for _ in range(2):
            try:
                await self._shard.write(self._renewal(refused, lease))
            except StorageUnavailable:
                self._log("limit_not_renewed")
                return
            except ConditionFailed as failed:
                refused = ShardState.of(failed.item)
                found = refused.lease_of(self._asked.call_id)
                if found is None:
                    self._log("limit_lease_lost")
                    return
                if found != self._lease:
                    self._lease = found  # a reply was lost, of this try or an earlier one
                    return
                # The month ended meanwhile, and with it what the call reserved of its money.
            else:
                self._lease = lease
                return

    def _renewal(self, state: ShardState | None, lease: int) -> Change:
        change = Change()
        self._release(change, state)
        change.add[calls_attribute(lease)] = frozenset({self._asked.call_id})
        if self._may_give_back(state):
            change.add[money_attribute(lease)] = money_units(self._asked.usd)
        return change

    def _release(self, change: Change, state: ShardState | None) -> None:
        """Take the call out of the calls of its lease, where it must be, and its money out of what they may give back."""
        change.when.append(Contains(calls_attribute(self._lease), self._asked.call_id))
        change.discard[calls_attribute(self._lease)] = frozenset({self._asked.call_id})
        if self._may_give_back(state):
            change.when.append(Equals("month", self._month))
            change.add[money_attribute(self._lease)] = -money_units(self._asked.usd)

    async def settle(self, *, tokens: int, usd: Decimal = Decimal(0)) -> None:
        """Replace what was reserved by what the call really took, and free its place. Do it once; never raise: if the table does
        not answer, the reservation stays counted until the lease and the window have passed."""
        if self._settled:
            return
        self._settled = True
        refused: ShardState | None = None
        for _ in range(_SETTLING_ATTEMPTS):
            try:
                await self._shard.write(self._settlement(refused, tokens, usd))
            except ConditionFailed as failed:
                refused = self._shard.remember(failed.item)
                lease = refused.lease_of(self._asked.call_id)
                if lease is None:
                    return  # settled by a try whose reply was lost, or the lease had run out
                self._lease = lease
            except StorageUnavailable:
                break
            else:
                return
        self._log("limit_not_settled")

    def _settlement(self, state: ShardState | None, tokens: int, usd: Decimal) -> Change:
        """Return the write that settles the call. ``state`` is the item that refused the last try; None for the first try, which
        takes bucket and month of the reservation for unchanged."""
        caps = self._shard.share
        change = Change()
        self._release(change, state)
        change.add["active"] = -1
        if caps.tokens_per_minute is not None:
            self._settle_tokens(change, state, tokens - self._asked.tokens)
        if caps.usd_per_month is not None and usd != self._asked.usd and (state is None or state.month == self._month):
            if not self._may_give_back(state):
                change.when.append(Equals("month", self._month))
            change.add["spent"] = usd - self._asked.usd
        return change

    def _settle_tokens(self, change: Change, state: ShardState | None, more: int) -> None:
        """Count the tokens beyond the reservation in the current bucket, since the window may have lost the reservation's own, or
        is about to. Give unused ones back to the bucket that holds them: any other one would let through more than the cap."""
        if more > 0:
            count_tokens(change, state or self._shard.seen, self._shard.now, more)
        elif more < 0 and (state is None or self._slot in state.window):
            bucket = f"window.{self._slot}"
            change.when.append(Exists(bucket))
            change.add[bucket] = more
            change.add["used"] = more

    def _may_give_back(self, state: ShardState | None) -> bool:
        """Tell whether the item counts what the call reserved of the month's money: it forgets that with the month.

        ``state`` is the item that refused the last try. The first try, with None, takes the month for unchanged, on that
        condition. What this worker saw last does not decide: replies may arrive out of order.
        """
        money = self._shard.share.usd_per_month is not None and bool(self._asked.usd)
        return money and (state is None or state.month == self._month)

    def _log(self, event: str) -> None:
        write_line({"at": now(), "level": "warning", "event": event})


@asynccontextmanager
async def renew_while_running(hold: Reservation, *, every: float = RENEW_SECONDS) -> AsyncIterator[None]:
    """Renew ``hold`` every ``every`` seconds while the body runs. A short call costs no task."""
    renewals: list[asyncio.Task[None]] = []

    async def renew_on() -> None:
        while True:
            await hold.renew()
            await asyncio.sleep(every)

    loop = asyncio.get_running_loop()
    first = loop.call_later(every, lambda: renewals.append(loop.create_task(renew_on())))
    try:
        yield
    finally:
        first.cancel()
        for task in renewals:
            task.cancel()
        if renewals:
            await asyncio.wait(renewals)
