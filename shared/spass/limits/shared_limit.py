"""Limits that all workers share through the table: tokens a minute, calls at once, money a month.

A call reserves, runs and settles. Reserving and settling are usually one conditional update each. The item holds the call's id,
so both take effect only once, even if they are sent again. If a worker dies, its reservation ends with its lease, and its tokens
leave the window after a minute. Its money stays counted, because the provider probably billed it.

A large limit has several items (shards), each with its part of the caps. A process prefers one of them and uses the others when
that one is full.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Final

import anyio

from spass.core.errors import storage_timeout
from spass.core.tasks import run_concurrently
from spass.limits.shard import LimitTable, Reservation, Shard
from spass.limits.shard_state import Caps, NoCapacity, ReservationRequest
from spass.store.keys import Key
from spass.store.table import ConditionFailed
from spass.store.writes import Exists, Update

# Caps of one shard. They are large, so that one call takes only a small part.
_TOKENS_PER_SHARD: Final = 1_000_000
_CALLS_PER_SHARD: Final = 32
_USD_PER_SHARD: Final = 500
_MAX_SHARDS: Final = 16

_USD_PRECISION: Final = Decimal("1e-12")


class SharedLimit:
    """The limit of one tenant or backend. Keep the object: its cached state saves a read.

    ``partition`` returns the key of the shard with a number. ``spent_before`` returns the cost of a month (``2026-11``)
    according to the usage records. It is the opening balance of a budget that is new in this month.
    """

    def __init__(
        self,
        table: LimitTable,
        partition: Callable[[int], Key],
        caps: Caps,
        *,
        clock: Callable[[], float] = time.time,
        spent_before: Callable[[str], Awaitable[Decimal]] | None = None,
    ) -> None:
        self.caps = caps
        self._spent_before = spent_before
        self._shards = [Shard(table, partition(number), share, clock) for number, share in enumerate(_shares(caps))]
        self._preferred_shard = random.choice(self._shards)  # noqa: S311 (spreads load)
        self._cleanup_tasks: set[asyncio.Task[None]] = set()

    async def reserve(
        self, call_id: str, *, tokens: int, usd: Decimal = Decimal(0), seconds: float | None = None
    ) -> Reservation | NoCapacity:
        """Reserve ``tokens`` (at most the cap) and ``usd`` for the call ``call_id``, or return why there is no room.

        A reservation that takes longer than ``seconds`` is settled with zero tokens when it is complete.

        Raises:
            StorageUnavailable: the table did not answer in time. A reservation may exist until its lease and the window end.
        """
        pending = asyncio.ensure_future(self._reserve(ReservationRequest(call_id, tokens, usd)))
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(pending)
        except TimeoutError:
            self._settle_later(pending)
            raise storage_timeout() from None
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await asyncio.wait({self._settle_later(pending)}, timeout=seconds)
            raise

    def _settle_later(self, pending: asyncio.Future[Reservation | NoCapacity]) -> asyncio.Task[None]:
        """Settle the reservation of ``pending`` with zero tokens when it is complete: its caller has stopped waiting."""

        async def settle() -> None:
            await asyncio.wait({pending})
            if (
                not pending.cancelled()
                and pending.exception() is None
                and isinstance(reservation := pending.result(), Reservation)
            ):
                await reservation.settle(tokens=0)

        task = asyncio.create_task(settle())
        self._cleanup_tasks.add(task)
        task.add_done_callback(self._cleanup_tasks.discard)
        return task

    async def _reserve(self, request: ReservationRequest) -> Reservation | NoCapacity:
        others = [shard for shard in self._shards if shard is not self._preferred_shard]
        random.shuffle(others)
        refusals: list[NoCapacity] = []
        for shard in (self._preferred_shard, *others):
            answer = await shard.reserve(request, partial(self._opening_balance, shard))
            if isinstance(answer, Reservation):
                return answer
            refusals.append(answer)
        return min(refusals, key=lambda refusal: refusal.retry_after)

    async def count_in_flight(self, max_age: float = 1.0) -> int:
        """Return the number of calls in flight, at most ``max_age`` seconds old, or raise ``StorageUnavailable``."""
        return sum(await asyncio.gather(*(shard.count_in_flight(max_age) for shard in self._shards)))

    @property
    def spent(self) -> Decimal:
        """Return the cost of the month according to the cached states of the shards, including reservations. It is
        complete after a refusal for a full budget, because that has read every shard."""
        return sum((shard.spent for shard in self._shards), Decimal(0))

    async def _opening_balance(self, new_shard: Shard, month: str) -> Decimal:
        """Return the opening balance of ``new_shard``. The cost of the month that no shard has counted yet is divided equally
        between the shards without a balance. With several shards, the result is at most the budget of the shard."""
        if self._spent_before is None:
            return Decimal(0)
        remaining, uncounted_shards = await self._spent_before(month), 1
        for shard in self._shards:
            if shard is new_shard:
                continue
            state = await shard.read()
            if state.month == month:
                remaining -= min(state.spent, shard.budget)
            else:
                uncounted_shards += 1
        part = max(Decimal(0), remaining / uncounted_shards).quantize(_USD_PRECISION)
        return part if len(self._shards) == 1 else min(part, new_shard.budget)


async def forget_spending(table: LimitTable, partition: Callable[[int], Key]) -> None:
    """Let the next reservation compute the opening balance again. Call it before a budget is set, because costs are not counted
    while there is none."""

    async def forget(number: int) -> None:
        with suppress(ConditionFailed):
            await table.write(Update(partition(number), remove=("budget",), when=Exists("budget")))

    await run_concurrently([forget(number) for number in range(_MAX_SHARDS)])


def _shares(caps: Caps) -> list[Caps]:
    """Return the caps of each shard; their sum is ``caps``."""
    tokens, concurrent, usd = caps.tokens_per_minute, caps.concurrent, caps.usd_per_month
    shard_counts = [
        int(cap // per_shard)
        for cap, per_shard in ((tokens, _TOKENS_PER_SHARD), (concurrent, _CALLS_PER_SHARD), (usd, _USD_PER_SHARD))
        if cap is not None
    ]
    count = max(1, min(*shard_counts, _MAX_SHARDS)) if shard_counts else 1
    return [
        Caps(
            None if tokens is None else (tokens + number) // count,
            None if concurrent is None else (concurrent + number) // count,
            None if usd is None else usd / count,
        )
        for number in range(count)
    ]
